package mem

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
)

// backing is where a region's octets live. Memory of this process is a slice;
// memory of another process has no slice, and moves by system calls that may
// fail, hence the errors. Offsets were checked by the caller.
type backing interface {
	read(dst []byte, off int) error
	write(off int, src []byte) error
}

// slice is memory of this process.
type slice []byte

func (s slice) read(dst []byte, off int) error {
	move(dst, s[off:off+len(dst)], &gathered)
	return nil
}

func (s slice) write(off int, src []byte) error {
	move(s[off:off+len(src)], src, &scattered)
	return nil
}

// lastOctets is how much of a message's end is written after all else, in
// octets: what a program can poll with one LoadUint64.
const lastOctets = 8

// Region is registered memory. Its octets are the owner's; a Region only says
// who else may touch them, and counts who is doing so.
type Region struct {
	stag   STag
	pd     PD
	access Access
	base   uint64
	n      int
	mem    backing
	buf    []byte // the octets, nil where they lie in another process

	// use is the number of moves in progress, with bit dead set once the region
	// is invalid: one word, so that "valid, and now in use" is one step.
	use  atomic.Int64
	idle chan struct{} // closed by the last user after death, made by kill
	once sync.Once

	// tail guards the last octets of messages against Load, nothing else.
	tail sync.Mutex
}

const dead = int64(1) << 62

// NewLocal makes a region of buf that no STag names: for inline data, and for
// memory that only this side touches.
func NewLocal(buf []byte) *Region {
	return &Region{n: len(buf), mem: slice(buf), buf: buf, access: LocalWrite, idle: make(chan struct{})}
}

// STag returns the name of r on the wire, 0 for a local region.
func (r *Region) STag() STag { return r.stag }

// PD returns the protection domain of r, 0 for a local region.
func (r *Region) PD() PD { return r.pd }

// Access returns the rights on r.
func (r *Region) Access() Access { return r.access }

// Base returns the TO of r's first octet.
func (r *Region) Base() uint64 { return r.base }

// Len returns the size of r in octets.
func (r *Region) Len() int { return r.n }

// Bytes returns r's octets, nil where they lie in another process.
func (r *Region) Bytes() []byte { return r.buf }

// Valid says whether r can still be used.
func (r *Region) Valid() bool { return r.use.Load()&dead == 0 }

// Span returns n octets of r from off. It panics where they lie outside r: the
// caller has checked, or has a bug.
func (r *Region) Span(off, n int) Span {
	if off < 0 || n < 0 || n > r.n-off {
		panic(fmt.Sprintf("mem: span of %d octets at %d of a region of %d", n, off, r.n))
	}
	return Span{r, off, n}
}

// acquire keeps r from being deregistered until release; false where r is
// already invalid.
func (r *Region) acquire() bool {
	if r.use.Add(1)&dead == 0 {
		return true
	}
	r.release()
	return false
}

func (r *Region) release() {
	if r.use.Add(-1) == dead {
		r.once.Do(func() { close(r.idle) })
	}
}

// kill makes r invalid and reports whether it was valid before.
func (r *Region) kill() bool {
	for {
		u := r.use.Load()
		if u&dead != 0 {
			return false
		}
		if r.use.CompareAndSwap(u, u|dead) {
			if u == 0 {
				r.once.Do(func() { close(r.idle) })
			}
			return true
		}
	}
}

// wait returns when r is invalid and nothing moves in it: the length of a copy,
// never a peer's pace, since a use never outlives one step of a QP.
func (r *Region) wait() { <-r.idle }

// Load copies the octets of r from off to p, and is ordered after the last
// octets of every message placed: a program that sees a message's last octet by
// Load sees all of it. While a message is being placed, Load is clean under the
// race detector for the last octets of its last segment, up to 8; what comes
// before them must not be looked at until the last one is there. p and off must
// lie within r, else Load panics. It blocks for the length of a copy at most.
func (r *Region) Load(p []byte, off int) {
	s := r.Span(off, len(p))
	r.tail.Lock()
	defer r.tail.Unlock()
	copy(p, r.buf[s.Off:s.Off+s.Len])
}

// LoadByte is Load of one octet.
func (r *Region) LoadByte(off int) byte {
	s := r.Span(off, 1)
	r.tail.Lock()
	defer r.tail.Unlock()
	return r.buf[s.Off]
}

// LoadUint64 is Load of eight octets, in the machine's byte order.
func (r *Region) LoadUint64(off int) uint64 {
	s := r.Span(off, 8)
	r.tail.Lock()
	defer r.tail.Unlock()
	return binary.NativeEndian.Uint64(r.buf[s.Off:])
}

// scatter writes src at off; the caller holds a use and has checked bounds.
func (r *Region) scatter(off int, src Vec, last bool) error {
	rest := src.Len()
	for _, b := range src {
		n := len(b)
		if last && rest-n < lastOctets {
			// The end of the message lies in b, or b in the end.
			early := max(0, rest-lastOctets)
			early = min(early, n)
			if err := r.write(off, b[:early]); err != nil {
				return err
			}
			if err := r.writeTail(off+early, b[early:]); err != nil {
				return err
			}
		} else if err := r.write(off, b); err != nil {
			return err
		}
		off += n
		rest -= n
	}
	return nil
}

func (r *Region) write(off int, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return r.mem.write(off, b)
}

func (r *Region) writeTail(off int, b []byte) error {
	r.tail.Lock()
	defer r.tail.Unlock()
	return r.write(off, b)
}
