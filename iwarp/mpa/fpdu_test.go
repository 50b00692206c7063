package mpa

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/softrnic/softrnic/internal/race"
	"github.com/softrnic/softrnic/iwarp/internal/golden"
	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/llp/llptest"
	"github.com/softrnic/softrnic/iwarp/mem"
)

// The golden frames parse with a good CRC, and come out of our framing again.
func TestGoldenFPDUs(t *testing.T) {
	for _, name := range golden.Names(t, "") {
		f := golden.Frame(t, name)
		if bytes.HasPrefix(f, []byte("MPA")) {
			continue
		}
		d := Deframer{CRC: true}
		d.Feed([][]byte{f})
		v, err := d.Next()
		if err != nil || d.Passed() != len(f) {
			t.Errorf("%s: %v, passed %d of %d", name, err, d.Passed(), len(f))
			continue
		}
		ulpdu := bytes.Join(v, nil)
		if got := AppendFPDU(nil, ulpdu, true); !bytes.Equal(got, f) {
			t.Errorf("%s: framed again as\n%x, want\n%x", name, got, f)
		}
	}
}

// RFC 5044 section 4.5, with the EMSS of common links.
func TestMULPDU(t *testing.T) {
	for emss, want := range map[int]int{1460: 1454, 1448: 1442, 1420: 1414, 8948: 8942, 1461: 1454, 1463: 1454, 536: 530, 0: 128, 6: 128, 135: 128, 136: 130, 65495: 64768, llp.MaxEMSS: MaxULPDU} {
		if got := MULPDU(emss); got != want {
			t.Errorf("MULPDU(%d) = %d, want %d", emss, got, want)
		}
	}
	for n := range 3000 {
		if l := FPDULen(n); l%4 != 0 || l < n+Overhead || l > n+Overhead+3 {
			t.Errorf("FPDULen(%d) = %d", n, l)
		}
		if m := MULPDU(n); m < MinMULPDU || n >= minFill && FPDULen(m) > n {
			t.Errorf("a ULPDU of MULPDU(%d) = %d makes an FPDU of %d", n, m, FPDULen(m))
		}
	}
}

// deframe runs a Deframer over stream as it arrives in pieces of next's size,
// handed over in slices of cut's size.
func deframe(stream []byte, crc bool, next, cut func(left int) int) (ulpdus [][]byte, err error) {
	d := Deframer{CRC: crc}
	have, at := 0, 0
	for {
		if have < len(stream) {
			have += next(len(stream) - have)
		}
		var s [][]byte
		for b := stream[at:have]; len(b) > 0; {
			n := cut(len(b))
			s = append(s, b[:n])
			b = b[n:]
		}
		d.Feed(s)
		for {
			v, err := d.Next()
			if err == ErrShort {
				break
			} else if err != nil {
				return ulpdus, err
			}
			ulpdus = append(ulpdus, bytes.Join(v, nil))
		}
		at += d.Passed()
		if have == len(stream) {
			return ulpdus, nil
		}
		if d.Need() <= have-at {
			return ulpdus, errors.New("Need is not more than there was")
		}
	}
}

func FuzzDeframer(f *testing.F) {
	var all []byte
	for _, name := range golden.Names(f, "") {
		all = append(all, golden.Frame(f, name)...)
	}
	f.Add(all, uint64(1), true)
	f.Add(AppendFPDU(nil, make([]byte, 2000), false), uint64(2), false)
	f.Add([]byte{0xff, 0xff, 0, 0, 0, 0, 0, 0, 0}, uint64(3), true)
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64, crc bool) {
		whole := func(left int) int { return left }
		a, aerr := deframe(stream, crc, whole, whole)
		r := rand.New(rand.NewPCG(seed, 0))
		random := func(left int) int { return 1 + r.IntN(left) }
		one := func(int) int { return 1 }
		for _, cut := range []func(int) int{random, one} {
			b, berr := deframe(stream, crc, random, cut)
			if !slices.EqualFunc(a, b, bytes.Equal) || (aerr == nil) != (berr == nil) {
				t.Errorf("%d ULPDUs whole, %d in parts; %v, %v", len(a), len(b), aerr, berr)
			}
		}
	})
}

// Every bit of an FPDU is covered by the CRC: none that is flipped gets through,
// and nothing behind it either.
func TestEveryBitIsCovered(t *testing.T) {
	good := AppendFPDU(nil, []byte("some ULPDU of 27 octets ..."), true)
	for bit := range len(good) * 8 {
		bad := slices.Clone(good)
		bad[bit/8] ^= 1 << (bit % 8)
		d := Deframer{CRC: true}
		d.Feed([][]byte{append(bad, good...)})
		for range 2 {
			if v, err := d.Next(); err == nil {
				t.Fatalf("bit %d: delivered %q", bit, bytes.Join(v, nil))
			} else if e := (*Error)(nil); err != ErrShort && (!errors.As(err, &e) || e.Code != CodeCRC && e.Code != CodeMarker) {
				t.Fatalf("bit %d: %v", bit, err)
			}
		}
	}
}

// list is a Source of ULPDUs that may be cut: one header octet, then payload.
type list struct {
	msgs  [][]byte
	off   int
	uncut bool
	sent  int
}

func (l *list) Next(max int, u *ULPDU) (bool, error) {
	if len(l.msgs) == 0 {
		return false, nil
	}
	if max < MinMULPDU {
		return false, fmt.Errorf("MULPDU %d (RFC 5044 section 4.5)", max)
	}
	m := l.msgs[0]
	n := min(len(m)-l.off, max-18)
	if n < 0 || n == 0 && len(m) > 0 || l.uncut && n < len(m) {
		return false, nil
	}
	u.HdrLen = 18
	for i := range 18 {
		u.Hdr[i] = byte(i)
	}
	u.SGL = mem.SGL{mem.NewLocal(m).Span(0, len(m))}
	u.Off, u.Len = l.off, n
	if n > 0 {
		if err := u.SGL.Acquire(); err != nil {
			return false, err
		}
	}
	if l.off += n; l.off == len(m) {
		l.msgs, l.off = l.msgs[1:], 0
	}
	l.sent++
	return true, nil
}

type sink struct {
	got []byte
	n   int
}

func (s *sink) ULPDU(v mem.Vec) error {
	s.n++
	v = v.Skip(18)
	for _, b := range v {
		s.got = append(s.got, b...)
	}
	return nil
}

func pair(t testing.TB, o llptest.Options, crc bool) (a, b *Conn) {
	la, lb := llptest.Pipe(o)
	return newConn(la, Peer{}, crc, 0, 0, true), newConn(lb, Peer{}, crc, 0, 0, false)
}

// Whatever the sizes, what was sent arrives, FPDUs fit in a segment, and nearly
// all segments start with one.
func TestAlignment(t *testing.T) {
	noise := make([]byte, 1<<21)
	rand.NewChaCha8([32]byte{}).Read(noise)
	for _, hold := range []bool{false, true} {
		for _, emss := range []int{1420, 1448, 8920, 512, llp.MaxEMSS} {
			r := rand.New(rand.NewPCG(uint64(emss), 1))
			var segments, aligned, offset, next int
			var stream []byte
			o := llptest.Options{EMSS: emss, Hold: hold, Space: 1 << 20, Cut: func(n int) int { return 1 + r.IntN(n) }}
			o.Segment = func(_ *llptest.Conn, p []byte) {
				stream = append(stream, p...)
				if !hold {
					segments++
				} else if offset%emss == 0 {
					segments++
				}
				if offset == next && (!hold || offset%emss == 0) {
					aligned++
				}
				offset += len(p)
				for next < offset && next+2 <= len(stream) {
					n := FPDULen(int(stream[next])<<8 | int(stream[next+1]))
					if n > emss {
						t.Fatalf("FPDU of %d octets, EMSS %d", n, emss)
					}
					next += n
				}
			}
			a, b := pair(t, o, true)
			src, dst := &list{}, &sink{}
			var want []byte
			for range 300 {
				m := noise[r.IntN(1<<20):][:r.IntN(100_000)]
				src.msgs = append(src.msgs, m)
				want = append(want, m...)
			}
			for len(src.msgs) > 0 {
				n, err := a.Send(src)
				if err != nil && !errors.Is(err, llp.ErrWouldBlock) || n == 0 && err == nil {
					t.Fatal(n, err)
				}
				for {
					n, err := b.Receive(1<<16, dst)
					if err != nil {
						t.Fatal(err)
					}
					if n == 0 {
						break
					}
				}
			}
			if !bytes.Equal(dst.got, want) {
				t.Fatalf("EMSS %d: %d octets arrived of %d, or others", emss, len(dst.got), len(want))
			}
			if dst.n != src.sent {
				t.Errorf("%d ULPDUs sent, %d received", src.sent, dst.n)
			}
			if share := float64(aligned) / float64(segments); share < 0.99 {
				t.Errorf("EMSS %d hold %v: %.4f of %d segments start with an FPDU", emss, hold, share, segments)
			}
		}
	}
}

// A message that cannot be cut goes across the end of a segment.
func TestUncutMessages(t *testing.T) {
	a, b := pair(t, llptest.Options{EMSS: 512, Hold: true}, true)
	src, dst := &list{uncut: true}, &sink{}
	for i := range 200 {
		src.msgs = append(src.msgs, make([]byte, i%480))
	}
	total := 0
	for _, m := range src.msgs {
		total += len(m)
	}
	for len(src.msgs) > 0 {
		if n, err := a.Send(src); err != nil && !errors.Is(err, llp.ErrWouldBlock) || n == 0 && err == nil {
			t.Fatalf("%d messages left: %d, %v", len(src.msgs), n, err)
		}
		for n := 1; n > 0; {
			var err error
			if n, err = b.Receive(1<<16, dst); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(dst.got) != total || dst.n != 200 {
		t.Errorf("%d octets in %d ULPDUs, want %d in 200", len(dst.got), dst.n, total)
	}
}

func TestNoAllocations(t *testing.T) {
	if race.Enabled {
		return // make race runs everything else
	}
	a, b := pair(t, llptest.Options{Space: 1 << 20}, true)
	payload := mem.NewLocal(make([]byte, 1<<20))
	src := &fixed{sgl: mem.SGL{payload.Span(0, 1<<20)}}
	dst := &count{}
	round := func() {
		src.n = 40
		if _, err := a.Send(src); err != nil {
			t.Fatal(err)
		}
		for n := 1; n > 0; {
			var err error
			if n, err = b.Receive(1<<16, dst); err != nil {
				t.Fatal(err)
			}
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n > 0 {
		t.Errorf("%v allocations for 40 FPDUs sent and received", n)
	}
	if dst.n != 40*102 {
		t.Errorf("%d ULPDUs", dst.n)
	}
}

type fixed struct {
	sgl mem.SGL
	n   int
}

func (f *fixed) Next(max int, u *ULPDU) (bool, error) {
	if f.n == 0 {
		return false, nil
	}
	f.n--
	u.HdrLen, u.SGL, u.Off, u.Len = 14, f.sgl, 100, max-14
	return true, u.SGL.Acquire()
}

type count struct{ n int }

func (c *count) ULPDU(mem.Vec) error { c.n++; return nil }

// A responder sends nothing before the initiator's first FPDU (RFC 5044 section
// 7.1.2, rule 4), and a bad one does not count.
func TestResponderWaits(t *testing.T) {
	la, lb := llptest.Pipe(llptest.Options{})
	b := newConn(lb, Peer{}, true, 0, 0, false)
	src := &list{msgs: [][]byte{[]byte("x")}}
	if _, err := b.Send(src); err != ErrNotOpen {
		t.Errorf("Send: %v", err)
	}
	f := AppendFPDU(nil, make([]byte, 20), true)
	f[5]++
	la.Send(&octets{f})
	if _, err := b.Receive(1000, &count{}); err == nil {
		t.Error("bad CRC accepted")
	}
	if _, err := b.Send(src); err != ErrNotOpen {
		t.Errorf("Send after a bad FPDU: %v", err)
	}
	la, lb = llptest.Pipe(llptest.Options{})
	b = newConn(lb, Peer{}, true, 0, 0, false)
	la.Send(&octets{AppendFPDU(nil, make([]byte, 20), true)})
	if _, err := b.Receive(1000, &count{}); err != nil {
		t.Error(err)
	}
	if n, err := b.Send(src); err != nil || n == 0 {
		t.Errorf("Send after the first FPDU: %d, %v", n, err)
	}
}

func ExampleMULPDU() {
	// MTU 1500 over IPv4 leaves 1448 octets behind a TCP header with timestamps.
	fmt.Println(MULPDU(1448))
	// Output: 1442
}
