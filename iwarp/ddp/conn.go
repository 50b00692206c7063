package ddp

import (
	"context"
	"errors"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/mpa"
)

// The startup is MPA's; upper layers need not know that package for it.
type (
	Params        = mpa.Params
	Peer          = mpa.Peer
	RejectedError = mpa.RejectedError
	LLPError      = mpa.Error
	Code          = mpa.Code
)

// NoNegotiation and MaxDepth are values of IRD and ORD.
const (
	NoNegotiation = mpa.NoNegotiation
	MaxDepth      = mpa.MaxDepth
)

// Errors of the layer below.
var (
	ErrNotOpen        = mpa.ErrNotOpen
	ErrStartupTimeout = mpa.ErrTimeout
	ErrPrivateData    = mpa.ErrPrivateData
)

// Conn is a DDP stream. One goroutine at a time calls Send, Receive and Drain;
// the rest is for any.
type Conn struct {
	*mpa.Conn // its Send and Receive are hidden by those of Conn
	tx        sender
	rx        receiver
}

func newConn(c *mpa.Conn) *Conn {
	d := &Conn{Conn: c}
	for i := range queues {
		d.tx.msn[i], d.rx.queues[i].next = FirstMSN, FirstMSN
	}
	return d
}

// Connect starts l as the initiator, as mpa.Connect does.
func Connect(ctx context.Context, l llp.Conn, p Params) (*Conn, Peer, error) {
	c, peer, err := mpa.Connect(ctx, l, p)
	if err != nil {
		return nil, peer, err
	}
	return newConn(c), peer, nil
}

// Incoming is a connection that waits for Accept or Reject, as mpa.Incoming.
type Incoming struct{ *mpa.Incoming }

// ReadRequest starts l as the responder, as mpa.ReadRequest does.
func ReadRequest(ctx context.Context, l llp.Conn, timeout time.Duration) (Incoming, error) {
	in, err := mpa.ReadRequest(ctx, l, timeout)
	return Incoming{in}, err
}

// Accept answers the Request, as mpa.Incoming.Accept does.
func (in Incoming) Accept(p Params) (*Conn, error) {
	c, err := in.Incoming.Accept(p)
	if err != nil {
		return nil, err
	}
	return newConn(c), nil
}

// Send sends messages of src, at most one super-packet, and returns its octets on
// the wire: 0 where src has nothing. It does not block; errors are those of
// mpa.Conn.Send. Where a message's memory could not be read, src.Failed is told
// and Send fails with the reason.
func (d *Conn) Send(src Source) (octets int, err error) {
	s := &d.tx
	s.src, s.index, s.marks, s.hole = src, 0, s.marks[:0], nil
	octets, err = d.Conn.Send(s)
	s.src = nil
	sent := s.index
	if err != nil {
		switch i, hole := holeIn(err, s); {
		case !hole:
			return octets, err // the connection's: nothing of this batch went out
		case i >= 0:
			sent = i
		}
	}
	for _, m := range s.marks {
		if m.index < sent {
			src.Sent(m.class, m.token)
		} else { // the first that ends at or behind the hole is the one with the hole
			src.Failed(m.class, m.token, err)
			return octets, err
		}
	}
	if err != nil {
		src.Failed(s.m.Class, s.m.Token, err)
	}
	return octets, err
}

// holeIn says whether err is about a message's memory, and which ULPDU of the
// batch was the first without; -1 where all that were taken went out.
func holeIn(err error, s *sender) (index int, ok bool) {
	var ge *mpa.GatherError
	if errors.As(err, &ge) {
		return ge.Index, true
	}
	return -1, s.hole != nil && err == s.hole
}

// Abandon gives up the message that is being cut, if any. What was sent of it
// stays without an end.
func (d *Conn) Abandon() { d.tx.active = false }

// Busy says whether a message is being cut.
func (d *Conn) Busy() bool { return d.tx.active }

// Receive checks and places what has come in, about budget octets at most, and
// returns the octets taken off the wire: 0 and nil where nothing whole waits.
// It does not block. Errors are the Handler's, *Error, ErrShort, *mem.CheckError
// where memory went away, and those of mpa.Conn.Receive. After any of them only
// Drain may be called.
func (d *Conn) Receive(budget int, h Handler) (octets int, err error) {
	d.rx.h = h
	octets, err = d.Conn.Receive(budget, &d.rx)
	d.rx.h = nil
	return octets, err
}

// Offender returns the header of the segment that Receive failed on, lent, empty
// where it had none that is whole; and the octets of that segment.
func (d *Conn) Offender() (hdr []byte, segment int) {
	return d.rx.hdr[:d.rx.hdrLen], d.rx.segLen
}
