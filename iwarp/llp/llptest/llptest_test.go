package llptest

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
)

func TestConform(t *testing.T) {
	for name, o := range map[string]Options{
		"plain":        {},
		"octets":       {Cut: Octets},
		"random":       {Cut: Random(1)},
		"hold":         {Hold: true, Cut: Random(2)},
		"jumbo":        {EMSS: 8948},
		"small buffer": {Space: 8000, Hold: true},
		"segments":     {Segment: func(*Conn, []byte) {}},
	} {
		t.Run(name, func(t *testing.T) {
			Conform(t, func(*testing.T) (a, b llp.Conn) { return Pipe(o) })
		})
	}
}

// It needs no clock: a bubble of synctest holds it.
func TestConformInABubble(t *testing.T) {
	for _, f := range []func(*testing.T, *end, *end){room, lend, full, fin, abort, closing} {
		synctest.Test(t, func(t *testing.T) {
			a, b := Pipe(Options{})
			f(t, watch(a), watch(b))
		})
	}
}

func TestCuts(t *testing.T) {
	for i, cut := range []func(int) int{Octets, Random(7), nil} {
		a, b := Pipe(Options{Cut: cut})
		want := octets(0, 5000)
		if err := a.Send(&batch{b: want}); err != nil {
			t.Fatal(err)
		}
		v, err := b.Receive(1, 10_000)
		if err != nil || !bytes.Equal(bytes.Join(v, nil), want) {
			t.Errorf("cut %d: %v, or other octets", i, err)
		}
		if i == 0 && len(v) != 5000 || i == 1 && (len(v) < 2 || len(v) > 500) || i == 2 && len(v) != 1 {
			t.Errorf("cut %d: %d slices", i, len(v))
		}
	}
	x, y := Random(3), Random(3)
	for range 100 {
		if n, m := x(1000), y(1000); n != m || n < 1 || n > 1000 {
			t.Fatalf("the same seed cuts at %d and %d", n, m)
		}
	}
}

// Segments are as long as EMSS says, from where the one before ended with Hold.
func TestSegments(t *testing.T) {
	for _, hold := range []bool{false, true} {
		var got []int
		o := Options{EMSS: 1000, Hold: hold, Segment: func(_ *Conn, p []byte) { got = append(got, len(p)) }}
		a, b := Pipe(o)
		for _, n := range []int{1500, 700} {
			if err := a.Send(&batch{b: octets(0, n)}); err != nil {
				t.Fatal(err)
			}
		}
		want, left := []int{1000, 500, 700}, 1000
		if hold {
			want, left = []int{1000, 500, 500, 200}, 800
		}
		if len(got) != len(want) {
			t.Fatalf("hold %v: segments %v, want %v", hold, got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("hold %v: segments %v, want %v", hold, got, want)
			}
		}
		if r := a.Room(); r.Left != left || r.EMSS != 1000 {
			t.Errorf("hold %v: %+v", hold, r)
		}
		b.SetEMSS(500)
		if r := a.Room(); r.EMSS != 500 {
			t.Errorf("EMSS of both ends: %+v", r)
		}
	}
}

// Memory that was consumed holds something else.
func TestConsumedMemoryIsSpoilt(t *testing.T) {
	a, b := Pipe(Options{})
	a.Send(&batch{b: []byte("0123456789")})
	v, err := b.Receive(10, 10)
	if err != nil {
		t.Fatal(err)
	}
	b.Consume(6)
	if got := string(v[0]); got != "\xdb\xdb\xdb\xdb\xdb\xdb6789" {
		t.Errorf("%q", got)
	}
}

func TestBreak(t *testing.T) {
	for _, why := range []error{llp.ErrTimeout, llp.ErrReset} {
		p, q := Pipe(Options{})
		a, b := watch(p), watch(q)
		a.send(t, []byte("lost"))
		q.Break(why)
		for _, e := range []*end{a, b} {
			e.await(t, llp.Down)
			e.gone(t, "broken", why)
		}
	}
}

// What comes to a Conn that has closed is answered by a reset.
func TestSendToAClosedPeer(t *testing.T) {
	p, q := Pipe(Options{})
	a := watch(p)
	q.Close()
	if err := a.Send(&batch{b: []byte("x")}); err != nil {
		t.Errorf("TCP cannot know yet: %v", err)
	}
	a.await(t, llp.Down)
	a.gone(t, "closed by the peer", llp.ErrReset)
}

func TestStack(t *testing.T) {
	n := NewNet(Options{})
	x, y := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::2")
	s, r := n.Stack(x), n.Stack(y)
	ctx := context.Background()
	l, err := r.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), 0), 1)
	if err != nil {
		t.Fatal(err)
	}
	if l.Addr().Addr() != y || l.Addr().Port() == 0 {
		t.Errorf("listening at %v", l.Addr())
	}
	if _, err := r.Listen(l.Addr(), 0); !errors.Is(err, llp.ErrInUse) {
		t.Errorf("twice: %v", err)
	}
	a, err := s.Dial(ctx, netip.AddrPort{}, l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Dial(ctx, netip.AddrPort{}, l.Addr()); !errors.Is(err, llp.ErrTimeout) {
		t.Errorf("beyond the backlog: %v", err)
	}
	b, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if a.LocalAddr().Addr() != x || a.LocalAddr() != b.RemoteAddr() || b.LocalAddr() != l.Addr() {
		t.Errorf("%v to %v", a.LocalAddr(), b.LocalAddr())
	}
	ea, eb := watch(a), watch(b)
	ea.send(t, []byte("over the net"))
	if got := eb.take(t, 12); string(got) != "over the net" {
		t.Errorf("%q", got)
	}
	for addr, want := range map[string]error{"[2001:db8::2]:9": llp.ErrRefused, "192.0.2.99:9": llp.ErrUnreachable} {
		if _, err := s.Dial(ctx, netip.AddrPort{}, netip.MustParseAddrPort(addr)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", addr, err, want)
		}
	}
	c, err := r.Dial(ctx, netip.AddrPort{}, l.Addr()) // to ourselves
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	watch(c).gone(t, "established but not accepted", llp.ErrReset)
	if _, err := l.Accept(ctx); !errors.Is(err, llp.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	if _, err := s.Dial(ctx, netip.AddrPort{}, l.Addr()); !errors.Is(err, llp.ErrRefused) {
		t.Errorf("Dial after Close: %v", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Dial(gone, netip.AddrPort{}, l.Addr()); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial of a cancelled context: %v", err)
	}
}

func TestAcceptEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewNet(Options{}).Stack(netip.MustParseAddr("192.0.2.1"))
		l, err := s.Listen(netip.AddrPort{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := l.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Accept: %v", err)
		}
		go func() { time.Sleep(time.Hour); l.Close() }()
		if _, err := l.Accept(context.Background()); !errors.Is(err, llp.ErrClosed) {
			t.Errorf("Accept: %v", err)
		}
	})
}
