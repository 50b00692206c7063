package verbs

import (
	"sync"

	"github.com/softrnic/softrnic/iwarp/mem"
	"github.com/softrnic/softrnic/iwarp/rdmap"
)

// sendWork is a work request in the send queue.
type sendWork struct {
	id     uint64
	op     Op
	flags  Flags
	sgl    mem.SGL // memory of its own in the queue
	n      int     // octets
	stag   STag
	to     uint64
	inv    STag
	msn    uint32 // of a Send, once it is taken
	done   bool
	status Status
	err    error
}

// sendQueue is a ring in this process. Its slots go through three stages: posted
// (tail), taken by the stream (taken), completed in order (head).
type sendQueue struct {
	q    *QP
	sink completionSink

	mu     sync.Mutex
	slots  []sendWork
	head   uint64 // the oldest that is not completed
	taken  uint64 // the next for the stream
	tail   uint64 // the next to be posted
	reads  int    // taken and waiting for their Response
	msn    uint32 // of the last Send taken
	noRead bool   // the peer takes no Read at all
	broken bool   // a work request completed in error
	ended  error  // not nil: everything is flushed
	closed bool   // no more posts: the QP is closing

	inline  []byte // MaxInline octets for each slot
	inlines *mem.Region
}

func newSendQueue(q *QP, sink completionSink, c QPCap) *sendQueue {
	s := &sendQueue{q: q, sink: sink, slots: make([]sendWork, c.MaxSendWR)}
	spans := make([]mem.Span, c.MaxSendWR*max(1, c.MaxSendSGE))
	for i := range s.slots {
		k := max(1, c.MaxSendSGE)
		s.slots[i].sgl = spans[i*k : i*k : (i+1)*k]
	}
	if c.MaxInline > 0 {
		s.inline = make([]byte, c.MaxSendWR*c.MaxInline)
		s.inlines = mem.NewLocal(s.inline)
	}
	return s
}

func (s *sendQueue) slot(token uint64) *sendWork { return &s.slots[token%uint64(len(s.slots))] }

// post queues one work request.
func (s *sendQueue) post(wr *SendWR) error {
	c := &s.q.cap
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed && s.ended == nil:
		return errorf(ErrState, "QP %d is in state %v: no more sends", s.q.num, s.q.State())
	case len(s.slots) == 0 || s.tail-s.head >= uint64(len(s.slots)):
		return errorf(ErrFull, "send queue of QP %d holds %d work requests: poll its CQ, and signal some", s.q.num, len(s.slots))
	case wr.Op == OpRead && s.noRead && s.ended == nil:
		return errorf(ErrInvalid, "a Read on QP %d, whose ORD is 0: ask for more in ConnParams, of the peer too", s.q.num)
	case wr.Op > OpRead:
		return errorf(ErrInvalid, "opcode %v in a send queue", wr.Op)
	case wr.Flags&Inline != 0 && (wr.Op == OpRead || len(wr.SGL) > 0):
		return errorf(ErrInvalid, "Inline takes Data of a Send or Write, and no SGL")
	case wr.Flags&Inline == 0 && len(wr.Data) > 0:
		return errorf(ErrInvalid, "Data of %d octets without Inline", len(wr.Data))
	case len(wr.Data) > c.MaxInline:
		return errorf(ErrTooBig, "%d octets inline, QP %d takes %d", len(wr.Data), s.q.num, c.MaxInline)
	case len(wr.SGL) > c.MaxSendSGE:
		return errorf(ErrTooBig, "%d SGEs, QP %d takes %d", len(wr.SGL), s.q.num, c.MaxSendSGE)
	}
	w := s.slot(s.tail)
	*w = sendWork{id: wr.ID, op: wr.Op, flags: wr.Flags, sgl: w.sgl[:0], stag: wr.RemoteSTag, to: wr.RemoteTO, inv: wr.InvSTag}
	want := Access(0)
	if wr.Op == OpRead {
		want = LocalWrite
	}
	var err error
	if w.sgl, w.n, err = resolve(w.sgl, wr.SGL, s.q.pd, want); err != nil {
		return err
	}
	if wr.Op == OpRead && len(w.sgl) > 1 {
		return errorf(ErrTooBig, "%d SGEs in a Read, iWARP carries one (RFC 5040 section 4.4)", len(w.sgl))
	}
	if n := len(wr.Data); n > 0 {
		off := int(s.tail%uint64(len(s.slots))) * c.MaxInline
		w.sgl, w.n = append(w.sgl, s.inlines.Span(off, n)), n
		stash(s.inline[off:], wr.Data)
	}
	s.tail++
	if s.ended != nil {
		s.retire()
	}
	return nil
}

// stash keeps inline data. It is not a copy of the data path: the point of inline
// is that the program's memory is free after the post.
func stash(dst, src []byte) { copy(dst, src) }

// resolve appends the spans of sgl to l, for a QP of PD pd.
func resolve(l mem.SGL, sgl []SGE, pd *PD, want Access) (mem.SGL, int, error) {
	n := 0
	for i := range sgl {
		if sgl[i].Len == 0 {
			continue
		}
		span, err := sgl[i].span(pd, want)
		if err != nil {
			return l, 0, err
		}
		if n += span.Len; uint64(n) > MaxMessage {
			return l, 0, errorf(ErrTooBig, "a message of %d octets or more, at most %d (RFC 5041 section 4.3)", n, uint64(MaxMessage))
		}
		l = append(l, span)
	}
	return l, n, nil
}

// Next implements rdmap.WorkSource.
func (s *sendQueue) Next(m *rdmap.Outbound, reads bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken == s.tail || s.ended != nil {
		return false
	}
	w := s.slot(s.taken)
	if w.op == OpRead && !reads || w.flags&Fence != 0 && s.reads > 0 {
		return false
	}
	*m = rdmap.Outbound{SGL: w.sgl, STag: w.stag, TO: w.to, Inv: w.inv, Token: s.taken}
	se := w.flags&Solicited != 0
	switch w.op {
	case OpWrite:
		m.Op = rdmap.Write
	case OpRead:
		m.Op = rdmap.ReadRequest
		s.reads++
	case OpSendInv:
		s.msn++
		w.msn = s.msn
		if m.Op = rdmap.SendInv; se {
			m.Op = rdmap.SendSEInv
		}
	default:
		s.msn++
		w.msn = s.msn
		if m.Op = rdmap.Send; se {
			m.Op = rdmap.SendSE
		}
	}
	s.taken++
	return true
}

func (s *sendQueue) sent(token uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.slot(token); w.op != OpRead {
		w.done = true
		s.retire()
	}
}

func (s *sendQueue) readDone(token uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slot(token).done = true
	s.reads--
	s.retire()
}

func (s *sendQueue) failed(token uint64, st Status, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.slot(token)
	w.done, w.status, w.err = true, st, err
	s.retire()
}

// blame fails the oldest work request that a Terminate can be about, where it has
// not completed yet: what TCP took has, unless it waits for an earlier Read.
func (s *sendQueue) blame(about rdmap.Subject, st Status, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := s.head; t < s.taken; t++ {
		if w := s.slot(t); w.is(about) {
			if about.Op == rdmap.ReadResponse && w.n > 0 && !w.sgl[0].Region.Valid() {
				st = LocalProtection // no fault of the peer's: its sink was deregistered
			}
			w.done, w.status, w.err = true, st, err
			s.retire()
			return
		}
	}
}

// is says whether w can be what a Terminate is about.
func (w *sendWork) is(about rdmap.Subject) bool {
	switch w.op {
	case OpRead:
		// Responses come in the order of the Requests: the oldest it is.
		return !w.done && (about.Op == rdmap.ReadResponse || about.Op == rdmap.ReadRequest && w.covers(about))
	case OpWrite:
		return about.Op == rdmap.Write && w.covers(about)
	}
	return about.Op >= rdmap.Send && about.Op <= rdmap.SendSEInv && w.msn == about.MSN && w.msn != 0
}

func (w *sendWork) covers(about rdmap.Subject) bool {
	return w.stag == about.STag && about.TO-w.to <= uint64(w.n)
}

func (s *sendQueue) reading() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for t := s.head; t < s.tail; t++ {
		if w := s.slot(t); w.op == OpRead && !w.done {
			return true
		}
	}
	return false
}

// retire completes what is done, in order: an operation that is done waits for
// those posted before it (RFC 5040 section 5.5).
func (s *sendQueue) retire() {
	for s.head < s.tail {
		w := s.slot(s.head)
		if !w.done {
			if s.ended == nil {
				return
			}
			w.status, w.err = WRFlush, s.ended
		}
		if s.broken && w.status == Success {
			// Nothing succeeds after a failure, though it may have been sent.
			w.status, w.err = WRFlush, ErrFlushed
		}
		s.broken = s.broken || w.status != Success
		if w.status != Success || w.flags&Signaled != 0 || s.q.signalAll {
			wc := WC{ID: w.id, Status: w.status, Op: w.op, QP: s.q, Err: w.err}
			if w.status == Success {
				wc.ByteLen = uint32(w.n)
			}
			s.sink.complete(wc)
		}
		clear(w.sgl)
		w.err = nil
		s.head++
		s.taken = max(s.taken, s.head)
	}
}

func (s *sendQueue) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.head == s.tail
}

func (s *sendQueue) unsent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken < s.tail
}

// close refuses further posts, until flush.
func (s *sendQueue) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
}

func (s *sendQueue) flush(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended = err
		s.retire()
	}
}
