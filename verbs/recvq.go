package verbs

import (
	"sync"

	"github.com/softrnic/softrnic/iwarp/mem"
	"github.com/softrnic/softrnic/iwarp/rdmap"
)

type recvWork struct {
	id  uint64
	sgl mem.SGL
}

// recvQueue is a ring in this process, like sendQueue.
type recvQueue struct {
	q    *QP
	sink completionSink

	mu                sync.Mutex
	slots             []recvWork
	head, taken, tail uint64
	ended             error
}

func newRecvQueue(q *QP, sink completionSink, c QPCap) *recvQueue {
	r := &recvQueue{q: q, sink: sink, slots: make([]recvWork, c.MaxRecvWR)}
	spans := make([]mem.Span, c.MaxRecvWR*c.MaxRecvSGE)
	for i := range r.slots {
		r.slots[i].sgl = spans[i*c.MaxRecvSGE : i*c.MaxRecvSGE : (i+1)*c.MaxRecvSGE]
	}
	return r
}

func (r *recvQueue) slot(i uint64) *recvWork { return &r.slots[i%uint64(len(r.slots))] }

func (r *recvQueue) post(wr *RecvWR) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case len(r.slots) == 0 || r.tail-r.head >= uint64(len(r.slots)):
		return errorf(ErrFull, "receive queue of QP %d holds %d work requests", r.q.num, len(r.slots))
	case len(wr.SGL) > r.q.cap.MaxRecvSGE:
		return errorf(ErrTooBig, "%d SGEs, QP %d takes %d", len(wr.SGL), r.q.num, r.q.cap.MaxRecvSGE)
	}
	w := r.slot(r.tail)
	w.id = wr.ID
	var err error
	if w.sgl, _, err = resolve(w.sgl[:0], wr.SGL, r.q.pd, LocalWrite); err != nil {
		return err
	}
	r.tail++
	if r.ended != nil {
		r.drop(WRFlush, r.ended)
	}
	return nil
}

func (r *recvQueue) take() (mem.SGL, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken == r.tail {
		return nil, false
	}
	r.taken++
	return r.slot(r.taken - 1).sgl, true
}

func (r *recvQueue) received(m rdmap.Received) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wc := WC{ID: r.slot(r.head).id, Op: OpRecv, ByteLen: uint32(m.Len), QP: r.q}
	if m.Op.Solicited() {
		wc.Flags |= Solicited
	}
	if m.Op.Invalidates() {
		wc.Flags |= Invalidated
		wc.InvSTag = m.Inv
	}
	clear(r.slot(r.head).sgl)
	r.head++
	r.sink.complete(wc)
}

// drop completes the oldest in error.
func (r *recvQueue) drop(st Status, err error) {
	w := r.slot(r.head)
	r.sink.complete(WC{ID: w.id, Status: st, Op: OpRecv, QP: r.q, Err: err})
	clear(w.sgl)
	r.head++
	r.taken = max(r.taken, r.head)
}

func (r *recvQueue) flush(first Status, firstErr, rest error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended != nil {
		return
	}
	r.ended = rest
	if r.head < r.taken {
		r.drop(first, firstErr)
	}
	for r.head < r.tail {
		r.drop(WRFlush, rest)
	}
}
