package mem

// Vec is lent octets that lie in several slices, in order: a ULPDU that TCP cut
// into segments. Nobody joins it; it is read where it lies.
type Vec [][]byte

// Len returns the number of octets.
func (v Vec) Len() int {
	n := 0
	for _, b := range v {
		n += len(b)
	}
	return n
}

// Skip returns v without its first n octets, at most Len. It reslices v's
// elements in place, so v itself must not be used afterwards.
func (v Vec) Skip(n int) Vec {
	for len(v) > 0 && n >= len(v[0]) {
		n -= len(v[0])
		v = v[1:]
	}
	if n > 0 && len(v) > 0 {
		v[0] = v[0][n:]
	}
	return v
}

// Head returns the first n octets of v, fewer where v is shorter: a slice of v
// where they lie together, else collected in scratch, which has at least n
// octets. It is for headers; payload moves by Scatter.
func (v Vec) Head(n int, scratch []byte) []byte {
	if len(v) > 0 && len(v[0]) >= n {
		return v[0][:n]
	}
	scratch = scratch[:0:n]
	for _, b := range v {
		for _, c := range b {
			if len(scratch) == n {
				return scratch
			}
			scratch = append(scratch, c)
		}
	}
	return scratch
}
