package netstack

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/tap"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// checkLeaks fails t where it leaves a goroutine.
func checkLeaks(t testing.TB) {
	opt := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := goleak.Find(opt); err != nil {
			t.Error(err)
		}
	})
}

var (
	prefixesA = []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24"), netip.MustParsePrefix("fd00:9::1/64")}
	prefixesB = []netip.Prefix{netip.MustParsePrefix("10.9.0.2/24"), netip.MustParsePrefix("fd00:9::2/64")}
)

// addr returns the address of p for a family.
func addr(ps []netip.Prefix, v6 bool) netip.Addr {
	if v6 {
		return ps[1].Addr()
	}
	return ps[0].Addr()
}

// newStack makes a stack that ends with the test.
func newStack(t testing.TB, dev tap.Device, cfg Config) *Stack {
	t.Helper()
	s, err := New(dev, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// stacks makes two stacks, joined.
func stacks(t testing.TB, mtu int, off tap.Offload, cfg Config) (a, b *Stack) {
	t.Helper()
	checkLeaks(t)
	da, db := testPair(t, mtu, off)
	return stacksOn(t, da, db, cfg)
}

func stacksOn(t testing.TB, da, db tap.Device, cfg Config) (a, b *Stack) {
	t.Helper()
	ca, cb := cfg, cfg
	if cfg.MTU == 0 && min(da.MTU(), db.MTU()) < MinMTU6 {
		ca.Addrs, cb.Addrs = prefixesA[:1], prefixesB[:1]
	} else {
		ca.Addrs, cb.Addrs = prefixesA, prefixesB
	}
	return newStack(t, da, ca), newStack(t, db, cb)
}

// bg is a context that ends with the test or after a while.
func bg(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// connect makes a connection from a to b.
func connect(t testing.TB, a, b *Stack, v6 bool) (ca, cb *tester) {
	t.Helper()
	l, err := b.Listen(netip.AddrPortFrom(addr(b.Addrs(), v6), 0), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	x, err := a.Dial(bg(t), netip.AddrPort{}, l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	y, err := l.Accept(bg(t))
	if err != nil {
		t.Fatal(err)
	}
	if x.RemoteAddr() != y.LocalAddr() || x.LocalAddr() != y.RemoteAddr() {
		t.Fatalf("ends disagree: %v -> %v, %v -> %v", x.LocalAddr(), x.RemoteAddr(), y.RemoteAddr(), y.LocalAddr())
	}
	return newTester(x), newTester(y)
}

// tester drives an llp.Conn by blocking calls.
type tester struct {
	llp.Conn
	bell chan struct{}
	down atomic.Bool
}

func newTester(c llp.Conn) *tester {
	x := &tester{Conn: c, bell: make(chan struct{}, 1)}
	c.Notify(func(e llp.Event) {
		if e&llp.Down != 0 {
			x.down.Store(true)
		}
		select {
		case x.bell <- struct{}{}:
		default:
		}
	})
	return x
}

var errStuck = errors.New("nothing happened for 10 s")

func (x *tester) wait() error {
	select {
	case <-x.bell:
		return nil
	case <-time.After(10 * time.Second):
		return errStuck
	}
}

// octets is a Batch.
type octets []byte

func (o *octets) Len() int { return len(*o) }
func (o *octets) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(p) < len(*o) {
		return 0, llp.ErrNoRoom
	}
	n := copy(p, *o)
	*o = (*o)[n:]
	return n, nil
}

// send sends all of p, in batches of at most most octets (0: what Room says).
func (x *tester) send(p []byte, most int) error {
	for len(p) > 0 {
		r := x.Room()
		n := min(len(p), r.Space, r.MaxBatch)
		if most > 0 {
			n = min(n, most)
		}
		if n <= 0 {
			if err := x.wait(); err != nil {
				return err
			}
			continue
		}
		o := octets(p[:n])
		if err := x.Send(&o); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// recv receives n octets, in bites of at most budget.
func (x *tester) recv(n, budget int) ([]byte, error) {
	var got []byte
	for len(got) < n {
		bs, err := x.Receive(1, min(budget, n-len(got)))
		if err == llp.ErrWouldBlock {
			if err := x.wait(); err != nil {
				return got, err
			}
			continue
		}
		if err != nil {
			return got, err
		}
		k := 0
		for _, b := range bs {
			b = b[:min(len(b), n-len(got))]
			got = append(got, b...)
			k += len(b)
		}
		if err := x.Consume(k); err != nil {
			return got, err
		}
	}
	return got, nil
}

// noise is n octets that depend on seed.
func noise(n int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		v := r.Uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	return b
}

// exchange sends data both ways at once and compares.
func exchange(t testing.TB, a, b *tester, n int) {
	t.Helper()
	da, db := noise(n, 1), noise(n, 2)
	errs := make(chan error, 2)
	// One goroutine per end sends and receives, as a QP does.
	run := func(x *tester, out, want []byte) {
		errs <- func() error {
			var got []byte
			for len(out) > 0 || len(got) < len(want) {
				moved := false
				if r := x.Room(); len(out) > 0 && r.Space > 0 {
					o := octets(out[:min(len(out), r.Space, r.MaxBatch)])
					n := len(o)
					if err := x.Send(&o); err != nil {
						return err
					}
					out, moved = out[n:], true
				}
				bs, err := x.Receive(1, 1<<16)
				switch {
				case err == nil:
					k := 0
					for _, b := range bs {
						got = append(got, b...)
						k += len(b)
					}
					if err := x.Consume(k); err != nil {
						return err
					}
					moved = true
				case err != llp.ErrWouldBlock && !(err == io.EOF && len(got) == len(want)):
					return err
				}
				if !moved {
					if err := x.wait(); err != nil {
						return err
					}
				}
			}
			if !bytes.Equal(got, want) {
				return errors.New("octets differ")
			}
			return nil
		}()
	}
	go run(a, da, db)
	go run(b, db, da)
	for range 2 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

func TestBulkBothWays(t *testing.T) {
	for _, tc := range []struct {
		name string
		mtu  int
		off  tap.Offload
		v6   bool
	}{
		{"v4", 1500, allOffloads, false},
		{"v6", 1500, allOffloads, true},
		{"v4 mtu 576", 576, allOffloads, false},
		{"v4 mtu 9000", 9000, allOffloads, false},
		{"v6 mtu 9001", 9001, allOffloads, true},
		{"v4 mtu 65521", 65521, allOffloads, false},
		{"v6 mtu 65521", 65521, allOffloads, true},
		{"v4 no offloads", 1500, 0, false},
		{"v6 no offloads", 1500, 0, true},
		{"v4 checksum only", 1500, tap.OffloadCsum, false},
		{"v4 TSO4 only", 1500, tap.OffloadCsum | tap.OffloadTSO4, false},
		{"v6 TSO4 only", 1500, tap.OffloadCsum | tap.OffloadTSO4, true},
		{"v4 no offloads mtu 65521", 65521, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := stacks(t, tc.mtu, tc.off, Config{})
			x, y := connect(t, a, b, tc.v6)
			exchange(t, x, y, 8<<20)
			x.Close()
			y.Close()
			st := b.Stats()
			if st.TCPChecksumErrors != 0 || st.RxBad != 0 {
				t.Errorf("%d checksum errors, %d bad frames", st.TCPChecksumErrors, st.RxBad)
			}
			if tc.off != 0 && st.RxUnverified > 20 {
				t.Errorf("%d of %d frames unverified", st.RxUnverified, st.RxFrames)
			}
		})
	}
}
