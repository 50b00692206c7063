package mem

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
)

// STag names a region on the wire: 24 bits of index, which the table chooses at
// random, and 8 bits of key (RFC 5040 section 4.1, RFC 5042 section 6.2.5).
type STag uint32

const keyBits = 8

// Index is the part of s that finds the region.
func (s STag) Index() uint32 { return uint32(s) >> keyBits }

// Key is the part of s that tells one life of an index from the next.
func (s STag) Key() uint8 { return uint8(s) }

func (s STag) String() string { return fmt.Sprintf("0x%08x", uint32(s)) }

// PD is the number of a protection domain; 0 is none, and matches none.
type PD uint32

// random32 returns bits that a peer cannot predict. crypto/rand never fails.
func random32() uint32 {
	var b [4]byte
	rand.Read(b[:])
	return binary.NativeEndian.Uint32(b[:])
}

// quarantine holds the indexes freed last, oldest first, so that a stale STag
// does not soon name somebody else's memory. Count is all it goes by: an index
// that leaves is but one of millions that the next Register draws from, and its
// key is drawn again as well.
type quarantine struct {
	ring []uint32
	next int
}

const quarantineLen = 4096

// put adds index and returns the one that has waited longest, if any leaves.
func (q *quarantine) put(index uint32) (out uint32, ok bool) {
	if len(q.ring) < quarantineLen {
		q.ring = append(q.ring, index)
		return 0, false
	}
	out = q.ring[q.next]
	q.ring[q.next] = index
	q.next = (q.next + 1) % quarantineLen
	return out, true
}
