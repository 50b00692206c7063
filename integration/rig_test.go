package integration

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/netstack"
	"github.com/softrnic/softrnic/tap"
	"github.com/softrnic/softrnic/tap/taptest"
	"github.com/softrnic/softrnic/verbs"
)

// end is one RNIC of a test: a stack on a device, verbs on the stack, and one
// connected queue pair.
type end struct {
	addr  netip.Addr
	stack *netstack.Stack
	dev   *verbs.Device
	pd    *verbs.PD
	sq    *verbs.CQ // completions of sends
	rq    *verbs.CQ // completions of receives
	qp    *verbs.QP
}

// depth of the queues in a rig, in WRs.
const depth = 1024

// rig says what two ends are.
type rig struct {
	mtu      int
	v6       bool
	noCRC    bool
	netstack netstack.Config // but for Addrs
}

// pipe joins two RNICs in memory and connects a queue pair of each.
func (r rig) pipe(t testing.TB, faults ...taptest.Faults) (a, b *end) {
	t.Helper()
	da, db := r.devices(t, faults...)
	return r.over(t, da, db)
}

// over makes RNICs of two devices and connects a queue pair of each. All of it
// is gone with t.
func (r rig) over(t testing.TB, da, db tap.Device) (a, b *end) {
	t.Helper()
	addrs := [2]string{"10.1.0.1/24", "10.1.0.2/24"}
	if r.v6 {
		addrs = [2]string{"fd00::1/64", "fd00::2/64"}
	}
	a, b = r.end(t, da, addrs[0]), r.end(t, db, addrs[1])
	l, err := b.dev.Listen(netip.AddrPortFrom(b.addr, 4791), verbs.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	r.connect(t, ctx, a, b, l)
	return a, b
}

// connect connects a's queue pair to b's, through b's listener.
func (r rig) connect(t testing.TB, ctx context.Context, a, b *end, l *verbs.Listener) {
	t.Helper()
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			_, err = req.Accept(b.qp, verbs.ConnParams{NoCRC: r.noCRC})
		}
		accepted <- err
	}()
	info, err := a.qp.Connect(ctx, l.Addr(), verbs.ConnParams{NoCRC: r.noCRC})
	if err = errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	if info.CRC == r.noCRC {
		t.Fatalf("CRC is %v, wanted %v", info.CRC, !r.noCRC)
	}
}

// end makes an RNIC of dev, with a queue pair.
func (r rig) end(t testing.TB, dev tap.Device, addr string) *end {
	t.Helper()
	e := r.bare(t, dev, addr)
	e.newQP(t)
	return e
}

// bare makes an RNIC of dev, without a queue pair.
func (r rig) bare(t testing.TB, dev tap.Device, addr string) *end {
	t.Helper()
	prefix := netip.MustParsePrefix(addr)
	e := &end{addr: prefix.Addr()}
	cfg := r.netstack
	cfg.Addrs = []netip.Prefix{prefix}
	var err error
	if e.stack, err = netstack.New(dev, cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.stack.Close(); dev.Close() })
	if e.dev, err = verbs.Open(e.stack, verbs.Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.dev.Close() })
	if e.pd, err = e.dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	return e
}

// newQP makes a queue pair with completion queues of its own.
func (e *end) newQP(t testing.TB) {
	t.Helper()
	var err error
	if e.sq, err = e.dev.CreateCQ(depth); err != nil {
		t.Fatal(err)
	}
	if e.rq, err = e.dev.CreateCQ(depth); err != nil {
		t.Fatal(err)
	}
	e.qp, err = e.pd.CreateQP(verbs.QPConfig{SendCQ: e.sq, RecvCQ: e.rq,
		Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 4, MaxRecvSGE: 4}})
	if err != nil {
		t.Fatal(err)
	}
}

// region registers n octets with every right.
func (e *end) region(t testing.TB, n int) *verbs.MR {
	t.Helper()
	mr, err := e.pd.RegMR(make([]byte, n), verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	return mr
}

// completions waits for n completions on cq and fails t at one that is no success.
func completions(t testing.TB, cq *verbs.CQ, n int, limit time.Duration) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	wcs := make([]verbs.WC, 64)
	for n > 0 {
		k, err := cq.Wait(ctx, wcs[:min(n, len(wcs))])
		if err != nil {
			t.Fatalf("%d completions to go: %v", n, err)
		}
		for _, wc := range wcs[:k] {
			if wc.Status != verbs.Success {
				t.Fatalf("WR %d: %v: %v", wc.ID, wc.Status, wc.Err)
			}
		}
		n -= k
	}
}

// message is one message of an exchange.
type message struct{ off, n int }

// messages cuts total octets into messages of 1 to most octets.
func messages(r *rand.Rand, total, most int) (ms []message) {
	for off := 0; off < total; {
		n := min(1+r.IntN(most), total-off)
		ms = append(ms, message{off, n})
		off += n
	}
	return ms
}

// fill gives every octet of p a random value.
func fill(p []byte, seed uint64) {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	rand.NewChaCha8(key).Read(p)
}

// exchange moves total octets from a's to b's memory in random messages, by Send,
// Write and Read each, and compares SHA-256 of what either side has. It returns
// how many messages there were.
func exchange(t testing.TB, a, b *end, seed uint64, total, most int, limit time.Duration) (n int) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	src, dst := a.region(t, total), b.region(t, total)
	for _, op := range []string{"send", "write", "read"} {
		fill(src.Bytes(), rnd.Uint64())
		clear(dst.Bytes())
		ms := messages(rnd, total, most)
		n += len(ms)
		for len(ms) > 0 {
			batch := ms[:min(len(ms), depth)]
			ms = ms[len(batch):]
			runBatch(t, op, a, b, src, dst, batch, limit)
		}
		// The one that reads knows that the data is there; of a Write, b learns by a
		// message behind it.
		if op == "write" {
			runBatch(t, "send", a, b, src, dst, []message{{0, 1}}, limit)
		}
		if got, want := sha256.Sum256(dst.Bytes()), sha256.Sum256(src.Bytes()); got != want {
			t.Fatalf("%s: b has SHA-256 %x, a sent %x", op, got, want)
		}
	}
	if err := errors.Join(src.Dereg(), dst.Dereg()); err != nil {
		t.Fatal(err)
	}
	return n
}

// runBatch posts one WR per message, all at once, and waits for them.
func runBatch(t testing.TB, op string, a, b *end, src, dst *verbs.MR, ms []message, limit time.Duration) {
	t.Helper()
	poster := a
	var wrs []verbs.SendWR
	var recvs []verbs.RecvWR
	for i, m := range ms {
		wr := verbs.SendWR{ID: uint64(i), Flags: verbs.Signaled}
		switch op {
		case "send":
			wr.Op, wr.SGL = verbs.OpSend, []verbs.SGE{src.SGE(m.off, m.n)}
			recvs = append(recvs, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{dst.SGE(m.off, m.n)}})
		case "write":
			wr.Op, wr.SGL = verbs.OpWrite, []verbs.SGE{src.SGE(m.off, m.n)}
			wr.RemoteSTag, wr.RemoteTO = dst.STag(), dst.Base()+uint64(m.off)
		case "read": // b reads from a
			poster = b
			wr.Op, wr.SGL = verbs.OpRead, []verbs.SGE{dst.SGE(m.off, m.n)}
			wr.RemoteSTag, wr.RemoteTO = src.STag(), src.Base()+uint64(m.off)
		default:
			panic(fmt.Sprintf("op %q", op))
		}
		wrs = append(wrs, wr)
	}
	if len(recvs) > 0 {
		if n, err := b.qp.PostRecv(recvs...); err != nil {
			t.Fatalf("receive %d of %d: %v", n, len(recvs), err)
		}
	}
	if n, err := poster.qp.PostSend(wrs...); err != nil {
		t.Fatalf("%s %d of %d: %v", op, n, len(wrs), err)
	}
	completions(t, poster.sq, len(wrs), limit)
	if len(recvs) > 0 {
		completions(t, b.rq, len(recvs), limit)
	}
}

// devices are two devices of r's MTU joined in memory.
func (r rig) devices(t testing.TB, faults ...taptest.Faults) (a, b tap.Device) {
	t.Helper()
	return taptest.Pipe(taptest.Options{MTU: r.mtu}, faults...)
}
