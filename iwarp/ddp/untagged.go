package ddp

import "encoding/binary"

// Untagged is the header of a segment bound for an untagged buffer (RFC 5041
// section 4.3).
//
//	0          1          2            6      10      14      18
//	+----------+----------+------------+-------+-------+-------+--------
//	|T L    DV |      RsvdULP          |  QN   |  MSN  |  MO   | payload
type Untagged struct {
	Last     bool   // L: the last segment of its message
	RsvdULP  uint8  // the first of the upper layer's five octets
	RsvdULP4 uint32 // the other four
	QN       QN
	MSN      MSN
	MO       uint32 // where in the message the payload goes, in octets
}

// ParseUntagged reads the header at the start of b. It fails with ErrShort, or
// with the error for a wrong version (section 7.2).
func ParseUntagged(b []byte) (h Untagged, err error) {
	switch {
	case len(b) < UntaggedLen:
		return h, ErrShort
	case b[0]&maskVersion != version:
		return h, errUntaggedVersion
	}
	h.Last, h.RsvdULP = b[0]&flagLast != 0, b[1]
	h.RsvdULP4 = binary.BigEndian.Uint32(b[2:])
	h.QN = QN(binary.BigEndian.Uint32(b[6:]))
	h.MSN = MSN(binary.BigEndian.Uint32(b[10:]))
	h.MO = binary.BigEndian.Uint32(b[14:])
	return h, nil
}

// Put writes h into the first UntaggedLen octets of b.
func (h *Untagged) Put(b []byte) {
	b[0] = version
	if h.Last {
		b[0] |= flagLast
	}
	b[1] = h.RsvdULP
	binary.BigEndian.PutUint32(b[2:], h.RsvdULP4)
	binary.BigEndian.PutUint32(b[6:], uint32(h.QN))
	binary.BigEndian.PutUint32(b[10:], uint32(h.MSN))
	binary.BigEndian.PutUint32(b[14:], h.MO)
}
