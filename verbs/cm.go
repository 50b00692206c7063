package verbs

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/rdmap"
)

// DefaultDepth is the IRD and ORD where nothing else is said.
const DefaultDepth = 16

// ConnParams are one side's part of a connection.
type ConnParams struct {
	// PrivateData go to the peer's program with the request, or the answer: at most
	// 508 octets, 512 at revision 1.
	PrivateData []byte
	// IRD is how many Reads of the peer may be outstanding, ORD how many of ours; 0
	// means DefaultDepth, negative means none. At most MaxDepth. What both sides say
	// is reconciled; ConnInfo has the result.
	IRD, ORD int
	// NoCRC does without CRC32c where the peer agrees.
	NoCRC bool
	// Revision of MPA, 1 or 2; 0 means 2. Only the connecting side chooses.
	Revision int
	// Local is the address to connect from; the zero value lets the stack choose.
	Local netip.AddrPort
	// RelaxedFirst lets the accepting side send before the other has: against RFC
	// 5044 section 7.1.2, for programs that expect it.
	RelaxedFirst bool
}

// ConnInfo is what a connection came to.
type ConnInfo struct {
	Local, Remote netip.AddrPort
	PrivateData   []byte // of the peer
	IRD, ORD      int    // in use
	PeerIRD       int    // as the peer announced; -1 where it did not
	PeerORD       int
	CRC           bool
	Revision      int // of MPA
	EMSS          int // payload of a TCP segment, in octets
}

func depth(n int) int {
	switch {
	case n < 0:
		return 0
	case n == 0:
		return DefaultDepth
	}
	return n
}

func (d *Device) params(p ConnParams) (rdmap.Params, error) {
	r := rdmap.Params{Revision: p.Revision, NoCRC: p.NoCRC, PrivateData: p.PrivateData, IRD: depth(p.IRD), ORD: depth(p.ORD),
		Timeout: d.cfg.StartupTimeout, RelaxedFirst: p.RelaxedFirst}
	if r.IRD > MaxDepth || r.ORD > MaxDepth {
		return r, errorf(ErrTooBig, "IRD %d, ORD %d: at most %d", r.IRD, r.ORD, MaxDepth)
	}
	return r, nil
}

// claim takes an idle QP for a connection.
func (q *QP) claim(cancel context.CancelFunc) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed || q.abort:
		return fmt.Errorf("QP %d: %w", q.num, ErrClosed)
	case q.state != Idle || q.busy:
		return errorf(ErrState, "QP %d is in state %v, or being connected: a QP is connected once", q.num, q.state)
	}
	q.busy, q.cancel = true, cancel
	return nil
}

// unclaim gives a QP back after a failed attempt: it is idle again.
func (q *QP) unclaim() {
	q.mu.Lock()
	q.busy, q.cancel = false, nil
	ended := q.abort
	if ended {
		q.state = q.state.next(abort)
		q.err = fmt.Errorf("QP %d: %w", q.num, ErrClosed)
	}
	q.mu.Unlock()
	if ended { // Close waits for it
		q.flush()
		close(q.done)
	}
}

// start runs the QP on a connection in full operation.
func (q *QP) start(c *rdmap.Conn, peer rdmap.Peer) ConnInfo {
	s := rdmap.NewStream(c, rdmap.Config{Table: q.d.table, PD: q.pd.id, Owner: (*owner)(q), MaxDepth: MaxDepth})
	info := ConnInfo{Local: c.LocalAddr(), Remote: c.RemoteAddr(), PrivateData: peer.PrivateData, IRD: s.IRD(), ORD: s.ORD(),
		PeerIRD: peer.IRD, PeerORD: peer.ORD, CRC: c.CRC(), Revision: peer.Revision, EMSS: c.EMSS()}
	q.send.noRead = s.ORD() == 0 // nobody posts in Idle
	q.mu.Lock()
	q.busy, q.cancel = false, nil
	q.stream, q.info = s, info
	q.state = q.state.next(established)
	q.mu.Unlock()
	q.log.Info("connection up", "peer", info.Remote, "ird", info.IRD, "ord", info.ORD, "crc", info.CRC, "emss", info.EMSS)
	c.Notify(func(llp.Event) { q.ring() })
	go q.run()
	return info
}

// Connect connects q to a listener at addr and blocks until the connection is up,
// refused (a *RejectedError, with the peer's private data), failed, or ctx ends.
// After a failure q is idle again.
func (q *QP) Connect(ctx context.Context, addr netip.AddrPort, p ConnParams) (ConnInfo, error) {
	rp, err := q.d.params(p)
	if err != nil {
		return ConnInfo{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := q.claim(cancel); err != nil {
		return ConnInfo{}, err
	}
	c, peer, err := q.dial(ctx, addr, p.Local, rp)
	if err != nil {
		q.unclaim()
		q.mu.Lock()
		if q.closed {
			err = fmt.Errorf("QP %d: %w", q.num, ErrClosed)
		}
		q.mu.Unlock()
		return ConnInfo{PrivateData: peer.PrivateData, PeerIRD: peer.IRD, PeerORD: peer.ORD}, fmt.Errorf("verbs: connect to %v: %w", addr, err)
	}
	q.d.stats.connects.Add(1)
	return q.start(c, peer), nil
}

func (q *QP) dial(ctx context.Context, addr, local netip.AddrPort, p rdmap.Params) (*rdmap.Conn, rdmap.Peer, error) {
	l, err := q.d.stack.Dial(ctx, local, addr)
	if err != nil {
		return nil, rdmap.Peer{}, err
	}
	return rdmap.Connect(ctx, l, p)
}

// ListenConfig tunes a Listener.
type ListenConfig struct {
	// Backlog bounds the connections that wait: for the startup, and for Accept; 0
	// means 256. What comes beyond is reset.
	Backlog int
}

// Listener waits for connections. Any goroutine may call its methods.
type Listener struct {
	d      *Device
	l      llp.Listener
	ready  chan *ConnRequest
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	down   chan struct{} // closed where the stack ended it
	err    error         // why, before down is closed

	mu       sync.Mutex
	startups list.List // of context.CancelFunc, oldest first
	closed   bool
}

// Listen listens at addr; an unspecified address means every address of the stack,
// port 0 one that the stack chooses. It fails with ErrClosed, or with the stack's
// error, such as llp.ErrInUse. It does not block.
func (d *Device) Listen(addr netip.AddrPort, cfg ListenConfig) (*Listener, error) {
	if cfg.Backlog <= 0 {
		cfg.Backlog = 256
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("device: %w", ErrClosed)
	}
	ll, err := d.stack.Listen(addr, cfg.Backlog)
	if err != nil {
		return nil, fmt.Errorf("verbs: listen at %v: %w", addr, err)
	}
	l := &Listener{d: d, l: ll, ready: make(chan *ConnRequest, cfg.Backlog), down: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	d.listeners[l] = struct{}{}
	l.wg.Go(l.run)
	return l, nil
}

// run accepts TCP connections and starts each in a goroutine of its own, so that a
// slow peer holds up no other.
func (l *Listener) run() {
	for {
		c, err := l.l.Accept(l.ctx)
		if err != nil {
			if l.ctx.Err() == nil {
				l.d.log.Error("listener down", "at", l.Addr(), "err", err)
				l.err = fmt.Errorf("listener at %v: %w", l.Addr(), err)
				close(l.down)
			}
			return
		}
		ctx, cancel := context.WithCancel(l.ctx)
		l.mu.Lock()
		if l.startups.Len() >= l.d.cfg.MaxStartups {
			// Whoever is honest has finished long ago.
			l.startups.Remove(l.startups.Front()).(context.CancelFunc)()
			l.d.stats.startupEvictions.Add(1)
		}
		e := l.startups.PushBack(context.CancelFunc(cancel))
		l.mu.Unlock()
		l.wg.Go(func() {
			defer cancel()
			in, err := rdmap.AwaitRequest(ctx, c, l.d.cfg.StartupTimeout)
			l.mu.Lock()
			l.startups.Remove(e) // does nothing where it was removed before
			l.mu.Unlock()
			if err != nil {
				l.d.stats.startupFailures.Add(1)
				l.d.log.Info("startup failed", "peer", c.RemoteAddr(), "err", err)
				return
			}
			l.offer(&ConnRequest{d: l.d, in: in})
		})
	}
}

func (l *Listener) offer(r *ConnRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.d.track(r, true)
		select {
		case l.ready <- r:
			return
		default:
			l.d.stats.startupFailures.Add(1)
			l.d.log.Warn("connection reset: nobody accepts", "peer", r.RemoteAddr(), "waiting", len(l.ready))
		}
	}
	r.drop()
}

// Accept blocks until a peer asks for a connection, ctx ends, or the Listener is
// closed (ErrClosed) or lost with its stack.
func (l *Listener) Accept(ctx context.Context) (*ConnRequest, error) {
	select {
	case r, ok := <-l.ready:
		if ok {
			return r, nil
		}
		return nil, fmt.Errorf("listener at %v: %w", l.Addr(), ErrClosed)
	default:
	}
	select {
	case r, ok := <-l.ready:
		if ok {
			return r, nil
		}
		return nil, fmt.Errorf("listener at %v: %w", l.Addr(), ErrClosed)
	case <-l.down:
		return nil, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Addr is where the Listener listens.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr() }

// Close ends Accept, resets what was not accepted, and returns when nothing of the
// Listener is left. Requests that Accept returned are not touched.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return fmt.Errorf("listener: %w", ErrClosed)
	}
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	err := l.l.Close()
	l.wg.Wait()
	close(l.ready)
	for r := range l.ready {
		r.drop()
	}
	l.d.mu.Lock()
	delete(l.d.listeners, l)
	l.d.mu.Unlock()
	return err
}

// ConnRequest is a peer that waits for Accept or Reject: one of them, once. The peer
// gives up after a while, and Device.Close resets it.
type ConnRequest struct {
	d    *Device
	in   rdmap.Incoming
	mu   sync.Mutex
	over bool
}

// PrivateData returns what the peer sent along.
func (r *ConnRequest) PrivateData() []byte { return r.in.Peer().PrivateData }

// IRD and ORD return what the peer announced: how many Reads it takes, and how many
// it wants to have outstanding. -1 where it said nothing.
func (r *ConnRequest) IRD() int { return r.in.Peer().IRD }

// ORD returns how many Reads the peer wants to have outstanding, -1 where it said
// nothing.
func (r *ConnRequest) ORD() int { return r.in.Peer().ORD }

// LocalAddr returns the address that the peer connected to.
func (r *ConnRequest) LocalAddr() netip.AddrPort { return r.in.Conn().LocalAddr() }

// RemoteAddr returns the peer's address.
func (r *ConnRequest) RemoteAddr() netip.AddrPort { return r.in.Conn().RemoteAddr() }

// answer runs f once; where it fails for an argument, another answer may follow.
func (r *ConnRequest) answer(f func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return errorf(ErrState, "connection request from %v was answered before", r.RemoteAddr())
	}
	err := f()
	var arg *argumentError
	if r.over = !errors.As(err, &arg); r.over {
		r.d.track(r, false)
	}
	return err
}

// argumentError is a fault of the program's in an answer, of which the peer has
// heard nothing.
type argumentError struct{ err error }

func (e *argumentError) Error() string { return e.err.Error() }
func (e *argumentError) Unwrap() error { return e.err }

// drop resets the peer, where it still waits.
func (r *ConnRequest) drop() {
	_ = r.answer(func() error { r.in.Abort(); return nil })
}

// track keeps requests that wait for an answer, for Close.
func (d *Device) track(r *ConnRequest, waiting bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if waiting {
		d.requests[r] = struct{}{}
	} else {
		delete(d.requests, r)
	}
}

// Accept connects q with the peer. Receives for what the peer may send at once
// should be posted before. It does not block. Where q or p is at fault the request
// still waits for an answer. Until the peer has sent its first message, q's are
// held back (RFC 5044 section 7.1.2).
func (r *ConnRequest) Accept(q *QP, p ConnParams) (info ConnInfo, err error) {
	err = r.answer(func() error {
		rp, err := r.d.params(p)
		switch {
		case err != nil:
			return &argumentError{err}
		case q == nil:
			return &argumentError{errorf(ErrInvalid, "Accept needs a QP")}
		case q.d != r.d:
			return &argumentError{errorf(ErrInvalid, "QP %d belongs to another device", q.num)}
		}
		if err := q.claim(nil); err != nil {
			return &argumentError{err}
		}
		rp.Revision = 0 // the peer's choice
		c, err := r.in.Accept(rp)
		if err != nil {
			q.unclaim()
			err = fmt.Errorf("verbs: accept %v: %w", r.RemoteAddr(), err)
			if errors.Is(err, ErrPrivateData) {
				return &argumentError{err}
			}
			return err
		}
		r.d.stats.accepts.Add(1)
		info = q.start(c, r.in.Peer())
		return nil
	})
	return info, err
}

// Reject refuses the peer, with private data for its program. It does not block.
func (r *ConnRequest) Reject(private []byte) error {
	return r.answer(func() error {
		if err := r.in.Reject(private); err != nil {
			err = fmt.Errorf("verbs: reject %v: %w", r.RemoteAddr(), err)
			if errors.Is(err, ErrPrivateData) {
				return &argumentError{err}
			}
			return err
		}
		r.d.stats.rejects.Add(1)
		return nil
	})
}
