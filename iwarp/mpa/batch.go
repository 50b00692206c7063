package mpa

import (
	"encoding/binary"
	"hash/crc32"
	"sync"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/mem"
)

// MaxHeader is the room for headers in a ULPDU, in octets: a Terminate message
// with everything it may carry.
const MaxHeader = 72

// ULPDU is one ULPDU to be sent: HdrLen octets of Hdr, then Len octets of SGL
// from Off.
type ULPDU struct {
	Hdr    [MaxHeader]byte
	HdrLen int
	SGL    mem.SGL
	Off    int
	Len    int
}

// Source yields the ULPDUs to send, in order.
type Source interface {
	// Next sets u to the next ULPDU, of at most max octets, and returns true; or
	// returns false where it has none, or none that fits. Where u.Len > 0 it has
	// acquired u.SGL, which is released once the octets are in TCP's hands. An
	// error ends the batch before this ULPDU and comes back from Send.
	Next(max int, u *ULPDU) (ok bool, err error)
}

const (
	// minFill is the FPDU of MinMULPDU octets. Where a segment has less room left,
	// a message must not be cut to fit in it (RFC 5044 section 4.5).
	minFill = 136
	// maxPlan is how many FPDUs one batch holds at most.
	maxPlan = 64
)

// batch is a planned run of FPDUs, an llp.Batch. It lives for one Send.
type batch struct {
	ulpdus [maxPlan]ULPDU
	n      int
	octets int // of the FPDUs
	ulpdu  int // of these, octets of ULPDUs
	crc    bool
	bad    int // index of the ULPDU whose payload could not be read, or -1
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// plan takes ULPDUs from src for a batch that room has space for, so that FPDUs
// start where segments start: the first one fills what is left of the segment
// at hand, those behind it are at most one segment long (RFC 5044 section 5.1).
// Where segments are smaller than minFill there is no such grid.
func (b *batch) plan(room llp.Room, src Source) error {
	emss := max(room.EMSS&^3, minFill)
	left := min(room.Left&^3, emss)
	if left <= 0 {
		left = emss
	}
	limit := room.MaxBatch &^ 3
	if left < emss {
		limit -= emss - left // end where a segment ends
	}
	if limit < minFill { // then into the next segment
		limit = max(room.MaxBatch&^3, minFill)
	}
	for b.n < maxPlan && limit-b.octets >= minFill {
		u := &b.ulpdus[b.n]
		ok, err := false, error(nil)
		if left >= minFill {
			ok, err = src.Next(MULPDU(min(left, limit-b.octets)), u)
		}
		if !ok && err == nil && left < emss {
			// Nothing fits in the rest of this segment: an FPDU goes across its end,
			// short enough that another can end where the next segment ends, unless
			// it is so short that it fits.
			ok, err = src.Next(MULPDU(min(left+emss/2&^3, emss, limit-b.octets)), u)
			if !ok && err == nil && emss <= limit-b.octets {
				ok, err = src.Next(MULPDU(emss), u) // a message that cannot be cut
			}
		}
		if err != nil || !ok {
			return err
		}
		n := FPDULen(u.HdrLen + u.Len)
		b.n++
		b.octets += n
		b.ulpdu += u.HdrLen + u.Len
		for left -= n; left <= 0; {
			left += emss
		}
	}
	return nil
}

// release gives back the regions of the ULPDUs from i on, and drops these.
func (b *batch) release(i int) {
	for k := i; k < b.n; k++ {
		u := &b.ulpdus[k]
		if u.Len > 0 {
			u.SGL.Release()
		}
		b.octets -= FPDULen(u.HdrLen + u.Len)
		b.ulpdu -= u.HdrLen + u.Len
		u.SGL = nil
	}
	b.n = min(b.n, i)
}

// Len implements llp.Batch.
func (b *batch) Len() int { return b.octets }

// Read implements llp.Batch: it writes the FPDUs into p, the memory of TCP
// segments, with their payload gathered and their CRC calculated there.
func (b *batch) Read(p []byte) (int, error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case len(p) < b.octets:
		return 0, llp.ErrNoRoom
	}
	at := 0
	for i := range b.ulpdus[:b.n] {
		u := &b.ulpdus[i]
		n := u.HdrLen + u.Len
		f := p[at : at+FPDULen(n)]
		binary.BigEndian.PutUint16(f, uint16(n))
		q := f[lenLen:]
		copy(q, u.Hdr[:u.HdrLen])
		if u.Len > 0 {
			if err := u.SGL.Gather(q[u.HdrLen:n], u.Off); err != nil {
				b.bad = i
				return 0, err
			}
		}
		covered := len(f) - crcLen
		for k := lenLen + n; k < covered; k++ {
			f[k] = 0
		}
		var sum uint32
		if b.crc {
			sum = crc32.Checksum(f[:covered], castagnoli)
		}
		binary.LittleEndian.PutUint32(f[covered:], sum)
		at += len(f)
	}
	return at, nil
}
