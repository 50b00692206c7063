package verbs_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"math"
	mrand "math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/internal/race"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/verbstest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ok(t *testing.T, wcs []verbs.WC) {
	t.Helper()
	for _, wc := range wcs {
		if wc.Status != verbs.Success {
			t.Fatalf("WR %d: %v: %v", wc.ID, wc.Status, wc.Err)
		}
	}
}

func TestSendWriteRead(t *testing.T) {
	for _, o := range []verbstest.Options{{}, {CutSeed: 7, EMSS: 256}, {Params: verbs.ConnParams{NoCRC: true, Revision: 1}}} {
		a, b := verbstest.Pair(t, o)
		src, dst := a.MR(1<<20, verbs.LocalWrite), b.MR(1<<20, verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite)
		rand.Read(src.Bytes())

		b.Recv(verbs.RecvWR{ID: 9, SGL: []verbs.SGE{dst.SGE(100, 1000), dst.SGE(5000, 70000)}})
		a.Send(verbs.SendWR{ID: 1, SGL: []verbs.SGE{src.SGE(0, 60000), src.SGE(60000, 5)}, Flags: verbs.Signaled | verbs.Solicited})
		ok(t, a.Wait(1))
		wc := b.Wait(1)
		ok(t, wc)
		if wc[0].ID != 9 || wc[0].ByteLen != 60005 || wc[0].Flags&verbs.Solicited == 0 || wc[0].Op != verbs.OpRecv || wc[0].QP != b.QP {
			t.Errorf("%+v", wc[0])
		}
		if !bytes.Equal(dst.Bytes()[100:1100], src.Bytes()[:1000]) || !bytes.Equal(dst.Bytes()[5000:5000+59005], src.Bytes()[1000:60005]) {
			t.Error("Send: octets differ")
		}

		want := bytes.Clone(src.Bytes())
		a.Send(verbs.SendWR{ID: 2, Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, 1<<20)}, RemoteSTag: dst.STag()},
			verbs.SendWR{ID: 3, Op: verbs.OpRead, SGL: []verbs.SGE{src.SGE(0, 1<<19)}, RemoteSTag: dst.STag(), RemoteTO: 1 << 19, Flags: verbs.Signaled | verbs.Fence})
		wc = a.Wait(1)
		ok(t, wc)
		if wc[0].ID != 3 || wc[0].ByteLen != 1<<19 || wc[0].Op != verbs.OpRead {
			t.Errorf("%+v", wc[0])
		}
		if !bytes.Equal(dst.Bytes(), want) || !bytes.Equal(src.Bytes()[:1<<19], want[1<<19:]) {
			t.Error("Write or Read: octets differ")
		}
		// The other way, inline.
		r := a.MR(64, verbs.LocalWrite)
		a.Recv(verbs.RecvWR{SGL: []verbs.SGE{r.SGE(0, 64)}})
		b.Send(verbs.SendWR{Data: []byte("inline"), Flags: verbs.Signaled | verbs.Inline})
		ok(t, b.Wait(1))
		if wc := a.Wait(1); wc[0].ByteLen != 6 || string(r.Bytes()[:6]) != "inline" {
			t.Errorf("%+v %q", wc[0], r.Bytes()[:6])
		}
		if err := a.QP.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
		<-b.QP.Done()
		if err := b.QP.Err(); err != nil {
			t.Errorf("the other side: %v", err)
		}
		if s := a.QP.State(); s != verbs.Error {
			t.Error(s)
		}
	}
}

// Completions come in the order of the posts, whatever finishes first.
func TestOrder(t *testing.T) {
	a, b := verbstest.Pair(t, verbstest.Options{Params: verbs.ConnParams{IRD: 2, ORD: 2}})
	m, r := a.MR(1<<16, verbs.LocalWrite), b.MR(1<<16, verbs.RemoteRead|verbs.RemoteWrite|verbs.LocalWrite)
	var want []uint64
	for i := range uint64(100) {
		wr := verbs.SendWR{ID: i, Op: []verbs.Op{verbs.OpRead, verbs.OpWrite, verbs.OpSend}[i%3], SGL: []verbs.SGE{m.SGE(0, int(i*500))}, RemoteSTag: r.STag()}
		if wr.Op == verbs.OpSend {
			b.Recv(verbs.RecvWR{SGL: []verbs.SGE{r.SGE(0, 1<<16)}})
		}
		if i%2 == 1 || i > 90 {
			wr.Flags = verbs.Signaled
			want = append(want, i)
		}
		a.Send(wr)
	}
	for i, wc := range a.Wait(len(want)) {
		if wc.ID != want[i] || wc.Status != verbs.Success {
			t.Fatalf("completion %d is of WR %d, want %d: %v %v", i, wc.ID, want[i], wc.Status, wc.Err)
		}
	}
}

// What the peer may not do ends the connection with the right status on both
// sides, and every WR completes once, in order.
func TestRemoteAccess(t *testing.T) {
	a, b := verbstest.Pair(t, verbstest.Options{})
	m, ro := a.MR(100, verbs.LocalWrite), b.MR(100, verbs.RemoteWrite)
	b.Recv(verbs.RecvWR{ID: 50, SGL: nil})
	a.Send(
		verbs.SendWR{ID: 1, Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(0, 10)}, RemoteSTag: ro.STag(), Flags: verbs.Signaled},
		verbs.SendWR{ID: 2, Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(0, 10)}, RemoteSTag: ro.STag()},
		verbs.SendWR{ID: 3, Op: verbs.OpWrite, Flags: verbs.Fence})
	<-a.QP.Done()
	wcs := a.Wait(3)
	if wcs[0].Status != verbs.RemoteAccess || wcs[1].Status != verbs.WRFlush || wcs[2].Status != verbs.WRFlush {
		t.Errorf("%v, %v, %v", wcs[0].Status, wcs[1].Status, wcs[2].Status)
	}
	for i, wc := range wcs {
		if wc.ID != uint64(i+1) || wc.Err == nil {
			t.Errorf("%d: %+v", i, wc)
		}
	}
	var te *verbs.TerminateError
	if !errors.As(a.QP.Err(), &te) || !te.Remote {
		t.Errorf("%v", a.QP.Err())
	}
	<-b.QP.Done()
	if !errors.As(b.QP.Err(), &te) || te.Remote || !errors.Is(b.QP.Err(), verbs.ErrAccess) {
		t.Errorf("%v", b.QP.Err())
	}
	if wc := b.Wait(1); wc[0].ID != 50 || wc[0].Status != verbs.WRFlush {
		t.Errorf("%+v", wc[0])
	}
	// In Error, posts are taken and flushed.
	a.Send(verbs.SendWR{ID: 7})
	a.Recv(verbs.RecvWR{ID: 8})
	if wcs := a.Wait(2); wcs[0].ID != 7 || wcs[1].ID != 8 || wcs[0].Status != verbs.WRFlush || wcs[1].Status != verbs.WRFlush {
		t.Errorf("%+v", wcs)
	}
}

func TestReceiveFaults(t *testing.T) {
	a, b := verbstest.Pair(t, verbstest.Options{})
	m := b.MR(10, verbs.LocalWrite)
	b.Recv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{m.SGE(0, 4)}}, verbs.RecvWR{ID: 2})
	a.Send(verbs.SendWR{Data: []byte("five!"), Flags: verbs.Inline})
	wcs := b.Wait(2)
	if wcs[0].Status != verbs.LocalLength || wcs[1].Status != verbs.WRFlush {
		t.Errorf("too long: %v, %v", wcs[0].Status, wcs[1].Status)
	}
	if !bytes.Equal(m.Bytes(), make([]byte, 10)) {
		t.Errorf("placed %q", m.Bytes())
	}

	a, b = verbstest.Pair(t, verbstest.Options{})
	m = b.MR(10, verbs.LocalWrite)
	b.Recv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{m.SGE(0, 4)}})
	if err := m.Dereg(); err != nil {
		t.Fatal(err)
	}
	a.Send(verbs.SendWR{Data: []byte("four"), Flags: verbs.Inline})
	if wcs := b.Wait(1); wcs[0].Status != verbs.LocalProtection {
		t.Errorf("deregistered: %v", wcs[0].Status)
	}

	// No receive posted: there is no back-pressure in iWARP.
	a, b = verbstest.Pair(t, verbstest.Options{})
	a.Send(verbs.SendWR{})
	<-a.QP.Done()
	var te *verbs.TerminateError
	if !errors.As(a.QP.Err(), &te) || te.Layer != 1 || te.Type != 2 || te.Code != 2 {
		t.Errorf("%v", a.QP.Err())
	}
	<-b.QP.Done()
}

func TestPostErrors(t *testing.T) {
	a, b := verbstest.Pair(t, verbstest.Options{Depth: 4})
	m := a.MR(10, 0)
	other, err := a.Device.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.RegMR(make([]byte, 10), verbs.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	gone := a.MR(10, verbs.LocalWrite)
	gone.Dereg()
	for name, c := range map[string]struct {
		wr  verbs.SendWR
		err error
	}{
		"beyond the end":     {verbs.SendWR{SGL: []verbs.SGE{m.SGE(5, 6)}}, verbs.ErrBounds},
		"negative":           {verbs.SendWR{SGL: []verbs.SGE{m.SGE(-1, 2)}}, verbs.ErrBounds},
		"length that wraps":  {verbs.SendWR{SGL: []verbs.SGE{m.SGE(5, math.MaxInt)}}, verbs.ErrBounds},
		"negative length":    {verbs.SendWR{SGL: []verbs.SGE{m.SGE(1, -2)}}, verbs.ErrBounds},
		"other PD":           {verbs.SendWR{SGL: []verbs.SGE{foreign.SGE(0, 1)}}, verbs.ErrPD},
		"deregistered":       {verbs.SendWR{SGL: []verbs.SGE{gone.SGE(0, 1)}}, verbs.ErrSTag},
		"no MR":              {verbs.SendWR{SGL: []verbs.SGE{{Len: 1}}}, verbs.ErrInvalid},
		"read into constant": {verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(0, 1)}}, verbs.ErrAccess},
		"too many SGEs":      {verbs.SendWR{SGL: make([]verbs.SGE, 5)}, verbs.ErrTooBig},
		"two for a read":     {verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{gone.SGE(0, 0), m.SGE(0, 1), m.SGE(1, 1)}}, verbs.ErrAccess},
		"inline too long":    {verbs.SendWR{Data: make([]byte, 65), Flags: verbs.Inline}, verbs.ErrTooBig},
		"inline read":        {verbs.SendWR{Op: verbs.OpRead, Flags: verbs.Inline}, verbs.ErrInvalid},
		"data, not inline":   {verbs.SendWR{Data: []byte("x")}, verbs.ErrInvalid},
		"opcode":             {verbs.SendWR{Op: verbs.OpRecv}, verbs.ErrInvalid},
	} {
		if n, err := a.QP.PostSend(c.wr); n != 0 || !errors.Is(err, c.err) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	if n, err := a.QP.PostRecv(verbs.RecvWR{}, verbs.RecvWR{SGL: []verbs.SGE{m.SGE(0, 1)}}, verbs.RecvWR{}); n != 1 || !errors.Is(err, verbs.ErrAccess) {
		t.Errorf("PostRecv: %d, %v", n, err)
	}
	if n, err := a.QP.PostRecv(make([]verbs.RecvWR, 5)...); n != 3 || !errors.Is(err, verbs.ErrFull) {
		t.Errorf("PostRecv: %d, %v", n, err)
	}
	// A zero-length SGE is not looked at.
	b.Recv(verbs.RecvWR{})
	a.Send(verbs.SendWR{SGL: []verbs.SGE{gone.SGE(3, 0)}, Flags: verbs.Signaled})
	ok(t, a.Wait(1))
	if err := a.PD.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("PD.Close: %v", err)
	}
	if err := a.CQ.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("CQ.Close: %v", err)
	}
}

// A message has 4 GiB - 1 octets at most. The memory is never touched.
func TestMaxMessage(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		t.Skip("a message of 4 GiB needs 64-bit integers")
	}
	a, b := verbstest.Pair(t, verbstest.Options{})
	m := a.MR(1<<27, 0)
	qp, err := a.PD.CreateQP(verbs.QPConfig{SendCQ: a.CQ, RecvCQ: a.CQ, Cap: verbs.QPCap{MaxSendWR: 2, MaxSendSGE: verbs.MaxSGE}})
	if err != nil {
		t.Fatal(err)
	}
	c := &verbstest.Side{T: t, Device: a.Device, PD: a.PD, CQ: a.CQ, QP: qp}
	verbstest.Connect(t, c, verbstest.NewSide(t, b.Device, verbstest.Options{}), verbs.ConnParams{})
	sgl := make([]verbs.SGE, verbs.MaxSGE)
	for i := range sgl {
		sgl[i] = m.SGE(0, 1<<27)
	}
	if n, err := qp.PostSend(verbs.SendWR{SGL: sgl}); n != 0 || !errors.Is(err, verbs.ErrTooBig) {
		t.Errorf("4 GiB: %d, %v", n, err)
	}
	sgl[0].Len--
	if n, err := qp.PostSend(verbs.SendWR{SGL: sgl}); n != 1 || err != nil { // finds no receive, and ends there
		t.Errorf("an octet less: %d, %v", n, err)
	}
	<-qp.Done()
}

func TestStates(t *testing.T) {
	d, _ := verbstest.Net(t, verbstest.Options{})
	s := verbstest.NewSide(t, d, verbstest.Options{})
	if _, err := s.QP.PostSend(verbs.SendWR{}); !errors.Is(err, verbs.ErrState) {
		t.Errorf("PostSend in Idle: %v", err)
	}
	s.Recv(verbs.RecvWR{ID: 3})
	if err := s.QP.Disconnect(context.Background()); !errors.Is(err, verbs.ErrState) {
		t.Errorf("Disconnect in Idle: %v", err)
	}
	if err := s.QP.Close(); err != nil {
		t.Error(err)
	}
	if wc := s.Wait(1); wc[0].ID != 3 || wc[0].Status != verbs.WRFlush {
		t.Errorf("%+v", wc[0])
	}
	if err := s.QP.Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	if _, err := s.QP.Connect(context.Background(), netip.AddrPortFrom(verbstest.AddrB, 1), verbs.ConnParams{}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Connect after Close: %v", err)
	}
	if err := errors.Join(s.CQ.Close(), s.PD.Close()); err != nil {
		t.Error(err)
	}
}

func TestConnectFailures(t *testing.T) {
	da, db := verbstest.Net(t, verbstest.Options{Config: verbs.Config{StartupTimeout: 50 * time.Millisecond}})
	a, b := verbstest.NewSide(t, da, verbstest.Options{}), verbstest.NewSide(t, db, verbstest.Options{})
	ctx := context.Background()
	if _, err := a.QP.Connect(ctx, netip.AddrPortFrom(verbstest.AddrB, 1), verbs.ConnParams{}); err == nil {
		t.Error("connected to nobody")
	}
	l, err := db.Listen(netip.AddrPortFrom(verbstest.AddrB, 0), verbs.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.QP.Connect(ctx, l.Addr(), verbs.ConnParams{PrivateData: make([]byte, 509)}); !errors.Is(err, verbs.ErrPrivateData) {
		t.Errorf("509 octets: %v", err)
	}
	if _, err := a.QP.Connect(ctx, l.Addr(), verbs.ConnParams{IRD: 129}); !errors.Is(err, verbs.ErrTooBig) {
		t.Errorf("IRD 129: %v", err)
	}
	go func() {
		for i := 0; ; i++ {
			r, err := l.Accept(ctx)
			if err != nil {
				return
			}
			if string(r.PrivateData()) != "please" {
				continue // the one of 509 octets was never heard of; the silent one is
			}
			if err := r.Reject([]byte("no")); err != nil {
				t.Error(err)
			}
			if _, err := r.Accept(b.QP, verbs.ConnParams{}); !errors.Is(err, verbs.ErrState) {
				t.Errorf("Accept after Reject: %v", err)
			}
		}
	}()
	var rej *verbs.RejectedError
	info, err := a.QP.Connect(ctx, l.Addr(), verbs.ConnParams{PrivateData: []byte("please")})
	if !errors.As(err, &rej) || string(rej.Peer.PrivateData) != "no" || string(info.PrivateData) != "no" {
		t.Errorf("%v", err)
	}
	if s := a.QP.State(); s != verbs.Idle {
		t.Errorf("after a refusal: %v", s)
	}
	// Nobody answers: cancel by context, and by Close.
	short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
	defer cancel()
	if _, err := a.QP.Connect(short, l.Addr(), verbs.ConnParams{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled: %v", err)
	}
	done := make(chan error)
	go func() {
		_, err := a.QP.Connect(ctx, l.Addr(), verbs.ConnParams{})
		done <- err
	}()
	time.Sleep(5 * time.Millisecond)
	if err := a.QP.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("closed while connecting: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(ctx); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
}

func TestNegotiatedDepths(t *testing.T) {
	da, db := verbstest.Net(t, verbstest.Options{})
	a, b := verbstest.NewSide(t, da, verbstest.Options{}), verbstest.NewSide(t, db, verbstest.Options{})
	l, err := db.Listen(netip.AddrPortFrom(verbstest.AddrB, 7174), verbs.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ch := make(chan verbs.ConnInfo)
	go func() {
		r, _ := l.Accept(context.Background())
		if string(r.PrivateData()) != "hello" || r.IRD() != 1 || r.ORD() != 2 {
			t.Errorf("request: %q %d %d", r.PrivateData(), r.IRD(), r.ORD())
		}
		info, err := r.Accept(b.QP, verbs.ConnParams{PrivateData: []byte("welcome"), ORD: 4, IRD: 8})
		if err != nil {
			t.Error(err)
		}
		ch <- info
	}()
	info, err := a.QP.Connect(context.Background(), l.Addr(), verbs.ConnParams{PrivateData: []byte("hello"), IRD: 1, ORD: 2})
	if err != nil {
		t.Fatal(err)
	}
	other := <-ch
	if info.ORD != 2 || info.IRD != 1 || other.ORD != 1 || other.IRD != 8 || string(info.PrivateData) != "welcome" || info.PeerIRD != 8 || info.PeerORD != 1 {
		t.Errorf("%+v\n%+v", info, other)
	}
	if info.Local != other.Remote || info.Remote != l.Addr() {
		t.Errorf("%v and %v", info, other)
	}
}

func TestCQ(t *testing.T) {
	a, b := verbstest.Pair(t, verbstest.Options{})
	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	var wc [1]verbs.WC
	if _, err := a.CQ.Wait(short, wc[:]); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait: %v", err)
	}
	// Solicited only: a plain receive does not fire, a solicited one does.
	b.Recv(verbs.RecvWR{}, verbs.RecvWR{}, verbs.RecvWR{})
	b.CQ.Arm(true)
	a.Send(verbs.SendWR{})
	b.Wait(1)
	select {
	case <-b.CQ.Events():
		t.Error("fired for a receive that was not solicited")
	default:
	}
	a.Send(verbs.SendWR{Flags: verbs.Solicited})
	<-b.CQ.Events()
	b.Wait(1)
	b.CQ.Arm(false)
	a.Send(verbs.SendWR{})
	<-b.CQ.Events()
	// What is there is returned even when the context has ended.
	<-short.Done()
	if n, err := b.CQ.Wait(short, wc[:]); n != 1 || err != nil {
		t.Errorf("Wait with an ended context: %d, %v", n, err)
	}
	// Overflow is contained.
	c, d := verbstest.Pair(t, verbstest.Options{Depth: 2})
	small, err := c.Device.CreateCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := c.PD.CreateQP(verbs.QPConfig{SendCQ: small, RecvCQ: small, SignalAll: true, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 1}})
	if err != nil {
		t.Fatal(err)
	}
	e := &verbstest.Side{T: t, Device: c.Device, PD: c.PD, CQ: small, QP: qp}
	f := verbstest.NewSide(t, d.Device, verbstest.Options{})
	verbstest.Connect(t, e, f, verbs.ConnParams{})
	e.Send(verbs.SendWR{ID: 1, Op: verbs.OpWrite}, verbs.SendWR{ID: 2, Op: verbs.OpWrite})
	<-qp.Done()
	if !errors.Is(qp.Err(), verbs.ErrOverflow) {
		t.Errorf("QP: %v", qp.Err())
	}
	if n, err := small.Poll(wc[:]); n != 1 || err != nil || wc[0].ID != 1 {
		t.Errorf("Poll: %d, %v", n, err)
	}
	if _, err := small.Poll(wc[:]); !errors.Is(err, verbs.ErrOverflow) {
		t.Errorf("Poll: %v", err)
	}
	d.Recv(verbs.RecvWR{})
	c.Send(verbs.SendWR{})
	ok(t, d.Wait(1))
}

// Whatever happens whenever, every WR completes once, in order, and nothing hangs.
func TestExactlyOnce(t *testing.T) {
	for seed := range uint64(40) {
		r := mrand.New(mrand.NewPCG(seed, 5))
		o := verbstest.Options{CutSeed: seed + 1, Config: verbs.Config{CloseTimeout: 100 * time.Millisecond}}
		a, b := verbstest.Pair(t, o)
		sides := []*verbstest.Side{a, b}
		mrs := []*verbs.MR{a.MR(1<<16, 0xf), b.MR(1<<16, 0xf)}
		for _, s := range sides {
			for i := range uint64(100) {
				s.Recv(verbs.RecvWR{ID: 1000 + i, SGL: []verbs.SGE{mrs[0].SGE(0, 0)}})
			}
		}
		n := 1 + r.IntN(90)
		for i := range n {
			wr := verbs.SendWR{ID: uint64(i), Flags: verbs.Flags(r.IntN(2)) | verbs.Flags(r.IntN(2))<<2,
				Op: []verbs.Op{verbs.OpWrite, verbs.OpRead, verbs.OpSend}[r.IntN(3)], RemoteSTag: mrs[1].STag()}
			if wr.Op != verbs.OpSend {
				wr.SGL = []verbs.SGE{mrs[0].SGE(0, r.IntN(1<<16))}
			}
			a.Send(wr)
		}
		var wg sync.WaitGroup
		switch r.IntN(6) {
		case 0:
			wg.Go(func() { a.QP.Close() })
		case 1:
			wg.Go(func() { b.QP.Close() })
		case 2:
			wg.Go(func() { a.QP.Disconnect(context.Background()) })
			wg.Go(func() { b.QP.Disconnect(context.Background()) })
		case 3:
			mrs[0].Dereg()
		case 4:
			mrs[1].Dereg()
		case 5:
			wg.Go(func() { b.Device.Close() })
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = a.QP.Disconnect(ctx)
		_ = b.QP.Disconnect(ctx)
		cancel()
		wg.Wait()
		for i, s := range sides {
			<-s.QP.Done()
			var wcs [400]verbs.WC
			m, _ := s.CQ.Poll(wcs[:])
			sendAt, recvAt, bad := -1, 999, false
			for _, wc := range wcs[:m] {
				at := &sendAt
				if wc.Op == verbs.OpRecv {
					at = &recvAt
				}
				if int(wc.ID) <= *at || wc.Op == verbs.OpRecv && int(wc.ID) != *at+1 {
					t.Fatalf("seed %d side %d: WR %d after %d", seed, i, wc.ID, *at)
				}
				if bad = bad || wc.Status != verbs.Success && wc.Op != verbs.OpRecv; bad && wc.Op != verbs.OpRecv && wc.Status == verbs.Success {
					t.Fatalf("seed %d side %d: success after a failure", seed, i)
				}
				*at = int(wc.ID)
			}
			if recvAt != 1099 {
				t.Errorf("seed %d side %d: receives up to %d completed", seed, i, recvAt)
			}
		}
	}
}

// Dereg while Reads of the memory are outstanding ends in a Terminate that names the
// first of them.
func TestStalledPeer(t *testing.T) {
	a, b := verbstest.Pair(t, verbstest.Options{Config: verbs.Config{CloseTimeout: 50 * time.Millisecond}})
	big := b.MR(8<<20, verbs.RemoteRead|verbs.RemoteWrite)
	m := a.MR(8<<20, verbs.LocalWrite)
	for range 8 {
		a.Send(verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(0, 8<<20)}, RemoteSTag: big.STag()})
	}
	time.Sleep(time.Millisecond)
	if err := big.Dereg(); err != nil {
		t.Error(err)
	}
	<-a.QP.Done()
	<-b.QP.Done()
	var te *verbs.TerminateError
	if !errors.As(a.QP.Err(), &te) || te.Term.RDMAP == nil {
		t.Errorf("%v", a.QP.Err())
	}
	// Of the Reads that failed the first is the one that the peer names.
	var wcs [8]verbs.WC
	n, _ := a.CQ.Poll(wcs[:])
	if n == 0 || wcs[0].Status != verbs.RemoteAccess || n > 1 && wcs[n-1].Status != verbs.WRFlush {
		t.Errorf("%d completions, %v", n, wcs[0].Status)
	}
}

// A program polls the last octets of a Write, with no WC and no race.
func TestPolledWrite(t *testing.T) {
	a, b := verbstest.Pair(t, verbstest.Options{CutSeed: 3})
	src, dst := a.MR(5000, 0), b.MR(5000, verbs.RemoteWrite)
	for round := byte(1); round <= 20; round++ {
		for i := range src.Bytes() {
			src.Bytes()[i] = round
		}
		a.Send(verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, 5000)}, RemoteSTag: dst.STag(), Flags: verbs.Signaled})
		for dst.LoadByte(4999) != round {
			time.Sleep(time.Microsecond)
		}
		if n := bytes.Count(dst.Bytes(), []byte{round}); n != 5000 {
			t.Fatalf("round %d: %d octets of 5000", round, n)
		}
		ok(t, a.Wait(1))
	}
}

func TestNoAllocationsPerWR(t *testing.T) {
	if race.Enabled {
		return // make race runs everything else
	}
	a, b := verbstest.Pair(t, verbstest.Options{})
	src, dst := a.MR(1<<16, verbs.LocalWrite), b.MR(1<<16, verbs.RemoteWrite|verbs.RemoteRead)
	sgl := []verbs.SGE{src.SGE(0, 20000)}
	in := b.MR(20000, verbs.LocalWrite)
	inSGL := []verbs.SGE{in.SGE(0, 20000)}
	inline := []byte("inline data")
	var wcs [4]verbs.WC
	ctx := context.Background()
	round := func() {
		if n, err := b.QP.PostRecv(verbs.RecvWR{SGL: inSGL}, verbs.RecvWR{SGL: inSGL}); n != 2 {
			t.Fatal(err)
		}
		if _, err := a.QP.PostSend(verbs.SendWR{Op: verbs.OpWrite, SGL: sgl, RemoteSTag: dst.STag()},
			verbs.SendWR{SGL: sgl}, verbs.SendWR{Data: inline, Flags: verbs.Inline | verbs.Solicited},
			verbs.SendWR{Op: verbs.OpRead, SGL: sgl, RemoteSTag: dst.STag(), Flags: verbs.Signaled}); err != nil {
			t.Fatal(err)
		}
		if n, err := a.CQ.Wait(ctx, wcs[:]); n != 1 || err != nil || wcs[0].Status != verbs.Success {
			t.Fatal(n, err, wcs[0].Status)
		}
		b.CQ.Arm(true)
		if n, err := b.CQ.Poll(wcs[:]); n != 2 || err != nil || wcs[1].ByteLen != uint32(len(inline)) {
			t.Fatal(n, err, wcs[0].Status)
		}
	}
	for range 10 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n > 0.5 {
		t.Errorf("%v allocations per Write, two Sends and a Read", n)
	}
}

func TestDeviceClose(t *testing.T) {
	a, b := verbstest.Pair(t, verbstest.Options{})
	a.Recv(verbs.RecvWR{ID: 1})
	if err := a.Device.Close(); err != nil {
		t.Error(err)
	}
	if wc := a.Wait(1); wc[0].Status != verbs.WRFlush {
		t.Errorf("%+v", wc[0])
	}
	<-b.QP.Done()
	if b.QP.Err() == nil {
		t.Error("the peer saw a graceful close")
	}
	if _, err := a.Device.AllocPD(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("AllocPD: %v", err)
	}
	if _, err := a.Device.Listen(netip.AddrPort{}, verbs.ListenConfig{}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Listen: %v", err)
	}
}
