package llptest

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/iwarp/llp"
)

// Net is a network in memory: stacks with addresses that reach each other.
type Net struct {
	opt Options

	mu        sync.Mutex
	hosts     map[netip.Addr]bool
	listeners map[netip.AddrPort]*listener
	port      uint16
}

// NewNet returns an empty network whose connections have the shape o.
func NewNet(o Options) *Net {
	return &Net{opt: o, hosts: map[netip.Addr]bool{}, listeners: map[netip.AddrPort]*listener{}, port: 49151}
}

// Stack returns a stack with address addr on the network.
func (n *Net) Stack(addr netip.Addr) llp.Stack {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[addr] = true
	return &host{n, addr}
}

type host struct {
	net  *Net
	addr netip.Addr
}

func (n *Net) ephemeral() uint16 { // n.mu is held
	if n.port++; n.port < 49152 {
		n.port = 49152
	}
	return n.port
}

// Dial implements llp.Stack.
func (h *host) Dial(ctx context.Context, local, remote netip.AddrPort) (llp.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if !local.Addr().IsValid() || local.Addr().IsUnspecified() {
		local = netip.AddrPortFrom(h.addr, local.Port())
	}
	if local.Port() == 0 {
		local = netip.AddrPortFrom(local.Addr(), h.net.ephemeral())
	}
	l := h.net.listeners[remote]
	if l == nil {
		if !h.net.hosts[remote.Addr()] {
			return nil, fmt.Errorf("llptest: dial %v: %w", remote, llp.ErrUnreachable)
		}
		return nil, fmt.Errorf("llptest: dial %v: %w", remote, llp.ErrRefused)
	}
	a, b := pipe(h.net.opt, local, remote)
	select {
	case l.queue <- b:
		return a, nil
	default:
		return nil, fmt.Errorf("llptest: dial %v: %w: backlog full", remote, llp.ErrTimeout)
	}
}

// Listen implements llp.Stack.
func (h *host) Listen(addr netip.AddrPort, backlog int) (llp.Listener, error) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if !addr.Addr().IsValid() || addr.Addr().IsUnspecified() {
		addr = netip.AddrPortFrom(h.addr, addr.Port())
	}
	if addr.Port() == 0 {
		addr = netip.AddrPortFrom(addr.Addr(), h.net.ephemeral())
	}
	if backlog <= 0 {
		backlog = 256
	}
	if h.net.listeners[addr] != nil {
		return nil, fmt.Errorf("llptest: listen %v: %w", addr, llp.ErrInUse)
	}
	l := &listener{net: h.net, addr: addr, queue: make(chan *Conn, backlog), done: make(chan struct{})}
	h.net.listeners[addr] = l
	return l, nil
}

type listener struct {
	net   *Net
	addr  netip.AddrPort
	queue chan *Conn
	done  chan struct{}
	once  sync.Once
}

func (l *listener) Accept(ctx context.Context) (llp.Conn, error) {
	select {
	case <-l.done:
		return nil, fmt.Errorf("llptest: accept on %v: %w", l.addr, llp.ErrClosed)
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, fmt.Errorf("llptest: accept on %v: %w", l.addr, llp.ErrClosed)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *listener) Addr() netip.AddrPort { return l.addr }

func (l *listener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		delete(l.net.listeners, l.addr)
		l.net.mu.Unlock()
		close(l.done)
		for {
			select {
			case c := <-l.queue:
				c.Abort()
			default:
				return
			}
		}
	})
	return nil
}
