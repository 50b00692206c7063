package verbs_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/llp/llptest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/verbstest"
)

// fault is what befalls a connection when one side has received so many octets.
type fault struct {
	after int
	flip  bool // a bit of the octet there; else the connection is reset
}

// badStack makes connections that a fault befalls: as the one that dials, or as the
// one that listens.
type badStack struct {
	llp.Stack
	f fault
}

func (s *badStack) Dial(ctx context.Context, local, remote netip.AddrPort) (llp.Conn, error) {
	c, err := s.Stack.Dial(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	return &badConn{Conn: c, f: s.f}, nil
}

func (s *badStack) Listen(addr netip.AddrPort, backlog int) (llp.Listener, error) {
	l, err := s.Stack.Listen(addr, backlog)
	return &badListener{l, s.f}, err
}

type badListener struct {
	llp.Listener
	f fault
}

func (l *badListener) Accept(ctx context.Context) (llp.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &badConn{Conn: c, f: l.f}, nil
}

type badConn struct {
	llp.Conn
	f    fault
	seen int // octets consumed
}

func (c *badConn) Receive(need, budget int) ([][]byte, error) {
	s, err := c.Conn.Receive(need, budget)
	n := 0
	for i := range s {
		at := c.f.after - c.seen - n
		n += len(s[i])
		if c.f.after == 0 || at < 0 || at >= len(s[i]) {
			continue
		}
		if !c.f.flip {
			c.Conn.(*llptest.Conn).Break(llp.ErrReset)
			return c.Conn.Receive(need, budget)
		}
		s[i] = bytes.Clone(s[i])
		s[i][at] ^= 1 << (c.f.after % 8)
	}
	return s, err
}

func (c *badConn) Consume(n int) error {
	c.seen += n
	return c.Conn.Consume(n)
}

// party is one side of a random conversation, and what it knows must hold.
type party struct {
	*verbstest.Side
	r       *rand.Rand
	src     *verbs.MR // what it sends, and lets the peer read: never changes
	dst     *verbs.MR // where Reads and receives go, one slot each
	win     *verbs.MR // where the peer Writes
	peer    *party
	sends   []verbs.SendWR // posted, ID is the index
	lens    []int
	msgs    []int // of sends, those that are Sends, by MSN
	sendWCs []verbs.WC
	recvWCs []verbs.WC
}

const (
	partyOps = 60
	slotLen  = 6000
)

func newParty(s *verbstest.Side, r *rand.Rand) *party {
	p := &party{Side: s, r: r}
	p.src = s.MR(1<<16, verbs.RemoteRead)
	for i := range p.src.Bytes() {
		p.src.Bytes()[i] = byte(r.Uint32())
	}
	p.dst = s.MR(2*partyOps*slotLen, verbs.LocalWrite)
	p.win = s.MR(1<<16, verbs.RemoteWrite)
	return p
}

func (p *party) postRecvs() {
	for i := range partyOps {
		p.Recv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{p.dst.SGE(i*slotLen, 1000), p.dst.SGE(i*slotLen+1000, slotLen-1000)}})
	}
}

// post posts all of its work. What it sends, at which offset, is a function of the
// WR, so that the other side can check it.
func (p *party) post() {
	for i := range partyOps {
		n := p.r.IntN(slotLen)
		if p.r.IntN(8) == 0 {
			n = 0
		}
		wr := verbs.SendWR{ID: uint64(i), Flags: verbs.Flags(p.r.IntN(2)) * verbs.Signaled, SGL: []verbs.SGE{p.src.SGE(i, n/3), p.src.SGE(i+n/3, n-n/3)}}
		if p.r.IntN(4) == 0 {
			wr.Flags |= verbs.Fence
		}
		switch p.r.IntN(4) {
		case 0:
			wr.Op, wr.RemoteSTag, wr.RemoteTO = verbs.OpWrite, p.peer.win.STag(), uint64(i)
		case 1:
			wr.Op, wr.RemoteSTag, wr.RemoteTO = verbs.OpRead, p.peer.src.STag(), uint64(i)
			wr.SGL = []verbs.SGE{p.dst.SGE((partyOps+i)*slotLen, n)}
		case 2:
			if n <= 64 || p.r.IntN(4) == 0 {
				n = min(n, 64)
				wr.Data, wr.SGL = bytes.Clone(p.src.Bytes()[i:i+n]), nil
				wr.Flags |= verbs.Inline
			}
			p.msgs = append(p.msgs, i)
		default:
			wr.Flags |= verbs.Solicited
			p.msgs = append(p.msgs, i)
		}
		p.sends, p.lens = append(p.sends, wr), append(p.lens, n)
		if _, err := p.QP.PostSend(wr); err != nil {
			// Closing, then: this and all behind it stay with the program.
			p.sends, p.lens = p.sends[:i], p.lens[:i]
			return
		}
		clear(wr.Data)
	}
}

func (p *party) drain() {
	var wcs [16]verbs.WC
	for {
		n, _ := p.CQ.Poll(wcs[:])
		if n == 0 {
			return
		}
		for _, wc := range wcs[:n] {
			if wc.Op == verbs.OpRecv {
				p.recvWCs = append(p.recvWCs, wc)
			} else {
				p.sendWCs = append(p.sendWCs, wc)
			}
		}
	}
}

// check holds the completions against the model: once each, in order, nothing
// succeeds after a failure, and what succeeded has its octets.
func (p *party) check() error {
	p.drain()
	if len(p.recvWCs) != partyOps {
		return fmt.Errorf("%d receives completed of %d", len(p.recvWCs), partyOps)
	}
	failed := false
	for i, wc := range p.recvWCs {
		if wc.ID != uint64(i) {
			return fmt.Errorf("receive %d completed in place of %d", wc.ID, i)
		}
		if wc.Status != verbs.Success {
			failed = true
			continue
		}
		if failed {
			return fmt.Errorf("receive %d succeeded after a failure", i)
		}
		if i >= len(p.peer.msgs) {
			return fmt.Errorf("receive %d of a message that nobody sent", i)
		}
		k := p.peer.msgs[i]
		if n := p.peer.lens[k]; int(wc.ByteLen) != n || !bytes.Equal(p.dst.Bytes()[i*slotLen:i*slotLen+n], p.peer.src.Bytes()[k:k+n]) {
			return fmt.Errorf("receive %d: other octets than Send %d had, or other than %d", i, k, n)
		}
		if got, want := wc.Flags&verbs.Solicited, p.peer.sends[k].Flags&verbs.Solicited; got != want {
			return fmt.Errorf("receive %d: solicited %v", i, got)
		}
	}
	at, failed := 0, false
	for _, wc := range p.sendWCs {
		for ; at < len(p.sends) && p.sends[at].ID != wc.ID; at++ {
			if failed || p.sends[at].Flags&verbs.Signaled != 0 {
				return fmt.Errorf("WR %d completed, %d did not", wc.ID, at)
			}
		}
		if at == len(p.sends) {
			return fmt.Errorf("WR %d completed out of order, or twice", wc.ID)
		}
		wr := &p.sends[at]
		if wc.Op != wr.Op || wc.QP != p.QP {
			return fmt.Errorf("WR %d: %+v", at, wc)
		}
		switch {
		case wc.Status != verbs.Success:
			failed = true
			if wc.Err == nil {
				return fmt.Errorf("WR %d: %v without a reason", at, wc.Status)
			}
		case failed:
			return fmt.Errorf("WR %d succeeded after a failure", at)
		case wr.Flags&verbs.Signaled == 0:
			return fmt.Errorf("WR %d succeeded visibly, unsignaled", at)
		case int(wc.ByteLen) != p.lens[at]:
			return fmt.Errorf("WR %d: %d octets of %d", at, wc.ByteLen, p.lens[at])
		}
		at++
	}
	for ; at < len(p.sends); at++ {
		if failed || p.sends[at].Flags&verbs.Signaled != 0 {
			return fmt.Errorf("WR %d did not complete", at)
		}
	}
	// Reads that did not fail have their octets: those that a success or a graceful
	// end covers.
	last := -1
	for _, wc := range p.sendWCs {
		if wc.Status == verbs.Success {
			last = int(wc.ID)
		}
	}
	if !failed {
		last = len(p.sends) - 1
	}
	for i := range p.sends[:last+1] {
		if p.sends[i].Op == verbs.OpRead {
			n, slot := p.lens[i], p.dst.Bytes()[(partyOps+i)*slotLen:]
			if !bytes.Equal(slot[:n], p.peer.src.Bytes()[i:i+n]) {
				return fmt.Errorf("Read %d: other octets than the peer has", i)
			}
		}
	}
	return nil
}

// Two sides talk at random in both directions, and at a random moment something
// happens, or nothing. Whatever it is: every WR completes once and in order, octets
// are right where they are promised, no goroutine is left.
func TestRandomConversations(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		if err := converse(t, seed); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func converse(t *testing.T, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 77))
	o := llptest.Options{EMSS: []int{128, 536, 1420, 8948}[r.IntN(4)], Space: 20000 + r.IntN(1<<19)}
	if r.IntN(2) == 0 {
		var mu sync.Mutex
		cut := rand.New(rand.NewPCG(seed, 78))
		o.Cut = func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return 1 + cut.IntN(n)
		}
	}
	o.Hold = r.IntN(2) == 0
	what := r.IntN(9)
	var f [2]fault
	if what < 2 {
		f[r.IntN(2)] = fault{after: 1000 + r.IntN(200000), flip: what == 0}
	}
	net := llptest.NewNet(o)
	cfg := verbs.Config{CloseTimeout: 300 * time.Millisecond}
	var devices [2]*verbs.Device
	for i, addr := range []netip.Addr{verbstest.AddrA, verbstest.AddrB} {
		d, err := verbs.Open(&badStack{net.Stack(addr), f[i]}, cfg)
		if err != nil {
			return err
		}
		defer d.Close()
		devices[i] = d
	}
	sides := [2]*verbstest.Side{}
	var p [2]*party
	for i := range sides {
		sides[i] = verbstest.NewSide(t, devices[i], verbstest.Options{Depth: partyOps + 1})
		p[i] = newParty(sides[i], rand.New(rand.NewPCG(seed, uint64(i))))
	}
	p[0].peer, p[1].peer = p[1], p[0]
	for i := range p {
		p[i].postRecvs()
	}
	verbstest.Connect(t, sides[0], sides[1], verbs.ConnParams{IRD: 1 + r.IntN(4), ORD: 1 + r.IntN(4)})

	wait := time.Duration(r.IntN(2000)) * time.Microsecond
	var wg sync.WaitGroup
	for i := range p {
		wg.Go(p[i].post)
	}
	if what >= 4 && what <= 7 { // the moment comes while posts are under way, or work is
		time.Sleep(wait)
	} else {
		wg.Wait()
	}
	k := r.IntN(2)
	switch what {
	case 4:
		wg.Go(func() { sides[k].QP.Close() })
	case 5:
		wg.Go(func() { devices[k].Close() })
	case 6:
		wg.Go(func() { _ = p[k].src.Dereg() })
	case 7:
		wg.Go(func() { _ = p[k].win.Dereg() })
	case 8: // both at once
		wg.Go(func() { _ = sides[1].QP.Disconnect(context.Background()) })
	}
	wg.Wait()
	if what == 2 || what == 3 { // graceful: nothing may fail
		for i := range p {
			if err := p[i].settle(); err != nil {
				return fmt.Errorf("side %d: %w", i, err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := sides[0].QP.Disconnect(ctx); ctx.Err() != nil {
		return fmt.Errorf("Disconnect: %w", err)
	}
	for i := range p {
		select {
		case <-sides[i].QP.Done():
		case <-ctx.Done():
			return fmt.Errorf("side %d is in state %v", i, sides[i].QP.State())
		}
	}
	for i := range p {
		if err := p[i].check(); err != nil {
			return fmt.Errorf("side %d, case %d (%v, %v): %w", i, what, sides[0].QP.Err(), sides[1].QP.Err(), err)
		}
		if what == 2 || what == 3 {
			if err := p[i].complete(); err != nil {
				return fmt.Errorf("side %d: %w", i, err)
			}
		}
	}
	return nil
}

// settle waits until all that was posted has been sent and answered.
func (p *party) settle() error {
	deadline := time.Now().Add(10 * time.Second)
	for p.QP.Stats().SendWRs > 0 {
		if time.Now().After(deadline) {
			return fmt.Errorf("%+v, state %v: %v", p.QP.Stats(), p.QP.State(), p.QP.Err())
		}
		time.Sleep(10 * time.Microsecond)
	}
	for {
		p.drain()
		if len(p.recvWCs) >= len(p.peer.msgs) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d messages of %d", len(p.recvWCs), len(p.peer.msgs))
		}
		time.Sleep(10 * time.Microsecond)
	}
}

// complete says what was lost although nothing went wrong.
func (p *party) complete() error {
	for _, wc := range p.sendWCs {
		if wc.Status != verbs.Success {
			return fmt.Errorf("WR %d: %v: %w", wc.ID, wc.Status, wc.Err)
		}
	}
	for i, wc := range p.recvWCs {
		if i < len(p.peer.msgs) && wc.Status != verbs.Success {
			return fmt.Errorf("receive %d: %v: %w", i, wc.Status, wc.Err)
		}
	}
	// Every octet that a Write brought is there, by the last one to bring it.
	want := make([]byte, p.win.Len())
	for i, wr := range p.peer.sends {
		if wr.Op == verbs.OpWrite {
			n := p.peer.lens[i]
			copy(want[i:i+n], p.peer.src.Bytes()[i:i+n])
		}
	}
	if !bytes.Equal(p.win.Bytes(), want) {
		return fmt.Errorf("Writes: other octets than were sent")
	}
	return p.QP.Err()
}
