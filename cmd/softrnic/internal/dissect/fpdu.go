package dissect

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/softrnic/softrnic/iwarp/mpa"
)

// Markers (RFC 5044 section 4.3): one at the start of the FPDU stream, and then
// every 512 octets, counting themselves.
const (
	markerEvery = 512
	markerLen   = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frame is an FPDU as it lies in the stream.
type frame struct {
	ulpdu   []byte // without markers
	wire    int    // octets in the stream
	markers int    // octets of them that are markers
	sum     uint32 // as it should be
	stored  uint32 // as it is
	marker  string // what is wrong with a marker
}

// framer finds FPDUs, with markers or without.
type framer struct {
	markers bool
	joined  []byte // a ULPDU that markers had cut
}

// first reads the FPDU at the start of b, which is pos octets into the stream of
// FPDUs. ok is false where b ends within it.
func (f *framer) first(b []byte, pos uint64) (fr frame, ok bool, err error) {
	w := walk{b: b, pos: pos, markers: f.markers}
	if !w.take(2) {
		return fr, false, nil
	}
	n := int(binary.BigEndian.Uint16(b[w.last:]))
	if n > mpa.MaxULPDU {
		return fr, false, fmt.Errorf("ULPDU_Length %d exceeds %d", n, mpa.MaxULPDU)
	}
	head := w.last
	if fr.wire = f.length(n, pos); len(b) < fr.wire {
		return fr, false, nil
	}
	fr.ulpdu = b[2 : 2+n]
	if f.markers {
		rest := mpa.FPDULen(n) - 2 - 4
		f.joined = f.joined[:0]
		for rest > 0 {
			k := min(rest, w.run())
			if k == 0 {
				w.marker(head)
				continue
			}
			w.take(k)
			f.joined = append(f.joined, b[w.last:w.last+k]...)
			rest -= k
		}
		if w.run() == 0 {
			w.marker(head)
		}
		fr.ulpdu, fr.markers, fr.marker = f.joined[:n], w.seen, w.fault
	}
	fr.sum = crc32.Checksum(b[:fr.wire-4], castagnoli)
	fr.stored = binary.LittleEndian.Uint32(b[fr.wire-4:])
	return fr, true, nil
}

// length returns the octets in the stream of an FPDU with a ULPDU of n octets.
func (f *framer) length(n int, pos uint64) int {
	bare := mpa.FPDULen(n)
	if !f.markers {
		return bare
	}
	// Markers make it longer, so that more of them fall into it.
	for total := bare; ; {
		first := (markerEvery - pos%markerEvery) % markerEvery // where the next marker begins
		count := 0
		if uint64(total) > first {
			count = 1 + int((uint64(total)-first-1)/markerEvery)
		}
		if total == bare+count*markerLen {
			return total
		}
		total = bare + count*markerLen
	}
}

// walk goes through a stream with markers.
type walk struct {
	b       []byte
	i       int
	pos     uint64 // of b[0]
	markers bool
	last    int // where the octets last taken begin
	seen    int // octets of markers passed
	fault   string
}

func (w *walk) short() bool { return w.i > len(w.b) }

// run returns the octets up to the next marker; 0 where one is due.
func (w *walk) run() int {
	at := (w.pos + uint64(w.i)) % markerEvery
	if at == 0 {
		return 0
	}
	return int(markerEvery - at)
}

// marker passes a marker of an FPDU whose ULPDU_Length is at head.
func (w *walk) marker(head int) {
	w.i += markerLen
	w.seen += markerLen
	if w.short() {
		return
	}
	ptr := int(binary.BigEndian.Uint16(w.b[w.i-2:]))
	if want := max(0, w.i-markerLen-head); ptr != want && w.fault == "" {
		w.fault = fmt.Sprintf("the marker %d octets into the FPDU points back %d octets", want, ptr)
	}
}

// take passes n octets that no marker cuts, and a marker in front of them.
func (w *walk) take(n int) bool {
	if w.markers && w.run() == 0 {
		w.marker(w.i + markerLen)
	}
	w.last = w.i
	if w.short() || w.i+n > len(w.b) {
		return false
	}
	w.i += n
	return true
}
