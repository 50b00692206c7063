package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	mrand "math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/llp/llptest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/verbstest"
)

// Both sides disconnect at once: neither sees an error, each learns of it once.
func TestSimultaneousDisconnect(t *testing.T) {
	da, db := verbstest.Net(t, verbstest.Options{})
	for i := range 200 {
		a, b := verbstest.NewSide(t, da, verbstest.Options{}), verbstest.NewSide(t, db, verbstest.Options{})
		verbstest.Connect(t, a, b, verbs.ConnParams{})
		var wg sync.WaitGroup
		for _, s := range []*verbstest.Side{a, b} {
			wg.Go(func() {
				if err := s.QP.Disconnect(context.Background()); err != nil {
					t.Errorf("%d: %v", i, err)
				}
			})
		}
		wg.Wait()
		for _, s := range []*verbstest.Side{a, b} {
			if err := errors.Join(s.QP.Close(), s.CQ.Close(), s.PD.Close()); err != nil {
				t.Error(err)
			}
		}
	}
	for _, d := range []*verbs.Device{da, db} {
		if s := d.Stats(); s.QPs != 0 || s.CQs != 0 || s.PDs != 0 || s.MRs != 0 {
			t.Errorf("left: %+v", s)
		}
	}
}

// Many connections at once through one listener, each with its own data.
func TestManyConnections(t *testing.T) {
	const n = 200
	da, db := verbstest.Net(t, verbstest.Options{})
	l, err := db.Listen(netip.AddrPortFrom(verbstest.AddrB, 0), verbs.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		for range n {
			r, err := l.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			s := verbstest.NewSide(t, db, verbstest.Options{Depth: 1})
			m := s.MR(4, verbs.LocalWrite)
			s.Recv(verbs.RecvWR{SGL: []verbs.SGE{m.SGE(0, 4)}})
			if _, err := r.Accept(s.QP, verbs.ConnParams{PrivateData: r.PrivateData()}); err != nil {
				t.Error(err)
				return
			}
			wg.Go(func() {
				<-s.QP.Done()
				var wc [1]verbs.WC
				if k, _ := s.CQ.Poll(wc[:]); k != 1 || wc[0].Status != verbs.Success || !bytes.Equal(m.Bytes(), r.PrivateData()) {
					t.Errorf("%q got %q: %v", r.PrivateData(), m.Bytes(), wc[0].Status)
				}
			})
		}
	})
	for i := range n {
		wg.Go(func() {
			s := verbstest.NewSide(t, da, verbstest.Options{Depth: 1})
			name := fmt.Appendf(nil, "%04d", i)
			info, err := s.QP.Connect(ctx, l.Addr(), verbs.ConnParams{PrivateData: name})
			if err != nil || !bytes.Equal(info.PrivateData, name) {
				t.Errorf("%d: %v, %q", i, err, info.PrivateData)
				return
			}
			s.Send(verbs.SendWR{Data: name, Flags: verbs.Inline})
			if err := s.QP.Disconnect(ctx); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

// After Dereg returns nothing is written any more, whatever the peer does.
func TestDeregisterUnderWrites(t *testing.T) {
	for range 20 {
		a, b := verbstest.Pair(t, verbstest.Options{})
		src, dst := a.MR(1<<17, 0), b.MR(1<<17, verbs.RemoteWrite)
		for i := range src.Bytes() {
			src.Bytes()[i] = 0xff
		}
		for range 100 {
			a.Send(verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, 1<<17)}, RemoteSTag: dst.STag()})
		}
		for dst.LoadByte(1<<17-1) == 0 {
			time.Sleep(time.Microsecond)
		}
		if err := dst.Dereg(); err != nil {
			t.Fatal(err)
		}
		clear(dst.Bytes())                                                                                             // ours alone now; the race detector looks on
		_, _ = a.QP.PostSend(verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, 1)}, RemoteSTag: dst.STag()}) // where all others were through
		<-b.QP.Done()
		if !bytes.Equal(dst.Bytes(), make([]byte, 1<<17)) {
			t.Fatal("written after Dereg")
		}
		if err := dst.Dereg(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("second Dereg: %v", err)
		}
	}
}

// Waiters and pollers share a CQ: no completion is lost, none comes twice, nobody
// sleeps while there is one.
func TestCQSharedByWaiters(t *testing.T) {
	const n = 5000
	a, b := verbstest.Pair(t, verbstest.Options{Depth: 1024})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var mu sync.Mutex
	seen := make([]int, n)
	left := n
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			wcs := make([]verbs.WC, 1+i)
			for {
				k, err := b.CQ.Wait(ctx, wcs)
				if err != nil {
					if mu.Lock(); left > 0 {
						t.Error(err)
					}
					mu.Unlock()
					return
				}
				mu.Lock()
				for _, wc := range wcs[:k] {
					seen[wc.ID]++
				}
				if left -= k; left == 0 {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	for i := 0; i < n; {
		mu.Lock()
		behind := i - (n - left)
		mu.Unlock()
		if behind > 1000 { // a slot is free at the completion, which still fills the CQ
			time.Sleep(10 * time.Microsecond)
			continue
		}
		if _, err := b.QP.PostRecv(verbs.RecvWR{ID: uint64(i)}); errors.Is(err, verbs.ErrFull) {
			time.Sleep(10 * time.Microsecond)
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		for {
			_, err := a.QP.PostSend(verbs.SendWR{})
			if err == nil {
				break
			} else if !errors.Is(err, verbs.ErrFull) {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Microsecond)
		}
		i++
	}
	wg.Wait()
	for id, k := range seen {
		if k != 1 {
			t.Fatalf("receive %d completed %d times", id, k)
		}
	}
}

// Completions that come at once wake as many waiters as they serve.
func TestWaitersWakeEachOther(t *testing.T) {
	for range 200 {
		d, _ := verbstest.Net(t, verbstest.Options{})
		s := verbstest.NewSide(t, d, verbstest.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				var wc [1]verbs.WC
				if _, err := s.CQ.Wait(ctx, wc[:]); err != nil {
					t.Error(err)
				}
			})
		}
		s.Recv(make([]verbs.RecvWR, 3)...)
		time.Sleep(10 * time.Microsecond)
		s.QP.Close()
		wg.Wait()
		cancel()
		if t.Failed() {
			return
		}
	}
}

// What an armed CQ tells of, and what closing it does.
func TestArm(t *testing.T) {
	fired := func(c *verbs.CQ) bool {
		select {
		case <-c.Events():
			return true
		default:
			return false
		}
	}
	d, _ := verbstest.Net(t, verbstest.Options{})
	s := verbstest.NewSide(t, d, verbstest.Options{})
	s.Recv(verbs.RecvWR{})
	s.CQ.Arm(true)
	if fired(s.CQ) {
		t.Error("before anything came")
	}
	s.QP.Close()
	if !fired(s.CQ) {
		t.Error("an error is as good as solicited")
	}
	if fired(s.CQ) {
		t.Error("twice")
	}

	a, b := verbstest.Pair(t, verbstest.Options{})
	b.Recv(verbs.RecvWR{}, verbs.RecvWR{})
	b.CQ.Arm(false)
	b.CQ.Arm(true) // takes nothing back
	a.Send(verbs.SendWR{})
	b.Wait(1)
	if !fired(b.CQ) {
		t.Error("armed for any, then for solicited: not fired by any")
	}
	a.Send(verbs.SendWR{Flags: verbs.Solicited})
	b.Wait(1)
	if fired(b.CQ) {
		t.Error("fired without being armed again")
	}

	c, err := d.CreateCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Millisecond, func() { c.Close() })
	var wc [1]verbs.WC
	if _, err := c.Wait(t.Context(), wc[:]); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Wait on a CQ that is closed: %v", err)
	}
	if err := c.Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	if _, err := c.Wait(t.Context(), nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Wait without room: %v", err)
	}
}

// Of a list of WRs those before the bad one are posted, and worked on.
func TestBadWR(t *testing.T) {
	a, b := verbstest.Pair(t, verbstest.Options{})
	b.Recv(verbs.RecvWR{}, verbs.RecvWR{}, verbs.RecvWR{})
	a.Send(verbs.SendWR{Flags: verbs.Signaled})
	ok(t, a.Wait(1))
	time.Sleep(time.Millisecond) // the QP is at rest: the next post has to wake it
	n, err := a.QP.PostSend(verbs.SendWR{ID: 1, Flags: verbs.Signaled}, verbs.SendWR{ID: 2, Flags: verbs.Signaled},
		verbs.SendWR{ID: 3, SGL: []verbs.SGE{{Len: 1}}}, verbs.SendWR{ID: 4})
	if n != 2 || !errors.Is(err, verbs.ErrInvalid) {
		t.Fatal(n, err)
	}
	ok(t, a.Wait(2))
	if d := a.QP.Stats().SendWRs; d != 0 {
		t.Errorf("%d posted", d)
	}
}

// Arm, poll until empty, wait for the event: nothing is missed, however completions
// and arming meet.
func TestArmMissesNothing(t *testing.T) {
	const n = 3000
	a, b := verbstest.Pair(t, verbstest.Options{})
	credits := make(chan struct{}, 128) // receives posted and not yet aimed at
	post := func(k int) {
		b.Recv(make([]verbs.RecvWR, k)...)
		for range k {
			credits <- struct{}{}
		}
	}
	post(cap(credits))
	go func() {
		for range n {
			<-credits
			for {
				if _, err := a.QP.PostSend(verbs.SendWR{}); err == nil {
					break
				}
				time.Sleep(time.Microsecond) // the send queue is full
			}
		}
	}()
	var wcs [8]verbs.WC
	timeout := time.After(20 * time.Second)
	for got := 0; ; {
		b.CQ.Arm(false)
		for {
			k, err := b.CQ.Poll(wcs[:])
			if err != nil {
				t.Fatal(err)
			}
			if k == 0 {
				break
			}
			ok(t, wcs[:k])
			got += k
			post(k)
		}
		if got == n {
			return
		}
		select {
		case <-b.CQ.Events():
		case <-timeout:
			t.Fatalf("%d of %d: an event was missed", got, n)
		}
	}
}

// A QP that could not connect can try again; what it had posted still counts.
func TestConnectAgain(t *testing.T) {
	da, db := verbstest.Net(t, verbstest.Options{})
	a, b := verbstest.NewSide(t, da, verbstest.Options{}), verbstest.NewSide(t, db, verbstest.Options{})
	a.Recv(verbs.RecvWR{ID: 7})
	for range 3 {
		if _, err := a.QP.Connect(context.Background(), netip.AddrPortFrom(verbstest.AddrB, 9), verbs.ConnParams{}); err == nil {
			t.Fatal("connected to nobody")
		}
	}
	// One attempt at a time: nobody answers this one.
	l, err := db.Listen(netip.AddrPortFrom(verbstest.AddrB, 9), verbs.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, err := a.QP.Connect(ctx, l.Addr(), verbs.ConnParams{})
		first <- err
	}()
	if _, err := l.Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.QP.Connect(t.Context(), l.Addr(), verbs.ConnParams{}); !errors.Is(err, verbs.ErrState) {
		t.Errorf("a second attempt beside the first: %v", err)
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	l.Close()
	verbstest.Connect(t, a, b, verbs.ConnParams{RelaxedFirst: true})
	if i := a.QP.Info(); i.IRD != 16 || i.ORD != 16 || i.PeerIRD != 16 || i.PeerORD != 16 || i.Revision != 2 {
		t.Errorf("%+v", i)
	}
	b.Send(verbs.SendWR{})
	if wc := a.Wait(1)[0]; wc.ID != 7 || wc.Status != verbs.Success {
		t.Errorf("%+v", wc)
	}
	if _, err := a.QP.Connect(context.Background(), netip.AddrPortFrom(verbstest.AddrB, 9), verbs.ConnParams{}); !errors.Is(err, verbs.ErrState) {
		t.Errorf("connected twice: %v", err)
	}
}

// A listener whose stack ends says so instead of waiting for ever.
func TestListenerLost(t *testing.T) {
	net := llptest.NewNet(llptest.Options{})
	stack := &lostStack{Stack: net.Stack(verbstest.AddrA)}
	d, err := verbs.Open(stack, verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l, err := d.Listen(netip.AddrPortFrom(verbstest.AddrA, 1), verbs.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Millisecond, func() { stack.l.Close() })
	if _, err := l.Accept(t.Context()); !errors.Is(err, llp.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

type lostStack struct {
	llp.Stack
	l llp.Listener
}

func (s *lostStack) Listen(addr netip.AddrPort, backlog int) (llp.Listener, error) {
	l, err := s.Stack.Listen(addr, backlog)
	s.l = l
	return l, err
}

// Connections are cancelled, refused, closed under either side's hands at any
// moment: every call returns, the QP is idle or ends, nothing is left (goleak).
func TestSetUpInterrupted(t *testing.T) {
	for seed := range uint64(150) {
		r := mrand.New(mrand.NewPCG(seed, 9))
		da, db := verbstest.Net(t, verbstest.Options{CutSeed: seed + 1, Config: verbs.Config{StartupTimeout: 200 * time.Millisecond}})
		a, b := verbstest.NewSide(t, da, verbstest.Options{}), verbstest.NewSide(t, db, verbstest.Options{})
		a.Recv(verbs.RecvWR{ID: 1})
		l, err := db.Listen(netip.AddrPortFrom(verbstest.AddrB, 1), verbs.ListenConfig{Backlog: 1 + r.IntN(2)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		answer, what, when := r.IntN(4), r.IntN(7), time.Duration(r.IntN(60))*time.Microsecond
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				req, err := l.Accept(ctx)
				if err != nil {
					return
				}
				switch answer {
				case 0:
					_ = req.Reject([]byte("no"))
				case 1: // no answer at all
				default:
					_, _ = req.Accept(b.QP, verbs.ConnParams{})
				}
			}
		})
		cctx, ccancel := context.WithCancel(ctx)
		wg.Go(func() {
			_, err := a.QP.Connect(cctx, l.Addr(), verbs.ConnParams{})
			if s := a.QP.State(); err == nil && s == verbs.Idle || err != nil && s != verbs.Idle && s != verbs.Error {
				t.Errorf("seed %d: state %v, Connect: %v", seed, s, err)
			}
		})
		time.Sleep(when)
		switch what {
		case 0:
			ccancel()
		case 1:
			a.QP.Close()
		case 2:
			l.Close()
		case 3:
			da.Close()
		case 4:
			db.Close()
		case 5:
			b.QP.Close()
		case 6:
			wg.Go(func() { da.Close() })
			wg.Go(func() { a.QP.Close() })
		}
		if answer == 1 {
			ccancel() // nothing else would end it soon
		}
		l.Close()
		wg.Wait()
		if err := a.QP.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
		<-a.QP.Done()
		if wc := a.Wait(1)[0]; wc.ID != 1 || wc.Status != verbs.WRFlush {
			t.Errorf("seed %d: %+v", seed, wc)
		}
		ccancel()
		cancel()
	}
}

// What QPs, CQs and PDs refuse to be made of.
func TestCreateErrors(t *testing.T) {
	d, other := verbstest.Net(t, verbstest.Options{})
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := d.CreateCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.CreateCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	closed, err := d.CreateCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for name, c := range map[string]verbs.QPConfig{
		"no CQ":            {},
		"no RecvCQ":        {SendCQ: cq},
		"foreign CQ":       {SendCQ: cq, RecvCQ: foreign},
		"MaxSendWR":        {SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: verbs.MaxWR + 1}},
		"MaxRecvWR":        {SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxRecvWR: -1}},
		"MaxSendSGE":       {SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendSGE: 33}},
		"MaxInline too":    {SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxInline: 1 << 20}},
		"MaxRecvSGE minus": {SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxRecvSGE: -2}},
	} {
		if _, err := pd.CreateQP(c); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: closed}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("closed CQ: %v", err)
	}
	if err := cq.Close(); err != nil {
		t.Errorf("the CQ of a QP that was never made: %v", err)
	}
	for _, depth := range []int{0, -1, verbs.MaxCQE + 1} {
		if _, err := d.CreateCQ(depth); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("depth %d: %v", depth, err)
		}
	}
	if _, err := pd.RegMRAt(make([]byte, 2), 1<<64-1, 0); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a region that passes 2^64: %v", err)
	}
	if _, err := pd.RegMR(nil, 0x80); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("unknown rights: %v", err)
	}
	mr, err := pd.RegMR(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := pd.Close(); !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), "1 MRs") {
		t.Errorf("PD.Close with an MR: %v", err)
	}
	if err := errors.Join(mr.Dereg(), pd.Close()); err != nil {
		t.Error(err)
	}
	if _, err := pd.RegMR(nil, 0); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("RegMR in a closed PD: %v", err)
	}
	if _, err := verbs.Open(nil, verbs.Config{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("no stack: %v", err)
	}
}

// An MR with a base of its own is addressed by it, to the octet.
func TestBase(t *testing.T) {
	a, b := verbstest.Pair(t, verbstest.Options{})
	const base = 1<<64 - 1000
	buf := make([]byte, 1000)
	m, err := b.PD.RegMRAt(buf, base, verbs.RemoteWrite|verbs.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	src := a.MR(1000, verbs.LocalWrite)
	copy(src.Bytes(), "last")
	a.Send(verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, 4)}, RemoteSTag: m.STag(), RemoteTO: base + 990, Flags: verbs.Signaled},
		verbs.SendWR{ID: 1, Op: verbs.OpRead, SGL: []verbs.SGE{src.SGE(500, 4)}, RemoteSTag: m.STag(), RemoteTO: base + 990, Flags: verbs.Signaled})
	ok(t, a.Wait(2))
	if string(src.Bytes()[500:504]) != "last" || string(buf[990:994]) != "last" {
		t.Errorf("%q %q", src.Bytes()[500:504], buf[990:])
	}
	a.Send(verbs.SendWR{ID: 2, Op: verbs.OpRead, SGL: []verbs.SGE{src.SGE(500, 4)}, RemoteSTag: m.STag(), RemoteTO: 0})
	if wc := a.Wait(1)[0]; wc.Status != verbs.RemoteAccess {
		t.Errorf("below the base: %v", wc.Status)
	}
}

// Send with Invalidate takes the STag away before its receiver learns of it.
func TestInvalidate(t *testing.T) {
	a, b := verbstest.Pair(t, verbstest.Options{})
	m := b.MR(4, verbs.RemoteWrite|verbs.RemoteInvalidate)
	b.Recv(verbs.RecvWR{ID: 1})
	a.Send(verbs.SendWR{Op: verbs.OpSendInv, InvSTag: m.STag(), Flags: verbs.Solicited})
	wc := b.Wait(1)[0]
	if wc.Flags != verbs.Invalidated|verbs.Solicited || wc.InvSTag != m.STag() || m.Valid() {
		t.Errorf("%+v, valid %v", wc, m.Valid())
	}
	if _, err := b.QP.PostSend(verbs.SendWR{SGL: []verbs.SGE{m.SGE(0, 1)}}); !errors.Is(err, verbs.ErrSTag) {
		t.Errorf("PostSend of it: %v", err)
	}
	if err := m.Dereg(); err != nil {
		t.Errorf("Dereg: %v", err)
	}
}

// Counters and logs tell what happened.
func TestStatsAndLog(t *testing.T) {
	var mu sync.Mutex
	var log bytes.Buffer
	h := slog.NewTextHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(p)
	}), nil)
	a, b := verbstest.Pair(t, verbstest.Options{Config: verbs.Config{Logger: slog.New(h)}})
	m, r := a.MR(3000, verbs.LocalWrite), b.MR(3000, verbs.RemoteRead|verbs.RemoteWrite)
	b.Recv(verbs.RecvWR{}, verbs.RecvWR{})
	a.Send(verbs.SendWR{}, verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{m.SGE(0, 3000)}, RemoteSTag: r.STag()},
		verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{m.SGE(0, 3000)}, RemoteSTag: r.STag(), Flags: verbs.Signaled})
	ok(t, a.Wait(1))
	as, bs := a.QP.Stats(), b.QP.Stats()
	if as.SendsTx != 1 || as.WritesTx != 1 || as.ReadRequestsTx != 1 || as.ReadResponsesRx != 1 || as.TxFPDUs != 5 || as.RxFPDUs != 3 || as.SendWRs != 0 ||
		as.TxOctets != 18+3000+3*14+18+28 {
		t.Errorf("%+v", as)
	}
	if bs.SendsRx != 1 || bs.WritesRx != 1 || bs.ReadRequestsRx != 1 || bs.ReadResponsesTx != 1 || bs.RxOctets != as.TxOctets || bs.RecvWRs != 1 {
		t.Errorf("%+v", bs)
	}
	a.Send(verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{m.SGE(0, 1)}, RemoteSTag: r.STag() + 1})
	<-a.QP.Done()
	<-b.QP.Done()
	mu.Lock()
	defer mu.Unlock()
	slog.New(slog.NewTextHandler(&log, nil)).Info("values", "qp", a.QP, "mr", r, "wc", verbs.WC{ID: 5, Status: verbs.WRFlush, Err: verbs.ErrFlushed, QP: a.QP})
	for _, want := range []string{"qp.num=1 qp.state=Error qp.peer=192.0.2.2", "mr.len=3000 mr.access=", "mr.valid=true", `wc.id=5 wc.op=Send wc.status="Work Request Flushed Error" wc.qp=1 wc.err=`,
		`level=INFO msg="connection up" qp=1 peer=192.0.2.`, "crc=true", "level=WARN msg=terminate qp=1", "layer=1 type=1 code=0",
		fmt.Sprintf("%v", verbs.STag(r.STag()+1)), `level=INFO msg="connection down"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
	if l := a.Device.Limits(); l.MaxSGE != verbs.MaxSGE || l.MaxReadSGE != 1 || l.MaxMessage != 1<<32-1 {
		t.Errorf("%+v", l)
	}
}

type writer func([]byte) (int, error)

func (f writer) Write(p []byte) (int, error) { return f(p) }
