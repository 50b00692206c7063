// Package softrnic makes an RDMA-capable NIC out of an Ethernet device: one call
// joins a TAP, a TCP/IP stack of its own, and RDMA verbs on top (iWARP: RFC 5040,
// 5041, 5044, 6581). Nothing of it touches a kernel socket.
//
//	rnic, err := softrnic.Open(ctx, softrnic.Config{
//		TAP:   "tap0",
//		Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")},
//	})
//
// What comes back is a verbs.Device: see package verbs for the rest.
package softrnic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"

	"github.com/softrnic/softrnic/netstack"
	"github.com/softrnic/softrnic/tap"
	"github.com/softrnic/softrnic/verbs"
)

// Config says what an RNIC is made of. One of TAP, TAPFD and Device names the
// Ethernet device.
type Config struct {
	// TAP is the name of a TAP or macvtap interface: attached to where it exists,
	// and then left as it is; created where it does not, and then gone with Close.
	TAP string
	// TAPFD is the descriptor of a TAP that the process has inherited, where UseFD
	// is set. Open takes it over.
	TAPFD int
	UseFD bool
	// Device is any other Ethernet device, such as one end of taptest.Pipe. Open
	// takes it over: Close closes it.
	Device tap.Device

	// Addrs are the RNIC's addresses with the length of their subnets, v4 and v6;
	// at least one. They are not those of the kernel's side of the TAP.
	Addrs []netip.Prefix
	// Gateways are default routes, at most one per family.
	Gateways []netip.Addr
	// Routes are further static routes.
	Routes []netstack.Route
	// MAC is the RNIC's Ethernet address; nil means the device's choice.
	MAC net.HardwareAddr
	// MTU is the largest IP packet in octets, 576 to 65521; 0 means the device's.
	MTU int
	// VLAN is the 802.1Q tag of all frames, 1 to 4094; 0 means none.
	VLAN uint16

	// PCAP takes a capture of all frames, in pcap format; nil means none.
	PCAP io.Writer
	// Logger takes what happens; nil discards.
	Logger *slog.Logger
	// Verbs tunes connections.
	Verbs verbs.Config
	// TCP tunes the stack; its addresses, routes, MAC, MTU, VLAN and Logger are
	// those above.
	TCP netstack.Config
}

// RNIC is a verbs.Device that owns what it stands on.
type RNIC struct {
	*verbs.Device
	dev   tap.Device
	stack *netstack.Stack
}

// Open makes an RNIC. On an error nothing of it is left, and what it was to take
// over has been closed: Device, and TAPFD where that is a TAP. Errors name the value
// that is wrong and what would be right. ctx bounds Open alone.
func Open(ctx context.Context, cfg Config) (*RNIC, error) {
	dev, err := cfg.device(ctx)
	if err != nil {
		return nil, err
	}
	wire := dev
	if cfg.PCAP != nil {
		wire = tap.Tee(dev, cfg.PCAP)
	}
	stack, err := netstack.New(wire, cfg.tcp())
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	v := cfg.Verbs
	if v.Logger == nil {
		v.Logger = cfg.Logger
	}
	d, err := verbs.Open(stack, v)
	if err != nil {
		return nil, errors.Join(err, stack.Close(), dev.Close())
	}
	return &RNIC{d, wire, stack}, nil
}

// Check says what is wrong with cfg that can be told without a device. Open checks
// the same before it makes one.
func Check(cfg Config) error { return cfg.tcp().Check() }

func (cfg *Config) tcp() netstack.Config {
	t := cfg.TCP
	t.Addrs, t.Gateways, t.Routes, t.MAC, t.MTU, t.VLAN, t.Logger = cfg.Addrs, cfg.Gateways, cfg.Routes, cfg.MAC, cfg.MTU, cfg.VLAN, cfg.Logger
	return t
}

func (cfg *Config) device(ctx context.Context) (tap.Device, error) {
	n := 0
	for _, given := range []bool{cfg.TAP != "", cfg.UseFD, cfg.Device != nil} {
		if given {
			n++
		}
	}
	err := ctx.Err()
	if err == nil {
		err = Check(*cfg)
	}
	if n != 1 {
		err = fmt.Errorf("softrnic: %d Ethernet devices given: give one of TAP, TAPFD and Device", n)
	}
	if err != nil {
		return nil, errors.Join(err, cfg.discard())
	}
	if cfg.Device != nil {
		return cfg.Device, nil
	}
	dev, err := tap.Open(tap.Config{Name: cfg.TAP, FD: cfg.TAPFD, UseFD: cfg.UseFD, MTU: cfg.MTU, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	return dev, nil
}

// discard closes what Open was to take over.
func (cfg *Config) discard() error {
	var err error
	if cfg.Device != nil {
		err = cfg.Device.Close()
	}
	if cfg.UseFD {
		// A descriptor of something else is not ours to close.
		if t, refused := tap.Open(tap.Config{FD: cfg.TAPFD, UseFD: true}); refused == nil {
			err = errors.Join(err, t.Close())
		}
	}
	return err
}

// Stack returns the TCP/IP stack below, for its addresses and counters.
func (r *RNIC) Stack() *netstack.Stack { return r.stack }

// TAP returns the Ethernet device below.
func (r *RNIC) TAP() tap.Device { return r.dev }

// Close ends every connection, then the stack, then gives up the device. It returns
// when nothing is left.
func (r *RNIC) Close() error {
	return errors.Join(r.Device.Close(), r.stack.Close(), r.dev.Close())
}
