package netstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/tap"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/waiter"
)

// pair is two stacks with one connection, at MTU 1500.
func pair(t testing.TB, cfg Config) (x, y *tester) {
	a, b := stacks(t, 1500, allOffloads, cfg)
	return connect(t, a, b, false)
}

// wants waits until Receive gives an error other than ErrWouldBlock, and checks it.
func (x *tester) wants(t *testing.T, need int, want error) {
	t.Helper()
	for {
		_, err := x.Receive(need, need)
		if err == llp.ErrWouldBlock {
			if err := x.wait(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if !errors.Is(err, want) {
			t.Errorf("Receive(%d) gives %v, want %v", need, err, want)
		}
		return
	}
}

func TestReceiveNeedAndBudget(t *testing.T) {
	x, y := pair(t, Config{})
	data := noise(300_000, 7)
	if err := x.send(data, 1000); err != nil {
		t.Fatal(err)
	}
	for {
		if q, _ := y.Conn.(*conn).ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption); q == len(data) {
			break
		}
		if err := y.wait(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := y.Receive(len(data)+1, 0); err != llp.ErrWouldBlock {
		t.Errorf("more than there is: %v", err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for len(data) > 0 {
		need, budget := 1+r.IntN(5000), r.IntN(20000)
		need = min(need, len(data))
		bs, err := y.Receive(need, budget)
		if err != nil {
			t.Fatal(err)
		}
		got := bytes.Join(bs, nil)
		if len(got) < need || len(got) > max(need, budget)+70_000 || !bytes.HasPrefix(data, got) {
			t.Fatalf("need %d, budget %d: %d octets, right: %v", need, budget, len(got), bytes.HasPrefix(data, got))
		}
		// The same again, and then part of it goes.
		if bs, _ := y.Receive(need, budget); !bytes.Equal(bytes.Join(bs, nil), got) {
			t.Fatal("a second look shows something else")
		}
		n := r.IntN(len(got) + 1)
		if err := y.Consume(n); err != nil {
			t.Fatal(err)
		}
		data = data[n:]
	}
	if _, err := y.Receive(1, 1); err != llp.ErrWouldBlock {
		t.Errorf("nothing left: %v", err)
	}
	if err := y.Consume(1); err == nil {
		t.Error("consumed what was not received")
	}
}

func TestHalfClose(t *testing.T) {
	x, y := pair(t, Config{})
	if err := x.send(noise(1000, 1), 0); err != nil {
		t.Fatal(err)
	}
	if err := x.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := x.CloseWrite(); err != nil {
		t.Errorf("again: %v", err)
	}
	o := octets{1}
	if err := x.Send(&o); !errors.Is(err, llp.ErrClosed) {
		t.Errorf("send after CloseWrite: %v", err)
	}
	y.wants(t, 1001, io.ErrUnexpectedEOF)
	if got, err := y.recv(1000, 1000); err != nil || !bytes.Equal(got, noise(1000, 1)) {
		t.Fatal(err)
	}
	y.wants(t, 1, io.EOF)
	// The other direction still works, and then closes.
	if err := y.send(noise(500_000, 2), 0); err != nil {
		t.Fatal(err)
	}
	if got, err := x.recv(500_000, 1<<16); err != nil || !bytes.Equal(got, noise(500_000, 2)) {
		t.Fatal(err)
	}
	y.CloseWrite()
	x.wants(t, 1, io.EOF)
	for !x.down.Load() || !y.down.Load() {
		if !x.down.Load() {
			if err := x.wait(); err != nil {
				t.Fatal("x is not down: ", err)
			}
		} else if err := y.wait(); err != nil {
			t.Fatal("y is not down: ", err)
		}
	}
	y.wants(t, 1, io.EOF)
	x.Close()
	y.Close()
}

func TestAbort(t *testing.T) {
	x, y := pair(t, Config{})
	if err := x.send(noise(1000, 1), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := y.recv(10, 10); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		x.Abort()
	}
	x.wants(t, 1, llp.ErrReset)
	o := octets{1}
	if err := x.Send(&o); !errors.Is(err, llp.ErrReset) {
		t.Errorf("send after Abort: %v", err)
	}
	if err := x.CloseWrite(); !errors.Is(err, llp.ErrReset) {
		t.Errorf("CloseWrite after Abort: %v", err)
	}
	for !y.down.Load() {
		if err := y.wait(); err != nil {
			t.Fatal(err)
		}
	}
	// A failed send does not take away what had arrived before the reset.
	if err := y.Send(&o); !errors.Is(err, llp.ErrReset) {
		t.Errorf("send to a peer that has reset: %v", err)
	}
	if got, err := y.recv(990, 100); err != nil || !bytes.Equal(got, noise(1000, 1)[10:]) {
		t.Errorf("%d octets, %v: what came before the reset is lost", len(got), err)
	}
	y.wants(t, 1, llp.ErrReset)
	if err := y.Send(&o); !errors.Is(err, llp.ErrReset) || !strings.Contains(err.Error(), y.RemoteAddr().String()) {
		t.Errorf("the error does not stay, or does not name the peer: %v", err)
	}
	y.Close()
	y.Abort()
	y.wants(t, 1, llp.ErrReset)
	if n := y.Conn.(*conn).stack.Stats().Flows; n != 0 {
		t.Errorf("%d flows are left", n)
	}
}

func TestCloseWithUnreadOctets(t *testing.T) {
	x, y := pair(t, Config{})
	if err := x.send(noise(100_000, 1), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := y.recv(10, 10); err != nil {
		t.Fatal(err)
	}
	y.Close() // unread octets: the peer must not believe that they were taken (RFC 2525 section 2.17)
	y.wants(t, 1, llp.ErrClosed)
	x.wants(t, 1, llp.ErrReset)
	x.Close()
	x.wants(t, 1, llp.ErrReset)
}

func TestCloseSendsWhatWasQueued(t *testing.T) {
	x, y := pair(t, Config{})
	data := noise(700_000, 3)
	done := make(chan error, 1)
	go func() {
		got, err := y.recv(len(data), 1<<16)
		if err == nil && !bytes.Equal(got, data) {
			err = errors.New("octets differ")
		}
		done <- err
	}()
	if err := x.send(data, 0); err != nil {
		t.Fatal(err)
	}
	x.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	y.wants(t, 1, io.EOF)
	y.Close()
	// Both ends are gone when TIME_WAIT is over.
	deadline := time.Now().Add(5 * time.Second)
	s := x.Conn.(*conn).stack
	for s.Stats().Flows > 0 || len(s.ns.RegisteredEndpoints()) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d flows, %d endpoints are left", s.Stats().Flows, len(s.ns.RegisteredEndpoints()))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestAbortAfterClose(t *testing.T) {
	x, y := pair(t, Config{})
	fill(t, x)
	x.Close() // cannot finish: y does not read
	x.Abort()
	for !y.down.Load() {
		if err := y.wait(); err != nil {
			t.Fatal(err)
		}
	}
	y.Close()
}

// fill sends until there is no room, and returns how much.
func fill(t testing.TB, x *tester) (total int) {
	t.Helper()
	for {
		r := x.Room()
		n := min(r.Space, r.MaxBatch)
		if n <= 0 {
			// What is on its way may still free some.
			time.Sleep(200 * time.Millisecond)
			if x.Room().Space <= 0 {
				return total
			}
			continue
		}
		o := octets(make([]byte, n))
		if err := x.Send(&o); err != nil {
			t.Fatalf("Send of %d octets, all within Space: %v", n, err)
		}
		total += n
	}
}

// TestSpace: Space is what Send takes, to the octet where it ends, and once there is
// none, reading makes an edge follow however little it reads.
func TestSpace(t *testing.T) {
	for _, cfg := range []Config{{}, {SendBuffer: minSendBuffer, ReceiveBuffer: minReceiveBuffer}} {
		t.Run(fmt.Sprint(cfg.SendBuffer), func(t *testing.T) {
			x, y := pair(t, cfg)
			r := x.Room()
			if r.EMSS != 1420 || r.Left != r.EMSS || r.MaxBatch != 46*1420 || r.Space < r.MaxBatch {
				t.Errorf("before the first octet: %+v", r)
			}
			total := fill(t, x)
			o := octets(make([]byte, 60_000))
			if err := x.Send(&o); err != llp.ErrWouldBlock || len(o) != 60_000 {
				t.Errorf("Send into a full buffer: %v, %d octets left", err, len(o))
			}
			if _, err := y.Receive(1, 1<<30); err != nil {
				t.Fatal(err)
			}
			got := 0
			rnd := rand.New(rand.NewPCG(1, 2))
			for round := range 200 {
				// Drain by small bites until an edge comes.
				edge := false
				for !edge {
					bs, err := y.Receive(1, 1+rnd.IntN(3000))
					if err == llp.ErrWouldBlock {
						select {
						case <-x.bell:
							edge = true
						case <-time.After(5 * time.Second):
							t.Fatalf("round %d: all %d octets read, no edge; room %+v", round, got, x.Room())
						case <-y.bell:
						}
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					n := 0
					for _, b := range bs {
						n += len(b)
					}
					if err := y.Consume(n); err != nil {
						t.Fatal(err)
					}
					got += n
					select {
					case <-x.bell:
						edge = true
					default:
					}
				}
				for {
					r := x.Room()
					n := min(r.Space, r.MaxBatch)
					if n <= 0 {
						break
					}
					o := octets(make([]byte, n))
					if err := x.Send(&o); err != nil {
						t.Fatalf("round %d: Send of %d octets, all within Space: %v", round, n, err)
					}
					total += n
				}
			}
			x.CloseWrite()
			rest, err := drain(y)
			if err != nil || got+rest != total {
				t.Errorf("%d octets received, %d sent, %v", got+rest, total, err)
			}
			x.Close()
			y.Close()
		})
	}
}

// shortBatch writes fewer octets than it announces.
type shortBatch struct{ n int }

func (b *shortBatch) Len() int { return b.n }
func (b *shortBatch) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return len(p) / 2, nil
}

// failingBatch fails.
type failingBatch struct{ err error }

func (b *failingBatch) Len() int                   { return 1000 }
func (b *failingBatch) Read(p []byte) (int, error) { return len(p) / 3, b.err }

func TestSendFailingBatches(t *testing.T) {
	x, y := pair(t, Config{})
	sentinel := errors.New("memory is gone")
	if err := x.Send(&failingBatch{sentinel}); !errors.Is(err, sentinel) {
		t.Errorf("the batch's error: %v", err)
	}
	if err := x.Send(&failingBatch{io.EOF}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("EOF: %v", err)
	}
	if err := x.Send(&shortBatch{1000}); err == nil {
		t.Error("a batch that wrote half of what it announced was sent")
	}
	o := octets(make([]byte, 70_000))
	if err := x.Send(&o); err == nil || len(o) != 70_000 {
		t.Errorf("a batch larger than a super-packet: %v", err)
	}
	o = nil
	if err := x.Send(&o); err != nil {
		t.Errorf("an empty batch: %v", err)
	}
	// Nothing of all that was queued.
	if err := x.send(noise(5000, 1), 0); err != nil {
		t.Fatal(err)
	}
	if got, err := y.recv(5000, 5000); err != nil || !bytes.Equal(got, noise(5000, 1)) {
		t.Error("octets of failed batches came along: ", err)
	}
}

// resegment makes w cut every TCP segment into segments of n octets of payload.
func resegment(w *wire, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.see = func(h tap.VNetHdr, f []byte) bool {
		ipLen := int(f[14]&0xf) * 4
		if f[14]>>4 != 4 || f[14+9] != 6 {
			return true
		}
		th := header.TCP(f[14+ipLen:])
		hdrLen := 14 + ipLen + int(th.DataOffset())
		payload := f[hdrLen:]
		if len(payload) <= n || h.Flags == 0 {
			return true
		}
		p := packet{link: f[:14], ip: f[14 : 14+ipLen], th: f[14+ipLen : hdrLen], seg: segment{
			seq: th.SequenceNumber(), flags: th.Flags(), payload: len(payload)}}
		for off := 0; off < len(payload); off += n {
			k := min(n, len(payload)-off)
			b := make([]byte, hdrLen, hdrLen+k)
			buildHeader(b, &p, off, k)
			h.GSOType, h.GSOSize, h.HdrLen = 0, 0, 0
			w.frames = append(w.frames, testFrame{h, append(b, payload[off:off+k]...)})
		}
		return false
	}
}

// TestOneOctetSegments: an FPDU may come one octet at a time, and to look for the
// rest of it costs the same however many segments there are.
func TestOneOctetSegments(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 1500, allOffloads)
	a, b := stacksOn(t, da, db, Config{})
	x, y := connect(t, a, b, false)
	resegment(da.out, 1)
	data := noise(4000, 1)
	if err := x.send(data, 0); err != nil {
		t.Fatal(err)
	}
	for {
		bs, err := y.Receive(len(data), len(data))
		if err == nil {
			if len(bs) != len(data) || !bytes.Equal(bytes.Join(bs, nil), data) {
				t.Errorf("%d slices, want one per octet, of the same octets", len(bs))
			}
			break
		}
		if err := y.wait(); err != nil {
			t.Fatal(err)
		}
	}
	if err := y.Consume(1); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for range 1000 {
		if _, err := y.Receive(len(data), 1<<20); err != llp.ErrWouldBlock {
			t.Fatal(err)
		}
	}
	if d := time.Since(start); d > 50*time.Millisecond {
		t.Errorf("1000 looks for more took %v", d)
	}
	x.Abort()
	y.Abort()
}

func TestSelfConnect(t *testing.T) {
	a, _ := stacks(t, 1500, allOffloads, Config{})
	for _, v6 := range []bool{false, true} {
		x, y := connect(t, a, a, v6)
		exchange(t, x, y, 4<<20)
		if r := x.Room(); r.Left != r.EMSS || r.Space < r.MaxBatch {
			t.Errorf("idle: %+v", r)
		}
		x.Close()
		y.wants(t, 1, io.EOF)
		y.Close()
	}
	if n := a.Stats().Flows; n != 0 {
		t.Errorf("%d flows", n)
	}
}

func TestManyConns(t *testing.T) {
	a, b := stacks(t, 1500, allOffloads, Config{})
	l, err := b.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), 7000), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const n = 100
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(2)
		go func() {
			defer wg.Done()
			c, err := l.Accept(bg(t))
			if err != nil {
				t.Error(err)
				return
			}
			y := newTester(c)
			defer y.Close()
			got, err := y.recv(50_000, 1<<15)
			if err != nil {
				t.Error(err)
				return
			}
			if err := y.send(got, 0); err != nil {
				t.Error(err)
			}
			if _, err := drain(y); err != nil {
				t.Error(err)
			}
		}()
		go func() {
			defer wg.Done()
			c, err := a.Dial(bg(t), netip.AddrPort{}, netip.AddrPortFrom(addr(prefixesB, i%2 == 1), 7000))
			if err != nil {
				t.Error(err)
				return
			}
			x := newTester(c)
			data := noise(50_000, uint64(i))
			if err := x.send(data, 1+i*300); err != nil {
				t.Error(err)
				return
			}
			if got, err := x.recv(len(data), 1<<16); err != nil || !bytes.Equal(got, data) {
				t.Errorf("conn %d: %v", i, err)
			}
			x.Close()
		}()
	}
	wg.Wait()
	if st := b.Stats(); st.ConnsAccepted != n {
		t.Errorf("%d accepted, want %d", st.ConnsAccepted, n)
	}
}

// TestPeerVanishes: a peer that is gone without a word ends the connection after
// the user timeout; one that comes back within it does not, and soon.
func TestPeerVanishes(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 1500, allOffloads)
	a, b := stacksOn(t, da, db, Config{UserTimeout: 2 * time.Second})
	x, y := connect(t, a, b, false)
	outage := func(on bool) {
		for _, w := range []*wire{da.out, db.out} {
			w.mu.Lock()
			w.see = nil
			if on {
				w.see = func(tap.VNetHdr, []byte) bool { return false }
			}
			w.mu.Unlock()
		}
	}
	outage(true)
	if err := x.send(noise(100_000, 1), 0); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	outage(false)
	start := time.Now()
	if got, err := y.recv(100_000, 1<<16); err != nil || !bytes.Equal(got, noise(100_000, 1)) {
		t.Fatal(err)
	}
	t.Logf("back %v after the end of an outage of 1 s", time.Since(start))
	outage(true)
	start = time.Now()
	if err := x.send(noise(1000, 1), 0); err != nil {
		t.Fatal(err)
	}
	x.wants(t, 1, llp.ErrTimeout)
	if d := time.Since(start); d < time.Second || d > 6*time.Second {
		t.Errorf("user timeout of 2 s after %v", d)
	}
	if err := x.Send(&octets{1}); !errors.Is(err, llp.ErrTimeout) {
		t.Errorf("send: %v", err)
	}
	x.Close()
	y.Close()
}

// TestKeepAlive: an idle connection whose peer is gone ends too.
func TestKeepAlive(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 1500, allOffloads)
	a, b := stacksOn(t, da, db, Config{KeepAlive: 100 * time.Millisecond})
	x, y := connect(t, a, b, false)
	time.Sleep(time.Second)
	if x.down.Load() || y.down.Load() {
		t.Fatal("an idle connection ended though both ends answer")
	}
	da.out.mu.Lock()
	da.out.see = func(tap.VNetHdr, []byte) bool { return false }
	da.out.mu.Unlock()
	y.wants(t, 1, llp.ErrTimeout)
}

// TestFaults: whatever the wire does, the stream is whole.
func TestFaults(t *testing.T) {
	for _, off := range []tap.Offload{allOffloads, 0} {
		t.Run(fmt.Sprint(off), func(t *testing.T) {
			checkLeaks(t)
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			da, db := testPair(t, 1500, off)
			a, b := stacksOn(t, da, db, Config{})
			x, y := connect(t, a, b, false)
			for i, w := range []*wire{da.out, db.out} {
				r := rand.New(rand.NewPCG(seed, uint64(i)))
				var late *testFrame
				w.mu.Lock()
				w.see = func(h tap.VNetHdr, f []byte) bool {
					if late != nil {
						w.frames = append(w.frames, *late)
						late = nil
					}
					switch r.IntN(200) {
					case 0: // lost
						return false
					case 1: // twice
						w.frames = append(w.frames, testFrame{h, bytes.Clone(f)})
					case 2: // behind the next one
						late = &testFrame{h, bytes.Clone(f)}
						return false
					case 3: // one bit wrong, seen by no one below TCP
						if h.Flags == 0 {
							f[14+r.IntN(len(f)-14)] ^= 1 << r.IntN(8)
						}
					}
					return true
				}
				w.mu.Unlock()
			}
			exchange(t, x, y, 3<<20)
			st, su := a.Stats(), b.Stats()
			t.Logf("%d + %d retransmits, %d + %d checksum errors", st.TCPRetransmits, su.TCPRetransmits, st.TCPChecksumErrors, su.TCPChecksumErrors)
			if off == 0 && st.TCPChecksumErrors+su.TCPChecksumErrors+st.IPMalformed+su.IPMalformed+st.RxBad+su.RxBad == 0 {
				t.Error("no flipped bit was found: are checksums verified?")
			}
			x.Abort()
			y.Abort()
		})
	}
}

// TestNotifyNeverUnderUs: the function may be called with gVisor's lock held, so a
// call from within would hang; conn itself must not make one.
func TestNotifyNeverUnderUs(t *testing.T) {
	x, y := pair(t, Config{})
	c := x.Conn.(*conn)
	c.ep.(interface{ StopWork() }).StopWork() // as if a processor held the lock
	done := make(chan struct{})
	go func() {
		for _, m := range []waiter.EventMask{waiter.ReadableEvents, waiter.WritableEvents} {
			c.NotifyEvent(m)
		}
		c.Notify(func(llp.Event) {})
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("NotifyEvent or Notify waits for the endpoint's lock")
	}
	c.ep.(interface{ ResumeWork() }).ResumeWork()
	<-done
	x.Abort()
	y.Abort()
}

// TestAllocs holds the paths that are ours at no allocation.
func TestAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector, which allocates")
	}
	x, y := pair(t, Config{})
	data := noise(60_000, 1)
	if err := x.send(data, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := y.recv(len(data), 1<<16); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { x.Room() }); n != 0 {
		t.Errorf("Room: %v allocations", n)
	}
	if n := testing.AllocsPerRun(100, func() { y.Receive(1, 1) }); n != 0 {
		t.Errorf("Receive of nothing: %v allocations", n)
	}
	if err := x.send(data, 0); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := y.Receive(len(data), len(data)); err == nil {
			break
		}
		if err := y.wait(); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(100, func() { y.Receive(len(data), len(data)) }); n > 2*4 {
		// gVisor's own: a closure and its results per segment that Read looks at.
		t.Errorf("Receive: %v allocations", n)
	}
}

// TestStackCloseUnderLoad: everything ends, whoever is busy.
func TestStackCloseUnderLoad(t *testing.T) {
	a, b := stacks(t, 1500, allOffloads, Config{})
	l, err := b.Listen(netip.AddrPortFrom(addr(prefixesB, false), 7000), 0)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		x, y := connect(t, a, b, false)
		for _, e := range [][2]*tester{{x, y}, {y, x}} {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for {
					if err := e[0].send(make([]byte, 1<<20), 0); err != nil {
						if errors.Is(err, errStuck) {
							t.Error(err)
						}
						return
					}
				}
			}()
		}
	}
	wg.Add(2)
	go func() {
		defer wg.Done()
		if _, err := l.Accept(context.Background()); !errors.Is(err, llp.ErrClosed) {
			t.Errorf("Accept of a closed stack: %v", err)
		}
	}()
	go func() {
		defer wg.Done()
		_, err := b.Dial(context.Background(), netip.AddrPort{}, netip.MustParseAddrPort("10.9.0.77:1"))
		if !errors.Is(err, llp.ErrClosed) {
			t.Errorf("Dial of a closed stack: %v", err)
		}
	}()
	time.Sleep(100 * time.Millisecond)
	start := time.Now()
	b.Close()
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("Close took %v", d)
	}
	b.Close()
	if _, err := b.Dial(bg(t), netip.AddrPort{}, netip.MustParseAddrPort("10.9.0.1:1")); !errors.Is(err, llp.ErrClosed) {
		t.Errorf("Dial after Close: %v", err)
	}
	if _, err := b.Listen(netip.MustParseAddrPort("10.9.0.2:1"), 0); !errors.Is(err, llp.ErrClosed) {
		t.Errorf("Listen after Close: %v", err)
	}
	a.Close()
	wg.Wait()
	l.Close()
}

// TestDeviceGone: a device that is closed under a stack ends its receiving, and
// neither its connections nor its Close hang.
func TestDeviceGone(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 1500, allOffloads)
	a, b := stacksOn(t, da, db, Config{UserTimeout: time.Second})
	x, y := connect(t, a, b, false)
	da.Close()
	time.Sleep(50 * time.Millisecond) // until the receive loop has seen it
	if err := x.send(noise(1000, 1), 0); err != nil {
		t.Fatal(err)
	}
	x.wants(t, 1, llp.ErrTimeout)
	a.Close()
	y.Abort()
	b.Close()
}
