package mem

import (
	"errors"
	"fmt"
)

// The verdicts of a check. Layers above turn them into wire codes.
var (
	// ErrSTag: the STag names no region, or one that was invalidated.
	ErrSTag = errors.New("invalid STag")
	// ErrBounds: octets beyond the region's ends were asked for.
	ErrBounds = errors.New("outside the bounds of the region")
	// ErrWrap: TO plus length exceeds 2^64-1 (RFC 5041 section 7.1).
	ErrWrap = errors.New("TO wraps")
	// ErrPD: the region belongs to another protection domain.
	ErrPD = errors.New("STag is not associated with this stream's protection domain")
	// ErrAccess: the region does not grant the right.
	ErrAccess = errors.New("access right not granted")
)

// CheckError is a verdict with the values that led to it.
type CheckError struct {
	Err  error  // ErrSTag, ErrBounds, ErrWrap, ErrPD or ErrAccess
	STag STag   // as asked for
	TO   uint64 // as asked for, in octets
	Len  uint64 // as asked for, in octets
	Want Access // the right asked for, 0 for none

	Base uint64 // of the region, where Err is ErrBounds
	Size int    // of the region in octets, where Err is ErrBounds
	Have Access // of the region, where Err is ErrAccess
}

func (e *CheckError) Error() string {
	s := fmt.Sprintf("mem: %v: STag %v, TO %#x, %d octets", e.Err, e.STag, e.TO, e.Len)
	switch e.Err {
	case ErrBounds:
		s += fmt.Sprintf("; the region has %d octets from TO %#x", e.Size, e.Base)
	case ErrAccess:
		return s + fmt.Sprintf("; wants %v, the region grants %v (RFC 5040 section 7.2)", e.Want, e.Have)
	}
	return s + " (RFC 5041 section 7.1)"
}

func (e *CheckError) Unwrap() error { return e.Err }
