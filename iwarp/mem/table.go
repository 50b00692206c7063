package mem

import (
	"errors"
	"fmt"
	"math"
	"sync"
)

// MaxRegions bounds the regions of a table: a quarter of all indexes, so that
// an STag guessed at random rarely names one, and a free index is found at once.
const MaxRegions = 1 << 22

// ErrFull says that a table holds MaxRegions already.
var ErrFull = errors.New("mem: too many regions")

// Table finds regions by STag. Any goroutine may call its methods.
type Table struct {
	mu      sync.RWMutex
	regions map[uint32]*Region // by index; nil while in quarantine
	free    quarantine
	live    int
}

// NewTable returns an empty table.
func NewTable() *Table { return &Table{regions: make(map[uint32]*Region)} }

// Register makes buf a region of pd whose first octet has TO base. buf stays the
// caller's; it may be empty. pd must not be 0.
func (t *Table) Register(pd PD, buf []byte, base uint64, access Access) (*Region, error) {
	switch {
	case pd == 0:
		return nil, errors.New("mem: Register needs a protection domain")
	case access&^allAccess != 0:
		return nil, fmt.Errorf("mem: unknown access rights %#x", uint8(access&^allAccess))
	case len(buf) > 0 && uint64(len(buf)-1) > math.MaxUint64-base:
		return nil, fmt.Errorf("mem: a region of %d octets from TO %#x passes 2^64", len(buf), base)
	}
	r := NewLocal(buf)
	r.pd, r.base, r.access = pd, base, access

	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live >= MaxRegions {
		return nil, fmt.Errorf("%w: %d", ErrFull, t.live)
	}
	for {
		bits := random32()
		index := bits >> keyBits
		if _, taken := t.regions[index]; taken || index == 0 { // index 0 holds STag 0, which is never valid on the wire
			continue
		}
		r.stag = STag(bits)
		t.regions[index] = r
		t.live++
		return r, nil
	}
}

// Deregister takes r out of the table: at once no new use of it is granted, and
// when Deregister returns no octet of it is being moved, nor will be. It waits
// for moves in progress, never for a peer. A second call fails with ErrSTag.
func (t *Table) Deregister(r *Region) error {
	index := r.stag.Index()
	t.mu.Lock()
	if t.regions[index] != r {
		t.mu.Unlock()
		return &CheckError{Err: ErrSTag, STag: r.stag, TO: r.base}
	}
	t.regions[index] = nil // taken, names nothing
	t.live--
	if out, ok := t.free.put(index); ok {
		delete(t.regions, out)
	}
	t.mu.Unlock()
	r.kill()
	r.wait()
	return nil
}

// Invalidate takes away the STag for a peer's Send with Invalidate, which needs
// the right RemoteInvalidate and the region's own protection domain (RFC 5040
// section 5.3). Memory and index stay with the owner until Deregister. Moves in
// progress are waited for, so that none follows.
func (t *Table) Invalidate(stag STag, pd PD) (*Region, error) {
	r := t.find(stag)
	switch {
	case r == nil || !r.Valid():
		return nil, &CheckError{Err: ErrSTag, STag: stag, Want: RemoteInvalidate}
	case r.pd != pd:
		return nil, &CheckError{Err: ErrPD, STag: stag, Want: RemoteInvalidate}
	case r.access&RemoteInvalidate == 0:
		return nil, &CheckError{Err: ErrAccess, STag: stag, Want: RemoteInvalidate, Have: r.access}
	case !r.kill(): // someone else was first
		return nil, &CheckError{Err: ErrSTag, STag: stag, Want: RemoteInvalidate}
	}
	r.wait()
	return r, nil
}

// Check returns the span of n octets from TO to of the region that stag names,
// where pd and want allow it; else a *CheckError. For n of 0 nothing is checked
// and the span is empty (RFC 5041 section 5.2, RFC 5040 section 5.2.1). The span
// is no promise that the region stays valid: Acquire or Scatter finds out.
func (t *Table) Check(stag STag, to, n uint64, want Access, pd PD) (Span, error) {
	if n == 0 {
		return Span{}, nil
	}
	r := t.find(stag)
	e := CheckError{STag: stag, TO: to, Len: n, Want: want}
	switch {
	case r == nil || !r.Valid():
		e.Err = ErrSTag
	case r.pd != pd || pd == 0:
		e.Err = ErrPD
	case r.access&want != want:
		e.Err, e.Have = ErrAccess, r.access
	case n > math.MaxUint64-to: // a sum of exactly 2^64 wraps to 0 too
		e.Err = ErrWrap
	case to < r.base || to-r.base > uint64(r.n) || n > uint64(r.n)-(to-r.base):
		e.Err, e.Base, e.Size = ErrBounds, r.base, r.n
	default:
		return Span{r, int(to - r.base), int(n)}, nil
	}
	return Span{}, newCheckError(e)
}

// newCheckError keeps the good path of Check free of allocation.
//
//go:noinline
func newCheckError(e CheckError) error { return &e }

// find returns the region that stag names, whole key included, or nil.
func (t *Table) find(stag STag) *Region {
	t.mu.RLock()
	r := t.regions[stag.Index()]
	t.mu.RUnlock()
	if r == nil || r.stag != stag {
		return nil
	}
	return r
}

// Len returns the number of regions that have not been deregistered.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.live
}
