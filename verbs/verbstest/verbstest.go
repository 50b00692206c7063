// Package verbstest gives tests of RDMA programs a connected pair of devices in
// memory, in one line:
//
//	a, b := verbstest.Pair(t, verbstest.Options{})
//
// There is no TCP stack and no privilege in it; everything from MPA up is the real
// thing. What is made is closed when the test ends.
package verbstest

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp/llptest"
	"github.com/softrnic/softrnic/verbs"
)

// Options shape a pair; the zero value is good.
type Options struct {
	// EMSS is the payload of a TCP segment in octets; 0 means 1420.
	EMSS int
	// CutSeed, not 0, cuts what is received into pieces at random.
	CutSeed uint64
	// Depth is how many work requests each queue holds; 0 means 128.
	Depth int
	// Config of the devices, Params of the connection.
	Config verbs.Config
	Params verbs.ConnParams
	// PostFirst, if set, posts receives to the QPs before they are connected.
	PostFirst func(a, b *Side)
}

// Side is one end of a pair.
type Side struct {
	T      testing.TB
	Device *verbs.Device
	PD     *verbs.PD
	CQ     *verbs.CQ // of both queues
	QP     *verbs.QP
}

// Addrs of the two sides.
var (
	AddrA = netip.MustParseAddr("192.0.2.1")
	AddrB = netip.MustParseAddr("192.0.2.2")
)

// Net returns two unconnected devices on a network in memory, at AddrA and AddrB.
func Net(t testing.TB, o Options) (a, b *verbs.Device) {
	t.Helper()
	a, b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// Open is Net for programs that are no tests: the caller closes the devices.
func Open(o Options) (a, b *verbs.Device, err error) {
	lo := llptest.Options{EMSS: o.EMSS, Space: 1 << 20}
	if o.CutSeed != 0 {
		var mu sync.Mutex
		r := rand.New(rand.NewPCG(o.CutSeed, 0))
		lo.Cut = func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return 1 + r.IntN(n)
		}
	}
	net := llptest.NewNet(lo)
	if a, err = verbs.Open(net.Stack(AddrA), o.Config); err != nil {
		return nil, nil, err
	}
	if b, err = verbs.Open(net.Stack(AddrB), o.Config); err != nil {
		return nil, nil, errors.Join(err, a.Close())
	}
	return a, b, nil
}

// NewSide makes a PD, a CQ and an unconnected QP on d.
func NewSide(t testing.TB, d *verbs.Device, o Options) *Side {
	t.Helper()
	n := o.Depth
	if n == 0 {
		n = 128
	}
	s := &Side{T: t, Device: d}
	var err error
	if s.PD, err = d.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if s.CQ, err = d.CreateCQ(2 * n); err != nil {
		t.Fatal(err)
	}
	if s.QP, err = s.PD.CreateQP(verbs.QPConfig{SendCQ: s.CQ, RecvCQ: s.CQ,
		Cap: verbs.QPCap{MaxSendWR: n, MaxRecvWR: n, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64}}); err != nil {
		t.Fatal(err)
	}
	return s
}

// Pair returns two sides that are connected; a was the one to connect, and so the
// one that must send first.
func Pair(t testing.TB, o Options) (a, b *Side) {
	t.Helper()
	da, db := Net(t, o)
	a, b = NewSide(t, da, o), NewSide(t, db, o)
	if o.PostFirst != nil {
		o.PostFirst(a, b)
	}
	Connect(t, a, b, o.Params)
	return a, b
}

// Connect connects a to b.
func Connect(t testing.TB, a, b *Side, p verbs.ConnParams) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := b.Device.Listen(netip.AddrPortFrom(AddrB, 0), verbs.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			_, err = r.Accept(b.QP, p)
		}
		accepted <- err
	}()
	if _, err := a.QP.Connect(ctx, l.Addr(), p); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
}

// MR registers n octets with access.
func (s *Side) MR(n int, access verbs.Access) *verbs.MR {
	s.T.Helper()
	mr, err := s.PD.RegMR(make([]byte, n), access)
	if err != nil {
		s.T.Fatal(err)
	}
	return mr
}

// Send posts work requests that must be taken.
func (s *Side) Send(wrs ...verbs.SendWR) {
	s.T.Helper()
	if _, err := s.QP.PostSend(wrs...); err != nil {
		s.T.Fatal(err)
	}
}

// Recv posts receives that must be taken.
func (s *Side) Recv(wrs ...verbs.RecvWR) {
	s.T.Helper()
	if _, err := s.QP.PostRecv(wrs...); err != nil {
		s.T.Fatal(err)
	}
}

// Wait returns the next n completions, within ten seconds.
func (s *Side) Wait(n int) []verbs.WC {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	wcs := make([]verbs.WC, n)
	for got := 0; got < n; {
		m, err := s.CQ.Wait(ctx, wcs[got:])
		if err != nil {
			s.T.Fatalf("%d completions of %d: %v", got, n, err)
		}
		got += m
	}
	return wcs
}
