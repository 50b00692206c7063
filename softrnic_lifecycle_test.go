package softrnic_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic"
	"github.com/softrnic/softrnic/tap/taptest"
	"github.com/softrnic/softrnic/verbs"
)

// rnics returns two RNICs on a wire in memory.
func rnics(t testing.TB, o taptest.Options) (a, b *softrnic.RNIC) {
	t.Helper()
	wires := [2]softrnic.Config{}
	wires[0].Device, wires[1].Device = taptest.Pipe(o)
	var r [2]*softrnic.RNIC
	for i := range r {
		wires[i].Verbs.CloseTimeout = 40 * time.Second
		wires[i].Addrs = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.9.0.%d/24", i+1))}
		var err error
		if r[i], err = softrnic.Open(t.Context(), wires[i]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r[i].Close() })
	}
	return r[0], r[1]
}

// accepting returns a listener whose connections go to f, each in a goroutine of its
// own, and what waits for all of them.
func accepting(t testing.TB, r *softrnic.RNIC, f func(req *verbs.ConnRequest)) (addr netip.AddrPort, wait func()) {
	l, err := r.Listen(netip.MustParseAddrPort("10.9.0.2:0"), verbs.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			req, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			wg.Go(func() { f(req) })
		}
	})
	return l.Addr(), func() { l.Close(); wg.Wait() }
}

// Over a real TCP: connections by the hundred, closed by the one side, the other,
// both at once, or abruptly. Each side learns of the end once, a graceful one is
// graceful on both, and nobody waits for a timeout.
func TestConnectionsOverTCP(t *testing.T) {
	a, b := rnics(t, taptest.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	type end struct {
		kind string
		err  error
	}
	ends := make(chan end, 1000)
	addr, wait := accepting(t, b, func(req *verbs.ConnRequest) {
		kind := string(req.PrivateData())
		qp := newQP(b.Device)
		for range 4 {
			if _, err := qp.PostRecv(verbs.RecvWR{}); err != nil {
				t.Error(err)
			}
		}
		if _, err := req.Accept(qp, verbs.ConnParams{}); err != nil {
			t.Error(err)
			return
		}
		switch kind {
		case "responder":
			for qp.Stats().SendsRx < 3 {
				time.Sleep(100 * time.Microsecond)
			}
			if err := qp.Disconnect(ctx); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		case "both":
			for qp.Stats().SendsRx < 3 {
				time.Sleep(100 * time.Microsecond)
			}
			if err := qp.Disconnect(ctx); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
		<-qp.Done()
		ends <- end{kind, qp.Err()}
		if err := qp.Close(); err != nil {
			t.Error(err)
		}
	})
	kinds := []string{"initiator", "responder", "both", "abrupt"}
	begin := time.Now()
	const n = 200
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			kind := kinds[i%len(kinds)]
			qp := newQP(a.Device)
			if _, err := qp.Connect(ctx, addr, verbs.ConnParams{PrivateData: []byte(kind)}); err != nil {
				t.Errorf("%d: %v", i, err)
				return
			}
			if k, err := qp.PostSend(make([]verbs.SendWR, 3)...); k != 3 {
				t.Errorf("%d: %v", i, err)
			}
			switch kind {
			case "initiator", "both":
				if err := qp.Disconnect(ctx); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
			case "responder":
				<-qp.Done()
				if err := qp.Err(); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
			}
			if err := qp.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wait()
	close(ends)
	count := 0
	for e := range ends {
		count++
		if graceful := e.kind != "abrupt"; graceful != (e.err == nil) {
			t.Errorf("%s: the responder saw %v", e.kind, e.err)
		}
	}
	if count != n {
		t.Errorf("%d of %d ends", count, n)
	}
	if d := time.Since(begin); d > 30*time.Second {
		t.Errorf("took %v: someone waited for a timeout", d)
	}
	for _, r := range []*softrnic.RNIC{a, b} {
		if s := r.Device.Stats(); s.QPs != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// Faults over a real TCP: the Terminate arrives, since a FIN follows it and no RST.
func TestTerminateOverTCP(t *testing.T) {
	a, b := rnics(t, taptest.Options{MTU: 9000})
	for i := range 50 {
		ends := make(chan error, 1)
		addr, wait := accepting(t, b, func(req *verbs.ConnRequest) {
			qp := newQP(b.Device)
			defer qp.Close()
			if _, err := req.Accept(qp, verbs.ConnParams{}); err != nil {
				t.Error(err)
				return
			}
			<-qp.Done()
			ends <- qp.Err()
		})
		qp := newQP(a.Device)
		if _, err := qp.Connect(t.Context(), addr, verbs.ConnParams{}); err != nil {
			t.Fatal(err)
		}
		mr, err := qp.PD().RegMR(make([]byte, 1<<20), 0)
		if err != nil {
			t.Fatal(err)
		}
		// More is on its way than the peer will look at.
		wr := verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{mr.SGE(0, 1<<20)}, RemoteSTag: 0x1234}
		if k, err := qp.PostSend(wr, wr, wr); k != 3 {
			t.Fatal(err)
		}
		select {
		case <-qp.Done():
		case <-time.After(10 * time.Second):
			t.Fatalf("round %d: state %v, %+v", i, qp.State(), qp.Stats())
		}
		var te *verbs.TerminateError
		if !errors.As(qp.Err(), &te) || !te.Remote || te.Layer != 1 || te.Type != 1 || te.Code != 0 {
			t.Errorf("round %d: %v", i, qp.Err())
		}
		if err := <-ends; !errors.As(err, &te) || te.Remote || !errors.Is(err, verbs.ErrSTag) {
			t.Errorf("round %d: the target: %v", i, err)
		}
		if err := qp.Close(); err != nil {
			t.Error(err)
		}
		if err := mr.Dereg(); err != nil {
			t.Error(err)
		}
		wait()
	}
}
