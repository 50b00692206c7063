package llptest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
)

// patience is how long Conform waits for an edge.
const patience = 20 * time.Second

// Conform holds an implementation of llp.Conn to its contract. pair returns the
// two ends of a new connection, which it ends by itself when its test is over.
func Conform(t *testing.T, pair func(t *testing.T) (a, b llp.Conn)) {
	for _, c := range []struct {
		name string
		f    func(t *testing.T, a, b *end)
	}{
		{"Addresses", addresses},
		{"Room", room},
		{"Empty", empty},
		{"Lend", lend},
		{"Transfer", transfer},
		{"Failing batch", failingBatch},
		{"Full", full},
		{"Notify", notify},
		{"FIN", fin},
		{"FIN within what is needed", finWithin},
		{"Abort", abort},
		{"Close", closing},
		{"Close with octets unread", closeUnread},
		{"Any goroutine", anyGoroutine},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t)
			c.f(t, watch(a), watch(b))
		})
	}
}

// end is one end of a connection and the edges that it had.
type end struct {
	llp.Conn
	seen atomic.Uint32 // of llp.Event
	bell chan struct{}
}

func watch(c llp.Conn) *end {
	e := &end{Conn: c, bell: make(chan struct{}, 1)}
	c.Notify(e.ring)
	return e
}

func (e *end) ring(ev llp.Event) {
	e.seen.Or(uint32(ev))
	select {
	case e.bell <- struct{}{}:
	default:
	}
}

// await waits until one of events has come since they were last awaited.
func (e *end) await(t *testing.T, events llp.Event) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for e.seen.And(^uint32(events))&uint32(events) == 0 {
		select {
		case <-e.bell:
		case <-timer.C:
			t.Fatalf("%v: no edge %03b in %v", e.LocalAddr(), events, patience)
		}
	}
}

// receive waits until Receive says something but ErrWouldBlock.
func (e *end) receive(t *testing.T, need, budget int) ([][]byte, error) {
	t.Helper()
	for {
		v, err := e.Receive(need, budget)
		if !errors.Is(err, llp.ErrWouldBlock) {
			return v, err
		}
		if len(v) > 0 {
			t.Fatalf("%d slices and %v", len(v), err)
		}
		e.await(t, llp.Readable)
	}
}

// take receives and consumes n octets.
func (e *end) take(t *testing.T, n int) []byte {
	t.Helper()
	v, err := e.receive(t, n, n)
	if err != nil {
		t.Fatalf("receiving %d octets: %v", n, err)
	}
	b := bytes.Join(v, nil)[:n]
	if err := e.Consume(n); err != nil {
		t.Fatal(err)
	}
	return b
}

// send waits until b is queued, in batches as large as may be.
func (e *end) send(t *testing.T, b []byte) {
	t.Helper()
	for len(b) > 0 {
		r := e.Room()
		n := min(r.Space, r.MaxBatch, len(b))
		if n <= 0 {
			e.await(t, llp.Writable)
			continue
		}
		if err := e.Send(&batch{b: b[:n]}); err != nil {
			t.Fatalf("sending %d octets with %+v: %v", n, r, err)
		}
		b = b[n:]
	}
}

// batch sends b, or fails.
type batch struct {
	b   []byte
	err error
}

func (o *batch) Len() int { return len(o.b) }

func (o *batch) Read(p []byte) (int, error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case len(p) < len(o.b):
		return 0, llp.ErrNoRoom
	case o.err != nil:
		return 0, o.err
	}
	return copy(p, o.b), nil
}

// octets returns n octets that tell their place in a stream from from on.
func octets(from, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		k := from + i
		b[i] = byte(k ^ k>>8 ^ k>>16*7)
	}
	return b
}

func addresses(t *testing.T, a, b *end) {
	if a.LocalAddr() != b.RemoteAddr() || a.RemoteAddr() != b.LocalAddr() {
		t.Errorf("%v to %v, and %v to %v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
	}
	for _, p := range []fmt.Stringer{a.LocalAddr(), a.RemoteAddr()} {
		if p.String() == "invalid AddrPort" {
			t.Error("an address is missing")
		}
	}
}

func checkRoom(t *testing.T, r llp.Room) {
	t.Helper()
	if r.EMSS <= 0 || r.EMSS%4 != 0 || r.EMSS > llp.MaxEMSS || r.Left <= 0 || r.Left > r.EMSS || r.MaxBatch <= 0 || r.MaxBatch%r.EMSS != 0 {
		t.Fatalf("%+v", r)
	}
}

func room(t *testing.T, a, b *end) {
	r := a.Room()
	checkRoom(t, r)
	if r.Left != r.EMSS || r.Space < r.MaxBatch {
		t.Errorf("idle: %+v", r)
	}
	// Space only grows until the next Send, and is what Send takes.
	waiting := 0 // octets sent and not taken
	for from := range 50 {
		r := a.Room()
		checkRoom(t, r)
		if again := a.Room(); again.Space < r.Space {
			t.Fatalf("Space shrank from %d to %d", r.Space, again.Space)
		}
		n := min(r.Space, r.MaxBatch)
		if n > 0 {
			if err := a.Send(&batch{b: octets(from, n)}); err != nil {
				t.Fatalf("%d octets, with %+v: %v", n, r, err)
			}
			waiting += n
		}
		if from%3 == 0 || n <= 0 {
			if waiting > 0 {
				b.take(t, waiting)
			}
			waiting = 0
		}
		if n <= 0 {
			a.await(t, llp.Writable)
		}
	}
}

func count(v [][]byte) (n int) {
	for _, b := range v {
		n += len(b)
	}
	return n
}

func empty(t *testing.T, a, b *end) {
	for _, e := range []*end{a, b} {
		for range 3 {
			if v, err := e.Receive(1, 1000); !errors.Is(err, llp.ErrWouldBlock) || len(v) > 0 {
				t.Errorf("%d slices, %v", len(v), err)
			}
		}
		if err := e.Consume(0); err != nil {
			t.Errorf("Consume(0): %v", err)
		}
	}
}

// lend: what Receive lends stays in the stream until it is consumed.
func lend(t *testing.T, a, b *end) {
	want := octets(0, 3000)
	a.send(t, want[:1000])
	a.send(t, want[1000:])
	for at := 0; at < len(want); {
		need := min(7, len(want)-at)
		for range 2 {
			v, err := b.receive(t, need, 500)
			if err != nil {
				t.Fatal(err)
			}
			got := bytes.Join(v, nil)
			if len(got) < need || len(got) > 500+1<<16 || !bytes.Equal(got, want[at:at+len(got)]) {
				t.Fatalf("at %d: %d octets, or others", at, len(got))
			}
		}
		if err := b.Consume(need); err != nil {
			t.Fatal(err)
		}
		at += need
	}
	// More than there is: nothing comes of it, and nothing is lost.
	a.send(t, want[:10])
	b.receive(t, 10, 10)
	if _, err := b.Receive(11, 100); !errors.Is(err, llp.ErrWouldBlock) {
		t.Errorf("11 octets of 10: %v", err)
	}
	if got := b.take(t, 10); !bytes.Equal(got, want[:10]) {
		t.Errorf("%x", got)
	}
}

// transfer: both directions at once, in batches and portions of any size.
func transfer(t *testing.T, a, b *end) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, e := range []*end{a, b} {
		wg.Go(func() {
			if err := e.exchange(rand.New(rand.NewPCG(uint64(i), 0)), 1<<20); err != nil {
				t.Errorf("end %d: %v", i, err)
				e.Abort()
			}
		})
	}
}

// exchange sends total octets and receives as many.
func (e *end) exchange(r *rand.Rand, total int) error {
	deadline := time.Now().Add(3 * patience)
	for sent, got := 0, 0; sent < total || got < total; {
		moved := false
		if room := e.Room(); sent < total && room.Space > 0 {
			n := min(1+r.IntN(min(room.MaxBatch, room.Space)), total-sent)
			if err := e.Send(&batch{b: octets(sent, n)}); err != nil {
				return fmt.Errorf("sending %d octets with %+v: %w", n, room, err)
			}
			sent += n
			moved = true
		}
		if got < total {
			need := 1 + r.IntN(min(3000, total-got))
			v, err := e.Receive(need, 1+r.IntN(100_000))
			switch {
			case err == nil:
				lent := count(v)
				if lent < need {
					return fmt.Errorf("%d octets at %d, %d were needed", lent, got, need)
				}
				at := got
				for _, p := range v {
					if !bytes.Equal(p, octets(at, len(p))) {
						return fmt.Errorf("other octets than were sent, at %d", at)
					}
					at += len(p)
				}
				used := lent - r.IntN(2)*r.IntN(lent+1) // now and then not all is wanted
				if err := e.Consume(used); err != nil {
					return err
				}
				got += used
				moved = true
			case !errors.Is(err, llp.ErrWouldBlock):
				return fmt.Errorf("receiving at %d: %w", got, err)
			}
		}
		if !moved {
			select {
			case <-e.bell:
			case <-time.After(10 * time.Millisecond): // what is queued is less than was needed
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d octets sent and %d received of %d", sent, got, total)
		}
	}
	return nil
}

// failingBatch: where a batch cannot be read nothing of it is queued.
func failingBatch(t *testing.T, a, b *end) {
	want := octets(0, 300)
	a.send(t, want[:100])
	broken := errors.New("memory is gone")
	for range 3 {
		if err := a.Send(&batch{b: make([]byte, 100), err: broken}); !errors.Is(err, broken) {
			t.Fatalf("Send: %v, want the batch's error", err)
		}
	}
	if err := a.Send(&batch{}); err != nil {
		t.Errorf("a batch of nothing: %v", err)
	}
	a.send(t, want[100:])
	if got := b.take(t, 300); !bytes.Equal(got, want) {
		t.Errorf("got %x", got)
	}
}

// full: a send buffer that is full says so, and that it no longer is.
func full(t *testing.T, a, b *end) {
	sent, blocked := 0, 0
	for blocked < 20 {
		r := a.Room()
		err := a.Send(&batch{b: octets(sent, r.MaxBatch)})
		switch {
		case err == nil:
			sent += r.MaxBatch
			blocked = 0
			if sent > 256<<20 {
				t.Fatal("256 MiB are taken, and nobody reads")
			}
		case errors.Is(err, llp.ErrWouldBlock):
			if r.Space >= r.MaxBatch {
				t.Fatalf("%+v, and a batch that big is refused", r)
			}
			blocked++ // the peer's TCP may yet take some
			time.Sleep(time.Millisecond)
		default:
			t.Fatal(err)
		}
	}
	for {
		a.seen.Store(0)
		r := a.Room()
		if r.Space < r.MaxBatch {
			break // and an edge is due
		}
		a.send(t, octets(sent, r.MaxBatch))
		sent += r.MaxBatch
	}
	for got := 0; got < sent; {
		v, err := b.receive(t, 1, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range v {
			if !bytes.Equal(p, octets(got, len(p))) {
				t.Fatalf("other octets than were sent, at %d", got)
			}
			got += len(p)
		}
		if err := b.Consume(count(v)); err != nil {
			t.Fatal(err)
		}
	}
	a.await(t, llp.Writable)
	if r := a.Room(); r.Space <= 0 {
		t.Errorf("a Writable edge, and %+v", r)
	}
}

// notify: the function is told at once what holds, then of edges, until there is
// none.
func notify(t *testing.T, a, b *end) {
	a.await(t, llp.Writable)
	a.send(t, octets(0, 10))
	b.await(t, llp.Readable)
	b.receive(t, 10, 10)
	again := watch(b.Conn)
	if ev := llp.Event(again.seen.Load()); ev&llp.Readable == 0 || ev&llp.Down != 0 {
		t.Errorf("octets wait, and Notify tells %03b", ev)
	}
	b.Notify(nil)
	again.seen.Store(0)
	b.Consume(10)
	a.send(t, octets(0, 10))
	for range 200 {
		if _, err := b.Receive(10, 10); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if ev := again.seen.Load(); ev != 0 {
		t.Errorf("Notify(nil), and an edge %03b", ev)
	}
}

// fin: a half-close ends one direction.
func fin(t *testing.T, a, b *end) {
	want := octets(0, 5000)
	a.send(t, want)
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(&batch{b: want}); err == nil || errors.Is(err, llp.ErrWouldBlock) {
		t.Errorf("Send after CloseWrite: %v", err)
	}
	if got := b.take(t, len(want)); !bytes.Equal(got, want) {
		t.Error("other octets than were sent")
	}
	for range 2 {
		if v, err := b.receive(t, 1, 100); err != io.EOF || len(v) > 0 {
			t.Errorf("after the FIN: %d slices, %v", len(v), err)
		}
	}
	if ev := llp.Event(a.seen.Load() | b.seen.Load()); ev&llp.Down != 0 {
		t.Error("one direction ended, and the connection is called down")
	}
	// The other one still works.
	b.send(t, want)
	if got := a.take(t, len(want)); !bytes.Equal(got, want) {
		t.Error("after the FIN, the other way: other octets than were sent")
	}
	if err := b.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.receive(t, 1, 100); err != io.EOF {
		t.Errorf("the other way: %v", err)
	}
}

func finWithin(t *testing.T, a, b *end) {
	a.send(t, octets(0, 10))
	a.CloseWrite()
	for {
		v, err := b.receive(t, 11, 100)
		if err == io.ErrUnexpectedEOF {
			break
		}
		t.Fatalf("11 octets of 10 and FIN: %d slices, %v", len(v), err)
	}
	if got := b.take(t, 10); !bytes.Equal(got, octets(0, 10)) {
		t.Errorf("what came before the FIN: %x", got)
	}
	if _, err := b.receive(t, 1, 1); err != io.EOF {
		t.Errorf("then: %v", err)
	}
}

// gone checks that e fails for good in both directions, with one of want.
func (e *end) gone(t *testing.T, what string, want ...error) {
	t.Helper()
	is := func(err error) bool {
		for _, w := range want {
			if errors.Is(err, w) {
				return true
			}
		}
		return false
	}
	for range 2 {
		if _, err := e.Receive(1, 100); !is(err) {
			t.Errorf("%s: Receive: %v, want %v", what, err, want)
		}
		if err := e.Send(&batch{b: []byte{1}}); !is(err) {
			t.Errorf("%s: Send: %v, want %v", what, err, want)
		}
	}
}

func abort(t *testing.T, a, b *end) {
	a.send(t, octets(0, 100))
	b.take(t, 100)
	a.Abort()
	a.Abort()
	a.gone(t, "aborted", llp.ErrReset, llp.ErrClosed)
	b.await(t, llp.Down)
	b.gone(t, "reset", llp.ErrReset)
	if late := watch(b.Conn); llp.Event(late.seen.Load())&llp.Down == 0 {
		t.Error("Notify does not tell that the connection is down")
	}
	if a.LocalAddr() != b.RemoteAddr() {
		t.Error("the addresses are gone too")
	}
	b.Close()
	b.Abort()
}

func closing(t *testing.T, a, b *end) {
	want := octets(0, 5000)
	a.send(t, want)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	a.gone(t, "closed", llp.ErrClosed)
	if got := b.take(t, len(want)); !bytes.Equal(got, want) {
		t.Error("other octets than were sent")
	}
	if _, err := b.receive(t, 1, 1); err != io.EOF {
		t.Errorf("after Close: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	a.Close()
	a.Abort()
	b.Abort()
}

// closeUnread: who closes without reading what came tells the peer so by a reset,
// as any TCP; so it does where more comes.
func closeUnread(t *testing.T, a, b *end) {
	a.send(t, octets(0, 100))
	b.await(t, llp.Readable)
	b.receive(t, 100, 100)
	b.Close()
	deadline := time.Now().Add(patience)
	for {
		err := a.Send(&batch{b: []byte{1}})
		if errors.Is(err, llp.ErrReset) {
			break
		}
		if err != nil && !errors.Is(err, llp.ErrWouldBlock) || time.Now().After(deadline) {
			t.Fatalf("the peer has closed, and Send says %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	a.await(t, llp.Down)
}

// anyGoroutine: all but Room, Send, Receive and Consume may be called at any time.
func anyGoroutine(t *testing.T, a, b *end) {
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for _, e := range []*end{a, b} {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				e.Notify(e.ring)
				e.LocalAddr()
				e.RemoteAddr()
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	var ends sync.WaitGroup
	for i, e := range []*end{a, b} {
		ends.Go(func() {
			if err := e.exchange(rand.New(rand.NewPCG(uint64(i), 1)), 200_000); err != nil {
				t.Errorf("end %d: %v", i, err)
				e.Abort()
			}
		})
	}
	ends.Wait()
	close(stop)
	wg.Wait()
	// Abort interrupts whoever is at it.
	for _, e := range []*end{a, b} {
		ends.Go(func() {
			for {
				_, err := e.Receive(1, 100)
				if err == nil {
					err = errors.New("octets that nobody sent")
				}
				if !errors.Is(err, llp.ErrWouldBlock) {
					if !errors.Is(err, llp.ErrReset) && !errors.Is(err, llp.ErrClosed) {
						t.Error(err)
					}
					return
				}
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
	time.Sleep(time.Millisecond)
	a.Abort()
	ends.Wait()
}
