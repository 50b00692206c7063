package mem

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func register(t testing.TB, tab *Table, pd PD, buf []byte, base uint64, a Access) *Region {
	t.Helper()
	r, err := tab.Register(pd, buf, base, a)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Every rule of RFC 5041 section 7.1 that concerns a tagged buffer.
func TestCheckVerdicts(t *testing.T) {
	tab := NewTable()
	r := register(t, tab, 7, make([]byte, 100), 1000, RemoteWrite)
	top := register(t, tab, 7, make([]byte, 16), math.MaxUint64-15, RemoteWrite|RemoteRead)
	gone := register(t, tab, 7, make([]byte, 100), 0, RemoteWrite)
	if err := tab.Deregister(gone); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		stag STag
		to   uint64
		n    uint64
		want Access
		pd   PD
		err  error
	}{
		{"first octet", r.STag(), 1000, 1, RemoteWrite, 7, nil},
		{"whole", r.STag(), 1000, 100, RemoteWrite, 7, nil},
		{"last octet", r.STag(), 1099, 1, RemoteWrite, 7, nil},
		{"one too many", r.STag(), 1000, 101, RemoteWrite, 7, ErrBounds},
		{"one past", r.STag(), 1100, 1, RemoteWrite, 7, ErrBounds},
		{"before the base", r.STag(), 999, 1, RemoteWrite, 7, ErrBounds},
		{"huge length", r.STag(), 1000, math.MaxUint64 - 1000, RemoteWrite, 7, ErrBounds},
		{"TO wraps", r.STag(), math.MaxUint64, 2, RemoteWrite, 7, ErrWrap},
		{"TO wraps to exactly 0", r.STag(), math.MaxUint64 - 3, 4, RemoteWrite, 7, ErrWrap},
		{"up to 2^64-1", top.STag(), math.MaxUint64 - 15, 15, RemoteRead, 7, nil},
		{"no right", r.STag(), 1000, 1, RemoteRead, 7, ErrAccess},
		{"other PD", r.STag(), 1000, 1, RemoteWrite, 8, ErrPD},
		{"no PD", r.STag(), 1000, 1, RemoteWrite, 0, ErrPD},
		{"other key", r.STag() ^ 1, 1000, 1, RemoteWrite, 7, ErrSTag},
		{"other index", r.STag() ^ 0x100, 1000, 1, RemoteWrite, 7, ErrSTag},
		{"STag 0", 0, 0, 1, RemoteWrite, 7, ErrSTag},
		{"deregistered", gone.STag(), 0, 1, RemoteWrite, 7, ErrSTag},
		{"nothing, STag 0", 0, math.MaxUint64, 0, RemoteWrite, 7, nil},
		{"nothing, deregistered", gone.STag(), 5000, 0, RemoteWrite, 8, nil},
	} {
		s, err := tab.Check(c.stag, c.to, c.n, c.want, c.pd)
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.err)
		}
		if err == nil && s.Len != int(c.n) {
			t.Errorf("%s: span of %d octets, want %d", c.name, s.Len, c.n)
		}
		var ce *CheckError
		if err != nil && (!errors.As(err, &ce) || ce.STag != c.stag || ce.TO != c.to || ce.Len != c.n) {
			t.Errorf("%s: %v does not carry its values", c.name, err)
		}
	}
}

// Check agrees with arithmetic that cannot overflow.
func TestCheckAgainstBigInt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := NewTable()
		n := rapid.IntRange(0, 64).Draw(t, "size")
		near := func(name string) uint64 {
			k := rapid.Uint64Range(0, 80).Draw(t, name)
			if rapid.Bool().Draw(t, name+" from the top") {
				return math.MaxUint64 - k
			}
			return k
		}
		base := near("base")
		r, err := tab.Register(1, make([]byte, n), base, RemoteWrite)
		limit := new(big.Int).Lsh(big.NewInt(1), 64)
		end := new(big.Int).Add(new(big.Int).SetUint64(base), big.NewInt(int64(n)))
		if (err == nil) != (end.Cmp(limit) <= 0) {
			t.Fatalf("Register of %d octets at %#x: %v", n, base, err)
		}
		if err != nil {
			return
		}
		to, l := near("TO"), near("length")
		s, err := tab.Check(r.STag(), to, l, RemoteWrite, 1)
		bto := new(big.Int).SetUint64(to)
		bend := new(big.Int).Add(bto, new(big.Int).SetUint64(l))
		ok := l == 0 || bend.Cmp(limit) < 0 && bto.Cmp(new(big.Int).SetUint64(base)) >= 0 && bend.Cmp(end) <= 0
		if (err == nil) != ok {
			t.Fatalf("base %#x size %d TO %#x length %d: %v", base, n, to, l, err)
		}
		if ok && l > 0 && (s.Off != int(to-base) || s.Len != int(l)) {
			t.Fatalf("span %+v", s)
		}
	})
}

func TestSTagsAreNotACounterAndStayInQuarantine(t *testing.T) {
	tab := NewTable()
	seen := map[uint32]bool{}
	runs := 0
	var prev uint32
	for range 2000 {
		r := register(t, tab, 1, nil, 0, 0)
		if i := r.STag().Index(); seen[i] {
			t.Fatalf("index %#x used again within the quarantine", i)
		} else if i == prev+1 {
			runs++
		}
		prev = r.STag().Index()
		seen[prev] = true
		if err := tab.Deregister(r); err != nil {
			t.Fatal(err)
		}
		if err := tab.Deregister(r); !errors.Is(err, ErrSTag) {
			t.Fatalf("second Deregister: %v", err)
		}
	}
	if runs > 5 {
		t.Errorf("%d of 2000 indexes follow their predecessor", runs)
	}
	if tab.Len() != 0 {
		t.Errorf("%d regions left", tab.Len())
	}
	for range quarantineLen {
		tab.Deregister(register(t, tab, 1, nil, 0, 0))
	}
	if n := len(tab.regions); n != quarantineLen {
		t.Errorf("%d indexes kept, want %d", n, quarantineLen)
	}
}

// cut splits b at random, empty pieces included.
func cut(r *rand.Rand, b []byte) Vec {
	var v Vec
	for len(b) > 0 {
		n := min(len(b), r.IntN(12))
		v = append(v, b[:n])
		b = b[n:]
	}
	return v
}

// However source and target are cut, the same octets arrive and no other changes.
func TestScatterGather(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		var l SGL
		var regions []*Region
		for range 1 + r.IntN(5) {
			reg := NewLocal(bytes.Repeat([]byte{0xee}, 64))
			off := r.IntN(32)
			l = append(l, reg.Span(off, r.IntN(33)))
			regions = append(regions, reg)
		}
		total := l.Len()
		off := r.IntN(total + 1)
		src := make([]byte, r.IntN(total-off+1))
		for i := range src {
			src[i] = byte(r.IntN(200))
		}
		v := cut(r, src)
		if err := l.Scatter(off, v, r.IntN(2) == 0); err != nil {
			t.Fatal(err)
		}
		if v.Len() != len(src) {
			t.Fatal("Scatter changed its source")
		}
		if err := l.Acquire(); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(src))
		if err := l.Gather(got, off); err != nil {
			t.Fatal(err)
		}
		l.Release()
		if !bytes.Equal(got, src) {
			t.Fatalf("got %x, want %x", got, src)
		}
		n := 0
		for _, reg := range regions {
			n += bytes.Count(reg.Bytes(), []byte{0xee})
			if u := reg.use.Load(); u != 0 {
				t.Fatalf("use count %d left", u)
			}
		}
		if n != 64*len(regions)-len(src) {
			t.Fatalf("%d octets untouched of %d, %d placed", n, 64*len(regions), len(src))
		}
		if err := l.Scatter(off, Vec{make([]byte, total-off+1)}, false); !errors.Is(err, ErrBounds) {
			t.Fatalf("too long: %v", err)
		}
		if len(src) > 0 {
			reg := NewLocal(make([]byte, 200))
			s := reg.Span(20, 160)
			if err := s.Scatter(3, v, r.IntN(2) == 0); err != nil || !bytes.Equal(reg.Bytes()[23:23+len(src)], src) {
				t.Fatalf("span: %v", err)
			}
		}
	}
}

func TestInvalidPlacesNothing(t *testing.T) {
	tab := NewTable()
	a := register(t, tab, 1, make([]byte, 8), 0, LocalWrite)
	b := register(t, tab, 1, make([]byte, 8), 0, LocalWrite)
	l := SGL{a.Span(0, 8), b.Span(0, 8)}
	tab.Deregister(b)
	if err := l.Scatter(0, Vec{[]byte("sixteen octets!!")}, true); !errors.Is(err, ErrSTag) {
		t.Errorf("Scatter: %v", err)
	}
	if err := l.Acquire(); !errors.Is(err, ErrSTag) {
		t.Errorf("Acquire: %v", err)
	}
	if err := b.Span(0, 8).Scatter(0, Vec{[]byte("x")}, true); !errors.Is(err, ErrSTag) {
		t.Errorf("Span.Scatter: %v", err)
	}
	if !bytes.Equal(a.Bytes(), make([]byte, 8)) || !bytes.Equal(b.Bytes(), make([]byte, 8)) {
		t.Errorf("placed %q %q", a.Bytes(), b.Bytes())
	}
	if u := a.use.Load(); u != 0 {
		t.Errorf("use count %d left", u)
	}
}

func TestDeregisterWaitsForUse(t *testing.T) {
	tab := NewTable()
	r := register(t, tab, 1, make([]byte, 8), 0, LocalWrite)
	l := SGL{r.Span(0, 8)}
	if err := l.Acquire(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { tab.Deregister(r); close(done) }()
	for r.Valid() {
		time.Sleep(time.Millisecond)
	}
	if err := l.Acquire(); err == nil {
		t.Error("a new use was granted during Deregister")
	}
	select {
	case <-done:
		t.Error("Deregister did not wait")
	case <-time.After(10 * time.Millisecond):
	}
	l.Release()
	<-done
}

func TestInvalidate(t *testing.T) {
	tab := NewTable()
	plain := register(t, tab, 1, make([]byte, 8), 0, RemoteWrite|RemoteRead)
	mine := register(t, tab, 1, make([]byte, 8), 0, RemoteWrite|RemoteInvalidate)
	for _, c := range []struct {
		stag STag
		pd   PD
		want error
	}{
		{plain.STag(), 1, ErrAccess}, {mine.STag(), 2, ErrPD}, {mine.STag() + 1, 1, ErrSTag}, {0, 1, ErrSTag},
		{mine.STag(), 1, nil}, {mine.STag(), 1, ErrSTag},
	} {
		if _, err := tab.Invalidate(c.stag, c.pd); !errors.Is(err, c.want) {
			t.Errorf("Invalidate(%v, %d): %v, want %v", c.stag, c.pd, err, c.want)
		}
	}
	if _, err := tab.Check(mine.STag(), 0, 1, RemoteWrite, 1); !errors.Is(err, ErrSTag) {
		t.Errorf("after Invalidate: %v", err)
	}
	if err := tab.Deregister(mine); err != nil {
		t.Errorf("Deregister after Invalidate: %v", err)
	}
}

// A program that sees the last octet of a message by Load sees all of it, and
// the race detector agrees.
func TestLastOctetIsVisibleLast(t *testing.T) {
	buf := make([]byte, 4096)
	r := NewLocal(buf)
	src := make([]byte, len(buf))
	var wg sync.WaitGroup
	for round := byte(1); round < 100; round++ {
		for i := range src {
			src[i] = round
		}
		wg.Go(func() {
			if err := r.Span(0, len(buf)).Scatter(0, Vec{src[:1000], src[1000:4093], src[4093:]}, true); err != nil {
				t.Error(err)
			}
		})
		for r.LoadByte(len(buf)-1) != round {
			time.Sleep(time.Microsecond)
		}
		if n := bytes.Count(buf, []byte{round}); n != len(buf) {
			t.Fatalf("round %d: %d octets of %d", round, n, len(buf))
		}
	}
	wg.Wait()
}

func TestHeadAndSkip(t *testing.T) {
	b := []byte("abcdefghij")
	for cutAt := range len(b) + 1 {
		for n := range len(b) + 1 {
			v := Vec{b[:cutAt], nil, b[cutAt:]}
			if got := v.Head(n, make([]byte, n)); string(got) != string(b[:n]) {
				t.Errorf("Head(%d) cut at %d: %q", n, cutAt, got)
			}
			if got := bytes.Join(v.Skip(n), nil); string(got) != string(b[n:]) {
				t.Errorf("Skip(%d) cut at %d: %q", n, cutAt, got)
			}
		}
	}
	if got := (Vec{b}).Head(20, make([]byte, 20)); string(got) != string(b) {
		t.Errorf("Head past the end: %q", got)
	}
}

func TestNoAllocations(t *testing.T) {
	tab := NewTable()
	r := register(t, tab, 1, make([]byte, 4096), 0, RemoteWrite)
	l := SGL{r.Span(0, 2000), r.Span(2000, 2000)}
	v := Vec{make([]byte, 1000), make([]byte, 1000)}
	dst := make([]byte, 3000)
	out, in := Copies()
	const runs = 100
	if n := testing.AllocsPerRun(runs, func() {
		s, err := tab.Check(r.STag(), 100, 2000, RemoteWrite, 1)
		if err != nil || s.Scatter(0, v, true) != nil || l.Scatter(1500, v, true) != nil || l.Acquire() != nil || l.Gather(dst, 500) != nil {
			t.Error("failed")
		}
		l.Release()
	}); n != 0 {
		t.Errorf("%v allocations per round", n)
	}
	out2, in2 := Copies()
	if out2-out != 3000*(runs+1) || in2-in != 4000*(runs+1) {
		t.Errorf("counted %d out and %d in", out2-out, in2-in)
	}
}

// A buffer that came too late for a message does not matter to it: only the spans
// that octets go to are looked at.
func TestScatterLooksAtWhatItReaches(t *testing.T) {
	tab := NewTable()
	var l SGL
	var regions []*Region
	for range 3 {
		r := register(t, tab, 1, make([]byte, 8), 0, LocalWrite)
		regions = append(regions, r)
		l = append(l, Span{}, r.Span(0, 8))
	}
	tab.Deregister(regions[0])
	tab.Deregister(regions[2])
	if err := l.Scatter(8, Vec{[]byte("12345678")}, true); err != nil || string(regions[1].Bytes()) != "12345678" {
		t.Errorf("octets 8 to 16: %v, %q", err, regions[1].Bytes())
	}
	for _, off := range []int{7, 9} {
		if err := l.Scatter(off, Vec{[]byte("abcdefgh")}, true); !errors.Is(err, ErrSTag) || string(regions[1].Bytes()) != "12345678" {
			t.Errorf("octets from %d on: %v, %q", off, err, regions[1].Bytes())
		}
	}
}

// Nothing is placed once Deregister or Invalidate has returned, while several
// streams place as fast as they can.
func TestNothingIsPlacedAfterDeregister(t *testing.T) {
	tab := NewTable()
	for round := range 200 {
		r := register(t, tab, 1, make([]byte, 64), 0, RemoteWrite|RemoteInvalidate)
		var wg sync.WaitGroup
		var placed atomic.Int64
		for i := range 3 {
			src := Vec{bytes.Repeat([]byte{byte(i + 1)}, 16)}
			wg.Go(func() {
				for {
					// Streams of a peer write where they please; here each to its own part.
					s, err := tab.Check(r.STag(), uint64(16*i), 16, RemoteWrite, 1)
					if err == nil {
						err = s.Scatter(0, src, true)
					}
					if err != nil {
						if !errors.Is(err, ErrSTag) {
							t.Error(err)
						}
						return
					}
					placed.Add(1)
				}
			})
		}
		for placed.Load() < 3 {
			runtime.Gosched()
		}
		var err error
		if round%2 == 0 {
			_, err = tab.Invalidate(r.STag(), 1)
		} else {
			err = tab.Deregister(r)
		}
		if err != nil {
			t.Fatal(err)
		}
		clear(r.Bytes()) // the race detector would tell as well
		wg.Wait()
		if !bytes.Equal(r.Bytes(), make([]byte, 64)) {
			t.Fatalf("round %d: placed after the end: %x", round, r.Bytes())
		}
	}
}

// The same with a list of buffers, polled by eight octets at a time.
func TestPollUint64(t *testing.T) {
	a, b := NewLocal(make([]byte, 100)), NewLocal(make([]byte, 64))
	l := SGL{a.Span(0, 100), b.Span(0, 64)}
	src := make([]byte, 164)
	for round := byte(1); round < 50; round++ {
		for i := range src {
			src[i] = round
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := l.Scatter(0, Vec{src[:90], src[90:159], src[159:]}, true); err != nil {
				t.Error(err)
			}
		}()
		want := uint64(round) * 0x0101010101010101
		for b.LoadUint64(56) != want {
			runtime.Gosched()
		}
		if n := bytes.Count(a.Bytes(), []byte{round}) + bytes.Count(b.Bytes(), []byte{round}); n != len(src) {
			t.Fatalf("round %d: %d octets of %d", round, n, len(src))
		}
		<-done
	}
	var p [8]byte
	if b.Load(p[:], 56); p != [8]byte{49, 49, 49, 49, 49, 49, 49, 49} {
		t.Errorf("Load: %v", p)
	}
}

func TestSpanPanicsOutside(t *testing.T) {
	r := NewLocal(make([]byte, 10))
	for _, c := range [][2]int{{-1, 1}, {0, 11}, {11, 0}, {5, 6}, {1, -1}, {math.MaxInt, 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Span(%d, %d) was granted", c[0], c[1])
				}
			}()
			r.Span(c[0], c[1])
		}()
	}
	if s := r.Span(10, 0); s.Len != 0 {
		t.Error("an empty span at the end")
	}
}

func TestStrings(t *testing.T) {
	for a, want := range map[Access]string{0: "none", RemoteRead | RemoteWrite: "remote-read|remote-write", 0x81: "local-write|unknown"} {
		if got := a.String(); got != want {
			t.Errorf("Access(%#x) is %q, want %q", uint8(a), got, want)
		}
	}
	tab := NewTable()
	r := register(t, tab, 1, make([]byte, 16), 0x1000, RemoteRead)
	_, err := tab.Check(r.STag(), 0x1008, 9, RemoteRead, 1)
	want := fmt.Sprintf("mem: outside the bounds of the region: STag %v, TO 0x1008, 9 octets; the region has 16 octets from TO 0x1000 (RFC 5041 section 7.1)", r.STag())
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, err = tab.Check(r.STag(), 0x1008, 1, RemoteWrite, 1); err == nil || !strings.Contains(err.Error(), "wants remote-write, the region grants remote-read") {
		t.Errorf("%v", err)
	}
	if _, err := tab.Register(0, nil, 0, 0); err == nil {
		t.Error("registered without a protection domain")
	}
	if _, err := tab.Register(1, nil, 0, 0x40); err == nil {
		t.Error("registered with an unknown right")
	}
}

func BenchmarkCheck(b *testing.B) {
	tab := NewTable()
	var stags []STag
	for range 1024 {
		stags = append(stags, register(b, tab, 1, make([]byte, 64), 0, RemoteWrite).STag())
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if _, err := tab.Check(stags[i&1023], 8, 16, RemoteWrite, 1); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

func ExampleTable() {
	t := NewTable()
	buf := make([]byte, 16)
	r, _ := t.Register(1, buf, 0, RemoteWrite)
	// A peer writes five octets at TO 4.
	s, err := t.Check(r.STag(), 4, 5, RemoteWrite, 1)
	if err == nil {
		err = s.Scatter(0, Vec{[]byte("he"), []byte("llo")}, true)
	}
	fmt.Printf("%q %v\n", buf[4:9], err)
	// It may not read.
	_, err = t.Check(r.STag(), 4, 5, RemoteRead, 1)
	fmt.Println(errors.Is(err, ErrAccess))
	// Output:
	// "hello" <nil>
	// true
}
