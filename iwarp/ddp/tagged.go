package ddp

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/iwarp/mem"
)

// Tagged is the header of a segment bound for a tagged buffer (RFC 5041 section
// 4.2).
//
//	0          1          2          6                    14
//	+----------+----------+----------+--------------------+--------
//	|T L    DV | RsvdULP  |   STag   |         TO         | payload
type Tagged struct {
	Last    bool     // L: the last segment of its message
	RsvdULP uint8    // the upper layer's octet, carried unread
	STag    mem.STag // names the region
	TO      uint64   // where in it the payload goes, in octets
}

// ParseTagged reads the header at the start of b. It fails with ErrShort, or with
// the error for a wrong version (section 7.2).
func ParseTagged(b []byte) (h Tagged, err error) {
	switch {
	case len(b) < TaggedLen:
		return h, ErrShort
	case b[0]&maskVersion != version:
		return h, errTaggedVersion
	}
	h.Last, h.RsvdULP = b[0]&flagLast != 0, b[1]
	h.STag = mem.STag(binary.BigEndian.Uint32(b[2:]))
	h.TO = binary.BigEndian.Uint64(b[6:])
	return h, nil
}

// Put writes h into the first TaggedLen octets of b.
func (h *Tagged) Put(b []byte) {
	b[0] = flagTagged | version
	if h.Last {
		b[0] |= flagLast
	}
	b[1] = h.RsvdULP
	binary.BigEndian.PutUint32(b[2:], uint32(h.STag))
	binary.BigEndian.PutUint64(b[6:], h.TO)
}
