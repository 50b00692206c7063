package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Bridge is the name of the bridge in a Lab.
const Bridge = "br0"

// Lab is a network namespace with a bridge. Its methods are for one goroutine at
// a time.
type Lab struct {
	ns    vnetns.NsHandle
	hosts []vnetns.NsHandle
}

// New makes a Lab: a namespace with loopback and a bridge, both up. The bridge
// neither learns of multicast groups nor shows its frames to iptables, which
// would cost as much as forwarding them.
func New() (*Lab, error) {
	if os.Getuid() != 0 {
		return nil, errors.New("netns: needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return nil, fmt.Errorf("netns: %w (try 'modprobe tun', or '--device /dev/net/tun' for a container)", err)
	}
	ns, err := fresh()
	if err != nil {
		return nil, err
	}
	l := &Lab{ns: ns}
	err = l.Do(func() error {
		if err := linkUp("lo"); err != nil {
			return err
		}
		quiet("all", "default")
		off := false
		br := &netlink.Bridge{LinkAttrs: attrs(Bridge), MulticastSnooping: &off}
		if err := netlink.LinkAdd(br); err != nil {
			return fmt.Errorf("bridge %s: %w", Bridge, err)
		}
		files, _ := filepath.Glob("/proc/sys/net/bridge/bridge-nf-call-*")
		for _, f := range files {
			if err := os.WriteFile(f, []byte("0"), 0o644); err != nil {
				return err
			}
		}
		return linkUp(Bridge)
	})
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close gives the namespaces up. The kernel removes them, with all that is in
// them, when the last process within has ended.
func (l *Lab) Close() error {
	for _, h := range append(l.hosts, l.ns) {
		h.Close()
	}
	l.hosts = nil
	return nil
}

// Do runs f on a thread in the namespace of the bridge. Goroutines that f starts
// are outside; processes that it starts are inside.
func (l *Lab) Do(f func() error) error { return in(l.ns, f) }

// TAP makes a persistent TAP of that MTU on the bridge, up. It has several
// queues, so that whoever attaches may ask for virtio-net headers.
func (l *Lab) TAP(name string, mtu int) error {
	return l.Do(func() error {
		a := attrs(name)
		t := &netlink.Tuntap{LinkAttrs: a, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_MULTI_QUEUE_DEFAULTS, Queues: 1}
		if err := netlink.LinkAdd(t); err != nil {
			return fmt.Errorf("tap %s: %w", name, err)
		}
		for _, f := range t.Fds {
			f.Close()
		}
		return plug(name, mtu)
	})
}

// Attach puts an interface of the namespace on the bridge and brings it up.
func (l *Lab) Attach(name string, mtu int) error {
	return l.Do(func() error { return plug(name, mtu) })
}

// Host makes a namespace of its own whose interface eth0 has addr and leads to
// the bridge, and returns a function that works as Do does in there. name is the
// interface's name on the bridge.
func (l *Lab) Host(name string, mtu int, addr netip.Prefix) (do func(func() error) error, err error) {
	h, err := fresh()
	if err != nil {
		return nil, err
	}
	l.hosts = append(l.hosts, h)
	err = l.Do(func() error {
		v := &netlink.Veth{LinkAttrs: attrs(name), PeerName: "eth0", PeerNamespace: netlink.NsFd(int(h))}
		if err := netlink.LinkAdd(v); err != nil {
			return fmt.Errorf("veth %s: %w", name, err)
		}
		return plug(name, mtu)
	})
	if err != nil {
		return nil, err
	}
	err = in(h, func() error {
		if err := linkUp("lo"); err != nil {
			return err
		}
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMTU(eth, mtu); err != nil {
			return err
		}
		a, err := netlink.ParseAddr(addr.String())
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(eth, a); err != nil {
			return fmt.Errorf("address %v: %w", addr, err)
		}
		return netlink.LinkSetUp(eth)
	})
	return func(f func() error) error { return in(h, f) }, err
}

// Start starts cmd in the namespace of the bridge.
func (l *Lab) Start(cmd *exec.Cmd) error { return l.Do(cmd.Start) }

// in runs f on a thread in ns, whose /sys is that of ns too, as with `ip netns
// exec`. The thread ends with f, so nothing else ever runs there.
func in(ns vnetns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		if err := vnetns.Set(ns); err != nil {
			done <- fmt.Errorf("netns: %w", err)
			return
		}
		if err := ownSys(); err != nil {
			done <- fmt.Errorf("netns: /sys: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// ownSys gives this thread, and processes started from it, a /sys that shows the
// interfaces of its network namespace.
func ownSys() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("sysfs", "/sys", "sysfs", 0, "")
}

// fresh makes a network namespace.
func fresh() (vnetns.NsHandle, error) {
	type result struct {
		ns  vnetns.NsHandle
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		ns, err := vnetns.New()
		if err != nil {
			err = fmt.Errorf("netns: new namespace: %w", err)
		}
		done <- result{ns, err}
	}()
	r := <-done
	return r.ns, r.err
}

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

func linkUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("%s up: %w", name, err)
	}
	return nil
}

// plug puts name on the bridge with that MTU, up. As the bridge does without
// STP, it forwards at once.
func plug(name string, mtu int) error {
	quiet(name)
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := netlink.LinkSetMTU(l, mtu); err != nil {
		return fmt.Errorf("%s: MTU %d: %w", name, mtu, err)
	}
	br, err := netlink.LinkByName(Bridge)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(l, br); err != nil {
		return fmt.Errorf("%s on %s: %w", name, Bridge, err)
	}
	return netlink.LinkSetUp(l)
}

// quiet keeps the kernel's own IPv6 off interfaces, best effort.
func quiet(names ...string) {
	for _, n := range names {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+n+"/disable_ipv6", []byte("1"), 0o644)
	}
}
