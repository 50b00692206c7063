package rdmap

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/internal/race"
	"github.com/softrnic/softrnic/iwarp/ddp"
	"github.com/softrnic/softrnic/iwarp/internal/golden"
	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/llp/llptest"
	"github.com/softrnic/softrnic/iwarp/mem"
)

const pd = mem.PD(7)

// owner is one side of a stream, with buffers to receive in.
type owner struct {
	t      testing.TB
	table  *mem.Table
	s      *Stream
	bufs   []mem.SGL // posted
	taken  []mem.SGL
	events []string
	msgs   [][]byte
	work   []Outbound
	reads  int
}

func (o *owner) RecvBuffer() (mem.SGL, bool) {
	if len(o.bufs) == 0 {
		return nil, false
	}
	b := o.bufs[0]
	o.bufs, o.taken = o.bufs[1:], append(o.taken, b)
	return b, true
}

func (o *owner) Received(r Received) {
	o.msgs = append(o.msgs, contents(o.t, o.taken[0], r.Len))
	o.taken = o.taken[1:]
	o.events = append(o.events, fmt.Sprintf("%v %d", r.Op, r.Len))
}
func (o *owner) Sent(token uint64)     { o.events = append(o.events, fmt.Sprint("sent ", token)) }
func (o *owner) ReadDone(token uint64) { o.events = append(o.events, fmt.Sprint("read ", token)) }
func (o *owner) Failed(token uint64, err error) {
	o.events = append(o.events, fmt.Sprintf("failed %d", token))
}
func (o *owner) Next(m *Outbound, reads bool) bool {
	if len(o.work) == 0 || o.work[0].Op == ReadRequest && !reads {
		return false
	}
	*m, o.work = o.work[0], o.work[1:]
	if m.Op == ReadRequest {
		o.reads = max(o.reads, o.s.OutstandingReads()+1)
	}
	return true
}

func contents(t testing.TB, l mem.SGL, n int) []byte {
	if err := l.Acquire(); err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	b := make([]byte, n)
	if err := l.Gather(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

func (o *owner) region(n int, a mem.Access) *mem.Region {
	r, err := o.table.Register(pd, make([]byte, n), 0, a)
	if err != nil {
		o.t.Fatal(err)
	}
	return r
}

func (o *owner) post(n int) *mem.Region {
	r := mem.NewLocal(make([]byte, n))
	o.bufs = append(o.bufs, mem.SGL{r.Span(0, n)})
	return r
}

func streams(t testing.TB, o llptest.Options, ird, ord int) (a, b *owner) {
	la, lb := llptest.Pipe(o)
	type result struct {
		c   *Conn
		err error
	}
	ch := make(chan result)
	p := Params{IRD: ird, ORD: ord}
	go func() {
		in, err := AwaitRequest(context.Background(), lb, 0)
		if err != nil {
			ch <- result{nil, err}
			return
		}
		c, err := in.Accept(p)
		ch <- result{c, err}
	}()
	ca, _, err := Connect(context.Background(), la, p)
	r := <-ch
	if err := errors.Join(err, r.err); err != nil {
		t.Fatal(err)
	}
	mk := func(c *Conn) *owner {
		o := &owner{t: t, table: mem.NewTable()}
		o.s = NewStream(c, Config{Table: o.table, PD: pd, Owner: o})
		return o
	}
	return mk(ca), mk(r.c)
}

// run steps both until neither moves.
func run(t testing.TB, os ...*owner) {
	t.Helper()
	for moved := true; moved; {
		moved = false
		for _, o := range os {
			n, err := o.s.Receive(1 << 16)
			if err != nil && o.s.err == nil {
				t.Fatal(err)
			}
			m, err := o.s.Transmit(o)
			if err != nil && !errors.Is(err, llp.ErrWouldBlock) && err != ErrNotOpen && o.s.err == nil {
				t.Fatal(err)
			}
			moved = moved || n > 0 || m > 0
		}
	}
}

// A mix of everything, cut anyhow, arrives as it was sent and completes in order.
func TestMix(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 3))
		o := llptest.Options{EMSS: []int{256, 1420, 8920}[seed%3], Space: 1 << 18, Hold: seed%2 == 0}
		if seed > 2 {
			o.Cut = func(n int) int { return 1 + r.IntN(min(n, 40)) }
		}
		a, b := streams(t, o, 4, 4)
		target := b.region(1<<16, mem.RemoteWrite|mem.RemoteRead)
		source := a.region(1<<16, 0)
		for i := range source.Bytes() {
			source.Bytes()[i] = byte(r.Uint32())
		}
		model := make([]byte, 1<<16)
		var want [][]byte
		var sinks []*mem.Region
		for i := range uint64(200) {
			n := r.IntN(20000)
			if r.IntN(4) == 0 {
				n = r.IntN(3)
			}
			off, to := r.IntN(1<<16-n), r.IntN(1<<16-n)
			l := mem.SGL{source.Span(off, n/2), source.Span(off+n/2, n-n/2)}
			switch r.IntN(3) {
			case 0:
				a.work = append(a.work, Outbound{Op: Write, SGL: l, STag: target.STag(), TO: uint64(to), Token: i})
				copy(model[to:to+n], source.Bytes()[off:])
			case 1:
				op := Send
				if r.IntN(2) == 0 {
					op = SendSE
				}
				a.work = append(a.work, Outbound{Op: op, SGL: l, Token: i})
				b.post(n + r.IntN(10))
				want = append(want, bytes.Clone(source.Bytes()[off:off+n]))
			case 2:
				sink := a.region(n, mem.LocalWrite)
				sinks = append(sinks, sink)
				a.work = append(a.work, Outbound{Op: ReadRequest, SGL: mem.SGL{sink.Span(0, n)}, STag: target.STag(), TO: uint64(to), Token: i})
			}
		}
		run(t, a, b)
		if len(b.msgs) != len(want) {
			t.Fatalf("seed %d: %d messages of %d", seed, len(b.msgs), len(want))
		}
		for i := range want {
			if !bytes.Equal(b.msgs[i], want[i]) {
				t.Fatalf("seed %d: message %d differs", seed, i)
			}
		}
		if !bytes.Equal(target.Bytes(), model) {
			t.Errorf("seed %d: written octets differ", seed)
		}
		reads := 0
		for _, e := range a.events {
			if strings.HasPrefix(e, "read ") {
				reads++
			}
		}
		if reads != len(sinks) || a.reads > 4 || a.s.OutstandingReads() != 0 {
			t.Errorf("seed %d: %d of %d reads done, at most %d outstanding", seed, reads, len(sinks), a.reads)
		}
	}
}

// peer is a hand-made initiator that writes FPDUs and sees what comes back.
type peer struct {
	t   testing.TB
	raw *llptest.Conn
}

// rawOf returns the connection below c.
func rawOf(c *Conn) *llptest.Conn { return c.LLP().(*llptest.Conn) }

// fpdu frames b by rules of its own, so that mpa is not tested by itself.
func fpdu(b []byte) []byte {
	f := append([]byte{byte(len(b) >> 8), byte(len(b))}, b...)
	for len(f)%4 != 0 {
		f = append(f, 0)
	}
	crc := ^uint32(0)
	for _, c := range f {
		crc ^= uint32(c)
		for range 8 {
			crc = crc>>1 ^ 0x82f63b78&-(crc&1)
		}
	}
	crc = ^crc
	return append(f, byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24))
}

func (p *peer) write(ulpdu string) {
	p.t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(ulpdu, " ", ""))
	if err != nil {
		p.t.Fatal(err)
	}
	p.raw.Send(&batch{fpdu(b)})
}

type batch struct{ b []byte }

func (o *batch) Len() int { return len(o.b) }
func (o *batch) Read(p []byte) (int, error) {
	return copy(p, o.b), nil
}

// want reads the next ULPDU that comes back.
func (p *peer) want(why, ulpdu string) {
	p.t.Helper()
	s, err := p.raw.Receive(8, 1<<16)
	if err != nil {
		p.t.Errorf("%s: nothing came: %v, want %s", why, err, ulpdu)
		return
	}
	all := bytes.Join(s, nil)
	n := int(all[0])<<8 | int(all[1])
	f := len(fpdu(all[2 : 2+n]))
	if !bytes.Equal(all[:f], fpdu(all[2:2+n])) {
		p.t.Errorf("%s: bad FPDU %x", why, all[:f])
	}
	p.raw.Consume(f)
	if got := hex.EncodeToString(all[2 : 2+n]); got != strings.ReplaceAll(ulpdu, " ", "") {
		p.t.Errorf("%s: got\n%s, want\n%s", why, got, ulpdu)
	}
}

func (p *peer) wantIdle() {
	p.t.Helper()
	if n := p.raw.Unread(); n != 0 {
		p.t.Errorf("%d octets came back", n)
	}
}

func dialogue(t testing.TB, ird int) (*peer, *owner) {
	la, lb := llptest.Pipe(llptest.Options{Cut: func(int) int { return 1 }})
	la.Send(&batch{[]byte("MPA ID Req Frame\x40\x01\x00\x00")})
	in, err := AwaitRequest(context.Background(), lb, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := in.Accept(Params{IRD: ird})
	if err != nil {
		t.Fatal(err)
	}
	la.Receive(20, 20)
	la.Consume(20)
	o := &owner{t: t, table: mem.NewTable()}
	o.s = NewStream(c, Config{Table: o.table, PD: pd, Owner: o})
	return &peer{t: t, raw: la}, o
}

// Every check of RFC 5041 section 7 and RFC 5040 section 7, with the Terminate
// that answers it. %s is the STag of a region of 16 octets that may be read and
// written, %r of one that may only be read, %w of one that may only be written,
// %p of one in another protection domain. Nothing may be placed.
func TestFaults(t *testing.T) {
	const data = "01020304"
	for _, c := range []struct {
		name, in string
		codes    string // layer, type, code
		hdr      int    // octets of the DDP header in the Terminate
		read     bool   // and the Read Request's
		ird      int
	}{
		{"DDP version 0, tagged", "c0 40 %s 0000000000000000" + data, "1104", 14, false, 1},
		{"DDP version 2, untagged", "42 43 00000000 00000000 00000001 00000000" + data, "1206", 18, false, 1},
		{"DDP version 0, untagged", "40 43 00000000 00000000 00000001 00000000" + data, "1206", 18, false, 1},
		{"segment of one octet", "41", "1000", 0, false, 1},
		{"tagged segment cut", "c1 40 %s 00000000000000", "1000", 0, false, 1},
		{"untagged segment cut", "41 43 00000000 00000000 00000001 000000", "1000", 0, false, 1},
		{"invalid STag", "c1 40 00000000 0000000000000000" + data, "1100", 14, false, 1},
		{"TO beyond the end", "c1 40 %s 000000000000000d" + data, "1101", 14, false, 1},
		{"TO of another PD", "c1 40 %p 0000000000000000" + data, "1102", 14, false, 1},
		{"TO wraps", "c1 40 %s fffffffffffffffc" + data, "1103", 14, false, 1},
		{"no write access", "c1 40 %r 0000000000000000" + data, "0102", 14, false, 1},
		{"QN 3", "41 43 00000000 00000003 00000001 00000000", "1201", 18, false, 1},
		{"QN 0x10000", "41 43 00000000 00010000 00000001 00000000", "1201", 18, false, 1},
		{"no buffer", "41 43 00000000 00000000 00000002 00000000", "1202", 18, false, 1},
		{"MSN again", "41 43 00000000 00000000 00000000 00000000", "1203", 18, false, 1},
		{"MSN skipped", "41 43 00000000 00000000 00000003 00000000", "1203", 18, false, 1},
		{"MO of a first segment", "41 43 00000000 00000000 00000002 00000004", "1204", 18, false, 1},
		{"RDMAP version 0", "c1 00 %s 0000000000000000" + data, "0205", 14, false, 1},
		{"RDMAP version 3", "41 c3 00000000 00000000 00000002 00000000", "0205", 18, false, 1},
		{"Send in a tagged segment", "c1 43 %s 0000000000000000" + data, "0206", 14, false, 1},
		{"Write in an untagged segment", "41 40 00000000 00000000 00000002 00000000", "0206", 18, false, 1},
		{"unassigned opcode", "41 4f 00000000 00000000 00000002 00000000", "0206", 18, false, 1},
		{"Send on QN 1", "41 43 00000000 00000001 00000001 00000000", "0206", 18, false, 1},
		{"Read Request on QN 0", "41 41 00000000 00000000 00000002 00000000", "0206", 18, false, 1},
		{"Send on QN 2", "41 43 00000000 00000002 00000001 00000000", "0206", 18, false, 1},
		{"Read Response unasked", "c1 42 %s 0000000000000000" + data, "0206", 14, false, 1},
		{"Read Request cut", "41 41 00000000 00000001 00000001 00000000 00000000", "02ff", 18, false, 1},
		{"Read Request too long", "41 41 00000000 00000001 00000001 00000000" + strings.Repeat("00", 29), "1205", 18, false, 1},
		{"Read of an invalid STag", "41 41 00000000 00000001 00000001 00000000 00000001 0000000000000000 00000004 00000000 0000000000000000", "0100", 18, true, 1},
		{"Read beyond the end", "41 41 00000000 00000001 00000001 00000000 00000001 0000000000000000 00000004 %r 000000000000000d", "0101", 18, true, 1},
		{"Read without access", "41 41 00000000 00000001 00000001 00000000 00000001 0000000000000000 00000004 %w 0000000000000000", "0102", 18, true, 1},
		{"Read from another PD", "41 41 00000000 00000001 00000001 00000000 00000001 0000000000000000 00000004 %p 0000000000000000", "0103", 18, true, 1},
		{"Read wraps", "41 41 00000000 00000001 00000001 00000000 00000001 0000000000000000 00000008 %r fffffffffffffffe", "0104", 18, true, 1},
		{"Read beyond an IRD of 0", "41 41 00000000 00000001 00000001 00000000 00000001 0000000000000000 00000004 %r 0000000000000000", "1202", 18, false, 0},
		{"invalidates an invalid STag", "41 44 00000000 00000000 00000001 00000000", "0109", 18, false, 1},
		{"invalidates what it may not", "41 46 %s 00000000 00000001 00000000", "0109", 18, false, 1},
	} {
		p, o := dialogue(t, c.ird)
		sub := map[string]*mem.Region{"%s": o.region(16, mem.RemoteRead|mem.RemoteWrite), "%r": o.region(16, mem.RemoteRead), "%w": o.region(16, mem.RemoteWrite)}
		other, err := o.table.Register(pd+1, make([]byte, 16), 0, mem.RemoteRead|mem.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		sub["%p"] = other
		in := c.in
		for k, r := range sub {
			in = strings.ReplaceAll(in, k, fmt.Sprintf("%08x", uint32(r.STag())))
		}
		in = strings.ReplaceAll(in, " ", "")
		o.post(8)
		if !strings.HasPrefix(in, "414") || !strings.Contains(c.name, "invalidates") {
			p.write("41 43 00000000 00000000 00000001 00000000 61626364") // uses the one buffer
		}
		p.write(in)
		p.write("c1 40" + fmt.Sprintf("%08x", uint32(sub["%s"].STag())) + "0000000000000000" + "ffffffff") // must be ignored
		run(t, o)
		var te *TerminateError
		if !errors.As(o.s.err, &te) || te.Remote {
			t.Errorf("%s: ended with %v", c.name, o.s.err)
			continue
		}
		ulpdu, _ := hex.DecodeString(in)
		want := "41 47 00000000 00000002 00000001 00000000" + c.codes
		switch {
		case c.read:
			want += "e000" + fmt.Sprintf("%04x", len(ulpdu)) + in[:2*c.hdr] + in[2*c.hdr:]
		case c.hdr > 0:
			want += "c000" + fmt.Sprintf("%04x", len(ulpdu)) + in[:2*c.hdr]
		default:
			want += "0000"
		}
		p.want(c.name, want)
		p.wantIdle()
		for k, r := range sub {
			if !bytes.Equal(r.Bytes(), make([]byte, 16)) {
				t.Errorf("%s: placed %x in %s", c.name, r.Bytes(), k)
			}
		}
	}
}

// A message longer than its buffer, in its first or a later segment, places
// nothing of the segment that exceeds it (RFC 5041 section 7.1).
func TestTooLong(t *testing.T) {
	p, o := dialogue(t, 0)
	r := o.post(6)
	p.write("01 43 00000000 00000000 00000001 00000000 61626364")
	p.write("41 43 00000000 00000000 00000001 00000004 65666768")
	run(t, o)
	p.want("too long", "41 47 00000000 00000002 00000001 00000000 1205c000 0016 4143 00000000 00000000 00000001 00000004")
	if string(r.Bytes()) != "abcd\x00\x00" {
		t.Errorf("placed %q", r.Bytes())
	}
	p, o = dialogue(t, 0)
	o.post(8)
	p.write("01 43 00000000 00000000 00000001 00000000 61626364")
	p.write("41 43 00000000 00000000 00000001 00000008 65666768")
	run(t, o)
	p.want("hole", "41 47 00000000 00000002 00000001 00000000 1204c000 0016 4143 00000000 00000000 00000001 00000008")
}

func TestCRCErrorTerminates(t *testing.T) {
	p, o := dialogue(t, 0)
	o.post(8)
	p.write("41 43 00000000 00000000 00000001 00000000 61626364")
	f := golden.Frame(t, "send-1")
	f[20] ^= 1
	p.raw.Send(&batch{f})
	run(t, o)
	p.want("CRC", "41 47 00000000 00000002 00000001 00000000 20020000")
	// Where the first FPDU is bad a responder may not even send that.
	p, o = dialogue(t, 0)
	p.raw.Send(&batch{f})
	run(t, o)
	p.wantIdle()
	if !o.s.TerminateSent() {
		t.Error("the stream waits to send for ever")
	}
}

// Responses must be those of the oldest request.
func TestBadReadResponses(t *testing.T) {
	for name, c := range map[string]struct{ in, codes string }{
		"other STag":  {"c1 42 00000001 0000000000000002 01020304", "1100"},
		"other TO":    {"c1 42 %s 0000000000000003 01020304", "1101"},
		"too long":    {"c1 42 %s 0000000000000002 0102030405", "1101"},
		"no L":        {"81 42 %s 0000000000000002 01020304", "02ff"},
		"L too early": {"c1 42 %s 0000000000000002 010203", "02ff"},
		"empty":       {"c1 42 %s 0000000000000002", "02ff"},
	} {
		a, b := streams(t, llptest.Options{}, 2, 2)
		r := b.region(8, mem.RemoteRead)
		sink := a.region(8, mem.LocalWrite)
		a.work = []Outbound{{Op: ReadRequest, SGL: mem.SGL{sink.Span(2, 4)}, STag: r.STag(), Token: 1}}
		if _, err := a.s.Transmit(a); err != nil {
			t.Fatal(err)
		}
		in := strings.ReplaceAll(strings.ReplaceAll(c.in, "%s", fmt.Sprintf("%08x", uint32(sink.STag()))), " ", "")
		p := &peer{t: t, raw: rawOf(b.s.Conn)}
		p.raw.Receive(1, 1000)
		p.raw.Consume(p.raw.Unread())
		p.write(in)
		_, err := a.s.Receive(1 << 16)
		var te *TerminateError
		if !errors.As(err, &te) || fmt.Sprintf("%x%x%02x", te.Layer, te.Type, te.Code) != c.codes {
			t.Errorf("%s: %v, want %s", name, err, c.codes)
		}
		if !bytes.Equal(sink.Bytes(), make([]byte, 8)) || len(a.events) != 1 {
			t.Errorf("%s: placed %x, events %q", name, sink.Bytes(), a.events)
		}
	}
}

func TestZeroLength(t *testing.T) {
	a, b := streams(t, llptest.Options{}, 1, 1)
	b.post(0)
	a.work = []Outbound{
		{Op: Write, STag: 0xdeadbeef, TO: 1 << 63, Token: 1},
		{Op: ReadRequest, STag: 0, TO: 5, Token: 2},
		{Op: Send, Token: 3},
	}
	run(t, a, b)
	if got := strings.Join(a.events, ", "); got != "sent 1, sent 2, sent 3, read 2" && got != "sent 1, sent 2, read 2, sent 3" {
		t.Errorf("%s", got)
	}
	if got := strings.Join(b.events, ", "); got != "send 0" {
		t.Errorf("%s", got)
	}
}

func TestSendInvalidates(t *testing.T) {
	a, b := streams(t, llptest.Options{}, 1, 1)
	r := b.region(8, mem.RemoteWrite|mem.RemoteInvalidate)
	b.post(1)
	b.post(1)
	a.work = []Outbound{{Op: SendSEInv, Inv: r.STag(), Token: 1}}
	run(t, a, b)
	if r.Valid() || len(b.events) != 1 || b.events[0] != "send-se-inv 0" {
		t.Errorf("valid %v, %q", r.Valid(), b.events)
	}
	a.work = []Outbound{{Op: Write, STag: r.STag(), SGL: mem.SGL{mem.NewLocal([]byte("x")).Span(0, 1)}, Token: 2}}
	run(t, a, b)
	var te *TerminateError
	if !errors.As(a.s.err, &te) || !te.Remote || te.Layer != LayerDDP || te.Type != 1 || te.Code != 0 {
		t.Errorf("a Write to it: %v", a.s.err)
	}
	if !errors.As(b.s.err, &te) || te.Remote {
		t.Errorf("there: %v", b.s.err)
	}
}

// A region taken away while its Response is under way ends the stream; one of
// our own that a Write needs does too, and says which.
func TestMemoryGoesAway(t *testing.T) {
	a, b := streams(t, llptest.Options{Space: 1 << 17}, 1, 1)
	r := b.region(1<<20, mem.RemoteRead)
	sink := a.region(1<<20, mem.LocalWrite)
	a.work = []Outbound{{Op: ReadRequest, SGL: mem.SGL{sink.Span(0, 1<<20)}, STag: r.STag(), Token: 1}}
	a.s.Transmit(a)
	b.s.Receive(1 << 16)
	if n, err := b.s.Transmit(nil); n == 0 || err != nil {
		t.Fatal(n, err)
	}
	if err := b.table.Deregister(r); err != nil {
		t.Fatal(err)
	}
	run(t, a, b)
	var te *TerminateError
	if !errors.As(a.s.err, &te) || !te.Remote || te.Layer != LayerRDMAP || te.Type != TypeProtection || te.Code != CodeSTag {
		t.Errorf("%v", a.s.err)
	}
	a, b = streams(t, llptest.Options{}, 1, 1)
	mine := a.region(8, 0)
	b.post(8)
	a.work = []Outbound{{Op: Send, Token: 1}, {Op: Send, SGL: mem.SGL{mine.Span(0, 8)}, Token: 2}, {Op: Send, Token: 3}}
	a.table.Deregister(mine)
	run(t, a, b)
	if got := strings.Join(a.events, ", "); got != "sent 1, failed 2" {
		t.Errorf("%s", got)
	}
	if !errors.As(b.s.err, &te) || !te.Remote || te.Layer != LayerRDMAP || te.Type != TypeLocal {
		t.Errorf("the peer sees %v", b.s.err)
	}
	if len(b.msgs) != 1 {
		t.Errorf("%d messages", len(b.msgs))
	}
}

// Terminates that cross are not answered.
func TestTerminatesCross(t *testing.T) {
	a, b := streams(t, llptest.Options{}, 1, 1)
	a.s.Fail(errors.New("test"))
	b.s.Fail(errors.New("test"))
	run(t, a)
	p := rawOf(b.s.Conn)
	if p.Unread() == 0 {
		t.Error("no Terminate came")
	}
	run(t, a, b)
	for _, o := range []*owner{a, b} {
		if n := o.s.stats.TerminatesTx.Load(); n > 1 {
			t.Errorf("%d Terminates sent", n)
		}
		if _, err := o.s.Drain(1 << 16); err != nil {
			t.Error(err)
		}
	}
}

func TestEnds(t *testing.T) {
	p, o := dialogue(t, 0)
	o.post(4)
	p.write("41 43 00000000 00000000 00000001 00000000 61626364")
	p.raw.CloseWrite()
	run(t, o)
	if o.s.err != io.EOF || len(o.msgs) != 1 {
		t.Errorf("%v, %q", o.s.err, o.msgs)
	}
}

func TestNoAllocations(t *testing.T) {
	if race.Enabled {
		return // make race runs everything else
	}
	a, b := streams(t, llptest.Options{Space: 1 << 20}, 8, 8)
	target := b.region(1<<16, mem.RemoteRead|mem.RemoteWrite)
	source := a.region(1<<16, mem.LocalWrite)
	w := &steady{l: mem.SGL{source.Span(0, 30000)}, stag: target.STag()}
	aa, bb := &quiet{l: mem.SGL{mem.NewLocal(make([]byte, 1<<15)).Span(0, 1<<15)}}, &quiet{l: mem.SGL{mem.NewLocal(make([]byte, 1<<15)).Span(0, 1<<15)}}
	a.s.cfg.Owner, b.s.cfg.Owner = aa, bb
	round := func() {
		w.n = 3
		for aa.sent < 3 || aa.reads < 1 || bb.got < 1 {
			for _, f := range []func() (int, error){func() (int, error) { return a.s.Transmit(w) }, func() (int, error) { return b.s.Receive(1 << 16) },
				func() (int, error) { return b.s.Transmit(nil) }, func() (int, error) { return a.s.Receive(1 << 16) }} {
				if _, err := f(); err != nil && err != ErrNotOpen {
					t.Fatal(err)
				}
			}
		}
		aa.sent, aa.reads, bb.got = 0, 0, 0
	}
	round()
	if n := testing.AllocsPerRun(50, round); n > 0 {
		t.Errorf("%v allocations per Write, Send and Read of 30000 octets", n)
	}
}

type steady struct {
	l    mem.SGL
	stag mem.STag
	n    int
}

func (w *steady) Next(m *Outbound, reads bool) bool {
	if w.n == 0 {
		return false
	}
	w.n--
	*m = Outbound{Op: []Op{Send, Write, ReadRequest}[w.n], SGL: w.l, STag: w.stag}
	return true
}

type quiet struct {
	l                mem.SGL
	sent, reads, got int
}

func (q *quiet) RecvBuffer() (mem.SGL, bool) { return q.l, true }
func (q *quiet) Received(Received)           { q.got++ }
func (q *quiet) Sent(uint64)                 { q.sent++ }
func (q *quiet) ReadDone(uint64)             { q.reads++ }
func (q *quiet) Failed(uint64, error)        {}

// Whatever a peer sends, nothing panics, nothing is written outside a region
// that it may write, and the stream either goes on or ends with a Terminate.
func FuzzStream(f *testing.F) {
	for _, name := range golden.Names(f, "") {
		b := golden.Frame(f, name)
		if !bytes.HasPrefix(b, []byte("MPA")) {
			n := int(b[0])<<8 | int(b[1])
			f.Add(b[2:2+n], b[2:2+n])
		}
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		p, o := dialogue(t, 2)
		buf := bytes.Repeat([]byte{0xa5}, 96)
		r, err := o.table.Register(pd, buf[32:64], 100, mem.RemoteWrite|mem.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		o.bufs = append(o.bufs, mem.SGL{mem.NewLocal(buf[8:24]).Span(0, 16)})
		ro := o.region(16, mem.RemoteRead)
		for _, b := range [][]byte{one, two} {
			b = bytes.Clone(b)
			if len(b) >= 14 && b[0]&0x80 != 0 && b[2] == 0xde { // aim at the region now and then
				put := func(s mem.STag) { b[2], b[3], b[4], b[5] = byte(s>>24), byte(s>>16), byte(s>>8), byte(s) }
				if put(r.STag()); b[6] == 1 {
					put(ro.STag())
				}
			}
			if len(b) <= 60000 {
				p.raw.Send(&batch{fpdu(b)})
			}
		}
		p.raw.CloseWrite()
		run(t, o)
		if o.s.err == nil {
			t.Error("the stream did not end")
		}
		for i, c := range buf {
			if (i < 8 || i >= 24 && i < 32 || i >= 64) && c != 0xa5 {
				t.Errorf("octet %d was written", i)
			}
		}
		if !bytes.Equal(ro.Bytes(), make([]byte, 16)) {
			t.Errorf("a read-only region was written: %x", ro.Bytes())
		}
	})
}

func TestTerminateCodec(t *testing.T) {
	for name, want := range map[string]string{"terminate-crc": "layer 2, type 0, code 0x02", "terminate-stag": "layer 1, type 1, code 0x00"} {
		f := golden.Frame(t, name)
		n := int(f[0])<<8 | int(f[1])
		b := f[2+ddp.UntaggedLen : 2+n]
		term, ok := ParseTerm(b)
		e := TerminateError{Layer: term.Layer, Type: term.Type, Code: term.Code}
		if !ok || !strings.Contains(e.Error(), want) {
			t.Errorf("%s: %v", name, &e)
		}
		if got := term.Append(nil); !bytes.Equal(got, b) {
			// M, D and R are all zero: the length may be left out.
			if name != "terminate-crc" {
				t.Errorf("%s: %x, want %x", name, got, b)
			}
		}
	}
	for n := range MaxTerminateLen + 3 {
		b := bytes.Repeat([]byte{0xff}, n)
		if _, ok := ParseTerm(b); ok != (n >= 4) {
			t.Errorf("%d octets: %v", n, ok)
		}
	}
}

// An initiator that cannot serve as many Reads as the responder wants says so, in a
// Terminate, and closes (RFC 6581 section 9.1).
func TestInsufficientIRD(t *testing.T) {
	la, lb := llptest.Pipe(llptest.Options{})
	lb.Send(&batch{[]byte("MPA ID Rep Frame\x50\x02\x00\x04\x00\x10\x00\x05")}) // ORD 5
	_, _, err := Connect(context.Background(), la, Params{IRD: 4, ORD: 1})
	if err == nil || !strings.Contains(err.Error(), "IRD") {
		t.Errorf("%v", err)
	}
	p := &peer{t: t, raw: lb}
	if s, err := lb.Receive(24, 24); err != nil || !strings.HasPrefix(string(bytes.Join(s, nil)), "MPA ID Req Frame") {
		t.Fatalf("%v", err)
	}
	lb.Consume(24)
	p.want("IRD", "41 47 00000000 00000002 00000001 00000000 20060000")
}
