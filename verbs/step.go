package verbs

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/mem"
	"github.com/softrnic/softrnic/iwarp/rdmap"
)

// turn is the octets that a QP receives in one step, about a super-packet.
const turn = 1 << 16

// run steps the QP until it is over. This goroutine is the only one that touches
// the connection, so that memory lent by TCP stays valid while it is used.
func (q *QP) run() {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		more := q.step(turn)
		state := q.State()
		if state == Error {
			break
		}
		if more {
			if state == Closing {
				q.extend() // what either side has yet to send takes the time it takes
			}
			runtime.Gosched() // TCP's goroutines and other QPs get their turn
			continue
		}
		if !q.deadline.IsZero() {
			timer.Reset(time.Until(q.deadline))
		}
		select {
		case <-q.bell:
		case <-timer.C:
		}
	}
	q.flush()
	close(q.done)
}

// extend sets the time by which a close must have moved on.
func (q *QP) extend() { q.deadline = time.Now().Add(q.d.cfg.CloseTimeout) }

// step lets the QP work for at most budget octets in each direction and says
// whether more waits. It never blocks, and is never run twice at once.
func (q *QP) step(budget int) (more bool) {
	q.control()
	if q.State() == Error {
		return false
	}
	in := q.receive(budget)
	out := q.transmit()
	q.close()
	return in || out
}

// control takes the commands that came in meanwhile.
func (q *QP) control() {
	q.mu.Lock()
	disc, abrt, fatal := q.disconnect, q.abort, q.fatal
	state := q.state
	q.disconnect = false
	q.mu.Unlock()
	switch {
	case state == Error:
	case abrt:
		q.stream.Conn.Abort()
		q.move(abort, fmt.Errorf("QP %d: %w", q.num, ErrClosed))
	case fatal != nil && q.lastErr == nil:
		q.ended(q.stream.Fail(fatal))
	case disc && state == RTS:
		q.move(disconnect, nil)
	}
}

// move applies an event; err is why, where the event is no graceful one. The first
// reason is kept.
func (q *QP) move(e event, err error) {
	q.mu.Lock()
	from := q.state
	q.state = from.next(e)
	to := q.state
	if q.err == nil {
		q.err = err
	}
	q.mu.Unlock()
	if from == to {
		return
	}
	if to != RTS {
		q.send.close()
	}
	if (to == Closing || to == Terminate) && q.deadline.IsZero() {
		q.extend()
	}
	if to == Error {
		q.log.Info("connection down", "peer", q.info.Remote, "by", e.String(), "err", q.Err())
	}
}

// receive takes what has come in.
func (q *QP) receive(budget int) bool {
	if q.peerFin {
		return false
	}
	if q.discard {
		n, err := q.stream.Drain(budget)
		if err != nil {
			q.peerFin = true
			if !rdmap.IsEOF(err) {
				q.lost(nil)
			}
		}
		return n > 0
	}
	n, err := q.stream.Receive(budget)
	if err != nil {
		q.ended(err)
	}
	return n > 0
}

// ended takes what ended the stream's receiving half.
func (q *QP) ended(err error) {
	if errors.Is(err, io.EOF) {
		q.peerFin = true
		q.move(peerFIN, nil) // no posts from here on
		if q.sq.reading() {
			// Its Response cannot come any more.
			q.lost(fmt.Errorf("QP %d: %w with Reads outstanding", q.num, ErrDisconnected))
		}
		return
	}
	if q.lastErr != nil {
		return
	}
	q.lastErr = err
	var te *TerminateError
	if !errors.As(err, &te) {
		q.lost(fmt.Errorf("QP %d: connection with %v lost: %w", q.num, q.info.Remote, err))
		return
	}
	q.discard = true
	q.d.stats.terminates.Add(1)
	e := fault
	if te.Remote {
		e = peerTerminate
	}
	q.log.Warn("terminate", "peer", q.info.Remote, "received", te.Remote, "layer", te.Layer, "type", te.Type, "code", te.Code, "err", err)
	q.move(e, err)
	q.blame(te)
	// Nothing is sent or placed any more: no reason to let the program wait for the
	// close.
	q.flush()
}

// lost ends the QP with its connection.
func (q *QP) lost(err error) {
	q.stream.Conn.Abort()
	q.move(llpLost, err)
}

// transmit sends what is due, at most a super-packet.
func (q *QP) transmit() bool {
	if q.finSent || q.State() == Error {
		return false
	}
	var work rdmap.WorkSource
	if q.lastErr == nil {
		work = q.sq
	}
	n, err := q.stream.Transmit(work)
	switch {
	case err == nil, errors.Is(err, llp.ErrWouldBlock), errors.Is(err, rdmap.ErrNotOpen):
	default:
		q.ended(err)
		return q.State() == Terminate
	}
	return n > 0
}

// close moves a close on: FIN when everything is sent, the end when both sides
// have closed or the peer was waited for long enough.
func (q *QP) close() {
	state := q.State()
	if state != Closing && state != Terminate {
		return
	}
	if !q.finSent {
		due := false
		switch {
		case state == Closing:
			due = q.sq.idle() && !q.stream.Pending()
		case q.lastErr != nil:
			var te *TerminateError
			due = q.stream.TerminateSent() || errors.As(q.lastErr, &te) && te.Remote
		}
		if due {
			q.finSent = true // a FIN, not a reset: TCP must not throw the Terminate away (RFC 5040 section 6.2.1)
			if err := q.stream.Conn.CloseWrite(); err != nil {
				q.lost(nil)
				return
			}
		}
	}
	switch {
	case q.finSent && q.peerFin:
		_ = q.stream.Conn.Close()
		q.move(llpClosed, nil)
	case !time.Now().Before(q.deadline):
		q.stream.Conn.Abort()
		q.move(llpClosed, fmt.Errorf("QP %d: %w: %v did not close the connection for %v", q.num, ErrTimeout, q.info.Remote, q.d.cfg.CloseTimeout))
	}
}

// owner is the QP as its stream sees it.
type owner QP

func (o *owner) RecvBuffer() (mem.SGL, bool) { return o.rq.take() }
func (o *owner) Received(r rdmap.Received)   { o.rq.received(r) }
func (o *owner) Sent(token uint64)           { o.sq.sent(token) }
func (o *owner) ReadDone(token uint64)       { o.sq.readDone(token) }

func (o *owner) Failed(token uint64, err error) {
	o.sq.failed(token, LocalProtection, err)
}
