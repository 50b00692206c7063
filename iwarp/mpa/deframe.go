package mpa

import (
	"hash/crc32"

	"github.com/softrnic/softrnic/iwarp/mem"
)

// Deframer finds the ULPDUs in a stream, however it is cut into slices (RFC 5044
// section 5.2). It joins nothing: a ULPDU comes out in the pieces it came in.
// The zero value checks no CRC.
type Deframer struct {
	CRC bool // verify CRC32c

	slices [][]byte // what Feed gave and Next has not passed; slices[0][off:] is next
	off    int
	left   int // octets in slices, from off
	passed int
	split  bool
	need   int
	vec    mem.Vec // the FPDU at hand
	err    error
}

// Feed hands the Deframer what follows the octets that earlier calls of Next
// have passed, lent until the next Feed. What an earlier Feed gave and Next did
// not pass must be given again.
func (d *Deframer) Feed(slices [][]byte) {
	d.slices, d.off, d.passed = slices, 0, 0
	d.left = mem.Vec(slices).Len()
}

// Passed returns the octets of whole FPDUs that Next has delivered since Feed.
func (d *Deframer) Passed() int { return d.passed }

// Need returns how many octets from the last whole FPDU on are needed for the
// next one to be whole, as far as is known.
func (d *Deframer) Need() int { return max(d.need, MinFPDU) }

// Split says whether the last ULPDU lay in more than one slice.
func (d *Deframer) Split() bool { return d.split }

// Next returns the next ULPDU, lent until the next call of Next or Feed, after
// its CRC was verified. It returns ErrShort where no whole FPDU is left, and an
// *Error, for ever, once the stream cannot be trusted.
func (d *Deframer) Next() (mem.Vec, error) {
	if d.err != nil {
		return nil, d.err
	}
	if d.left < MinFPDU {
		d.need = MinFPDU
		return nil, ErrShort
	}
	n := d.ulpduLen()
	if n > MaxULPDU {
		d.err = errorf(CodeMarker, "ULPDU_Length %d exceeds %d (RFC 5044 section 3)", n, MaxULPDU)
		return nil, d.err
	}
	total := FPDULen(n)
	if d.left < total {
		d.need = total
		return nil, ErrShort
	}
	d.need = 0
	sum, stored := d.take(total)
	if d.CRC && sum != stored {
		d.passed -= total
		d.err = errorf(CodeCRC, "CRC32c of an FPDU with ULPDU_Length %d is %#08x, the field says %#08x (RFC 5044 section 4.4)", n, sum, stored)
		return nil, d.err
	}
	d.split = len(d.vec) > 1
	return trim(d.vec.Skip(lenLen), n), nil
}

// ulpduLen reads the length field, which may lie in two slices.
func (d *Deframer) ulpduLen() int {
	i, off, n := 0, d.off, 0
	for range lenLen {
		for off == len(d.slices[i]) {
			i, off = i+1, 0
		}
		n = n<<8 | int(d.slices[i][off])
		off++
	}
	return n
}

// take moves the next total octets to d.vec and returns the CRC32c of those that
// it covers, and the CRC field.
func (d *Deframer) take(total int) (sum, stored uint32) {
	const keep = 64 // slices; a peer that sends single octets shall not make us hold more for ever
	if cap(d.vec) > keep && total < keep {
		d.vec = nil
	}
	d.vec = d.vec[:0]
	d.left -= total
	d.passed += total
	covered, shift := total-crcLen, 0
	for total > 0 {
		s := d.slices[0][d.off:]
		if len(s) == 0 {
			d.slices, d.off = d.slices[1:], 0
			continue
		}
		s = s[:min(len(s), total)]
		d.off += len(s)
		total -= len(s)
		d.vec = append(d.vec, s)
		if covered > 0 {
			k := min(covered, len(s))
			if d.CRC {
				sum = crc32.Update(sum, castagnoli, s[:k])
			}
			covered -= k
			s = s[k:]
		}
		for _, b := range s {
			stored |= uint32(b) << shift
			shift += 8
		}
	}
	return sum, stored
}

// trim cuts v to its first n octets, in place.
func trim(v mem.Vec, n int) mem.Vec {
	for i := range v {
		if n <= len(v[i]) {
			v[i] = v[i][:n]
			return v[:i+1]
		}
		n -= len(v[i])
	}
	return v
}
