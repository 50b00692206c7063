package taptest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/tap"
)

// Faults say what happens to frames. Each is a probability per frame, from 0 to 1,
// drawn from Seed: the same frames in the same order meet the same faults.
// Super-packets are cut into the segments that a wire would carry first, so that a
// fault hits one of them, and checksums are complete.
type Faults struct {
	Seed      uint64
	Drop      float64
	Duplicate float64
	Reorder   float64 // held back for ReorderBy, while others pass
	Flip      float64 // one bit, anywhere in the frame
	// SwapWords swaps two aligned 16-bit words of a TCP payload that differ: neither
	// TCP's checksum nor IP's notices.
	SwapWords  float64
	MinPayload int // octets; TCP segments with less are left alone by SwapWords

	ReorderBy time.Duration // 0 means 1 ms
	Delay     time.Duration // of every frame
	// BlackHole swallows IP packets longer than this many octets, without a word:
	// what a path with a smaller MTU and a silent router does. 0 means none.
	BlackHole int
}

func (f Faults) any() bool {
	return f.Drop > 0 || f.Duplicate > 0 || f.Reorder > 0 || f.Flip > 0 || f.SwapWords > 0 || f.Delay > 0 || f.BlackHole > 0
}

// String names the faults and the seed, so that a failure can be repeated.
func (f Faults) String() string {
	type plain Faults // without this method, which would call itself
	return fmt.Sprintf("%+v", plain(f))
}

// Counts are how many frames met each fault.
type Counts struct {
	Frames, Dropped, Duplicated, Reordered, Flipped, Swapped, Swallowed, Lost uint64
}

// Faulty is a device whose sent frames meet faults. What it receives is untouched.
type Faulty struct {
	tap.Device
	queues []tap.Queue
	f      Faults
	down   atomic.Bool

	mu      sync.Mutex
	rnd     *rand.Rand
	counts  Counts
	held    []heldFrame // in order of due
	timer   *time.Timer
	closed  bool
	scratch []byte
}

type heldFrame struct {
	due time.Time
	q   tap.Queue
	b   []byte
}

// Wrap returns dev with the faults. Closing it closes dev.
func (f Faults) Wrap(dev tap.Device) *Faulty {
	d := &Faulty{Device: dev, f: f, rnd: rand.New(rand.NewPCG(f.Seed, 0x7a7))}
	if d.f.ReorderBy == 0 {
		d.f.ReorderBy = time.Millisecond
	}
	for _, q := range dev.Queues() {
		d.queues = append(d.queues, &faultyQueue{q, d})
	}
	return d
}

// Queues implements tap.Device.
func (d *Faulty) Queues() []tap.Queue { return d.queues }

// SetOutage begins or ends an outage: while it lasts every frame is lost.
func (d *Faulty) SetOutage(on bool) { d.down.Store(on) }

// Counts returns what has happened so far.
func (d *Faulty) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// Close implements tap.Device. Frames held back are lost.
func (d *Faulty) Close() error {
	d.stop()
	return d.Device.Close()
}

// stop lets frames that are held back be lost.
func (d *Faulty) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed, d.held = true, nil
	if d.timer != nil {
		d.timer.Stop()
	}
}

type faultyQueue struct {
	tap.Queue
	d *Faulty
}

// WriteBatch implements tap.Queue.
func (q *faultyQueue) WriteBatch(fs []tap.Frame) (int, error) {
	d := q.d
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range fs {
		d.scratch = d.scratch[:0]
		for _, b := range fs[i].Bufs {
			d.scratch = append(d.scratch, b...)
		}
		var err error
		segments(fs[i].Hdr, d.scratch, func(b []byte) {
			if e := d.frame(q.Queue, b); e != nil {
				err = e
			}
		})
		if err != nil {
			return i, err
		}
	}
	return len(fs), nil
}

// frame does to one frame what the dice say.
func (d *Faulty) frame(q tap.Queue, b []byte) error {
	hit := func(p float64, n *uint64) bool {
		if p > 0 && d.rnd.Float64() < p {
			*n++
			return true
		}
		return false
	}
	c, f := &d.counts, &d.f
	c.Frames++
	if d.down.Load() {
		c.Lost++
		return nil
	}
	if f.BlackHole > 0 && len(b)-14 > f.BlackHole {
		c.Swallowed++
		return nil
	}
	if hit(f.Drop, &c.Dropped) {
		return nil
	}
	if hit(f.Flip, &c.Flipped) {
		bit := d.rnd.IntN(len(b) * 8)
		b[bit/8] ^= 1 << (bit % 8)
	}
	if f.SwapWords > 0 && d.rnd.Float64() < f.SwapWords && d.swap(b) {
		c.Swapped++
	}
	copies := 1
	if hit(f.Duplicate, &c.Duplicated) {
		copies = 2
	}
	wait := f.Delay
	if hit(f.Reorder, &c.Reordered) {
		wait += f.ReorderBy
	}
	for range copies {
		if wait > 0 {
			d.hold(q, b, wait)
		} else if _, err := q.WriteBatch([]tap.Frame{{Bufs: [][]byte{b}}}); err != nil {
			return err
		}
	}
	return nil
}

// swap exchanges two words of a TCP payload, and says whether it could.
func (d *Faulty) swap(b []byte) bool {
	p, ok := parse(b)
	if !ok || len(b)-p.payload < max(4, d.f.MinPayload) {
		return false
	}
	t := b[p.payload:] // begins at an even distance from the TCP header
	words := len(t) / 2
	for range 64 {
		i, j := 2*d.rnd.IntN(words), 2*d.rnd.IntN(words)
		if t[i] != t[j] || t[i+1] != t[j+1] {
			t[i], t[i+1], t[j], t[j+1] = t[j], t[j+1], t[i], t[i+1]
			return true
		}
	}
	return false
}

// hold keeps a frame until its time.
func (d *Faulty) hold(q tap.Queue, b []byte, wait time.Duration) {
	due := time.Now().Add(wait)
	i := len(d.held)
	for i > 0 && d.held[i-1].due.After(due) {
		i--
	}
	d.held = append(d.held, heldFrame{})
	copy(d.held[i+1:], d.held[i:])
	d.held[i] = heldFrame{due, q, append([]byte(nil), b...)}
	if i > 0 {
		return // the timer runs for an earlier one
	}
	if d.timer == nil {
		d.timer = time.AfterFunc(wait, d.release)
	} else {
		d.timer.Reset(wait)
	}
}

// release sends what is due.
func (d *Faulty) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for len(d.held) > 0 && !d.closed {
		h := d.held[0]
		if wait := h.due.Sub(now); wait > 0 {
			d.timer.Reset(wait)
			return
		}
		d.held = d.held[1:]
		_, _ = h.q.WriteBatch([]tap.Frame{{Bufs: [][]byte{h.b}}}) // a closed device loses it
	}
}
