package rdmap

import (
	"github.com/softrnic/softrnic/iwarp/ddp"
	"github.com/softrnic/softrnic/iwarp/mem"
)

// ring is a queue of fixed depth.
type ring[T any] struct {
	slots   []T
	head, n int
}

func (r *ring[T]) full() bool { return r.n == len(r.slots) }

// push returns the slot behind the last, to be filled.
func (r *ring[T]) push() *T {
	t := &r.slots[(r.head+r.n)%len(r.slots)]
	r.n++
	return t
}

func (r *ring[T]) first() *T {
	if r.n == 0 {
		return nil
	}
	return &r.slots[r.head]
}

func (r *ring[T]) pop() {
	r.head = (r.head + 1) % len(r.slots)
	r.n--
}

// read is a Read Request of ours that waits for its Response (RFC 5040 section
// 5.2.2). Responses come in the order of the requests.
type read struct {
	sink  mem.Span
	got   int // octets that have come
	token uint64
}

// place returns where n octets of a Response go, after the checks that keep a
// peer from writing elsewhere: STag, TO and length must be those of the oldest
// request (RFC 5040 section 5.2.1 lets us).
func (o *read) place(h *ddp.Tagged, n int) (mem.Span, error) {
	if n == 0 && o.sink.Len == 0 {
		return mem.Span{}, endsAt(h.Last, true, 0, 0)
	}
	sink := o.sink
	if n > 0 {
		if sink.Len == 0 || h.STag != sink.Region.STag() {
			return mem.Span{}, &mem.CheckError{Err: mem.ErrSTag, STag: h.STag, TO: h.TO, Len: uint64(n)}
		}
		at := sink.Region.Base() + uint64(sink.Off+o.got)
		if n > sink.Len-o.got || h.TO != at {
			return mem.Span{}, &mem.CheckError{Err: mem.ErrBounds, STag: h.STag, TO: h.TO, Len: uint64(n), Base: at, Size: sink.Len - o.got}
		}
	}
	if err := endsAt(h.Last, o.got+n == sink.Len, o.got+n, sink.Len); err != nil {
		return mem.Span{}, err
	}
	return mem.Span{Region: sink.Region, Off: sink.Off + o.got, Len: n}, nil
}

func endsAt(last, all bool, got, want int) error {
	if last != all {
		return operationError(CodeUnspecified, "Read Response with L %v after %d of %d octets (RFC 5040 section 5.2.2)", last, got, want)
	}
	return nil
}
