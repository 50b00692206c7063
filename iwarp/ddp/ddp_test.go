package ddp

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/softrnic/softrnic/iwarp/internal/golden"
	"github.com/softrnic/softrnic/iwarp/mem"
	"github.com/softrnic/softrnic/iwarp/mpa"
)

// ulpdu returns what a golden FPDU carries.
func ulpdu(t testing.TB, name string) []byte {
	f := golden.Frame(t, name)
	n := int(f[0])<<8 | int(f[1])
	return f[2 : 2+n]
}

func TestGoldenHeaders(t *testing.T) {
	for name, want := range map[string]any{
		"send-0":          Untagged{Last: true, RsvdULP: 0x43, MSN: 1},
		"send-2-last-msn": Untagged{Last: true, RsvdULP: 0x43, MSN: 0xffffffff},
		"send-inv-4":      Untagged{Last: true, RsvdULP: 0x44, RsvdULP4: 0x01020304, MSN: 1},
		"read-request":    Untagged{Last: true, RsvdULP: 0x41, QN: 1, MSN: 1},
		"terminate-crc":   Untagged{Last: true, RsvdULP: 0x47, QN: 2, MSN: 1},
		"write-0":         Tagged{Last: true, RsvdULP: 0x40, STag: 1},
		"write-4-last-to": Tagged{Last: true, RsvdULP: 0x40, STag: 0x11223344, TO: 0xfffffffffffffffc},
		"read-response-0": Tagged{Last: true, RsvdULP: 0x42, STag: 0x11111111, TO: 0x1000},
	} {
		b := ulpdu(t, name)
		var got any
		var err error
		again := make([]byte, MaxLen)
		if IsTagged(b[0]) {
			var h Tagged
			h, err = ParseTagged(b)
			h.Put(again)
			again, got = again[:TaggedLen], h
		} else {
			var h Untagged
			h, err = ParseUntagged(b)
			h.Put(again)
			again, got = again[:UntaggedLen], h
		}
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
		}
		if !bytes.Equal(again, b[:len(again)]) {
			t.Errorf("%s: put as %x, want %x", name, again, b[:len(again)])
		}
	}
}

func TestParseErrors(t *testing.T) {
	for n := range TaggedLen {
		if _, err := ParseTagged(make([]byte, n)); err != ErrShort {
			t.Errorf("tagged, %d octets: %v", n, err)
		}
	}
	for n := range UntaggedLen {
		if _, err := ParseUntagged(make([]byte, n)); err != ErrShort {
			t.Errorf("untagged, %d octets: %v", n, err)
		}
	}
	for v := range byte(4) {
		b := make([]byte, MaxLen)
		b[0] = v
		_, terr := ParseTagged(b)
		_, uerr := ParseUntagged(b)
		if (terr == nil) != (v == 1) || (uerr == nil) != (v == 1) {
			t.Errorf("version %d: %v, %v", v, terr, uerr)
		}
		var e *Error
		if v != 1 && (!errors.As(terr, &e) || e.Type != TypeTagged || e.Code != CodeTaggedVersion) {
			t.Errorf("version %d: %v", v, terr)
		}
		if v != 1 && (!errors.As(uerr, &e) || e.Type != TypeUntagged || e.Code != CodeUntaggedVersion) {
			t.Errorf("version %d: %v", v, uerr)
		}
	}
	// Reserved bits are not looked at (RFC 5041 section 4.1).
	if _, err := ParseTagged(append([]byte{0x3d | 0x80}, make([]byte, 13)...)); err != nil {
		t.Errorf("reserved bits: %v", err)
	}
}

func FuzzHeaders(f *testing.F) {
	for _, name := range golden.Names(f, "") {
		if b := golden.Frame(f, name); !bytes.HasPrefix(b, []byte("MPA")) {
			f.Add(ulpdu(f, name))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		again := make([]byte, MaxLen)
		if h, err := ParseTagged(b); err == nil {
			h.Put(again)
			if g, err := ParseTagged(again); err != nil || g != h {
				t.Errorf("%+v became %+v, %v", h, g, err)
			}
		}
		if h, err := ParseUntagged(b); err == nil {
			h.Put(again)
			if g, err := ParseUntagged(again); err != nil || g != h {
				t.Errorf("%+v became %+v, %v", h, g, err)
			}
		}
	})
}

func TestMSNWraps(t *testing.T) {
	for _, c := range []struct {
		a, b MSN
		want bool
	}{{1, 2, true}, {2, 1, false}, {1, 1, false}, {0xffffffff, 0, true}, {0, 0xffffffff, false}, {0x7fffffff, 0x80000000, true}} {
		if got := c.a.Before(c.b); got != c.want {
			t.Errorf("%#x before %#x: %v", c.a, c.b, got)
		}
	}
}

// messages is a Source.
type messages struct {
	list   []Message
	sent   []uint64
	failed []uint64
}

func (m *messages) Next(out *Message) bool {
	if len(m.list) == 0 {
		return false
	}
	*out, m.list = m.list[0], m.list[1:]
	return true
}
func (m *messages) Sent(_ uint8, token uint64)              { m.sent = append(m.sent, token) }
func (m *messages) Failed(_ uint8, token uint64, err error) { m.failed = append(m.failed, token) }

// cut runs the sender over src and describes the segments.
func cut(t *testing.T, s *sender, src Source, max func() int) (out []string) {
	t.Helper()
	s.src = src
	for refused := 0; ; {
		var u mpa.ULPDU
		ok, err := s.Next(max(), &u)
		if err != nil {
			return append(out, "error")
		}
		if !ok {
			if refused++; refused > 5 {
				return out
			}
			continue
		}
		refused = 0
		if u.Len > 0 {
			u.SGL.Release()
		}
		if IsTagged(u.Hdr[0]) {
			h, _ := ParseTagged(u.Hdr[:])
			out = append(out, fmt.Sprintf("TO %d: %d %v", h.TO, u.Len, h.Last))
		} else {
			h, _ := ParseUntagged(u.Hdr[:])
			out = append(out, fmt.Sprintf("QN %d MSN %d MO %d: %d %v", h.QN, h.MSN, h.MO, u.Len+u.HdrLen-UntaggedLen, h.Last))
		}
	}
}

// The worked example of RFC 5041 section 5.2, and messages without payload.
func TestSegmentation(t *testing.T) {
	buf := mem.NewLocal(make([]byte, 4096))
	l := mem.SGL{buf.Span(0, 1000), buf.Span(2000, 1048)}
	src := &messages{list: []Message{
		{QN: 0, SGL: l, Len: 2048, Token: 1},
		{Tagged: true, TO: 100, SGL: l, Len: 2048, Token: 2},
		{QN: 0, Token: 3},
		{Tagged: true, TO: 7, Token: 4},
		{QN: 1, HdrLen: 28, Token: 5},
		{QN: 0, Token: 6},
	}}
	s := &sender{msn: [queues]MSN{0xffffffff, 1, 1}}
	got := cut(t, s, src, func() int { return 1500 })
	want := []string{
		"QN 0 MSN 4294967295 MO 0: 1482 false", "QN 0 MSN 4294967295 MO 1482: 566 true",
		"TO 100: 1486 false", "TO 1586: 562 true",
		"QN 0 MSN 0 MO 0: 0 true",
		"TO 7: 0 true",
		"QN 1 MSN 1 MO 0: 28 true",
		"QN 0 MSN 1 MO 0: 0 true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
	if len(s.marks) != 6 || s.marks[0].token != 1 || s.marks[5].token != 6 {
		t.Errorf("marks %+v", s.marks)
	}
}

// A segment is never longer than what is asked for, nor without progress; what does
// not fit waits for more room.
func TestSegmentsFit(t *testing.T) {
	buf := mem.NewLocal(make([]byte, 4096))
	for limit := range 80 {
		src := &messages{list: []Message{{QN: 0, SGL: mem.SGL{buf.Span(0, 100)}, Len: 100}, {QN: 1, HdrLen: 28}, {Tagged: true, SGL: mem.SGL{buf.Span(0, 100)}, Len: 100}}}
		s := &sender{src: src}
		payload, turns := 0, 0
		for room := limit; turns < 1000; turns++ {
			var u mpa.ULPDU
			ok, err := s.Next(room, &u)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				if room == 200 {
					break
				}
				room = 200
				continue
			}
			if u.HdrLen+u.Len > room || u.Len == 0 && u.HdrLen <= UntaggedLen {
				t.Fatalf("limit %d: a ULPDU of %d+%d octets", room, u.HdrLen, u.Len)
			}
			if payload += u.Len; u.Len > 0 {
				u.SGL.Release()
			}
			room = limit
		}
		if payload != 200 || len(s.marks) != 3 {
			t.Errorf("limit %d: %d octets, %d messages", limit, payload, len(s.marks))
		}
	}
}

// Memory that is gone stops its own message only.
func TestSendFromInvalidMemory(t *testing.T) {
	tab := mem.NewTable()
	r, err := tab.Register(1, make([]byte, 100), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	src := &messages{list: []Message{{Token: 1}, {SGL: mem.SGL{r.Span(0, 100)}, Len: 100, Token: 2}}}
	tab.Deregister(r)
	s := &sender{}
	if got := cut(t, s, src, func() int { return 1500 }); len(got) != 2 || got[1] != "error" || !errors.Is(s.hole, mem.ErrSTag) {
		t.Errorf("%q, %v", got, s.hole)
	}
}

// recorder is a Handler with one buffer for every message.
type recorder struct {
	buf    mem.SGL
	region *mem.Region
	events []string
}

func (r *recorder) Tagged(h *Tagged, n int) (mem.Span, error) {
	return r.region.Span(int(h.TO), n), nil
}
func (r *recorder) TaggedDone(h *Tagged, n int) error {
	r.events = append(r.events, fmt.Sprintf("tagged %d %v", n, h.Last))
	return nil
}
func (r *recorder) Untagged(h *Untagged, first bool) (mem.SGL, error) { return r.buf, nil }
func (r *recorder) UntaggedDone(h *Untagged, n int) error {
	r.events = append(r.events, fmt.Sprintf("QN %d: %d", h.QN, n))
	return nil
}

func put(h Untagged, payload string) []byte {
	b := make([]byte, UntaggedLen)
	h.Put(b)
	return append(b, payload...)
}

// Messages of different queues and tagged ones may come between the segments of
// another, and MSNs wrap.
func TestReceiveInterleaved(t *testing.T) {
	region, buf := mem.NewLocal(make([]byte, 16)), mem.NewLocal(make([]byte, 16))
	h := &recorder{buf: mem.SGL{buf.Span(0, 16)}, region: region}
	r := &receiver{h: h}
	r.queues[0].next = 0xffffffff
	r.queues[1].next = 1
	th := Tagged{STag: 1, TO: 4}
	tagged := make([]byte, TaggedLen)
	th.Put(tagged)
	for i, b := range [][]byte{
		put(Untagged{MSN: 0xffffffff}, "abc"),
		append(tagged, "TAG"...),
		put(Untagged{QN: 1, MSN: 1, Last: true}, ""),
		put(Untagged{MSN: 0xffffffff, MO: 3, Last: true}, "def"),
		put(Untagged{MSN: 0, Last: true}, "x"),
		put(Untagged{MSN: 1, Last: true}, ""),
	} {
		cut := len(b) / 2 // within the header
		if err := r.ULPDU(mem.Vec{b[:cut], b[cut:]}); err != nil {
			t.Fatalf("segment %d: %v", i, err)
		}
	}
	want := []string{"tagged 3 false", "QN 1: 0", "QN 0: 6", "QN 0: 1", "QN 0: 0"}
	if !slices.Equal(h.events, want) {
		t.Errorf("got %q, want %q", h.events, want)
	}
	if string(buf.Bytes()[:6]) != "xbcdef" || string(region.Bytes()[4:7]) != "TAG" {
		t.Errorf("%q, %q", buf.Bytes(), region.Bytes())
	}
}

// A message of 2^32 octets or more is refused before it is placed.
func TestMessageTooLong(t *testing.T) {
	h := &recorder{buf: mem.SGL{mem.NewLocal(make([]byte, 4)).Span(0, 4)}}
	r := &receiver{h: h}
	r.queues[0] = inbound{next: 1, placed: 0xfffffffe, active: true, buf: h.buf, room: 1 << 40}
	err := r.ULPDU(mem.Vec{put(Untagged{MSN: 1, MO: 0xfffffffe}, "abcd")})
	var e *Error
	if !errors.As(err, &e) || e.Type != TypeUntagged || e.Code != CodeTooLong {
		t.Errorf("%v", err)
	}
	if hdr, n := r.hdr[:r.hdrLen], r.segLen; len(hdr) != UntaggedLen || n != UntaggedLen+4 {
		t.Errorf("offender %x of %d", hdr, n)
	}
}
