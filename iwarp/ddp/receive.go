package ddp

import (
	"math"

	"github.com/softrnic/softrnic/iwarp/mem"
)

// queues is how many QNs there are: 0 to 2 (RFC 5040 section 4.2).
const queues = 3

// Handler is the upper layer. Its methods run inside Receive; they must not
// block and must not call the Conn. An error refuses the segment, of which
// nothing is then placed, and ends the stream.
type Handler interface {
	// Tagged returns where the n octets of a tagged segment go. The span is
	// looked at only where n > 0, and has n octets then.
	Tagged(h *Tagged, n int) (mem.Span, error)
	// TaggedDone says that the n octets were placed.
	TaggedDone(h *Tagged, n int) error
	// Untagged is asked before each untagged segment is placed. first is set for
	// the first segment of a message: the SGL returned is then the buffer of the
	// whole message; a message without one is refused with ErrNoBuffer.
	Untagged(h *Untagged, first bool) (mem.SGL, error)
	// UntaggedDone says that a message of n octets came in whole, in the buffer
	// given for it. h is its last segment's.
	UntaggedDone(h *Untagged, n int) error
}

// ErrNoBuffer is what Handler.Untagged returns where it has no buffer for a
// message (RFC 5041 section 7.1).
var ErrNoBuffer = &Error{TypeUntagged, CodeNoBuffer, "no buffer for an untagged message (RFC 5041 section 7.1)"}

// inbound is the receiving side of one queue.
type inbound struct {
	next   MSN     // expected
	placed uint32  // octets of the message at hand
	active bool    // its first segment has come
	buf    mem.SGL // where it goes
	room   uint64  // octets of buf
}

// receiver checks and places segments, an mpa.Receiver.
type receiver struct {
	h      Handler
	queues [queues]inbound
	head   [MaxLen]byte // scratch for a header that TCP cut
	// The segment at hand, for the Terminate that an error provokes.
	hdr    [MaxLen]byte
	hdrLen int
	segLen int

	// Handed to h by pointer, so kept here and not on a stack.
	tagged   Tagged
	untagged Untagged
}

// ULPDU takes one segment.
func (r *receiver) ULPDU(v mem.Vec) error {
	r.segLen, r.hdrLen = v.Len(), 0
	if r.segLen == 0 {
		return ErrShort
	}
	if IsTagged(v.Head(1, r.head[:])[0]) {
		return r.taggedSegment(v)
	}
	return r.untaggedSegment(v)
}

// remember keeps the header of the segment at hand.
func (r *receiver) remember(b []byte) {
	r.hdrLen = copy(r.hdr[:], b)
}

func (r *receiver) taggedSegment(v mem.Vec) (err error) {
	b := v.Head(TaggedLen, r.head[:])
	h := &r.tagged
	if len(b) == TaggedLen {
		r.remember(b)
	}
	if *h, err = ParseTagged(b); err != nil {
		return err
	}
	v = v.Skip(TaggedLen)
	n := r.segLen - TaggedLen
	span, err := r.h.Tagged(h, n)
	if err != nil {
		return err
	}
	if n > 0 {
		if err := span.Scatter(0, v, h.Last); err != nil {
			return err
		}
	}
	return r.h.TaggedDone(h, n)
}

func (r *receiver) untaggedSegment(v mem.Vec) (err error) {
	b := v.Head(UntaggedLen, r.head[:])
	h := &r.untagged
	if len(b) == UntaggedLen {
		r.remember(b)
	}
	if *h, err = ParseUntagged(b); err != nil {
		return err
	}
	v = v.Skip(UntaggedLen)
	n := r.segLen - UntaggedLen
	if h.QN >= queues {
		return untaggedError(CodeQN, "QN %d, 0 to %d are in use (RFC 5041 section 7.1)", h.QN, queues-1)
	}
	q := &r.queues[h.QN]
	switch {
	case h.MSN != q.next:
		return untaggedError(CodeMSN, "MSN %d on QN %d, expected %d (RFC 5041 section 7.1)", h.MSN, h.QN, q.next)
	case h.MO != q.placed:
		// Section 5.3 asks for increasing MO; a hole must not be delivered.
		return untaggedError(CodeMO, "MO %d in MSN %d on QN %d, expected %d (RFC 5041 section 7.1)", h.MO, h.MSN, h.QN, q.placed)
	}
	buf, err := r.h.Untagged(h, !q.active)
	if err != nil {
		return err
	}
	if !q.active {
		q.active, q.buf, q.room = true, buf, uint64(buf.Len())
	}
	if end := uint64(h.MO) + uint64(n); end > q.room || end > math.MaxUint32 {
		return untaggedError(CodeTooLong, "MSN %d on QN %d has %d octets or more, its buffer %d (RFC 5041 section 7.1)", h.MSN, h.QN, end, q.room)
	}
	if n > 0 {
		if err := q.buf.Scatter(int(h.MO), v, h.Last); err != nil {
			return &BufferError{err}
		}
	}
	q.placed += uint32(n)
	if !h.Last {
		return nil
	}
	total := int(q.placed)
	q.next++
	q.placed, q.active, q.buf = 0, false, nil
	return r.h.UntaggedDone(h, total)
}
