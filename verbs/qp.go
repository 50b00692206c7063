package verbs

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/softrnic/softrnic/iwarp/rdmap"
)

// QPCap bounds what a QP can hold.
type QPCap struct {
	MaxSendWR, MaxRecvWR   int // work requests in its queues, 0 to MaxWR
	MaxSendSGE, MaxRecvSGE int // SGEs in a work request, 0 to MaxSGE; 0 means 1
	MaxInline              int // octets of inline data, 0 to MaxInline
}

// QPConfig says what a QP works with.
type QPConfig struct {
	SendCQ, RecvCQ *CQ // where completions go; may be the same
	Cap            QPCap
	SignalAll      bool // every SendWR has a WC, Signaled or not
}

// QP is a queue pair, one end of a connection. Any goroutine may call its methods.
type QP struct {
	pd        *PD
	d         *Device
	num       uint32
	cap       QPCap
	signalAll bool
	sendCQ    *CQ
	recvCQ    *CQ
	sq        sendSource
	rq        recvSource
	send      *sendQueue // sq and rq, as the posts know them
	recv      *recvQueue
	bell      chan struct{}
	done      chan struct{}
	log       *slog.Logger

	mu     sync.Mutex // orders what follows; never held while calling out
	state  State
	busy   bool // Connect or Accept is under way
	closed bool
	err    error
	info   ConnInfo
	stream *rdmap.Stream
	cancel context.CancelFunc // of the Connect under way

	// Commands to the step, under mu.
	disconnect, abort bool
	fatal             error

	// The step's own.
	finSent, peerFin, discard bool
	lastErr                   error     // of the stream
	deadline                  time.Time // of a close under way
}

// CreateQP makes a QP in state Idle, whose CQs must be of the same device. It fails
// with ErrInvalid, which says what of cfg cannot be, with ErrClosed, and with
// ErrOverflow where a CQ was lost.
func (p *PD) CreateQP(cfg QPConfig) (*QP, error) {
	c := cfg.Cap
	if c.MaxSendSGE == 0 {
		c.MaxSendSGE = 1
	}
	if c.MaxRecvSGE == 0 {
		c.MaxRecvSGE = 1
	}
	for _, v := range []struct {
		name     string
		n, limit int
	}{{"MaxSendWR", c.MaxSendWR, MaxWR}, {"MaxRecvWR", c.MaxRecvWR, MaxWR}, {"MaxSendSGE", c.MaxSendSGE, MaxSGE},
		{"MaxRecvSGE", c.MaxRecvSGE, MaxSGE}, {"MaxInline", c.MaxInline, MaxInline}} {
		if v.n < 0 || v.n > v.limit {
			return nil, errorf(ErrInvalid, "%s %d is not from 0 to %d", v.name, v.n, v.limit)
		}
	}
	if cfg.SendCQ == nil || cfg.RecvCQ == nil {
		return nil, errorf(ErrInvalid, "a QP needs a SendCQ and a RecvCQ")
	}
	if cfg.SendCQ.d != p.d || cfg.RecvCQ.d != p.d {
		return nil, errorf(ErrInvalid, "the CQ belongs to another device")
	}
	q := &QP{pd: p, d: p.d, cap: c, signalAll: cfg.SignalAll, sendCQ: cfg.SendCQ, recvCQ: cfg.RecvCQ,
		bell: make(chan struct{}, 1), done: make(chan struct{})}
	q.send, q.recv = newSendQueue(q, cfg.SendCQ, c), newRecvQueue(q, cfg.RecvCQ, c)
	q.sq, q.rq = q.send, q.recv

	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || p.closed {
		return nil, fmt.Errorf("PD: %w", ErrClosed)
	}
	if err := cfg.SendCQ.use(q, 1); err != nil {
		return nil, err
	}
	if err := cfg.RecvCQ.use(q, 1); err != nil {
		_ = cfg.SendCQ.use(q, -1)
		return nil, err
	}
	d.nextQP++
	q.num = d.nextQP
	q.log = d.log.With("qp", q.num)
	p.qps++
	d.qps[q] = struct{}{}
	return q, nil
}

// Num is the QP's number in its device.
func (q *QP) Num() uint32 { return q.num }

// PD returns the protection domain of the QP.
func (q *QP) PD() *PD { return q.pd }

// Cap returns what the QP can hold.
func (q *QP) Cap() QPCap { return q.cap }

// State returns the state at this moment.
func (q *QP) State() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.state
}

// Err returns what ended the connection: nil while it lasts and after a graceful
// close; a *TerminateError, ErrDisconnected, ErrOverflow, ErrClosed, or the TCP
// connection's error.
func (q *QP) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// Done is closed when the QP has reached Error and every work request was
// completed: the one disconnect event.
func (q *QP) Done() <-chan struct{} { return q.done }

// Info returns the connection's particulars; the zero value before it is up.
func (q *QP) Info() ConnInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.info
}

// LocalAddr and RemoteAddr return the ends of the connection.
func (q *QP) LocalAddr() netip.AddrPort { return q.Info().Local }

// RemoteAddr returns the peer's end of the connection.
func (q *QP) RemoteAddr() netip.AddrPort { return q.Info().Remote }

// PostSend queues wrs on the send queue, in order, and returns how many it took.
// Where that is fewer than len(wrs), err says why wrs[n] was refused: ErrState (not
// connected yet, or closing), ErrFull, ErrTooBig, ErrInvalid, or a verdict on its
// memory. Later faults come back as the status of a WC. In states Terminate and
// Error everything is taken and flushed.
//
// The memory that a WR names is the QP's until its WC, or that of a later WR, has
// been polled; with Inline it is the caller's again at once. wrs themselves are
// free when PostSend returns. A slot of the queue is free again when its WR and all
// before it have completed, signaled or not. PostSend never blocks.
func (q *QP) PostSend(wrs ...SendWR) (n int, err error) {
	if q.State() == Idle {
		return 0, errorf(ErrState, "QP %d is in state %v: connect it first", q.num, Idle)
	}
	for n < len(wrs) {
		if err = q.send.post(&wrs[n]); err != nil {
			break
		}
		n++
	}
	if n > 0 {
		q.ring()
	}
	return n, err
}

// PostRecv queues wrs on the receive queue, as PostSend does; in state Idle too.
// There must be one for each Send of the peer: iWARP has no back-pressure, and a
// Send that finds none ends the connection (RFC 5041 section 7.1).
func (q *QP) PostRecv(wrs ...RecvWR) (n int, err error) {
	for n < len(wrs) {
		if err = q.recv.post(&wrs[n]); err != nil {
			break
		}
		n++
	}
	return n, err
}

// ring wakes the step.
func (q *QP) ring() {
	select {
	case q.bell <- struct{}{}:
	default:
	}
}

// begin gives the step a command.
func (q *QP) begin(set func()) {
	q.mu.Lock()
	set()
	if q.cancel != nil {
		q.cancel()
	}
	q.mu.Unlock()
	q.ring()
}

// ringFatal ends the connection for a fault of this side. It may be called with
// locks of the queues held.
func (q *QP) ringFatal(err error) {
	q.begin(func() {
		if q.fatal == nil {
			q.fatal = err
		}
	})
}

// Disconnect closes the connection gracefully: what was posted is sent, Reads get
// their Responses, then both sides close. It returns when that is done and the
// receive queue was flushed, with Err; or when ctx ends, and the close goes on. A
// peer that stays silent for Config.CloseTimeout is not waited for: ErrTimeout.
func (q *QP) Disconnect(ctx context.Context) error {
	q.mu.Lock()
	if q.state == Idle {
		q.mu.Unlock()
		return errorf(ErrState, "QP %d is in state %v: connect it first", q.num, Idle)
	}
	q.disconnect = true
	q.mu.Unlock()
	q.ring()
	select {
	case <-q.done:
		return q.Err()
	default:
	}
	select {
	case <-q.done:
		return q.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the connection at once, by a reset where it still stands, flushes
// every work request, and gives the QP up. It returns when nothing of it is left.
// Call Disconnect first for a graceful end.
func (q *QP) Close() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return fmt.Errorf("QP %d: %w", q.num, ErrClosed)
	}
	q.closed = true
	q.mu.Unlock()
	q.begin(func() { q.abort = true })
	q.mu.Lock()
	never := q.stream == nil && !q.busy && q.state == Idle
	if never {
		q.state = q.state.next(abort)
		q.err = fmt.Errorf("QP %d: %w", q.num, ErrClosed)
	}
	q.mu.Unlock()
	if never {
		q.flush()
		close(q.done)
	}
	<-q.done
	_ = q.sendCQ.use(q, -1)
	_ = q.recvCQ.use(q, -1)
	q.d.mu.Lock()
	q.pd.qps--
	delete(q.d.qps, q)
	q.d.mu.Unlock()
	return nil
}
