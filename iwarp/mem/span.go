package mem

// Span is Len octets of Region from offset Off. The zero Span is empty and
// names no region.
type Span struct {
	Region *Region
	Off    int
	Len    int
}

// Scatter places src at off of s. It acquires the region by itself, and where
// that is invalid by now fails with ErrSTag and places nothing. last says that
// src ends its message: its last octets then become visible after all others.
// src must fit.
func (s Span) Scatter(off int, src Vec, last bool) error {
	n := src.Len()
	if n == 0 {
		return nil
	}
	if off < 0 || n > s.Len-off {
		return &CheckError{Err: ErrBounds, STag: s.stag(), TO: uint64(off), Len: uint64(n), Size: s.Len}
	}
	if !s.Region.acquire() {
		return &CheckError{Err: ErrSTag, STag: s.stag(), TO: s.Region.base + uint64(s.Off+off), Len: uint64(n)}
	}
	defer s.Region.release()
	return s.Region.scatter(s.Off+off, src, last)
}

func (s Span) stag() STag {
	if s.Region == nil {
		return 0
	}
	return s.Region.stag
}
