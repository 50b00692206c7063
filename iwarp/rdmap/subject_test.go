package rdmap

import (
	"errors"
	"testing"

	"github.com/softrnic/softrnic/iwarp/ddp"
	"github.com/softrnic/softrnic/iwarp/llp/llptest"
	"github.com/softrnic/softrnic/iwarp/mem"
)

// What a Terminate is about is read off the headers that it quotes, whatever they
// hold.
func TestSubject(t *testing.T) {
	tagged := func(op Op) []byte {
		b := make([]byte, ddp.TaggedLen)
		h := ddp.Tagged{Last: true, RsvdULP: control(op), STag: 7, TO: 1 << 40}
		h.Put(b)
		return b
	}
	untagged := func(op Op, qn ddp.QN) []byte {
		b := make([]byte, ddp.UntaggedLen)
		h := ddp.Untagged{RsvdULP: control(op), QN: qn, MSN: 9}
		h.Put(b)
		return b
	}
	req := make([]byte, ReadRequestLen)
	(&ReadReq{SinkSTag: 1, SinkTO: 2, Size: 3, SrcSTag: 4, SrcTO: 5}).Put(req)
	badVersion := tagged(Write)
	badVersion[0]++
	for name, c := range map[string]struct {
		term Term
		want Subject
		ok   bool
	}{
		"nothing":       {Term{}, Subject{}, false},
		"Write":         {Term{DDP: tagged(Write)}, Subject{Op: Write, STag: 7, TO: 1 << 40}, true},
		"Read Response": {Term{DDP: tagged(ReadResponse)}, Subject{Op: ReadResponse, STag: 7, TO: 1 << 40}, true},
		"Send":          {Term{DDP: untagged(SendSE, QNSend)}, Subject{Op: SendSE, MSN: 9}, true},
		"Read":          {Term{DDP: untagged(ReadRequest, QNRead), RDMAP: req}, Subject{Op: ReadRequest, STag: 4, TO: 5}, true},
		"Read, no R":    {Term{DDP: untagged(ReadRequest, QNRead)}, Subject{}, false},
		"bad version":   {Term{DDP: badVersion}, Subject{}, false},
		"cut":           {Term{DDP: tagged(Write)[:13]}, Subject{}, false},
	} {
		if got, ok := c.term.Subject(); ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
	}
}

// A Read Response that cannot be sent any more is about its Read Request, though
// other segments came in since.
func TestUnansweredReadIsQuoted(t *testing.T) {
	a, b := streams(t, llptest.Options{EMSS: 1000, Space: 10000}, 4, 4)
	sink, src := a.region(1<<16, mem.LocalWrite), b.region(1<<16, mem.RemoteRead)
	target := b.region(8, mem.RemoteWrite)
	small := mem.NewLocal(make([]byte, 8))
	a.work = []Outbound{
		{Op: ReadRequest, SGL: mem.SGL{sink.Span(0, 10)}, STag: src.STag(), Token: 1},
		{Op: ReadRequest, SGL: mem.SGL{sink.Span(0, 1<<16)}, STag: src.STag(), TO: 0, Token: 2},
		{Op: Write, SGL: mem.SGL{small.Span(0, 8)}, STag: target.STag(), Token: 3},
	}
	step := func(o *owner) (err error) {
		if _, err = o.s.Receive(1 << 16); err == nil {
			_, err = o.s.Transmit(o)
		}
		return err
	}
	_ = step(a)
	_ = step(b) // the first Response, and part of the second
	if err := b.table.Deregister(src); err != nil {
		t.Fatal(err)
	}
	var te *TerminateError
	for range 100 {
		_ = step(a)
		if err := step(b); errors.As(err, &te) {
			break
		}
	}
	if te == nil {
		t.Fatal("no Terminate")
	}
	got, ok := te.Term.Subject()
	if !ok || got != (Subject{Op: ReadRequest, STag: src.STag()}) {
		t.Errorf("%+v, %v", got, ok)
	}
	if h, err := ddp.ParseUntagged(te.Term.DDP); err != nil || h.MSN != 2 || h.QN != QNRead {
		t.Errorf("%+v, %v", h, err)
	}
	if r, ok := ParseReadReq(te.Term.RDMAP); !ok || r.Size != 1<<16 || r.SinkSTag != sink.STag() {
		t.Errorf("%+v", r)
	}
}
