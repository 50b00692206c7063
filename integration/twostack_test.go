package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/softrnic/softrnic/iwarp/mem"
)

// TestTwoStacks moves random messages by Send, Write and Read through two whole
// RNICs, in both directions, and compares SHA-256.
func TestTwoStacks(t *testing.T) {
	s := seed(t)
	total := 16 << 20
	if testing.Short() {
		total = 2 << 20
	}
	for _, r := range []rig{
		{mtu: 1500},
		{mtu: 1500, v6: true},
		{mtu: 1500, noCRC: true},
		{mtu: 9000, v6: true, noCRC: true},
		{mtu: 576},
		{mtu: 65521},
	} {
		t.Run(fmt.Sprintf("mtu=%d/v6=%v/crc=%v", r.mtu, r.v6, !r.noCRC), func(t *testing.T) {
			leakCheck(t)
			a, b := r.pipe(t)
			exchange(t, a, b, s, total, 100_000, time.Minute)
			exchange(t, b, a, s+1, total, 1_000_000, time.Minute)
			exchange(t, a, b, s+2, total/64, 100, time.Minute)
		})
	}
}

// TestAlignment: with messages of random size from 1 to 100,000 octets and no loss,
// TCP segments start with an FPDU header (RFC 5044 section 5.1).
func TestAlignment(t *testing.T) {
	s := seed(t)
	for _, r := range []rig{{mtu: 1500}, {mtu: 9000}, {mtu: 1500, v6: true}} {
		t.Run(fmt.Sprintf("mtu=%d/v6=%v", r.mtu, r.v6), func(t *testing.T) {
			// The promise is for a wire without loss. On a busy machine TCP may take a
			// pause for a loss and send segments again: then it has another try.
			for try := range uint64(5) {
				aligned, all, again := alignmentOf(t, r, s+try)
				t.Logf("%d of %d segments start with an FPDU header (%.3f %%); %d were sent again",
					aligned, all, 100*float64(aligned)/float64(all), again)
				if float64(aligned) >= 0.99*float64(all) {
					return
				}
				if again == 0 {
					t.Fatalf("%d of %d segments start with an FPDU header, want 99 %% of them", aligned, all)
				}
			}
			t.Error("no run without segments sent again reached 99 %")
		})
	}
}

// alignmentOf exchanges random messages and looks at what a sent: its Sends and
// Writes, and its Read Responses.
func alignmentOf(t *testing.T, r rig, seed uint64) (aligned, all, again int) {
	da, db := r.devices(t)
	ra, rb := record(da), record(db)
	a, b := r.over(t, ra, rb)
	const total = 32 << 20
	exchange(t, a, b, seed, total, 100_000, time.Minute)
	aligned, all, again = ra.alignment(t)
	if all < 3*total/r.mtu {
		t.Errorf("only %d segments on the capture of %d octets", all, 3*total)
	}
	return aligned, all, again
}

// TestOctetsCopied: every octet delivered was copied once on its way out and once
// on its way in.
func TestOctetsCopied(t *testing.T) {
	s := seed(t)
	for _, r := range []rig{{mtu: 1500}, {mtu: 9000, noCRC: true}} {
		t.Run(fmt.Sprintf("mtu=%d/crc=%v", r.mtu, !r.noCRC), func(t *testing.T) {
			a, b := r.pipe(t)
			const total = 16 << 20
			out0, in0 := mem.Copies()
			exchange(t, a, b, s, total, 100_000, time.Minute)
			out, in := mem.Copies()
			// By Send, Write and Read, and one octet behind the Writes.
			delivered := float64(3*total + 1)
			for _, c := range []struct {
				way    string
				copied uint64
			}{{"out", out - out0}, {"in", in - in0}} {
				ratio := float64(c.copied) / delivered
				t.Logf("%s: %.4f octets copied per octet delivered", c.way, ratio)
				if ratio < 0.995 || ratio > 1.005 {
					t.Errorf("%s: %.4f octets copied per octet delivered, want 1.00", c.way, ratio)
				}
			}
		})
	}
}
