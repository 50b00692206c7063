package netstack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tap"
)

// fpduMagic starts a fake FPDU; its length follows. Nothing else in it looks so.
const (
	fpduMagic  = 0xf5da5eed
	fpduHeader = 20 // as much as MPA and DDP put in front of and behind a payload
)

// fpduWriter writes messages as FPDUs by the rules of llp.Room.
type fpduWriter struct {
	x      *tester
	rest   int // octets of the present message still to be sent
	next   func() (int, bool)
	ended  bool
	single bool // each batch ends with its message
}

// step sends one batch; it reports whether it sent anything.
func (w *fpduWriter) step() (bool, error) {
	r := w.x.Room()
	if r.EMSS%4 != 0 || r.Left < minLeft && r.Left != r.EMSS || r.Left > r.EMSS || r.MaxBatch%r.EMSS != 0 || r.MaxBatch > maxPayload {
		return false, fmt.Errorf("bad room %+v", r)
	}
	if r.Space < r.MaxBatch {
		return false, nil
	}
	budget, left := r.MaxBatch-(r.EMSS-r.Left), r.Left
	var b octets
	for {
		if w.rest == 0 {
			if w.single && len(b) > 0 {
				break
			}
			n, ok := w.next()
			if !ok {
				w.ended = true
				break
			}
			w.rest = n
		}
		room := min(left, budget-len(b))
		if room < minLeft {
			break // the next Send sees to it
		}
		n := min(w.rest, room-fpduHeader)
		w.rest -= n
		f := make([]byte, (n+fpduHeader+3)&^3)
		binary.BigEndian.PutUint32(f, fpduMagic)
		binary.BigEndian.PutUint32(f[4:], uint32(len(f)))
		b = append(b, f...)
		if left -= len(f); left == 0 {
			left = r.EMSS
		}
	}
	if len(b) == 0 {
		return false, nil
	}
	return true, w.x.Send(&b)
}

// aligned counts, over captured frames, the TCP segments that a wire would carry
// and those of them that start with an FPDU.
type aligned struct {
	mu                               sync.Mutex
	frames, segments, starts, octets int

	full  int // largest segment
	off   []string
	seen  map[uint32]bool
	again int
}

func (a *aligned) see(h tap.VNetHdr, f []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	ip := f[14:]
	off := 14 + 20
	if ip[0]>>4 == 6 && ip[6] == 6 {
		off = 14 + 40
	} else if ip[0]>>4 != 4 || ip[9] != 6 {
		return true
	}
	if len(f) < off+20 {
		return true
	}
	seq := binary.BigEndian.Uint32(f[off+4:])
	off += int(f[off+12]>>4) * 4
	p := f[off:]
	if len(p) == 0 {
		return true
	}
	a.frames++
	size := len(p)
	if h.GSOType != tap.GSONone {
		size = int(h.GSOSize)
	}
	for len(p) > 0 {
		n := min(size, len(p))
		if a.seen[seq] { // a spurious retransmission, as on a busy machine
			a.again++
			p, seq = p[n:], seq+uint32(n)
			continue
		}
		a.seen[seq] = true
		a.segments++
		a.octets += n
		a.full = max(a.full, n)
		if n >= 4 && binary.BigEndian.Uint32(p) == fpduMagic {
			a.starts++
		} else if len(a.off) < 10 {
			a.off = append(a.off, fmt.Sprintf("segment %d: %d octets, seq %d", a.segments, n, seq))
		}
		p, seq = p[n:], seq+uint32(n)
	}
	return true
}

// drain receives until the end and returns how many octets came.
func drain(y *tester) (int, error) {
	total := 0
	for {
		bs, err := y.Receive(1, 1<<16)
		if err != nil {
			if err == io.EOF {
				return total, nil
			}
			if werr := y.wait(); werr != nil {
				return total, werr
			}
			continue
		}
		n := 0
		for _, b := range bs {
			n += len(b)
		}
		total += n
		if err := y.Consume(n); err != nil {
			return total, err
		}
	}
}

// TestAlignment shows that TCP segments start with FPDU headers (RFC 5044 section
// 5): messages of 1 to 100,000 octets, no loss, on captured frames.
func TestAlignment(t *testing.T) {
	for _, tc := range []alignment{
		{name: "mtu 1500", mtu: 1500, off: allOffloads},
		{name: "mtu 9000", mtu: 9000, off: allOffloads},
		{name: "mtu 1500 v6", mtu: 1500, off: allOffloads, v6: true},
		{name: "mtu 1500 paced", mtu: 1500, off: allOffloads, idle: true, one: true},
		{name: "mtu 9000 paced", mtu: 9000, off: allOffloads, idle: true, one: true},
		{name: "mtu 1500 one by one", mtu: 1500, off: allOffloads, one: true},
		{name: "mtu 9000 one by one", mtu: 9000, off: allOffloads, one: true},
		{name: "mtu 9000 small one by one", mtu: 9000, off: allOffloads, one: true, most: 2000},
		{name: "mtu 1500 small", mtu: 1500, off: allOffloads, most: 2000},
		{name: "mtu 1500 no offloads", mtu: 1500, off: 0},
		{name: "mtu 1501", mtu: 1501, off: allOffloads},
		{name: "mtu 65521", mtu: 65521, off: allOffloads},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// The promise is for a wire that loses nothing. A busy machine makes TCP
			// send segments again, and so starts them anywhere: such a run counts only
			// if it is good all the same.
			for try := 1; ; try++ {
				again, err := tc.run(t)
				if err == nil || raceEnabled && errors.Is(err, errShare) {
					// Ten times slower than the timers of TCP expect, the share says nothing.
					return
				}
				if again == 0 || try == 5 {
					t.Error(err)
					return
				}
				t.Logf("%v; %d segments were sent again: once more", err, again)
			}
		})
	}
}

var errShare = errors.New("start with an FPDU")

// alignment is one way to send.
type alignment struct {
	name string
	mtu  int
	off  tap.Offload
	v6   bool
	idle bool // pauses between batches
	one  bool // messages come one at a time
	most int
}

// run sends and says how many segments were sent again, and what was wrong.
func (tc alignment) run(t *testing.T) (again int, err error) {
	checkLeaks(t)
	da, db := testPair(t, tc.mtu, tc.off)
	a, b := stacksOn(t, da, db, Config{})
	x, y := connect(t, a, b, tc.v6)
	// What comes before FPDUs in MPA: the startup frame, and its answer.
	if err := x.send(make([]byte, 20), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := y.recv(20, 20); err != nil {
		t.Fatal(err)
	}
	cap := &aligned{seen: map[uint32]bool{}}
	da.out.mu.Lock()
	da.out.see = cap.see
	da.out.mu.Unlock()

	most := 100_000
	messages := 600
	if tc.most > 0 {
		most, messages = tc.most, 6000
	}
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	w := &fpduWriter{x: x, single: tc.one, next: func() (int, bool) {
		if messages == 0 {
			return 0, false
		}
		messages--
		return 1 + r.IntN(most), true
	}}
	got := make(chan int, 1)
	go func() {
		n, err := drain(y)
		if err != nil {
			t.Error(err)
		}
		got <- n
	}()
	for !w.ended || w.rest > 0 {
		ok, err := w.step()
		if err != nil {
			t.Fatal(err)
		}
		if tc.idle {
			time.Sleep(time.Duration(r.IntN(200)) * time.Microsecond)
		} else if !ok && !w.ended {
			if err := x.wait(); err != nil {
				t.Fatal(err)
			}
		}
	}
	x.CloseWrite()
	n := <-got
	x.Close()
	y.Close()
	cap.mu.Lock()
	defer cap.mu.Unlock()
	share := float64(cap.starts) / float64(cap.segments)
	t.Logf("seed %d: %d octets, %d frames, %d segments (largest %d), %d again, %.3f%% start with an FPDU; cut %d", seed, n, cap.frames, cap.segments, cap.full, cap.again, 100*share, a.Stats().TxCut)
	if n != cap.octets && cap.again == 0 {
		return cap.again, fmt.Errorf("seed %d: %d octets received, %d captured", seed, n, cap.octets)
	}
	if share < 0.99 {
		return cap.again, fmt.Errorf("seed %d: %.2f%% of %d segments %w, want 99%%; first others: %q", seed, 100*share, cap.segments, errShare, cap.off)
	}
	return cap.again, nil
}
