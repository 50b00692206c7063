package mpa

import (
	"testing"

	"github.com/softrnic/softrnic/iwarp/llp"
	"pgregory.net/rapid"
)

// Whatever TCP says of its segments, a plan takes what waits: something of it at
// least, no more than there is space for, in FPDUs that fit in a segment, on the grid
// as soon as it is reached.
func TestPlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		emss := 4 * rapid.OneOf(rapid.IntRange(1, 60), rapid.IntRange(60, llp.MaxEMSS/4)).Draw(t, "EMSS/4")
		most := max(1, 65455/emss)
		segments := rapid.OneOf(rapid.IntRange(1, min(3, most)), rapid.IntRange(1, most)).Draw(t, "segments")
		room := llp.Room{EMSS: emss, Left: emss, MaxBatch: emss * segments}
		if rapid.Bool().Draw(t, "within a segment") {
			room.Left = rapid.OneOf(rapid.IntRange(1, emss), rapid.Map(rapid.IntRange(1, emss/4), func(n int) int { return 4 * n })).Draw(t, "Left")
		}
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(0, 100_000)), 1, 8).Draw(t, "sizes")
		src := &list{uncut: rapid.Bool().Draw(t, "uncut")}
		bulk := make([]byte, 100_000)
		for _, n := range sizes {
			if src.uncut {
				n = min(n, MinMULPDU-18)
			}
			src.msgs = append(src.msgs, bulk[:n])
		}
		b := &batch{}
		if err := b.plan(room, src); err != nil {
			t.Fatal(err)
		}
		defer b.release(0)
		if b.n == 0 {
			t.Fatalf("%+v: nothing planned", room)
		}
		if limit := max(room.MaxBatch, minFill); b.octets > limit {
			t.Fatalf("%+v: %d octets planned", room, b.octets)
		}
		if end := room.MaxBatch - (emss - room.Left); room.Left%4 == 0 && emss >= minFill && end >= minFill && b.octets > end {
			t.Fatalf("%+v: %d octets go beyond the end of a segment", room, b.octets)
		}
		at, ulpdus := 0, 0
		for i := range b.ulpdus[:b.n] {
			n := b.ulpdus[i].HdrLen + b.ulpdus[i].Len
			l := FPDULen(n)
			if l > max(emss, minFill) {
				t.Fatalf("%+v: FPDU %d of %d octets", room, i, l)
			}
			// Where an FPDU lies in its segment, and what room there was.
			start := (emss - room.Left&^3%emss + at) % emss
			if fits := emss - start; emss >= minFill && l > fits && fits >= minFill && !src.uncut {
				t.Fatalf("%+v: FPDU %d of %d octets goes across the end of a segment with %d left", room, i, l, fits)
			}
			at += l
			ulpdus += n
		}
		if at != b.octets || ulpdus != b.ulpdu {
			t.Fatalf("%d octets in %d, counted %d in %d", ulpdus, at, b.ulpdu, b.octets)
		}
		if len(src.msgs) > 0 && b.n < maxPlan && b.octets < room.MaxBatch-2*max(emss, minFill) {
			t.Fatalf("%+v: %d octets planned though %d messages wait", room, b.octets, len(src.msgs))
		}
	})
}
