package integration

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/tap"
)

// recorder is a Device that remembers what was sent through it: every TCP segment
// as it goes on the wire, super-packets cut at gso_size as the kernel would.
type recorder struct {
	tap.Device
	queues []tap.Queue

	mu   sync.Mutex
	segs map[flow][]segment
}

// flow is one direction of a TCP connection.
type flow struct {
	src, dst         string // addresses, as octets
	srcPort, dstPort uint16
}

type segment struct {
	seq     uint32
	payload []byte
}

func record(dev tap.Device) *recorder {
	r := &recorder{Device: dev, segs: map[flow][]segment{}}
	for _, q := range dev.Queues() {
		r.queues = append(r.queues, recordedQueue{q, r})
	}
	return r
}

func (r *recorder) Queues() []tap.Queue { return r.queues }

type recordedQueue struct {
	tap.Queue
	r *recorder
}

func (q recordedQueue) WriteBatch(fs []tap.Frame) (int, error) {
	for i := range fs {
		q.r.note(fs[i].Hdr, slices.Concat(fs[i].Bufs...))
	}
	return q.Queue.WriteBatch(fs)
}

// note remembers the segments of a frame, if it is TCP.
func (r *recorder) note(h tap.VNetHdr, f []byte) {
	const eth = 14
	if len(f) < eth+20 {
		return
	}
	var k flow
	ip, be := f[eth:], binary.BigEndian
	switch be.Uint16(f[12:]) {
	case 0x0800:
		if ip[9] != 6 {
			return
		}
		k.src, k.dst = string(ip[12:16]), string(ip[16:20])
		ip = ip[int(ip[0]&15)*4 : be.Uint16(ip[2:])]
	case 0x86dd:
		if ip[6] != 6 {
			return
		}
		k.src, k.dst = string(ip[8:24]), string(ip[24:40])
		ip = ip[40 : 40+int(be.Uint16(ip[4:]))]
	default:
		return
	}
	k.srcPort, k.dstPort = be.Uint16(ip), be.Uint16(ip[2:])
	seq, payload := be.Uint32(ip[4:]), ip[ip[12]>>4*4:]
	size := len(payload)
	if h.GSOType != tap.GSONone {
		size = int(h.GSOSize)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(payload) > 0 {
		n := min(size, len(payload))
		r.segs[k] = append(r.segs[k], segment{seq, payload[:n]})
		seq, payload = seq+uint32(n), payload[n:]
	}
}

// alignment counts, over all flows of more than a few segments, the segments that
// start with an FPDU header, all of them, and those that TCP sent again. MPA
// startup does not count. No segment may be missing.
func (r *recorder) alignment(t *testing.T) (aligned, all, again int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, segs := range r.segs {
		if len(segs) < 3 {
			continue
		}
		a, n, g, err := alignedSegments(segs)
		if err != nil {
			t.Errorf("port %d to %d: %v", k.srcPort, k.dstPort, err)
		}
		aligned, all, again = aligned+a, all+n, again+g
	}
	return aligned, all, again
}

func alignedSegments(segs []segment) (aligned, all, again int, err error) {
	first := segs[0].seq
	slices.SortStableFunc(segs, func(a, b segment) int { return int(int32(a.seq - b.seq)) })
	if segs[0].seq != first {
		return 0, 0, 0, fmt.Errorf("the first segment was not the first of the stream")
	}
	var stream []byte
	for _, s := range segs {
		off := int(s.seq - first)
		switch {
		case off < len(stream) && len(s.payload) > 0:
			again++
			if off+len(s.payload) > len(stream) {
				stream = append(stream, s.payload[len(stream)-off:]...)
			}
		case off > len(stream):
			return 0, 0, 0, fmt.Errorf("octets %d to %d are missing", len(stream), off)
		default:
			stream = append(stream, s.payload...)
		}
	}
	if len(stream) < 20 || string(stream[:6]) != "MPA ID" {
		return 0, 0, 0, fmt.Errorf("no MPA startup at the start")
	}
	at := 20 + int(binary.BigEndian.Uint16(stream[18:]))
	starts := map[int]bool{}
	begin := at
	for at+2 <= len(stream) {
		starts[at] = true
		n := int(binary.BigEndian.Uint16(stream[at:]))
		at += 2 + n + (4-(2+n)%4)%4 + 4
	}
	if at != len(stream) {
		return 0, 0, 0, fmt.Errorf("the last FPDU ends at %d, the stream at %d", at, len(stream))
	}
	for _, s := range segs {
		if off := int(s.seq - first); off >= begin {
			all++
			if starts[off] {
				aligned++
			}
		}
	}
	return aligned, all, again, nil
}

// TestAlignedSegments: the count itself counts right.
func TestAlignedSegments(t *testing.T) {
	startup := append([]byte("MPA ID Req Frame"), 0x40, 2, 0, 0)
	fpdu := func(n int) []byte { // an FPDU of n octets in all
		b := make([]byte, n)
		binary.BigEndian.PutUint16(b, uint16(n-6))
		return b
	}
	stream := slices.Concat(startup, fpdu(40), fpdu(60), fpdu(20))
	cut := func(ends ...int) (segs []segment) {
		at := 0
		for _, e := range ends {
			segs = append(segs, segment{uint32(at) - 10, stream[at:e]}) // sequence numbers wrap
			at = e
		}
		return segs
	}
	for _, c := range []struct {
		ends         []int
		aligned, all int
	}{
		{[]int{20, 60, 120, 140}, 3, 3},
		{[]int{20, 120, 140}, 2, 2},
		{[]int{20, 61, 120, 140}, 2, 3},
		{[]int{20, 30, 70, 140}, 1, 3},
	} {
		a, n, again, err := alignedSegments(cut(c.ends...))
		if err != nil || a != c.aligned || n != c.all || again != 0 {
			t.Errorf("cut at %v: %d of %d, %d again, %v; want %d of %d", c.ends, a, n, again, err, c.aligned, c.all)
		}
	}
	if _, _, _, err := alignedSegments(append(cut(20, 60), segment{110, stream[120:]})); err == nil {
		t.Error("a hole was not found")
	}
	if _, _, again, err := alignedSegments(append(cut(20, 60, 120, 140), segment{50, stream[60:120]})); err != nil || again != 1 {
		t.Errorf("%d segments sent again, %v; want 1", again, err)
	}
}
