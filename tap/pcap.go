package tap

import (
	"encoding/binary"
	"io"
	"sync"
	"time"
)

// Tee returns dev with a copy of every frame, of both directions, written to w as a
// pcap capture (version 2.4, microseconds, Ethernet). Super-packets are written
// whole, as they cross the device; where their TCP checksum was left to the device
// it is as unfinished in the capture as it is for tcpdump. Writing stops for good
// at w's first error; the device goes on. Close leaves w open.
func Tee(dev Device, w io.Writer) Device {
	t := &tee{Device: dev, w: w}
	var b [24]byte
	le := binary.LittleEndian
	le.PutUint32(b[0:], 0xa1b2c3d4)
	le.PutUint16(b[4:], 2)
	le.PutUint16(b[6:], 4)
	le.PutUint32(b[16:], 1<<18) // snap length
	le.PutUint32(b[20:], 1)     // Ethernet
	_, t.err = w.Write(b[:])
	for _, q := range dev.Queues() {
		t.queues = append(t.queues, &teeQueue{q, t})
	}
	return t
}

type tee struct {
	Device
	queues []Queue

	mu  sync.Mutex
	w   io.Writer
	buf []byte
	err error
}

func (t *tee) Queues() []Queue { return t.queues }

// note writes n octets of a frame.
func (t *tee) note(now time.Time, bufs [][]byte, n int) {
	le := binary.LittleEndian
	b := le.AppendUint32(t.buf[:0], uint32(now.Unix()))
	b = le.AppendUint32(b, uint32(now.Nanosecond()/1000))
	b = le.AppendUint32(b, uint32(n))
	b = le.AppendUint32(b, uint32(n))
	for _, p := range bufs {
		p = p[:min(len(p), n)]
		b = append(b, p...)
		n -= len(p)
	}
	t.buf = b
	if t.err == nil {
		_, t.err = t.w.Write(b)
	}
}

type teeQueue struct {
	Queue
	t *tee
}

func (q *teeQueue) ReadBatch(fs []Frame) (int, error) {
	n, err := q.Queue.ReadBatch(fs)
	if n > 0 {
		q.t.mu.Lock()
		defer q.t.mu.Unlock()
		now := time.Now()
		for i := range fs[:n] {
			q.t.note(now, fs[i].Bufs, fs[i].N)
		}
	}
	return n, err
}

func (q *teeQueue) WriteBatch(fs []Frame) (int, error) {
	// The lock is held meanwhile, so that no answer is noted before its question,
	// and what the device refused, and is perhaps given again, is not noted.
	q.t.mu.Lock()
	defer q.t.mu.Unlock()
	now := time.Now()
	sent, err := q.Queue.WriteBatch(fs)
	for i := range fs[:sent] {
		n := 0
		for _, b := range fs[i].Bufs {
			n += len(b)
		}
		q.t.note(now, fs[i].Bufs, n)
	}
	return sent, err
}
