package verbstest_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/verbstest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What a pair carries is the same whatever its shape.
func TestPair(t *testing.T) {
	for _, o := range []verbstest.Options{
		{},
		{EMSS: 64000},
		{EMSS: 128, CutSeed: 1},
		{CutSeed: 2, Depth: 2, Params: verbs.ConnParams{NoCRC: true, IRD: 1, ORD: 1}},
	} {
		var buf *verbs.MR
		o.PostFirst = func(a, b *verbstest.Side) {
			buf = a.MR(10, verbs.LocalWrite)
			a.Recv(verbs.RecvWR{ID: 5, SGL: []verbs.SGE{buf.SGE(0, 10)}})
		}
		a, b := verbstest.Pair(t, o)
		src, dst := a.MR(100000, 0), b.MR(100000, verbs.RemoteWrite|verbs.RemoteRead)
		r := rand.New(rand.NewPCG(1, 2))
		for i := range src.Bytes() {
			src.Bytes()[i] = byte(r.Uint32())
		}
		a.Send(verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, 100000)}, RemoteSTag: dst.STag(), Flags: verbs.Signaled})
		if wc := a.Wait(1)[0]; wc.ID != 1 || wc.Status != verbs.Success {
			t.Errorf("%+v: %+v", o, wc)
		}
		for dst.LoadByte(99999) != src.Bytes()[99999] {
		}
		if !bytes.Equal(src.Bytes(), dst.Bytes()) {
			t.Errorf("%+v: other octets", o)
		}
		b.Send(verbs.SendWR{ID: 2, Data: []byte("hello"), Flags: verbs.Inline})
		if wc := a.Wait(1)[0]; wc.ID != 5 || string(buf.Bytes()[:wc.ByteLen]) != "hello" {
			t.Errorf("%+v: %+v", o, wc)
		}
		if info := a.QP.Info(); info.CRC == o.Params.NoCRC || a.QP.RemoteAddr().Addr() != verbstest.AddrB || b.QP.RemoteAddr().Addr() != verbstest.AddrA {
			t.Errorf("%+v", info)
		}
	}
}
