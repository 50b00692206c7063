package mpa

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/internal/race"
	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/llp/llptest"
	"github.com/softrnic/softrnic/iwarp/mem"
)

// roles are the two ways to start a connection, against the octets of a peer.
var roles = []struct {
	name  string
	peer  Frame // what a good peer says
	start func(ctx context.Context, c llp.Conn) error
}{
	{"initiator", Frame{Reply: true, Revision: 2, CRC: true, Enhanced: true, IRD: 1, PrivateData: []byte("private")},
		func(ctx context.Context, c llp.Conn) error {
			_, _, err := Connect(ctx, c, Params{IRD: 1, ORD: 1})
			return err
		}},
	{"responder", Frame{Revision: 2, CRC: true, Enhanced: true, IRD: 1, PrivateData: []byte("private")},
		func(ctx context.Context, c llp.Conn) error {
			_, err := ReadRequest(ctx, c, 0)
			return err
		}},
}

// However a startup frame is cut short, and whatever ends it, the startup ends with
// that reason and leaves no connection behind.
func TestStartupCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, role := range roles {
			whole := must(t, role.peer)
			for n := range len(whole) {
				for how, want := range map[string]error{"FIN": nil, "RST": llp.ErrReset, "lost": llp.ErrTimeout, "silence": ErrTimeout, "cancel": context.Canceled} {
					what := fmt.Sprintf("%s, %d octets, %s", role.name, n, how)
					ctx, cancel := context.WithCancel(t.Context())
					a, b := llptest.Pipe(llptest.Options{Cut: llptest.Octets})
					a.Send(&octets{whole[:n]})
					done := make(chan error, 1)
					start := time.Now()
					go func() { done <- role.start(ctx, b) }()
					synctest.Wait()
					switch how {
					case "FIN":
						a.CloseWrite()
					case "RST":
						a.Abort()
					case "lost":
						a.Break(llp.ErrTimeout)
					case "cancel":
						cancel()
					}
					err := <-done
					var e *Error
					if want == nil && (!errors.As(err, &e) || e.Code != CodeClosed) || want != nil && !errors.Is(err, want) {
						t.Errorf("%s: %v", what, err)
					}
					if spent := time.Since(start); how == "silence" && spent != DefaultTimeout || how != "silence" && spent != 0 {
						t.Errorf("%s: ended after %v", what, spent)
					}
					if _, err := b.Receive(1, 1); !errors.Is(err, llp.ErrClosed) && !errors.Is(err, llp.ErrReset) && !errors.Is(err, llp.ErrTimeout) {
						t.Errorf("%s: the connection is still there: %v", what, err)
					}
					cancel()
				}
			}
		}
	})
}

// A cancelled startup says so, even where octets wait that it could have read.
func TestCancelledStartupWithOctetsWaiting(t *testing.T) {
	for _, role := range roles {
		for range 50 { // the two are seen in any order
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			a, b := llptest.Pipe(llptest.Options{})
			a.Send(&octets{must(t, role.peer)})
			if err := role.start(ctx, b); !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: %v", role.name, err)
			}
			if n := a.Unread(); n > 0 {
				t.Fatalf("%s: sent %d octets though cancelled before", role.name, n)
			}
		}
	}
}

// Every octet of a startup frame that is not what it should be is refused, or means
// something else; nothing panics, nothing is read beyond the frame.
func TestStartupOctetsFlipped(t *testing.T) {
	for _, role := range roles {
		whole := must(t, role.peer)
		for i := range whole {
			for bit := range 8 {
				b := slices.Clone(whole)
				b[i] ^= 1 << bit
				la, lb := llptest.Pipe(llptest.Options{})
				la.Send(&octets{append(b, "and FPDUs"...)})
				la.CloseWrite()
				err := role.start(context.Background(), lb)
				var e *Error
				var rej *RejectedError
				switch {
				case i < keyLen && (!errors.As(err, &e) || e.Code != CodeFrame):
					t.Errorf("%s, key octet %d: %v", role.name, i, err)
				case err == nil && lb.Unread() > len("and FPDUs")+len(whole):
					t.Errorf("%s, octet %d: %d octets left", role.name, i, lb.Unread())
				case err != nil && !errors.As(err, &e) && !errors.As(err, &rej) && !errors.Is(err, ErrMarkers):
					t.Errorf("%s, octet %d bit %d: %v", role.name, i, bit, err)
				}
			}
		}
	}
}

// PD_Length to the limit and beyond, in both revisions and both directions.
func TestPrivateDataLimits(t *testing.T) {
	for _, c := range []struct{ rev, n int }{{1, 0}, {1, 255}, {1, 256}, {1, 508}, {1, 511}, {1, 512}, {2, 0}, {2, 251}, {2, 252}, {2, 255}, {2, 256}, {2, 507}, {2, 508}} {
		p := Params{Revision: c.rev, PrivateData: bytes.Repeat([]byte{0xa5}, c.n)}
		_, _, pa, pb, err := connect(llptest.Options{Cut: llptest.Random(1)}, p, p)
		if err != nil || !bytes.Equal(pa.PrivateData, p.PrivateData) || !bytes.Equal(pb.PrivateData, p.PrivateData) {
			t.Errorf("revision %d, %d octets: got %d and %d, %v", c.rev, c.n, len(pa.PrivateData), len(pb.PrivateData), err)
		}
	}
	for _, c := range []struct{ rev, n int }{{1, 513}, {2, 509}, {2, 70000}} {
		data := make([]byte, c.n)
		la, lb := llptest.Pipe(llptest.Options{})
		if _, _, err := Connect(context.Background(), la, Params{Revision: c.rev, PrivateData: data}); !errors.Is(err, ErrPrivateData) {
			t.Errorf("Connect, revision %d, %d octets: %v", c.rev, c.n, err)
		}
		if lb.Unread() > 0 {
			t.Errorf("revision %d: %d octets were sent", c.rev, lb.Unread())
		}
		la, lb = llptest.Pipe(llptest.Options{})
		la.Send(&octets{must(t, Frame{Revision: uint8(c.rev), Enhanced: c.rev == 2})})
		in, err := ReadRequest(context.Background(), lb, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Accept(Params{PrivateData: data}); !errors.Is(err, ErrPrivateData) {
			t.Errorf("Accept, revision %d, %d octets: %v", c.rev, c.n, err)
		}
		if err := in.Reject(data); !errors.Is(err, ErrPrivateData) {
			t.Errorf("Reject, revision %d, %d octets: %v", c.rev, c.n, err)
		}
		if la.Unread() > 0 {
			t.Errorf("revision %d: %d octets were sent", c.rev, la.Unread())
		}
		// The peer still waits, and can be answered.
		if _, err := in.Accept(Params{PrivateData: data[:100]}); err != nil || len(reply(t, la).PrivateData) != 100 {
			t.Errorf("then: %v", err)
		}
	}
}

// Depths outside 14 bits never reach the wire.
func TestBadParams(t *testing.T) {
	for _, p := range []Params{{IRD: -1}, {ORD: -1}, {IRD: NoNegotiation + 1}, {ORD: 1 << 16}, {Revision: 3}, {Revision: -1}} {
		la, lb := llptest.Pipe(llptest.Options{})
		if _, _, err := Connect(context.Background(), la, p); err == nil || lb.Unread() > 0 {
			t.Errorf("%+v: %v, %d octets sent", p, err, lb.Unread())
		}
	}
}

// What the two sides say of their depths, and what comes of it at the initiator: its
// ORD is at most the responder's IRD, and a responder that wants to read more than
// the initiator's IRD allows is told so (RFC 6581 section 9.1).
func TestDepthsAtTheInitiator(t *testing.T) {
	no := NoNegotiation
	for _, c := range []struct {
		ird, ord           int // ours
		replyIRD, replyORD int
		wantIRD, wantORD   int // -1: refused
	}{
		{4, 4, 4, 4, 4, 4}, {4, 4, 2, 3, 4, 2}, {4, 4, 9, 4, 4, 4}, {0, 0, 0, 0, 0, 0}, {4, 0, 7, 4, 4, 0},
		{4, 4, no, no, 4, 4}, {no, no, no, no, no, no}, {no, no, 3, 9, no, 3}, {MaxDepth, MaxDepth, 16, 16, MaxDepth, 16},
		{3, 4, 4, 4, -1, -1}, {0, 4, 4, 1, -1, -1},
	} {
		for _, told := range []bool{true, false} {
			la, lb := llptest.Pipe(llptest.Options{})
			lb.Send(&octets{must(t, Frame{Reply: true, Revision: 2, Enhanced: true, CRC: true, IRD: c.replyIRD, ORD: c.replyORD})})
			p := Params{IRD: c.ird, ORD: c.ord}
			if told {
				p.Terminate = func(code Code) []byte { return []byte{0x41, 0x47, byte(code)} }
			}
			conn, peer, err := Connect(context.Background(), la, p)
			if peer.IRD != c.replyIRD || peer.ORD != c.replyORD || !peer.Enhanced {
				t.Errorf("%+v: the program is told %+v", c, peer)
			}
			if c.wantIRD >= 0 {
				if err != nil || conn.IRD() != c.wantIRD || conn.ORD() != c.wantORD {
					t.Errorf("%+v: %v", c, err)
				}
				continue
			}
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeIRD || conn != nil {
				t.Errorf("%+v: %v", c, err)
			}
			v, rerr := lb.Receive(FrameLen+enhancedLen, 1000)
			switch {
			case !told && !errors.Is(rerr, llp.ErrReset):
				t.Errorf("%+v: the responder sees %v", c, rerr)
			case told:
				lb.Consume(FrameLen + enhancedLen)
				d := newConn(lb, Peer{}, true, 0, 0, true)
				var got []byte
				if _, err := d.Receive(1000, receiverFunc(func(v mem.Vec) error { got = bytes.Join(v, nil); return nil })); err != nil || !bytes.Equal(got, []byte{0x41, 0x47, byte(CodeIRD)}) {
					t.Errorf("%+v: the responder gets %x, %v (%d slices)", c, got, err, len(v))
				}
				if _, err := d.Receive(1000, &count{}); err != io.EOF {
					t.Errorf("%+v: then %v", c, err)
				}
			}
		}
	}
}

// A refusal is one whatever revision it names, and answers a peer-to-peer Request
// with flag A, as any Reply must (RFC 6581 section 9.2).
func TestRefusals(t *testing.T) {
	for rev := range uint8(4) {
		la, lb := llptest.Pipe(llptest.Options{})
		lb.Send(&octets{must(t, Frame{Reply: true, Reject: true, Revision: rev, PrivateData: []byte("no")})})
		_, peer, err := Connect(context.Background(), la, Params{})
		var rej *RejectedError
		if !errors.As(err, &rej) || string(peer.PrivateData) != "no" {
			t.Errorf("revision %d: %v", rev, err)
		}
		if lb.Consume(0); rev == 2 {
			v, err := lb.Receive(FrameLen, 100)
			if err != nil {
				t.Fatal(err)
			}
			lb.Consume(mem.Vec(v).Len())
			if _, err := lb.Receive(1, 1); err != io.EOF {
				t.Errorf("after a refusal the responder sees %v", err)
			}
		}
	}
	la, lb := llptest.Pipe(llptest.Options{})
	la.Send(&octets{must(t, Frame{Revision: 2, Enhanced: true, PeerToPeer: true, ReadRTR: true})})
	in, err := ReadRequest(context.Background(), lb, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Reject(nil); err != nil {
		t.Fatal(err)
	}
	if f := reply(t, la); !f.Reject || !f.PeerToPeer || !f.WriteRTR || f.ReadRTR || f.SendRTR {
		t.Errorf("%+v", f)
	}
}

// A peer that asks for CRC gets it, whoever asks (RFC 5044 section 7.1.1), and the
// Reply says what holds.
func TestReplySaysWhatHolds(t *testing.T) {
	for _, asked := range []bool{false, true} {
		for _, no := range []bool{false, true} {
			for rev := uint8(1); rev <= 2; rev++ {
				la, lb := llptest.Pipe(llptest.Options{})
				la.Send(&octets{must(t, Frame{Revision: rev, CRC: asked})})
				in, err := ReadRequest(context.Background(), lb, 0)
				if err != nil {
					t.Fatal(err)
				}
				conn, err := in.Accept(Params{NoCRC: no, IRD: 3, ORD: 4})
				if err != nil {
					t.Fatal(err)
				}
				f := reply(t, la)
				if crc := asked || !no; f.CRC != crc || conn.CRC() != crc {
					t.Errorf("asked %v, without %v: Reply %v, in use %v", asked, no, f.CRC, conn.CRC())
				}
				if f.Revision != rev || f.Markers || f.Reject || f.Enhanced || conn.IRD() != 3 || conn.ORD() != 4 {
					t.Errorf("revision %d answered by %+v, depths %d and %d", rev, f, conn.IRD(), conn.ORD())
				}
			}
		}
	}
}

// Cut at every octet, a stream yields the FPDUs that are whole, and its FIN is clean
// between two of them only.
func TestStreamCutShort(t *testing.T) {
	var stream []byte
	ends := map[int]int{0: 0} // octets: FPDUs that are whole by then
	for i, n := range []int{0, 1, 14, 25, 46, 100} {
		stream = AppendFPDU(stream, bytes.Repeat([]byte{byte(i)}, n), true)
		ends[len(stream)] = i + 1
	}
	want := 0
	for n := range len(stream) + 1 {
		whole, clean := ends[n]
		if clean {
			want = whole
		}
		a, b := llptest.Pipe(llptest.Options{Cut: llptest.Random(uint64(n))})
		c := newConn(b, Peer{}, true, 0, 0, false)
		got := &count{}
		for at := range n { // one octet at a time
			a.Send(&octets{stream[at : at+1]})
			if _, err := c.Receive(1000, got); err != nil {
				t.Fatalf("octet %d of %d: %v", at, n, err)
			}
		}
		a.CloseWrite()
		end := io.ErrUnexpectedEOF
		if clean {
			end = io.EOF
		}
		for range 2 {
			if _, err := c.Receive(1000, got); err != end || got.n != want {
				t.Errorf("%d octets and FIN: %v, want %v; %d FPDUs, want %d", n, err, end, got.n, want)
			}
		}
		if c.Open() != (want > 0) {
			t.Errorf("%d octets: Open is %v", n, c.Open())
		}
	}
}

// After an error nothing more is delivered, good as it may be, and what comes is
// drained to the FIN.
func TestErrorsStay(t *testing.T) {
	bad := AppendFPDU(nil, []byte("bad"), true)
	bad[3] ^= 1
	for name, c := range map[string]struct {
		b    []byte
		code Code
	}{
		"CRC":      {bad, CodeCRC},
		"too long": {append([]byte{0xfd, 0x01}, make([]byte, 100)...), CodeMarker}, // 64769
	} {
		a, b := llptest.Pipe(llptest.Options{Cut: llptest.Octets})
		conn := newConn(b, Peer{}, true, 0, 0, true)
		good := AppendFPDU(nil, []byte("good"), true)
		a.Send(&octets{slices.Concat(good, c.b, good)})
		got := &count{}
		var err error
		for range 3 {
			_, err = conn.Receive(1000, got)
			if e := (*Error)(nil); !errors.As(err, &e) || e.Code != c.code || got.n != 1 {
				t.Errorf("%s: %v, %d delivered", name, err, got.n)
			}
		}
		if s := conn.Stats(); s.RxErrors != 1 || s.RxFPDUs != 1 || s.RxOctets != 4 {
			t.Errorf("%s: %+v", name, s)
		}
		if n, err := conn.Drain(1 << 16); err != nil || n != len(c.b)+len(good) {
			t.Errorf("%s: drained %d, %v", name, n, err)
		}
		a.CloseWrite()
		if _, err := conn.Drain(1 << 16); err != io.EOF {
			t.Errorf("%s: then %v", name, err)
		}
		// The other direction is not touched: a Terminate can go out.
		if n, err := conn.Send(&one{make([]byte, 22), 22}); n == 0 || err != nil {
			t.Errorf("%s: Send: %d, %v", name, n, err)
		}
	}
}

// A Receiver's error stops at its FPDU, which is consumed.
func TestReceiverStops(t *testing.T) {
	a, b := llptest.Pipe(llptest.Options{})
	conn := newConn(b, Peer{}, true, 0, 0, true)
	f := AppendFPDU(nil, []byte("ulpdu"), true)
	a.Send(&octets{slices.Concat(f, f, f)})
	refuse := errors.New("no")
	n := 0
	octets, err := conn.Receive(1000, receiverFunc(func(mem.Vec) error {
		if n++; n == 2 {
			return refuse
		}
		return nil
	}))
	if err != refuse || n != 2 || octets != 2*len(f) || b.Unread() != len(f) {
		t.Errorf("%v after %d, %d octets, %d left", err, n, octets, b.Unread())
	}
}

// Segments may shrink and grow at any time: no FPDU is longer than the segment of
// its day (RFC 5044 section 4.5), however small that is.
func TestSegmentsChange(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	emss := 1448
	var stream []byte
	o := llptest.Options{EMSS: emss, Hold: true, Cut: llptest.Random(5)}
	o.Segment = func(_ *llptest.Conn, p []byte) { stream = append(stream, p...) }
	a, b := pair(t, o, true)
	src, dst := &list{}, &sink{}
	var want []byte
	for i := range 400 {
		emss = []int{1448, 536, 8948, 136, 88, 48, 4}[r.IntN(7)]
		a.LLP().(*llptest.Conn).SetEMSS(emss)
		m := bytes.Repeat([]byte{byte(i)}, r.IntN(5000))
		src.msgs = append(src.msgs, m)
		want = append(want, m...)
		for len(src.msgs) > 0 {
			stream = stream[:0]
			n, err := a.Send(src)
			if err != nil || n == 0 {
				t.Fatalf("EMSS %d: %d, %v", emss, n, err)
			}
			for at := 0; at < len(stream); {
				l := FPDULen(int(stream[at])<<8 | int(stream[at+1]))
				if l > max(emss, minFill) {
					t.Fatalf("FPDU of %d octets, EMSS %d", l, emss)
				}
				at += l
			}
			for n := 1; n > 0; {
				if n, err = b.Receive(1<<16, dst); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if !bytes.Equal(dst.got, want) {
		t.Errorf("%d octets arrived of %d, or others", len(dst.got), len(want))
	}
}

// holed is a Source of four ULPDUs, some of which name memory that is not there.
type holed struct {
	n    int
	bad  map[int]bool
	stop int // Next fails at this one
	sgl  mem.SGL
}

var errSource = errors.New("no more")

func (h *holed) Next(max int, u *ULPDU) (bool, error) {
	if h.n == h.stop {
		return false, errSource
	}
	if h.n == 4 {
		return false, nil
	}
	u.HdrLen, u.SGL, u.Off, u.Len = 14, h.sgl, 0, 100
	if h.bad[h.n] {
		u.Off = 50 // beyond the region's end
	}
	h.n++
	return true, u.SGL.Acquire()
}

// Where memory cannot be read, what precedes it is sent, and nothing stays acquired.
func TestMemoryFails(t *testing.T) {
	for _, c := range []struct {
		bad  map[int]bool
		stop int
		sent int
	}{
		{nil, -1, 4}, {map[int]bool{0: true}, -1, 0}, {map[int]bool{2: true}, -1, 2}, {map[int]bool{1: true, 3: true}, -1, 1},
		{nil, 0, 0}, {nil, 3, 3}, {map[int]bool{3: true}, 4, 3},
	} {
		tab := mem.NewTable()
		r, err := tab.Register(1, make([]byte, 100), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		a, b := pair(t, llptest.Options{}, true)
		src := &holed{bad: c.bad, stop: c.stop, sgl: mem.SGL{r.Span(0, 100)}}
		n, err := a.Send(src)
		var ge *GatherError
		switch {
		case len(c.bad) > 0 && (!errors.As(err, &ge) || ge.Index != c.sent || !errors.Is(err, mem.ErrBounds)):
			t.Errorf("%+v: %v", c, err)
		case len(c.bad) == 0 && c.stop >= 0 && err != errSource, len(c.bad) == 0 && c.stop < 0 && err != nil:
			t.Errorf("%+v: %v", c, err)
		}
		if want := c.sent * FPDULen(114); n != want {
			t.Errorf("%+v: %d octets sent, want %d", c, n, want)
		}
		got := &count{}
		if _, err := b.Receive(1<<16, got); err != nil || got.n != c.sent {
			t.Errorf("%+v: %d arrived, %v", c, got.n, err)
		}
		if s := a.Stats(); s.TxFPDUs != uint64(c.sent) || s.TxOctets != uint64(114*c.sent) {
			t.Errorf("%+v: %+v", c, s)
		}
		done := make(chan error)
		go func() { done <- tab.Deregister(r) }()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%+v: the region stayed acquired", c)
		}
	}
}

// Nothing stays acquired either where TCP has no room, or is gone.
func TestNothingStaysAcquired(t *testing.T) {
	for _, what := range []string{"full", "reset", "closed"} {
		tab := mem.NewTable()
		r, err := tab.Register(1, make([]byte, 100), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := pair(t, llptest.Options{Space: 2000}, true)
		var want error
		switch what {
		case "full":
			want = llp.ErrWouldBlock
			a.LLP().Send(&octets{make([]byte, 2000)})
		case "reset":
			want = llp.ErrReset
			a.LLP().(*llptest.Conn).Break(llp.ErrReset)
		case "closed":
			want = llp.ErrClosed
			a.Close()
		}
		if n, err := a.Send(&holed{stop: -1, sgl: mem.SGL{r.Span(0, 100)}}); n != 0 || !errors.Is(err, want) {
			t.Errorf("%s: %d, %v", what, n, err)
		}
		if err := tab.Deregister(r); err != nil { // waits for ever otherwise
			t.Error(err)
		}
		if n := a.Stats().TxNoSpace; (n > 0) != (what == "full") {
			t.Errorf("%s: TxNoSpace %d", what, n)
		}
	}
}

// FPDUs that TCP cut into many pieces cost no allocation either.
func TestNoAllocationsWhereCut(t *testing.T) {
	if race.Enabled {
		return // as in TestNoAllocations
	}
	a, b := pair(t, llptest.Options{Space: 1 << 20, Cut: func(int) int { return 37 }}, true)
	src := &fixed{sgl: mem.SGL{mem.NewLocal(make([]byte, 1<<16)).Span(0, 1<<16)}}
	dst := &count{}
	round := func() {
		src.n = 20
		if _, err := a.Send(src); err != nil {
			t.Fatal(err)
		}
		for n := 1; n > 0; {
			var err error
			if n, err = b.Receive(5000, dst); err != nil {
				t.Fatal(err)
			}
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n > 0 {
		t.Errorf("%v allocations for 20 FPDUs", n)
	}
	if s := b.Stats(); s.RxSplit != s.RxFPDUs || s.RxFPDUs != uint64(dst.n) {
		t.Errorf("%+v, %d ULPDUs", s, dst.n)
	}
}

func BenchmarkFPDUs(b *testing.B) {
	for _, crc := range []bool{true, false} {
		b.Run(fmt.Sprintf("crc=%v", crc), func(b *testing.B) {
			x, y := pair(b, llptest.Options{Space: 1 << 20, EMSS: 1448}, crc)
			src := &fixed{sgl: mem.SGL{mem.NewLocal(make([]byte, 1<<16)).Span(0, 1<<16)}}
			dst := &count{}
			n := 0
			for b.Loop() {
				src.n = 45
				sent, err := x.Send(src)
				if err != nil {
					b.Fatal(err)
				}
				n = sent
				for got := 1; got > 0; {
					if got, err = y.Receive(1<<17, dst); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.SetBytes(int64(n))
		})
	}
}
