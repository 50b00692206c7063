package bridge

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// plan is what there is to do, as ip commands and as calls.
type plan struct {
	commands []string
	calls    []func() error
}

func (p *plan) add(call func() error, format string, args ...any) {
	p.commands = append(p.commands, fmt.Sprintf(format, args...))
	p.calls = append(p.calls, call)
}

func (p *plan) run(dry bool) ([]string, error) {
	if dry {
		return p.commands, nil
	}
	for i, call := range p.calls {
		if err := call(); err != nil {
			return p.commands[:i], fmt.Errorf("bridge: %s: %w", p.commands[i], translate(err))
		}
	}
	return p.commands, nil
}

func translate(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w (%w)", ErrPermission, err)
	}
	return err
}

func find(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if err == nil {
		return l, nil
	}
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, fmt.Errorf("bridge: %s: %w in this network namespace (ip -br link lists them)", name, ErrNotExist)
	}
	return nil, fmt.Errorf("bridge: %s: %w", name, translate(err))
}

// Attach puts iface on bridge and brings both up. It returns the ip commands that
// do the same, of what there was to do.
func Attach(bridge, iface string, o Options) ([]string, error) {
	port, err := find(iface)
	if err != nil {
		return nil, err
	}
	if bridge == iface {
		return nil, fmt.Errorf("bridge: %s cannot be a port of itself", iface)
	}
	var p plan
	br, err := find(bridge)
	switch {
	case err == nil:
		if br.Type() != "bridge" {
			return nil, fmt.Errorf("bridge: %s: %w, but a %s", bridge, ErrNotBridge, br.Type())
		}
	case errors.Is(err, ErrNotExist) && o.Create:
		br = nil
		p.add(func() error {
			return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}})
		}, "ip link add name %s type bridge", bridge)
	case errors.Is(err, ErrNotExist):
		return nil, fmt.Errorf("%w: make it (--create, or ip link add name %s type bridge)", err, bridge)
	default:
		return nil, err
	}
	master := port.Attrs().MasterIndex
	switch {
	case br != nil && master == br.Attrs().Index:
	case master != 0:
		name := fmt.Sprint("interface ", master)
		if m, err := netlink.LinkByIndex(master); err == nil {
			name = m.Attrs().Name
		}
		return nil, fmt.Errorf("bridge: %s: %w, %s: detach it first", iface, ErrElsewhere, name)
	default:
		if err := checkRoutes(port, bridge, o.Force); err != nil {
			return nil, err
		}
		p.add(func() error {
			b, err := netlink.LinkByName(bridge)
			if err != nil {
				return err
			}
			return netlink.LinkSetMaster(port, b)
		}, "ip link set dev %s master %s", iface, bridge)
	}
	if port.Attrs().Flags&net.FlagUp == 0 {
		p.add(func() error { return netlink.LinkSetUp(port) }, "ip link set dev %s up", iface)
	}
	if br == nil || br.Attrs().Flags&net.FlagUp == 0 {
		p.add(func() error {
			b, err := netlink.LinkByName(bridge)
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(b)
		}, "ip link set dev %s up", bridge)
	}
	return p.run(o.DryRun)
}

// checkRoutes refuses to cut this host off.
func checkRoutes(port netlink.Link, bridge string, force bool) error {
	if force {
		return nil
	}
	// All routes: one over several interfaces belongs to none of them.
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("bridge: routes of %s: %w", port.Attrs().Name, translate(err))
	}
	for _, r := range routes {
		if uses(r, port.Attrs().Index) && (r.Dst == nil || r.Dst.IP.IsUnspecified() && isAll(r.Dst)) {
			name := port.Attrs().Name
			return fmt.Errorf("bridge: %s: %w: on %s its addresses stop working, and with them this host's connection; move them to the bridge first (ip addr add ... dev %s; ip route replace default ... dev %s), or force it",
				name, ErrDefaultRoute, bridge, bridge, bridge)
		}
	}
	return nil
}

func uses(r netlink.Route, index int) bool {
	return r.LinkIndex == index || slices.ContainsFunc(r.MultiPath, func(n *netlink.NexthopInfo) bool { return n.LinkIndex == index })
}

func isAll(n *net.IPNet) bool {
	ones, _ := n.Mask.Size()
	return ones == 0
}

// Detach takes iface off its bridge, and leaves both up.
func Detach(iface string, o Options) ([]string, error) {
	port, err := find(iface)
	if err != nil {
		return nil, err
	}
	var p plan
	if m := port.Attrs().MasterIndex; m != 0 {
		if l, err := netlink.LinkByIndex(m); err == nil && l.Type() != "bridge" {
			return nil, fmt.Errorf("bridge: %s belongs to %s: %w, but a %s", iface, l.Attrs().Name, ErrNotBridge, l.Type())
		}
		p.add(func() error { return netlink.LinkSetNoMaster(port) }, "ip link set dev %s nomaster", iface)
	}
	return p.run(o.DryRun)
}

// Show returns the bridge of that name, or all where name is empty.
func Show(name string) ([]Info, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("bridge: %w", translate(err))
	}
	if name != "" {
		l, err := find(name)
		if err != nil {
			return nil, err
		}
		if l.Type() != "bridge" {
			return nil, fmt.Errorf("bridge: %s: %w, but a %s", name, ErrNotBridge, l.Type())
		}
	}
	out := []Info{}
	for _, l := range all {
		a := l.Attrs()
		if l.Type() != "bridge" || name != "" && a.Name != name {
			continue
		}
		info := Info{Name: a.Name, MTU: a.MTU, Up: a.Flags&net.FlagUp != 0, Ports: []Port{}}
		for _, p := range all {
			if b := p.Attrs(); b.MasterIndex == a.Index {
				info.Ports = append(info.Ports, Port{Name: b.Name, Kind: p.Type(), MTU: b.MTU, Up: b.Flags&net.FlagUp != 0})
			}
		}
		out = append(out, info)
	}
	return out, nil
}
