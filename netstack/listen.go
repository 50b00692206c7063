package netstack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// defaultBacklog is the backlog where Listen is given 0. Beyond it gVisor answers
// with SYN cookies, which cost it no memory.
const defaultBacklog = 256

// Dial implements llp.Stack.
func (s *Stack) Dial(ctx context.Context, local, remote netip.AddrPort) (llp.Conn, error) {
	remote = netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port()) // there is one interface
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	c, err := s.dial(ctx, local, remote)
	if err != nil {
		s.link.count.connsFailed.Add(1)
		return nil, &OpError{Op: "dial", Local: local, Remote: remote, Err: err}
	}
	s.link.count.connsOpened.Add(1)
	return c, nil
}

func (s *Stack) dial(ctx context.Context, local, remote netip.AddrPort) (*conn, error) {
	if !remote.Addr().IsValid() || remote.Addr().IsUnspecified() || remote.Addr().IsMulticast() || remote.Port() == 0 {
		return nil, errors.New("not an address and port to connect to")
	}
	if local.Addr().IsValid() && local.Addr().IsUnspecified() {
		local = netip.AddrPortFrom(netip.Addr{}, local.Port())
	}
	if a := local.Addr(); a.IsValid() && a.Is4() != remote.Addr().Is4() {
		return nil, errors.New("the two addresses are of different families")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.isClosed() {
		return nil, llp.ErrClosed
	}
	wq := new(waiter.Queue)
	ep, terr := s.ns.NewEndpoint(tcp.ProtocolNumber, protoOf(remote.Addr()), wq)
	if terr != nil {
		return nil, fromTCPIP(terr)
	}
	ok := false
	defer func() {
		if !ok {
			ep.Abort()
			ep.Close()
		}
	}()
	s.setOptions(ep)
	if local.Addr().IsValid() || local.Port() != 0 {
		// A port of ours is free for another peer, also where a connection from it is
		// in TIME_WAIT.
		ep.SocketOptions().SetReuseAddress(true)
		if terr := ep.Bind(tcpip.FullAddress{Addr: toAddress(local.Addr()), Port: local.Port()}); terr != nil {
			return nil, fromTCPIP(terr)
		}
	}
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	to := tcpip.FullAddress{Addr: toAddress(remote.Addr()), Port: remote.Port()}
	if remote.Addr().Is6() && remote.Addr().IsLinkLocalUnicast() {
		to.NIC = nicID // no route leads there
	}
	switch terr := ep.Connect(to); terr.(type) {
	case *tcpip.ErrConnectStarted, nil:
	case *tcpip.ErrBadLocalAddress, *tcpip.ErrPortInUse:
		return nil, llp.ErrInUse
	default:
		return nil, fromTCPIP(terr)
	}
	timeout := time.NewTimer(s.cfg.UserTimeout)
	defer timeout.Stop()
	for {
		switch tcp.EndpointState(ep.State()) {
		case tcp.StateEstablished, tcp.StateCloseWait:
			c, err := s.adopt(ep, wq)
			ok = err == nil
			return c, err
		case tcp.StateError, tcp.StateClose:
			if terr := ep.LastError(); terr != nil {
				return nil, fromTCPIP(terr)
			}
			return nil, llp.ErrReset
		}
		select {
		case <-ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timeout.C:
			return nil, llp.ErrTimeout
		case <-s.done:
			return nil, llp.ErrClosed
		}
	}
}

// adopt makes an established endpoint a conn.
func (s *Stack) adopt(ep tcpip.Endpoint, wq *waiter.Queue) (*conn, error) {
	l, terr := ep.GetLocalAddress()
	if terr != nil {
		return nil, fromTCPIP(terr)
	}
	r, terr := ep.GetRemoteAddress()
	if terr != nil {
		return nil, llp.ErrReset // gone again before we looked
	}
	e, ok := ep.(endpoint)
	if !ok {
		return nil, fmt.Errorf("gVisor's TCP endpoint is a %T, without WakeupWriters", ep)
	}
	return newConn(s, e, wq, fromFull(l), fromFull(r)), nil
}

// listener is an llp.Listener.
type listener struct {
	stack *Stack
	ep    tcpip.Endpoint
	wq    *waiter.Queue
	addr  netip.AddrPort
	entry waiter.Entry
	ready chan struct{}

	closing sync.Once
	done    chan struct{}
}

// Listen implements llp.Stack.
func (s *Stack) Listen(addr netip.AddrPort, backlog int) (llp.Listener, error) {
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	l, err := s.listen(addr, backlog)
	if err != nil {
		return nil, &OpError{Op: "listen", Local: addr, Err: err}
	}
	return l, nil
}

func (s *Stack) listen(addr netip.AddrPort, backlog int) (*listener, error) {
	if !addr.Addr().IsValid() {
		return nil, errors.New("no address: give one of the stack's, or an unspecified one for all")
	}
	if backlog < 0 || backlog > 65535 {
		return nil, fmt.Errorf("backlog %d: outside 0 to 65535", backlog)
	}
	if backlog == 0 {
		backlog = defaultBacklog
	}
	if s.isClosed() {
		return nil, llp.ErrClosed
	}
	l := &listener{stack: s, wq: new(waiter.Queue), ready: make(chan struct{}, 1), done: make(chan struct{})}
	ep, terr := s.ns.NewEndpoint(tcp.ProtocolNumber, protoOf(addr.Addr()), l.wq)
	if terr != nil {
		return nil, fromTCPIP(terr)
	}
	l.ep = ep
	s.setOptions(ep)
	ep.SocketOptions().SetReuseAddress(true)
	full := tcpip.FullAddress{Port: addr.Port()}
	if !addr.Addr().IsUnspecified() {
		full.Addr = toAddress(addr.Addr())
	}
	if terr := ep.Bind(full); terr != nil {
		ep.Close()
		return nil, fromTCPIP(terr)
	}
	// One accept at a time, as the channel holds one event, and Accept looks at the
	// queue before it waits.
	l.entry = waiter.NewFunctionEntry(waiter.ReadableEvents, func(waiter.EventMask) {
		select {
		case l.ready <- struct{}{}:
		default:
		}
	})
	l.wq.EventRegister(&l.entry)
	if terr := ep.Listen(backlog); terr != nil {
		ep.Close()
		return nil, fromTCPIP(terr)
	}
	bound, terr := ep.GetLocalAddress()
	if terr != nil {
		ep.Close()
		return nil, fromTCPIP(terr)
	}
	l.addr = netip.AddrPortFrom(addr.Addr(), bound.Port)
	return l, nil
}

// Accept implements llp.Listener.
func (l *listener) Accept(ctx context.Context) (llp.Conn, error) {
	for {
		select {
		case <-l.done:
			return nil, l.fail(llp.ErrClosed)
		case <-l.stack.done:
			return nil, l.fail(llp.ErrClosed)
		default:
		}
		ep, wq, terr := l.ep.Accept(nil)
		switch terr.(type) {
		case nil:
			// Others may wait for what came with the same event.
			l.wake()
			l.stack.setOptions(ep)
			c, err := l.stack.adopt(ep, wq)
			if err != nil {
				ep.Abort() // reset while it waited here: nobody's loss
				ep.Close()
				continue
			}
			l.stack.link.count.connsAccepted.Add(1)
			return c, nil
		case *tcpip.ErrWouldBlock:
		default:
			return nil, l.fail(fromTCPIP(terr))
		}
		select {
		case <-l.ready:
		case <-l.done:
		case <-l.stack.done:
		case <-ctx.Done():
			return nil, l.fail(ctx.Err())
		}
	}
}

// wake lets one Accept look at the queue.
func (l *listener) wake() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// Addr implements llp.Listener.
func (l *listener) Addr() netip.AddrPort { return l.addr }

// Close implements llp.Listener.
func (l *listener) Close() error {
	l.closing.Do(func() {
		close(l.done)
		l.ep.Close()
		l.wq.EventUnregister(&l.entry)
	})
	return nil
}

func (l *listener) fail(err error) error {
	return &OpError{Op: "accept", Local: l.addr, Err: err}
}
