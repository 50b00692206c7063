package mpa

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/llp/llptest"
	"github.com/softrnic/softrnic/iwarp/mem"
)

func TestFrameCodec(t *testing.T) {
	for rev := uint8(1); rev <= 2; rev++ {
		for bits := range 1 << 9 {
			on := func(i int) bool { return bits>>i&1 != 0 }
			f := Frame{Reply: on(0), Markers: on(1), CRC: on(2), Reject: on(0) && on(3), Revision: rev, PrivateData: []byte("private")}
			if rev == 2 && on(4) {
				f.Enhanced, f.IRD, f.ORD = true, 0x1234, 0x3fff
				if f.PeerToPeer = on(5); f.PeerToPeer {
					f.SendRTR, f.WriteRTR, f.ReadRTR = on(6), on(7), on(8)
				}
			}
			b, err := f.Append(nil)
			if err != nil {
				t.Fatal(err)
			}
			for n := range len(b) {
				if _, _, err := ParseFrame(b[:n]); err != ErrShort {
					t.Fatalf("%d of %d octets: %v", n, len(b), err)
				}
			}
			g, rest, err := ParseFrame(append(b, "next"...))
			if err != nil || string(rest) != "next" || fmt.Sprint(g) != fmt.Sprint(f) {
				t.Fatalf("%+v came back as %+v, %q, %v", f, g, rest, err)
			}
		}
	}
}

func TestMalformedFrames(t *testing.T) {
	ok := string(must(t, Frame{Revision: 2, Enhanced: true}))
	for name, b := range map[string]string{
		"wrong first octet": "X",
		"HTTP":              "GET / HTTP/1.1\r\n",
		"wrong last of key": ok[:15] + "X",
		"PD_Length 513":     ok[:18] + "\x02\x01",
		"PD_Length 65535":   ok[:18] + "\xff\xff",
		"S without room":    ok[:18] + "\x00\x03abc",
	} {
		_, _, err := ParseFrame([]byte(b))
		if e := (*Error)(nil); !errors.As(err, &e) || e.Code != CodeFrame {
			t.Errorf("%s: %v", name, err)
		}
	}
	// S is a reserved bit at revision 1, and R means nothing in a Request.
	f, _, err := ParseFrame([]byte(ok[:16] + "\x30\x01\x00\x01z"))
	if err != nil || f.Enhanced || f.Reject || string(f.PrivateData) != "z" {
		t.Errorf("%+v, %v", f, err)
	}
	for n, enhanced := range map[int]bool{513: false, 509: true} {
		f := Frame{Enhanced: enhanced, Revision: 2, PrivateData: make([]byte, n)}
		if b, err := f.Append(nil); !errors.Is(err, ErrPrivateData) || len(b) > 0 {
			t.Errorf("%d octets of private data: %v", n, err)
		}
	}
}

func must(t testing.TB, f Frame) []byte {
	b, err := f.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func FuzzParseFrame(f *testing.F) {
	f.Add([]byte(keyRequest))
	f.Add(must(f, Frame{Revision: 2, Enhanced: true, PeerToPeer: true, IRD: 5, ORD: 6, PrivateData: []byte("hello")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, rest, err := ParseFrame(b)
		if err != nil {
			return
		}
		again, err := g.Append(nil)
		if err != nil || len(again) != len(b)-len(rest) {
			t.Errorf("%+v: %d octets became %d, %v", g, len(b)-len(rest), len(again), err)
		}
		h, _, err := ParseFrame(again)
		if err != nil || fmt.Sprint(g) != fmt.Sprint(h) {
			t.Errorf("%+v became %+v, %v", g, h, err)
		}
	})
}

// connect runs both roles against each other.
func connect(o llptest.Options, p, q Params) (a, b *Conn, pa, pb Peer, err error) {
	la, lb := llptest.Pipe(o)
	done := make(chan error)
	go func() {
		in, err := ReadRequest(context.Background(), lb, 0)
		if err == nil {
			pb = in.Peer()
			b, err = in.Accept(q)
		}
		done <- err
	}()
	a, pa, err = Connect(context.Background(), la, p)
	return a, b, pa, pb, errors.Join(err, <-done)
}

func TestNegotiation(t *testing.T) {
	for _, rev := range []int{0, 1, 2} {
		for _, no := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
			p := Params{Revision: rev, NoCRC: no[0], PrivateData: []byte("to you"), IRD: 3, ORD: 9}
			q := Params{NoCRC: no[1], PrivateData: []byte("and back"), IRD: 5, ORD: 7}
			a, b, pa, pb, err := connect(llptest.Options{Cut: func(int) int { return 1 }}, p, q)
			if err != nil {
				t.Fatal(err)
			}
			crc := !no[0] || !no[1]
			if a.CRC() != crc || b.CRC() != crc {
				t.Errorf("NoCRC %v: %v and %v", no, a.CRC(), b.CRC())
			}
			if string(pb.PrivateData) != "to you" || string(pa.PrivateData) != "and back" {
				t.Errorf("private data %q and %q", pb.PrivateData, pa.PrivateData)
			}
			want := [4]int{3, 5, 5, 3} // the smaller of ORD and the other's IRD
			if rev == 1 {
				want = [4]int{3, 9, 5, 7}
			}
			if got := [4]int{a.IRD(), a.ORD(), b.IRD(), b.ORD()}; got != want {
				t.Errorf("revision %d: depths %v, want %v", rev, got, want)
			}
			if !a.Open() || b.Open() {
				t.Error("who may send first is wrong")
			}
		}
	}
}

// 0x3fff crosses: it answers the peer's other depth (RFC 6581 section 9.1).
func TestNoNegotiation(t *testing.T) {
	for _, c := range []struct {
		ird, ord             int // of the request
		replyIRD, replyORD   int
		effectIRD, effectORD int
	}{
		{NoNegotiation, 9, 5, NoNegotiation, 5, 7},
		{3, NoNegotiation, NoNegotiation, 3, 5, 3},
		{NoNegotiation, NoNegotiation, NoNegotiation, NoNegotiation, 5, 7},
		{0, 0, 5, 0, 5, 0},
	} {
		la, lb := llptest.Pipe(llptest.Options{})
		la.Send(&octets{must(t, Frame{Revision: 2, Enhanced: true, IRD: c.ird, ORD: c.ord})})
		in, err := ReadRequest(context.Background(), lb, 0)
		if err != nil {
			t.Fatal(err)
		}
		b, err := in.Accept(Params{IRD: 5, ORD: 7})
		if err != nil {
			t.Fatal(err)
		}
		f := reply(t, la)
		if f.IRD != c.replyIRD || f.ORD != c.replyORD || b.IRD() != c.effectIRD || b.ORD() != c.effectORD {
			t.Errorf("%+v: replied %d/%d, effective %d/%d", c, f.IRD, f.ORD, b.IRD(), b.ORD())
		}
	}
}

func reply(t *testing.T, c *llptest.Conn) Frame {
	t.Helper()
	s, err := c.Receive(FrameLen, 1000)
	if err != nil {
		t.Fatal(err)
	}
	f, _, err := ParseFrame(bytes.Join(s, nil))
	if err != nil || !f.Reply {
		t.Fatalf("%+v, %v", f, err)
	}
	return f
}

// A peer-to-peer Request is answered in kind, with an RTR message that it named
// (RFC 6581 section 9.2).
func TestPeerToPeerRequest(t *testing.T) {
	for bits := range 8 {
		for ird := range 2 {
			la, lb := llptest.Pipe(llptest.Options{})
			req := Frame{Revision: 2, Enhanced: true, PeerToPeer: true, SendRTR: bits&1 != 0, WriteRTR: bits&2 != 0, ReadRTR: bits&4 != 0}
			la.Send(&octets{must(t, req)})
			in, err := ReadRequest(context.Background(), lb, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := in.Accept(Params{IRD: ird}); err != nil {
				t.Fatal(err)
			}
			f := reply(t, la)
			if !f.PeerToPeer || !f.WriteRTR && !f.ReadRTR || f.ReadRTR && ird == 0 || f.SendRTR ||
				req.WriteRTR && !f.WriteRTR || f.ReadRTR && !req.ReadRTR {
				t.Errorf("%+v answered by %+v", req, f)
			}
		}
	}
}

func TestReject(t *testing.T) {
	for rev := 1; rev <= 2; rev++ {
		la, lb := llptest.Pipe(llptest.Options{})
		done := make(chan error)
		go func() {
			in, err := ReadRequest(context.Background(), lb, 0)
			if err == nil {
				if err := in.Reject(make([]byte, 513)); !errors.Is(err, ErrPrivateData) {
					t.Errorf("Reject with 513 octets: %v", err)
				}
				err = in.Reject([]byte("no"))
			}
			done <- err
		}()
		_, peer, err := Connect(context.Background(), la, Params{Revision: rev})
		var rej *RejectedError
		if !errors.As(err, &rej) || string(rej.Peer.PrivateData) != "no" || string(peer.PrivateData) != "no" {
			t.Errorf("%v", err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Whatever is wrong with an answer, Connect fails with its reason and the
// connection is gone.
func TestBadReplies(t *testing.T) {
	rep := func(f Frame) string { f.Reply = true; return string(must(t, f)) }
	for name, c := range map[string]struct {
		b    string
		code Code
		is   error
	}{
		"not MPA":      {"SSH-2.0-x", CodeFrame, nil},
		"request":      {string(must(t, Frame{Revision: 2})), CodeFrame, nil},
		"revision 0":   {rep(Frame{}), CodeFrame, nil},
		"revision 3":   {rep(Frame{Revision: 3}), CodeFrame, nil},
		"markers":      {rep(Frame{Revision: 2, Markers: true}), 0, ErrMarkers},
		"ORD too high": {rep(Frame{Revision: 2, Enhanced: true, ORD: 4}), CodeIRD, nil},
	} {
		la, lb := llptest.Pipe(llptest.Options{})
		lb.Send(&octets{[]byte(c.b)})
		conn, _, err := Connect(context.Background(), la, Params{IRD: 3})
		var e *Error
		switch {
		case conn != nil || err == nil:
			t.Errorf("%s: connected", name)
		case c.is != nil && !errors.Is(err, c.is), c.is == nil && (!errors.As(err, &e) || e.Code != c.code):
			t.Errorf("%s: %v", name, err)
		}
		if _, err := lb.Receive(1, 1); !errors.Is(err, llp.ErrReset) {
			t.Errorf("%s: the peer sees %v", name, err)
		}
	}
}

func TestBadRequests(t *testing.T) {
	for name, b := range map[string][]byte{
		"not MPA":    []byte("GET / HTTP/1.1\r\n"),
		"a reply":    must(t, Frame{Reply: true, Revision: 2}),
		"revision 0": must(t, Frame{}),
		"revision 9": must(t, Frame{Revision: 9}),
		"markers":    must(t, Frame{Revision: 1, Markers: true}),
	} {
		la, lb := llptest.Pipe(llptest.Options{Cut: func(int) int { return 1 }})
		la.Send(&octets{b})
		if _, err := ReadRequest(context.Background(), lb, 0); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if _, err := la.Receive(1, 1); !errors.Is(err, llp.ErrReset) {
			t.Errorf("%s: the peer sees %v", name, err)
		}
	}
}

// What follows a Reply at once belongs to the FPDU stream.
func TestOctetsBehindTheReply(t *testing.T) {
	la, lb := llptest.Pipe(llptest.Options{})
	b := append(must(t, Frame{Reply: true, Revision: 2, CRC: true}), AppendFPDU(nil, []byte("early"), true)...)
	lb.Send(&octets{b})
	c, _, err := Connect(context.Background(), la, Params{})
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if _, err := c.Receive(1000, receiverFunc(func(v mem.Vec) error { got = string(bytes.Join(v, nil)); return nil })); err != nil || got != "early" {
		t.Errorf("%q, %v", got, err)
	}
}

type receiverFunc func(mem.Vec) error

func (f receiverFunc) ULPDU(v mem.Vec) error { return f(v) }

func TestStartupEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		la, lb := llptest.Pipe(llptest.Options{})
		_, _, err := Connect(context.Background(), la, Params{})
		if !errors.Is(err, ErrTimeout) || time.Since(start) != DefaultTimeout {
			t.Errorf("silent responder: %v after %v", err, time.Since(start))
		}
		if _, err := lb.Receive(1, 1); !errors.Is(err, llp.ErrReset) {
			t.Errorf("the responder sees %v", err)
		}
		// One octet a second is no way to keep a handshake open.
		start = time.Now()
		la, lb = llptest.Pipe(llptest.Options{})
		go func(la *llptest.Conn) {
			for _, c := range must(t, Frame{Revision: 2, PrivateData: make([]byte, 500)}) {
				la.Send(&octets{[]byte{c}})
				time.Sleep(time.Second)
			}
		}(la)
		if _, err := ReadRequest(context.Background(), lb, 3*time.Second); !errors.Is(err, ErrTimeout) || time.Since(start) != 3*time.Second {
			t.Errorf("dripping initiator: %v after %v", err, time.Since(start))
		}
		time.Sleep(time.Hour)

		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		la, _ = llptest.Pipe(llptest.Options{})
		if _, _, err := Connect(ctx, la, Params{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cancelled: %v", err)
		}
		la, lb = llptest.Pipe(llptest.Options{})
		lb.CloseWrite()
		if _, _, err := Connect(context.Background(), la, Params{}); err == nil || !strings.Contains(err.Error(), "closed the connection") {
			t.Errorf("closed: %v", err)
		}
		la, lb = llptest.Pipe(llptest.Options{})
		lb.Break(llp.ErrReset)
		if _, _, err := Connect(context.Background(), la, Params{}); !errors.Is(err, llp.ErrReset) {
			t.Errorf("reset: %v", err)
		}
	})
}

func TestEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{{"between FPDUs", nil, io.EOF}, {"in an FPDU", []byte{0, 9, 1}, io.ErrUnexpectedEOF}} {
		a, b := llptest.Pipe(llptest.Options{})
		conn := newConn(b, Peer{}, true, 0, 0, false)
		a.Send(&octets{AppendFPDU(nil, []byte("whole"), true)})
		if len(c.b) > 0 {
			a.Send(&octets{c.b})
		}
		a.CloseWrite()
		n := &count{}
		if _, err := conn.Receive(1000, n); err != nil || n.n != 1 {
			t.Errorf("%s: first %v, %d", c.name, err, n.n)
		}
		for range 2 {
			if _, err := conn.Receive(1000, n); err != c.want {
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
		}
	}
}
