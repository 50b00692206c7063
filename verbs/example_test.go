package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/verbstest"
)

// A ping and its peer, complete. The two devices are joined in memory here;
// softrnic.Open makes one on a TAP, and nothing below changes.
func Example() {
	client, server, err := verbstest.Open(verbstest.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	defer server.Close()
	addr := netip.AddrPortFrom(verbstest.AddrB, 7174)

	ready, done := make(chan struct{}), make(chan error)
	go func() { done <- pong(server, addr, ready) }()
	<-ready
	if err := ping(client, addr); err != nil {
		log.Fatal(err)
	}
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	// Output:
	// server got "ping"
	// client got "pong"
}

// endpoint is what either side needs: a QP with a CQ, and memory to receive in.
type endpoint struct {
	cq *verbs.CQ
	qp *verbs.QP
	mr *verbs.MR
}

func newEndpoint(d *verbs.Device) (*endpoint, error) {
	pd, err := d.AllocPD()
	if err != nil {
		return nil, err
	}
	cq, err := d.CreateCQ(16)
	if err != nil {
		return nil, err
	}
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxInline: 64}})
	if err != nil {
		return nil, err
	}
	mr, err := pd.RegMR(make([]byte, 64), verbs.LocalWrite)
	if err != nil {
		return nil, err
	}
	// A receive must be there before the peer sends: iWARP has no back-pressure.
	_, err = qp.PostRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{mr.SGE(0, 64)}})
	return &endpoint{cq, qp, mr}, err
}

// receive returns the message that comes next.
func (e *endpoint) receive(ctx context.Context) (string, error) {
	for {
		var wc [1]verbs.WC
		if _, err := e.cq.Wait(ctx, wc[:]); err != nil {
			return "", err
		}
		if wc[0].Status != verbs.Success {
			return "", wc[0].Err
		}
		if wc[0].Op == verbs.OpRecv {
			return string(e.mr.Bytes()[:wc[0].ByteLen]), nil
		}
	}
}

func ping(d *verbs.Device, addr netip.AddrPort) error {
	ctx := context.Background()
	e, err := newEndpoint(d)
	if err != nil {
		return err
	}
	if _, err := e.qp.Connect(ctx, addr, verbs.ConnParams{}); err != nil {
		return err
	}
	if _, err := e.qp.PostSend(verbs.SendWR{Data: []byte("ping"), Flags: verbs.Inline}); err != nil {
		return err
	}
	s, err := e.receive(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("client got %q\n", s)
	return e.qp.Disconnect(ctx)
}

func pong(d *verbs.Device, addr netip.AddrPort, ready chan<- struct{}) error {
	ctx := context.Background()
	e, err := newEndpoint(d)
	if err != nil {
		return err
	}
	l, err := d.Listen(addr, verbs.ListenConfig{})
	if err != nil {
		return err
	}
	defer l.Close()
	close(ready)
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	if _, err := req.Accept(e.qp, verbs.ConnParams{}); err != nil {
		return err
	}
	s, err := e.receive(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("server got %q\n", s)
	if _, err := e.qp.PostSend(verbs.SendWR{Data: []byte("pong"), Flags: verbs.Inline}); err != nil {
		return err
	}
	<-e.qp.Done() // the client disconnects
	return e.qp.Err()
}

// connected returns the two ends of a connection, and what closes them.
func connected() (a, b *endpoint, closer func()) {
	da, db, err := verbstest.Open(verbstest.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if a, err = newEndpoint(da); err != nil {
		log.Fatal(err)
	}
	if b, err = newEndpoint(db); err != nil {
		log.Fatal(err)
	}
	l, err := db.Listen(netip.AddrPortFrom(verbstest.AddrB, 0), verbs.ListenConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		if req, err := l.Accept(context.Background()); err == nil {
			_, _ = req.Accept(b.qp, verbs.ConnParams{})
		}
	}()
	if _, err := a.qp.Connect(context.Background(), l.Addr(), verbs.ConnParams{}); err != nil {
		log.Fatal(err)
	}
	return a, b, func() { da.Close(); db.Close() }
}

// An RDMA Write goes to memory of the peer, whose program learns of it only by
// looking.
func Example_write() {
	a, b, closer := connected()
	defer closer()
	target, err := b.qp.PD().RegMR(make([]byte, 8), verbs.RemoteWrite)
	if err != nil {
		log.Fatal(err)
	}
	// The peer's program tells us the STag, by a Send for instance.
	stag := target.STag()

	copy(a.mr.Bytes(), "written!")
	if _, err := a.qp.PostSend(verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteSTag: stag}); err != nil {
		log.Fatal(err)
	}
	for target.LoadByte(7) == 0 { // the last octet becomes visible last
	}
	fmt.Printf("%s\n", target.Bytes())
	// Output: written!
}

// An RDMA Read fetches memory of the peer, whose program may be asleep.
func Example_read() {
	a, b, closer := connected()
	defer closer()
	source, err := b.qp.PD().RegMR([]byte("what the peer has"), verbs.RemoteRead)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := a.qp.PostSend(verbs.SendWR{ID: 1, Op: verbs.OpRead, SGL: []verbs.SGE{a.mr.SGE(0, 8)},
		RemoteSTag: source.STag(), RemoteTO: 9, Flags: verbs.Signaled}); err != nil {
		log.Fatal(err)
	}
	var wc [1]verbs.WC
	if _, err := a.cq.Wait(context.Background(), wc[:]); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v: %d octets: %s\n", wc[0].Status, wc[0].ByteLen, a.mr.Bytes()[:wc[0].ByteLen])
	// Output: success: 8 octets: peer has
}

// Private data travel with the request and with its answer; a refusal carries them
// too.
func Example_privateData() {
	client, server, err := verbstest.Open(verbstest.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	defer server.Close()
	l, err := server.Listen(netip.AddrPortFrom(verbstest.AddrB, 0), verbs.ListenConfig{})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for {
			req, err := l.Accept(context.Background())
			if err != nil {
				return // closed
			}
			if string(req.PrivateData()) != "volume 7" {
				_ = req.Reject([]byte("no such volume"))
				continue
			}
			if e, err := newEndpoint(server); err == nil {
				_, _ = req.Accept(e.qp, verbs.ConnParams{PrivateData: []byte("welcome")})
			}
		}
	}()
	e, err := newEndpoint(client)
	if err != nil {
		log.Fatal(err)
	}
	for _, volume := range []string{"volume 8", "volume 7"} {
		info, err := e.qp.Connect(context.Background(), l.Addr(), verbs.ConnParams{PrivateData: []byte(volume)})
		var rejected *verbs.RejectedError
		if errors.As(err, &rejected) {
			fmt.Printf("%s: refused: %s\n", volume, rejected.Peer.PrivateData)
		} else if err == nil {
			fmt.Printf("%s: connected: %s\n", volume, info.PrivateData)
		}
	}
	// Output:
	// volume 8: refused: no such volume
	// volume 7: connected: welcome
}

// A failure says what failed, where, and why: here a Read beyond the end of the
// peer's memory, which ends the connection.
func Example_failure() {
	a, b, closer := connected()
	defer closer()
	source, err := b.qp.PD().RegMR(make([]byte, 10), verbs.RemoteRead)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := a.qp.PostSend(
		verbs.SendWR{ID: 1, Op: verbs.OpRead, SGL: []verbs.SGE{a.mr.SGE(0, 11)}, RemoteSTag: source.STag()},
		verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.Fence},
	); err != nil {
		log.Fatal(err)
	}
	<-a.qp.Done()
	wcs := make([]verbs.WC, 8)
	n, _ := a.cq.Poll(wcs)
	for _, wc := range wcs[:n] {
		fmt.Printf("%v %d: %v\n", wc.Op, wc.ID, wc.Status)
	}
	var te *verbs.TerminateError
	if errors.As(a.qp.Err(), &te) {
		fmt.Println(te)
	}
	<-b.qp.Done()
	fmt.Println("the peer found bounds violated:", errors.Is(b.qp.Err(), verbs.ErrBounds))
	// Output:
	// Read 1: remote access error
	// Send 2: Work Request Flushed Error
	// Recv 1: Work Request Flushed Error
	// rdmap: stream terminated by the peer: base or bounds violation (layer 0, type 1, code 0x01; RFC 5040 section 4.8)
	// the peer found bounds violated: true
}
