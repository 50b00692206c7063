package integration

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/mem"
	"github.com/softrnic/softrnic/iwarp/rdmap"
	"github.com/softrnic/softrnic/netstack"
	"github.com/softrnic/softrnic/tap/taptest"
	"github.com/softrnic/softrnic/verbs"
)

// TestFaults: whatever the wire does to frames, what arrives is what was sent.
func TestFaults(t *testing.T) {
	s := seed(t)
	for _, c := range []struct {
		name   string
		faults taptest.Faults
	}{
		{"drop", taptest.Faults{Drop: 0.01}},
		{"duplicate", taptest.Faults{Duplicate: 0.05}},
		{"reorder", taptest.Faults{Reorder: 0.05}},
		{"flip", taptest.Faults{Flip: 0.01}},
		{"delay", taptest.Faults{Delay: time.Millisecond}},
		{"all", taptest.Faults{Drop: 0.005, Duplicate: 0.01, Reorder: 0.02, Flip: 0.005}},
	} {
		for _, r := range []rig{{mtu: 1500}, {mtu: 9000, v6: true}} {
			c.faults.Seed = s
			name := c.name + "/v4"
			if r.v6 {
				name = c.name + "/v6"
			}
			t.Run(name, func(t *testing.T) {
				leakCheck(t)
				total := 4 << 20
				if testing.Short() {
					total = 1 << 20
				}
				begin := time.Now()
				a, b := r.pipe(t, c.faults)
				n := exchange(t, a, b, s, total, 100_000, 2*time.Minute)
				t.Logf("%d messages in %v", n, time.Since(begin).Round(time.Millisecond))
			})
		}
	}
}

// TestOutage: after a wire that was dead for a while a transfer goes on where it was,
// soon after the wire is back.
func TestOutage(t *testing.T) {
	s := seed(t)
	length := 4 * time.Second
	if testing.Short() {
		length = time.Second
	}
	leakCheck(t)
	r := rig{mtu: 1500}
	da, db := r.devices(t, taptest.Faults{Seed: s}, taptest.Faults{Seed: s})
	a, b := r.over(t, da, db)
	exchange(t, a, b, s, 1<<20, 100_000, 10*time.Second)
	for _, d := range []any{da, db} {
		d.(*taptest.Faulty).SetOutage(true)
	}
	resumed := make(chan time.Duration, 1)
	var back time.Time
	go func() {
		time.Sleep(length)
		_, before := mem.Copies()
		back = time.Now()
		for _, d := range []any{da, db} {
			d.(*taptest.Faulty).SetOutage(false)
		}
		for time.Since(back) < time.Minute {
			if _, now := mem.Copies(); now > before {
				break
			}
			time.Sleep(time.Millisecond)
		}
		resumed <- time.Since(back)
	}()
	exchange(t, a, b, s+1, 1<<20, 100_000, length+time.Minute)
	first := <-resumed
	t.Logf("after an outage of %v the first octet was placed after %v, the last after %v", length,
		first.Round(time.Millisecond), time.Since(back).Round(time.Millisecond))
	// TCP tries again every 2 s at least: see package netstack.
	if first > 5*time.Second {
		t.Errorf("the transfer went on %v after the outage, want about 2 s at most", first)
	}
	if da.(*taptest.Faulty).Counts().Lost == 0 {
		t.Error("nothing was lost in the outage")
	}
}

// TestNeutralCorruption corrupts segments so that TCP's checksum does not notice,
// one connection after the other, since each ends of it: with CRC nothing of a
// corrupted FPDU is ever placed, and the connection says why it ended. Without
// CRC the same test sees wrong data, which shows that it looks.
func TestNeutralCorruption(t *testing.T) {
	s := seed(t)
	n := 10_000
	if testing.Short() {
		n = 500
	}
	t.Run("crc", func(t *testing.T) {
		c := newCorruption(t, s, false)
		begin := time.Now()
		for c.caught < n {
			c.round()
		}
		t.Logf("%d corrupted FPDUs found by MPA, %d octets checked, in %v", c.caught, c.looked, time.Since(begin).Round(time.Millisecond))
		if c.wrong > 0 {
			t.Errorf("%d wrong octets were placed", c.wrong)
		}
		if swapped := c.wire.Counts().Swapped; swapped < uint64(c.caught) {
			t.Errorf("%d segments were corrupted, %d were found", swapped, c.caught)
		}
		if c.other > 0 {
			t.Errorf("%d connections ended of something else, the last: %v", c.other, c.last)
		}
	})
	t.Run("no-crc", func(t *testing.T) {
		c := newCorruption(t, s, true)
		rounds := n / 50
		for range rounds {
			c.round()
		}
		t.Logf("%d wrong octets of %d were placed in %d connections", c.wrong, c.looked, rounds)
		if c.wrong == 0 {
			t.Errorf("no wrong octet in %d connections without CRC: the test does not corrupt, or does not look", rounds)
		}
	})
}

// corruption is two RNICs with a wire between them that swaps aligned words.
type corruption struct {
	t        *testing.T
	r        rig
	a, b     *end
	src, dst *verbs.MR
	note     *verbs.MR
	l        *verbs.Listener
	wire     *taptest.Faulty

	caught int   // connections that MPA ended
	other  int   // connections that something else ended
	last   error // of those
	wrong  int   // octets placed that were never sent to that place
	looked int   // octets
}

const (
	corruptLen    = 16 << 10 // octets of a Write
	corruptWrites = 8        // on one connection
)

func newCorruption(t *testing.T, seed uint64, noCRC bool) *corruption {
	c := &corruption{t: t, r: rig{mtu: 1500, noCRC: noCRC}}
	// Only whole data segments: startup, Terminate and acknowledgements stay as they are.
	da, db := c.r.devices(t, taptest.Faults{Seed: seed, SwapWords: 0.1, MinPayload: 1000}, taptest.Faults{})
	c.wire = da.(*taptest.Faulty)
	c.a, c.b = c.r.bare(t, da, "10.1.0.1/24"), c.r.bare(t, db, "10.1.0.2/24")
	c.src, c.dst, c.note = c.a.region(t, corruptLen), c.b.region(t, corruptLen), c.b.region(t, 1)
	// No octet is 0, so what is 0 was not placed; and neighbouring words differ.
	rnd := rand.New(rand.NewPCG(seed, 2))
	for i := range c.src.Bytes() {
		c.src.Bytes()[i] = byte(1 + rnd.IntN(255))
	}
	var err error
	if c.l, err = c.b.dev.Listen(netip.AddrPortFrom(c.b.addr, 4791), verbs.ListenConfig{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// round makes a connection, writes until it breaks or corruptWrites are done, and
// looks at what is in b's memory.
func (c *corruption) round() {
	t := c.t
	clear(c.dst.Bytes())
	c.a.newQP(t)
	c.b.newQP(t)
	defer func() {
		if err := errors.Join(c.a.qp.Close(), c.b.qp.Close(), c.a.sq.Close(), c.b.sq.Close(), c.a.rq.Close(), c.b.rq.Close()); err != nil {
			t.Fatal(err)
		}
	}()
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	recvs := make([]verbs.RecvWR, depth)
	for i := range recvs {
		recvs[i].SGL = []verbs.SGE{c.note.SGE(0, 1)}
	}
	if _, err := c.b.qp.PostRecv(recvs...); err != nil {
		t.Fatal(err)
	}
	c.r.connect(t, ctx, c.a, c.b, c.l)
	for range corruptWrites {
		c.write()
		for notes := 1; notes > 0; {
			status, err := c.await(ctx)
			if err == nil {
				// Behind the last note nothing is being written any more.
				if notes--; notes > 0 && status == verbs.Success {
					continue
				}
				c.look()
				if status == verbs.Success {
					break
				}
				<-c.b.qp.Done()
				c.count(c.b.qp.Err())
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("after %d connections: %v; a is %v (%v), b %v (%v)", c.caught+c.other, err,
					c.a.qp.State(), c.a.qp.Err(), c.b.qp.State(), c.b.qp.Err())
			}
			// A ULPDU_Length that became larger makes b wait for octets that a has not
			// sent yet: send some.
			c.write()
			notes++
		}
	}
}

// write writes all of b's memory, and sends a note behind.
func (c *corruption) write() {
	write := verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{c.src.SGE(0, corruptLen)}, RemoteSTag: c.dst.STag(), RemoteTO: c.dst.Base()}
	note := verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{c.src.SGE(0, 1)}}
	if _, err := c.a.qp.PostSend(write, note); err != nil && !errors.Is(err, verbs.ErrState) {
		c.t.Fatal(err)
	}
}

// await waits a short while for the next note at b, or for the end of the
// connection.
func (c *corruption) await(ctx context.Context) (verbs.Status, error) {
	ctx, stop := context.WithTimeout(ctx, 100*time.Millisecond)
	defer stop()
	var wcs [1]verbs.WC
	_, err := c.b.rq.Wait(ctx, wcs[:])
	return wcs[0].Status, err
}

// count counts what ended a connection: MPA should have, by the CRC, or because
// a ULPDU_Length is larger than any can be.
func (c *corruption) count(err error) {
	var te *verbs.TerminateError
	if errors.As(err, &te) && !te.Remote && te.Layer == rdmap.LayerLLP && (te.Code == 2 || te.Code == 3) {
		c.caught++
		return
	}
	c.other++
	c.last = err
}

// look counts the octets of b's memory that a never sent there.
func (c *corruption) look() {
	src, dst := c.src.Bytes(), c.dst.Bytes()
	c.looked += len(dst)
	if bytes.Equal(src, dst) {
		return
	}
	for i, b := range dst {
		if b != 0 && b != src[i] {
			c.wrong++
		}
	}
}

// TestBlackHole: a wire that swallows what is longer than its MTU, without a word,
// lets a connection be made and then nothing more through. It ends with TCP's user
// timeout, every work request is flushed, and nothing hangs; with the right MTU
// the same wire does.
func TestBlackHole(t *testing.T) {
	leakCheck(t)
	s := seed(t)
	hole := taptest.Faults{Seed: s, BlackHole: 1200}
	a, b := rig{mtu: 1500, netstack: netstack.Config{UserTimeout: 2 * time.Second}}.pipe(t, hole)
	src, dst := a.region(t, 100_000), b.region(t, 100_000)
	wr := verbs.SendWR{ID: 7, Op: verbs.OpRead, SGL: []verbs.SGE{src.SGE(0, 100_000)}, RemoteSTag: dst.STag(), Flags: verbs.Signaled}
	if _, err := a.qp.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.qp.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the side that sends into the hole has not noticed")
	}
	if err := b.qp.Err(); !errors.Is(err, llp.ErrTimeout) {
		t.Errorf("it ended with %v", err)
	}
	if err := a.qp.Close(); err != nil {
		t.Error(err)
	}
	var wcs [1]verbs.WC
	if n, err := a.sq.Poll(wcs[:]); n != 1 || err != nil || wcs[0].ID != 7 || wcs[0].Status != verbs.WRFlush {
		t.Errorf("%d, %v, %+v", n, err, wcs[0])
	}
	t.Run("with the right MTU", func(t *testing.T) {
		a, b := rig{mtu: 1200}.pipe(t, hole)
		exchange(t, a, b, s, 1<<20, 100_000, time.Minute)
	})
}
