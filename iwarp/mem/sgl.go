package mem

// SGL is a scatter/gather list over checked spans.
type SGL []Span

// Len returns the number of octets.
func (l SGL) Len() int {
	n := 0
	for i := range l {
		n += l[i].Len
	}
	return n
}

// Acquire keeps the regions of l valid until Release, and fails with a
// CheckError of ErrSTag, holding nothing, where one is invalid already. Spans of
// no octets are not looked at.
func (l SGL) Acquire() error {
	for i := range l {
		if s := &l[i]; s.Len > 0 && !s.Region.acquire() {
			l[:i].Release()
			return &CheckError{Err: ErrSTag, STag: s.stag(), TO: s.Region.base + uint64(s.Off), Len: uint64(s.Len)}
		}
	}
	return nil
}

// Release ends what Acquire began.
func (l SGL) Release() {
	for i := range l {
		if s := &l[i]; s.Len > 0 {
			s.Region.release()
		}
	}
}

// Gather fills dst with the octets of l from off. The caller holds Acquire.
func (l SGL) Gather(dst []byte, off int) error {
	if off < 0 || len(dst) > l.Len()-off {
		return &CheckError{Err: ErrBounds, TO: uint64(off), Len: uint64(len(dst)), Size: l.Len()}
	}
	for i := range l {
		s := &l[i]
		if off >= s.Len {
			off -= s.Len
			continue
		}
		if len(dst) == 0 {
			break
		}
		n := min(len(dst), s.Len-off)
		if err := s.Region.mem.read(dst[:n], s.Off+off); err != nil {
			return err
		}
		dst, off = dst[n:], 0
	}
	return nil
}

// Scatter places src at off of l. Where a region that src reaches is invalid it
// fails with ErrSTag and places nothing at all; so it does, with ErrBounds,
// where src does not fit. last is as in Span.Scatter. src is left as it was.
func (l SGL) Scatter(off int, src Vec, last bool) error {
	n := src.Len()
	if n == 0 {
		return nil
	}
	if off < 0 || n > l.Len()-off {
		return &CheckError{Err: ErrBounds, TO: uint64(off), Len: uint64(n), Size: l.Len()}
	}
	// Only the spans that src reaches are acquired, and looked at.
	first, at := 0, 0 // at is the offset of l[first] in the list
	for off >= at+l[first].Len {
		at += l[first].Len
		first++
	}
	end, stop, pos := off+n, first, at
	for pos < end {
		pos += l[stop].Len
		stop++
	}
	l = l[first:stop]
	if err := l.Acquire(); err != nil {
		return err
	}
	defer l.Release()
	c := cursor{v: src}
	for i := range l {
		s := &l[i]
		from, to := max(off, at), min(end, at+s.Len)
		if err := c.place(s, from-at, to-from, last, end-to); err != nil {
			return err
		}
		at += s.Len
	}
	return nil
}

// cursor walks through a Vec without changing it.
type cursor struct {
	v   Vec
	off int // in v[0]
}

// place writes the next n octets to s at off; behind is how many octets of the
// message follow them.
func (c *cursor) place(s *Span, off, n int, last bool, behind int) error {
	for n > 0 {
		if c.off == len(c.v[0]) {
			c.v, c.off = c.v[1:], 0
			continue
		}
		m := min(n, len(c.v[0])-c.off)
		b := c.v[0][c.off : c.off+m]
		early := m
		if last {
			// What lies within lastOctets of the message's end goes under the mutex.
			early = min(m, max(0, n+behind-lastOctets))
		}
		if err := s.Region.write(s.Off+off, b[:early]); err != nil {
			return err
		}
		if err := s.Region.writeTail(s.Off+off+early, b[early:]); err != nil {
			return err
		}
		c.off += m
		off += m
		n -= m
	}
	return nil
}
