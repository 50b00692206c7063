package netstack

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tap"
)

// wire is one direction of a pair of test devices: what the other end has not read.
type wire struct {
	mu     sync.Mutex
	frames []testFrame
	bell   chan struct{}
	limit  int
	// see, where set, is shown each frame as it is sent, and says whether it goes on.
	see func(h tap.VNetHdr, frame []byte) bool
}

type testFrame struct {
	hdr tap.VNetHdr
	b   []byte
}

// testDev is a tap.Device joined in memory to another.
type testDev struct {
	name     string
	mtu      int
	mac      net.HardwareAddr
	offloads tap.Offload
	in, out  *wire
	done     chan struct{}
	closing  sync.Once
}

const allOffloads = tap.OffloadCsum | tap.OffloadTSO4 | tap.OffloadTSO6

func testPair(t testing.TB, mtu int, off tap.Offload) (a, b *testDev) {
	ab, ba := &wire{bell: make(chan struct{}, 1), limit: 4096}, &wire{bell: make(chan struct{}, 1), limit: 4096}
	a = &testDev{name: "a", mtu: mtu, mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}, offloads: off, in: ba, out: ab, done: make(chan struct{})}
	b = &testDev{name: "b", mtu: mtu, mac: net.HardwareAddr{2, 0, 0, 0, 0, 2}, offloads: off, in: ab, out: ba, done: make(chan struct{})}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func (d *testDev) Name() string          { return d.name }
func (d *testDev) MTU() int              { return d.mtu }
func (d *testDev) MAC() net.HardwareAddr { return d.mac }
func (d *testDev) Offloads() tap.Offload { return d.offloads }
func (d *testDev) Queues() []tap.Queue   { return []tap.Queue{d} }
func (d *testDev) Close() error          { d.closing.Do(func() { close(d.done) }); return nil }

func (d *testDev) ReadBatch(fs []tap.Frame) (n int, err error) {
	d.in.mu.Lock()
	defer d.in.mu.Unlock()
	for n < len(fs) && len(d.in.frames) > 0 {
		f := d.in.frames[0]
		d.in.frames = d.in.frames[1:]
		fs[n].Hdr, fs[n].N = f.hdr, len(f.b)
		for _, b := range fs[n].Bufs {
			f.b = f.b[copy(b, f.b):]
		}
		n++
	}
	return n, nil
}

func (d *testDev) WriteBatch(fs []tap.Frame) (int, error) {
	for _, f := range fs {
		var b []byte
		for _, p := range f.Bufs {
			b = append(b, p...)
		}
		d.out.put(f.Hdr, b)
	}
	return len(fs), nil
}

func (w *wire) put(h tap.VNetHdr, b []byte) {
	w.mu.Lock()
	if (w.see == nil || w.see(h, b)) && len(w.frames) < w.limit {
		w.frames = append(w.frames, testFrame{h, b})
	}
	w.mu.Unlock()
	w.ring()
}

func (w *wire) ring() {
	select {
	case w.bell <- struct{}{}:
	default:
	}
}

func (d *testDev) Wait(timeout time.Duration) error {
	var after <-chan time.Time
	if timeout >= 0 {
		after = time.After(timeout)
	}
	select {
	case <-d.in.bell:
		return nil
	case <-after:
		return nil
	case <-d.done:
		return net.ErrClosed
	}
}

func (d *testDev) Wake() { d.in.ring() }

// frameCounter notes the largest number of pieces of a frame.
type frameCounter struct {
	*testDev
	most atomic.Int64
}

func (d *frameCounter) Queues() []tap.Queue { return []tap.Queue{d} }

func (d *frameCounter) WriteBatch(fs []tap.Frame) (int, error) {
	for _, f := range fs {
		for n := int64(len(f.Bufs)); ; {
			if old := d.most.Load(); old >= n || d.most.CompareAndSwap(old, n) {
				break
			}
		}
	}
	return d.testDev.WriteBatch(fs)
}
