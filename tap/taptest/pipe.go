package taptest

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/softrnic/softrnic/tap"
)

// AllOffloads is what a TAP can do.
const AllOffloads = tap.OffloadCsum | tap.OffloadTSO4 | tap.OffloadTSO6

// Options shape the devices of a Pipe; the zero value is two TAPs on a bridge.
type Options struct {
	MTU        int         // octets of an IP packet; 0 means 1500
	Offloads   tap.Offload // 0 means all
	NoOffloads bool        // none
	Queues     int         // of each device; 0 means 1. Frames go to the queue of the number they were sent by
	Ring       int         // frames that wait in a queue before more are dropped; 0 means 1000, a TAP's
}

// Pipe returns two devices joined in memory: what one sends the other receives, in
// order, and nothing else. Faults, if given, are done to what each sends: one for
// both directions, or one each.
func Pipe(o Options, faults ...Faults) (a, b tap.Device) {
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.NoOffloads {
		o.Offloads = 0
	} else if o.Offloads == 0 {
		o.Offloads = AllOffloads
	}
	n := max(1, o.Queues)
	if o.Ring == 0 {
		o.Ring = 1000
	}
	pa, pb := newDevice("mem0", 1, o, n), newDevice("mem1", 2, o, n)
	for i := range n {
		pa.queues[i].(*queue).peer = pb.queues[i].(*queue)
		pb.queues[i].(*queue).peer = pa.queues[i].(*queue)
	}
	a, b = pa, pb
	switch len(faults) {
	case 0:
	case 1:
		if faults[0].any() {
			a = faults[0].Wrap(a)
			faults[0].Seed = ^faults[0].Seed
			b = faults[0].Wrap(b)
		}
	case 2:
		a, b = faults[0].Wrap(a), faults[1].Wrap(b)
	default:
		panic(fmt.Sprintf("taptest: %d Faults for two directions", len(faults)))
	}
	return a, b
}

// device is one end of a pipe.
type device struct {
	name   string
	mac    net.HardwareAddr
	o      Options
	queues []tap.Queue
	done   chan struct{}
	once   sync.Once
}

func newDevice(name string, last byte, o Options, n int) *device {
	d := &device{name: name, mac: net.HardwareAddr{2, 't', 'a', 'p', 0, last}, o: o, done: make(chan struct{})}
	for range n {
		d.queues = append(d.queues, &queue{d: d, bell: make(chan struct{}, 1)})
	}
	return d
}

func (d *device) Name() string          { return d.name }
func (d *device) MTU() int              { return d.o.MTU }
func (d *device) MAC() net.HardwareAddr { return d.mac }
func (d *device) Offloads() tap.Offload { return d.o.Offloads }
func (d *device) Queues() []tap.Queue   { return d.queues }

func (d *device) Close() error {
	err := fmt.Errorf("taptest: %s: %w", d.name, tap.ErrClosed)
	d.once.Do(func() {
		close(d.done)
		err = nil
	})
	return err
}

func (d *device) closed() error {
	select {
	case <-d.done:
		return fmt.Errorf("taptest: %s: %w", d.name, tap.ErrClosed)
	default:
		return nil
	}
}

// frame is a frame on the wire.
type frame struct {
	hdr tap.VNetHdr
	b   []byte
}

// queue holds what its peer sent.
type queue struct {
	d    *device
	peer *queue
	bell chan struct{} // a token: something came, or Wake

	mu     sync.Mutex
	frames []frame
	head   int
	free   [][]byte
}

// ReadBatch implements tap.Queue.
func (q *queue) ReadBatch(fs []tap.Frame) (n int, err error) {
	if err := q.d.closed(); err != nil {
		return 0, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for n < len(fs) && q.head < len(q.frames) {
		f := &q.frames[q.head]
		b := f.b
		fs[n].Hdr, fs[n].N = f.hdr, len(b)
		for _, p := range fs[n].Bufs {
			b = b[copy(p, b):]
		}
		q.free = append(q.free, f.b[:0])
		*f = frame{}
		q.head++
		n++
	}
	if q.head == len(q.frames) {
		q.frames, q.head = q.frames[:0], 0
	}
	return n, nil
}

// WriteBatch implements tap.Queue.
func (q *queue) WriteBatch(fs []tap.Frame) (n int, err error) {
	if err := q.d.closed(); err != nil {
		return 0, err
	}
	for i := range fs {
		if err := q.check(&fs[i]); err != nil {
			return i, err
		}
		q.peer.put(fs[i].Hdr, fs[i].Bufs)
	}
	q.peer.ring()
	return len(fs), nil
}

// check refuses what a TAP would.
func (q *queue) check(f *tap.Frame) error {
	n := 0
	for _, b := range f.Bufs {
		n += len(b)
	}
	need := tap.Offload(0)
	if f.Hdr.Flags&tap.HdrNeedsCsum != 0 {
		need |= tap.OffloadCsum
	}
	limit := q.d.o.MTU + 18
	switch f.Hdr.GSOType {
	case tap.GSONone:
	case tap.GSOTCPv4:
		need, limit = need|tap.OffloadTSO4, tap.MaxFrame
	case tap.GSOTCPv6:
		need, limit = need|tap.OffloadTSO6, tap.MaxFrame
	default:
		return fmt.Errorf("taptest: %s: frame with GSO type %d", q.d.name, f.Hdr.GSOType)
	}
	switch {
	case need&^q.d.o.Offloads != 0:
		return fmt.Errorf("taptest: %s: frame needs offloads %#x, the device has %#x", q.d.name, need, q.d.o.Offloads)
	case n < 14 || n > limit:
		return fmt.Errorf("taptest: %s: frame of %d octets, from 14 to %d", q.d.name, n, limit)
	}
	return nil
}

// put adds a frame, or drops it where the ring is full.
func (q *queue) put(h tap.VNetHdr, bufs [][]byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.frames)-q.head >= q.d.o.Ring {
		return
	}
	var b []byte
	if n := len(q.free); n > 0 {
		b, q.free = q.free[n-1], q.free[:n-1]
	}
	for _, p := range bufs {
		b = append(b, p...)
	}
	if q.head > q.d.o.Ring && q.head > len(q.frames)/2 { // do not creep up in memory
		n := copy(q.frames, q.frames[q.head:])
		clear(q.frames[n:])
		q.frames, q.head = q.frames[:n], 0
	}
	q.frames = append(q.frames, frame{h, b})
}

func (q *queue) ring() {
	select {
	case q.bell <- struct{}{}:
	default:
	}
}

// Wait implements tap.Queue.
func (q *queue) Wait(timeout time.Duration) error {
	q.mu.Lock()
	waiting := q.head < len(q.frames)
	q.mu.Unlock()
	if err := q.d.closed(); err != nil || waiting {
		return err
	}
	var expired <-chan time.Time
	if timeout >= 0 {
		t := time.NewTimer(timeout)
		defer t.Stop()
		expired = t.C
	}
	select {
	case <-q.bell:
	case <-expired:
	case <-q.d.done:
	}
	return q.d.closed()
}

// Wake implements tap.Queue.
func (q *queue) Wake() { q.ring() }
