package netstack

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/tap"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// nicID is the one interface of a Stack.
const nicID tcpip.NICID = 1

// What TCP is told, beside Config; doc.go says why.
const (
	minRTO = 10 * time.Millisecond
	maxRTO = 2 * time.Second
	// maxRetries leaves the end of a connection to the user timeout.
	maxRetries = 1 << 20
	// minKeepAlive is the least time between two probes: TCP answers out of window
	// segments, which probes are, twice a second at most (RFC 5961 section 7).
	minKeepAlive = time.Second
	// keepAliveCount probes go unanswered before a connection fails.
	keepAliveCount = 6
)

// Stack is a TCP/IP stack on one Ethernet device. It implements llp.Stack. Its
// methods may be called from any goroutine.
type Stack struct {
	cfg  Config
	ns   *stack.Stack
	link *link

	done    chan struct{} // closed as Close begins: ends Accept and Dial
	closing sync.Once
	closed  chan struct{} // closed when Close has done its work

	announcing sync.WaitGroup
}

var _ llp.Stack = (*Stack)(nil)

// New makes a stack of cfg on dev and starts it. The device stays the caller's, who
// closes it after the stack. An error names the field of cfg that cannot be.
func New(dev tap.Device, cfg Config) (*Stack, error) {
	cfg, err := cfg.settled(dev)
	if err != nil {
		return nil, err
	}
	s := &Stack{cfg: cfg, link: newLink(dev, cfg), done: make(chan struct{}), closed: make(chan struct{})}
	s.ns = stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{
			ipv4.NewProtocol,
			arp.NewProtocol,
			ipv6.NewProtocolWithOptions(ipv6.Options{
				// Addresses are given, not found: no router advertisements, and no
				// second of waiting for duplicate address detection.
				NDPConfigs:       ipv6.NDPConfigurations{HandleRAs: ipv6.HandlingRAsDisabled},
				AutoGenLinkLocal: true,
				DADConfigs:       stack.DADConfigurations{DupAddrDetectTransmits: 0},
			}),
		},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
		HandleLocal:        true,
	})
	if err := s.setUp(); err != nil {
		s.Close()
		return nil, err
	}
	cfg.Logger.Info("netstack up", "dev", dev.Name(), "mac", cfg.MAC.String(), "addrs", cfg.Addrs, "mtu", cfg.MTU, "vlan", cfg.VLAN, "offloads", dev.Offloads())
	s.link.start()
	s.announce()
	s.announcing.Go(s.announceAgain)
	return s, nil
}

// setUp gives gVisor's stack its options, interface, addresses and routes.
func (s *Stack) setUp() error {
	c := &s.cfg
	if err := s.tcpOptions(); err != nil {
		return err
	}
	if err := s.ns.CreateNICWithOptions(nicID, s.link, stack.NICOptions{Name: s.link.dev.Name()}); err != nil {
		return &OpError{Op: "create interface", Err: fromTCPIP(err)}
	}
	for _, p := range c.Addrs {
		err := s.ns.AddProtocolAddress(nicID, tcpip.ProtocolAddress{
			Protocol:          protoOf(p.Addr()),
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: toAddress(p.Addr()), PrefixLen: p.Bits()},
		}, stack.AddressProperties{})
		if err != nil {
			return &OpError{Op: fmt.Sprintf("add address %v", p), Err: fromTCPIP(err)}
		}
	}
	s.ns.SetRouteTable(c.routeTable())
	return nil
}

// tcpOptions sets the options of TCP that hold for the whole stack. They must be
// there before the first connection.
func (s *Stack) tcpOptions() error {
	sack := tcpip.TCPSACKEnabled(true)
	recovery := tcpip.TCPRACKLossDetection
	if s.cfg.NoRACK {
		recovery = 0
	}
	delay := tcpip.TCPDelayEnabled(false)
	moderate := tcpip.TCPModerateReceiveBufferOption(false)
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: s.cfg.SendBuffer, Max: s.cfg.SendBuffer}
	// The window scale is made for Max: the smaller, the finer windows are told.
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: s.cfg.ReceiveBuffer, Max: s.cfg.ReceiveBuffer}
	tw := tcpip.TCPTimeWaitTimeoutOption(s.cfg.TimeWait)
	reuse := tcpip.TCPTimeWaitReuseGlobal
	min, max := tcpip.TCPMinRTOOption(minRTO), tcpip.TCPMaxRTOOption(maxRTO)
	retries := tcpip.TCPMaxRetriesOption(maxRetries)
	// The smallest comes before the largest: each is checked against the other.
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &recovery, &delay, &moderate, &snd, &rcv, &tw, &reuse, &min, &max, &retries} {
		if err := s.ns.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return &OpError{Op: fmt.Sprintf("set TCP option %T", o), Err: fromTCPIP(err)}
		}
	}
	return nil
}

// routeTable lists the routes of c, the most specific first, as gVisor takes the
// first that matches.
func (c *Config) routeTable() []tcpip.Route {
	type entry struct {
		dst netip.Prefix
		via netip.Addr
	}
	var es []entry
	for _, p := range c.Addrs {
		es = append(es, entry{dst: p.Masked()})
	}
	for _, r := range c.Routes {
		es = append(es, entry{r.Dst, r.Via})
	}
	for _, g := range c.Gateways {
		es = append(es, entry{netip.PrefixFrom(zeroOf(g), 0), g})
	}
	slices.SortStableFunc(es, func(a, b entry) int { return cmp.Compare(b.dst.Bits(), a.dst.Bits()) })
	var rs []tcpip.Route
	for _, e := range es {
		net := tcpip.AddressWithPrefix{Address: toAddress(e.dst.Addr()), PrefixLen: e.dst.Bits()}
		r := tcpip.Route{Destination: net.Subnet(), NIC: nicID}
		next := e.dst.Addr()
		if e.via.IsValid() {
			r.Gateway = toAddress(e.via)
			next = e.via
		}
		// With several addresses, the one whose subnet holds the next hop is the one
		// that the peer can answer.
		for _, p := range c.Addrs {
			if p.Contains(next) {
				r.SourceHint = toAddress(p.Addr())
				break
			}
		}
		rs = append(rs, r)
	}
	return rs
}

// announce tells the neighbours which MAC our addresses have now, as a stack that
// starts again may come with another one: a gratuitous ARP reply (RFC 5227 section
// 3) or an unsolicited Neighbor Advertisement (RFC 4861 section 7.2.6).
func (s *Stack) announce() {
	for _, p := range s.cfg.Addrs {
		s.link.announce(p.Addr())
	}
}

// announceAt are the times of further announcements, after the start. The first may
// be lost: a bridge forwards nothing until it has noticed that its port has a
// carrier, which takes up to a second.
var announceAt = []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second, 2 * time.Second}

func (s *Stack) announceAgain() {
	start := time.Now()
	for _, at := range announceAt {
		timer := time.NewTimer(time.Until(start.Add(at)))
		select {
		case <-timer.C:
			s.announce()
		case <-s.done:
			timer.Stop()
			return
		}
	}
}

// Addrs returns the addresses of the stack with their subnets' lengths.
func (s *Stack) Addrs() []netip.Prefix { return slices.Clone(s.cfg.Addrs) }

// MAC returns the stack's Ethernet address.
func (s *Stack) MAC() net.HardwareAddr { return slices.Clone(s.cfg.MAC) }

// MTU returns the largest IP packet on the wire, in octets.
func (s *Stack) MTU() int { return s.cfg.MTU }

// Close resets every connection, ends every listener and pending Dial, and returns
// when all goroutines of the stack have ended. Memory that Receive lent is invalid
// afterwards, so whoever reads it must have stopped. It may be called more than
// once and returns nil.
func (s *Stack) Close() error {
	s.closing.Do(func() {
		close(s.done)
		s.announcing.Wait()
		// The receive loops end first: gVisor removes the interface with a lock held
		// that delivery takes, and waits for them under it.
		s.link.stop()
		s.ns.Destroy()
		s.link.flows.clear()
		close(s.closed)
	})
	<-s.closed
	return nil
}

// isClosed reports whether Close has begun.
func (s *Stack) isClosed() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// owns reports whether a is an address of the stack.
func (s *Stack) owns(a netip.Addr) bool {
	return slices.ContainsFunc(s.cfg.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}

// protoOf returns the network protocol of a's family.
func protoOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}

// toAddress converts an address to gVisor's form. The zero Addr stays unset.
func toAddress(a netip.Addr) tcpip.Address {
	switch {
	case !a.IsValid():
		return tcpip.Address{}
	case a.Is4():
		return tcpip.AddrFrom4(a.As4())
	}
	return tcpip.AddrFrom16(a.As16())
}

// fromFull converts gVisor's form of an address and port; an IPv4 address in IPv6
// comes out as IPv4.
func fromFull(f tcpip.FullAddress) netip.AddrPort {
	switch f.Addr.Len() {
	case 4:
		return netip.AddrPortFrom(netip.AddrFrom4(f.Addr.As4()), f.Port)
	case 16:
		return netip.AddrPortFrom(netip.AddrFrom16(f.Addr.As16()).Unmap(), f.Port)
	}
	return netip.AddrPortFrom(netip.Addr{}, f.Port)
}
