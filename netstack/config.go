package netstack

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/softrnic/softrnic/tap"
)

// Limits of Config.
const (
	MinMTU  = 576   // octets of an IP packet
	MaxMTU  = 65521 // what TCP's MSS option and super-packets allow
	MinMTU6 = 1280  // RFC 8200 section 5

	// minSendBuffer holds three of the largest batches: Conn's accounting of
	// send space can vouch for a third of the buffer.
	minSendBuffer    = 256 << 10
	minReceiveBuffer = 128 << 10
	maxBuffer        = 64 << 20
)

// Route leads to the addresses of Dst, through the neighbour Via, or directly
// where Via is the zero Addr.
type Route struct {
	Dst netip.Prefix
	Via netip.Addr
}

// Config says what a Stack is. The zero value of a field other than Addrs means
// the default that its comment gives.
type Config struct {
	// Addrs are the stack's addresses with the length of their subnets, of either
	// family; at least one.
	Addrs []netip.Prefix
	// Gateways are the default routes, at most one per family, each in a subnet of
	// Addrs.
	Gateways []netip.Addr
	// Routes are further static routes.
	Routes []Route
	// MAC is the stack's Ethernet address; nil means the device's.
	MAC net.HardwareAddr
	// MTU is the largest IP packet on the wire in octets, 576 to 65521; 0 means the
	// device's. It is rounded down to a multiple of 4, since FPDUs are.
	MTU int
	// VLAN is the 802.1Q tag, 1 to 4094, that frames carry on the wire; 0 means
	// untagged.
	VLAN uint16
	// SpinFor is the longest time that a receive loop looks for the next frame
	// before it sleeps; 0 means adaptive up to 100 us, less than 0 never.
	SpinFor time.Duration
	// NoACKHold sends every pure ACK at once. Otherwise they are held while a batch
	// of frames is worked on, and left out where a data segment says the same.
	NoACKHold bool
	// NoRACK turns RACK loss detection off, for segments of the network that never
	// lose or reorder.
	NoRACK bool
	// SendBuffer and ReceiveBuffer are octets per connection; 0 means 1 MiB and
	// 4 MiB. TCP's window is half of ReceiveBuffer. Each queued segment counts for
	// about 600 octets more than it carries, so what Receive is asked for as a whole
	// must not come in more than ReceiveBuffer / 600 segments: an FPDU of 1400 octets
	// may come in segments of one octet, one of 64 KiB may not.
	SendBuffer, ReceiveBuffer int
	// UserTimeout is how long sent octets may stay unacknowledged before the
	// connection fails with llp.ErrTimeout; 0 means 60 s.
	UserTimeout time.Duration
	// KeepAlive is how long a connection is idle before it is probed; 0 means 20 s,
	// less than 0 never. It fails after six probes a quarter of that apart, but at least a second.
	KeepAlive time.Duration
	// TimeWait is how long TCP holds the addresses of a connection that it closed
	// first; 0 means 1 s.
	TimeWait time.Duration
	// Logger takes what happens to the stack itself; nil discards.
	Logger *slog.Logger
}

// settled checks c against dev and returns it with every default filled in.
func (c Config) settled(dev tap.Device) (Config, error) {
	if len(c.Addrs) == 0 {
		return c, errors.New("netstack: no address: give at least one, such as 10.0.0.1/24")
	}
	c.Addrs = slices.Clone(c.Addrs)
	for i, p := range c.Addrs {
		a := p.Addr()
		if a.Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
			a, c.Addrs[i] = p.Addr(), p
		}
		switch {
		case !p.IsValid():
			return c, fmt.Errorf("netstack: address %v: not an address with a subnet length, such as 10.0.0.1/24", p)
		case a.Zone() != "":
			return c, fmt.Errorf("netstack: address %v: a zone has no meaning here: leave it out", p)
		case a.IsUnspecified(), a.IsMulticast(), a.IsLoopback(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
			return c, fmt.Errorf("netstack: address %v: not a unicast address that a host can have on a wire", p)
		case a.Is4() && p.Bits() < 31 && (a == p.Masked().Addr() || a == lastOf(p)):
			return c, fmt.Errorf("netstack: address %v: the network's own or its broadcast address: give a host's", p)
		}
		for _, q := range c.Addrs[:i] {
			if q.Addr() == a {
				return c, fmt.Errorf("netstack: address %v: given twice", a)
			}
		}
	}
	if err := c.checkRoutes(); err != nil {
		return c, err
	}
	if c.MAC == nil {
		c.MAC = dev.MAC()
	}
	if len(c.MAC) != 6 || c.MAC[0]&1 != 0 || slices.Equal(c.MAC, make([]byte, 6)) {
		return c, fmt.Errorf("netstack: MAC %v: not a unicast Ethernet address", c.MAC)
	}
	if c.MTU == 0 {
		c.MTU = dev.MTU()
	} else if c.MTU > dev.MTU() {
		return c, fmt.Errorf("netstack: MTU %d: larger than that of %s, %d", c.MTU, dev.Name(), dev.MTU())
	}
	if c.MTU < MinMTU || c.MTU > MaxMTU {
		return c, fmt.Errorf("netstack: MTU %d of %s: outside %d to %d", c.MTU, dev.Name(), MinMTU, MaxMTU)
	}
	c.MTU &^= 3
	if c.MTU < MinMTU6 && slices.ContainsFunc(c.Addrs, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		return c, fmt.Errorf("netstack: MTU %d: IPv6 needs at least %d (RFC 8200 section 5)", c.MTU, MinMTU6)
	}
	if c.VLAN > 4094 {
		return c, fmt.Errorf("netstack: VLAN %d: outside 1 to 4094", c.VLAN)
	}
	for _, b := range []struct {
		name          string
		n             *int
		def, min, max int
	}{
		{"send", &c.SendBuffer, 1 << 20, minSendBuffer, maxBuffer},
		{"receive", &c.ReceiveBuffer, 4 << 20, minReceiveBuffer, maxBuffer},
	} {
		if *b.n == 0 {
			*b.n = b.def
		}
		if *b.n < b.min || *b.n > b.max {
			return c, fmt.Errorf("netstack: %s buffer of %d octets: outside %d to %d", b.name, *b.n, b.min, b.max)
		}
	}
	if c.SpinFor == 0 {
		c.SpinFor = 100 * time.Microsecond
	}
	c.SpinFor = max(c.SpinFor, 0)
	if c.UserTimeout == 0 {
		c.UserTimeout = 60 * time.Second
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = 20 * time.Second
	}
	if c.TimeWait == 0 {
		c.TimeWait = time.Second
	}
	if c.UserTimeout < 0 || c.TimeWait < 0 {
		return c, fmt.Errorf("netstack: user timeout %v, TIME_WAIT %v: less than nothing", c.UserTimeout, c.TimeWait)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// checkRoutes checks that every gateway is a neighbour and every destination has
// one route.
func (c *Config) checkRoutes() error {
	var seen []netip.Prefix
	for _, g := range c.Gateways {
		if err := c.checkNeighbour("gateway", g); err != nil {
			return err
		}
		dst := netip.PrefixFrom(zeroOf(g), 0)
		if slices.Contains(seen, dst) {
			return fmt.Errorf("netstack: gateway %v: a second default route for the same family", g)
		}
		seen = append(seen, dst)
	}
	for _, r := range c.Routes {
		switch {
		case !r.Dst.IsValid():
			return fmt.Errorf("netstack: route to %v: not a subnet, such as 10.1.0.0/16", r.Dst)
		case r.Dst.Masked() != r.Dst:
			return fmt.Errorf("netstack: route to %v: has bits beyond its length: did you mean %v?", r.Dst, r.Dst.Masked())
		case slices.Contains(seen, r.Dst):
			return fmt.Errorf("netstack: route to %v: given twice", r.Dst)
		}
		seen = append(seen, r.Dst)
		if !r.Via.IsValid() {
			if !slices.ContainsFunc(c.Addrs, func(p netip.Prefix) bool { return p.Addr().Is4() == r.Dst.Addr().Is4() }) {
				return fmt.Errorf("netstack: route to %v: the stack has no address of that family", r.Dst)
			}
			continue
		}
		if r.Via.Is4() != r.Dst.Addr().Is4() {
			return fmt.Errorf("netstack: route to %v via %v: different families", r.Dst, r.Via)
		}
		if err := c.checkNeighbour("via", r.Via); err != nil {
			return err
		}
	}
	return nil
}

// checkNeighbour checks that g lies in a subnet of ours and is not ourselves.
func (c *Config) checkNeighbour(what string, g netip.Addr) error {
	if !g.IsValid() || g.IsUnspecified() || g.IsMulticast() {
		return fmt.Errorf("netstack: %s %v: not a unicast address", what, g)
	}
	on := false
	for _, p := range c.Addrs {
		if p.Addr() == g {
			return fmt.Errorf("netstack: %s %v: is an address of this stack", what, g)
		}
		on = on || p.Contains(g)
	}
	if !on && !g.IsLinkLocalUnicast() {
		return fmt.Errorf("netstack: %s %v: in none of the subnets of %v, so it cannot be reached directly", what, g, c.Addrs)
	}
	return nil
}

// zeroOf returns the unspecified address of a's family.
func zeroOf(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// lastOf returns the last address of an IPv4 subnet, its broadcast address.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}
