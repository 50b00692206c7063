package rdmap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/iwarp/ddp"
	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/mem"
)

// The startup is MPA's; verbs need not know that package for it.
type (
	Conn          = ddp.Conn
	Incoming      = ddp.Incoming
	Params        = ddp.Params
	Peer          = ddp.Peer
	RejectedError = ddp.RejectedError
	BufferError   = ddp.BufferError
)

// NoNegotiation and MaxDepth are values of IRD and ORD.
const (
	NoNegotiation = ddp.NoNegotiation
	MaxDepth      = ddp.MaxDepth
)

// Errors of the layers below.
var (
	ErrNotOpen        = ddp.ErrNotOpen
	ErrStartupTimeout = ddp.ErrStartupTimeout
	ErrPrivateData    = ddp.ErrPrivateData
)

// Connect starts l as the initiator, as mpa.Connect does. Where the responder asks
// for more than p allows, it hears so by a Terminate (RFC 6581 section 9.1).
func Connect(ctx context.Context, l llp.Conn, p Params) (*Conn, Peer, error) {
	p.Terminate = terminateAtStartup
	return ddp.Connect(ctx, l, p)
}

// terminateAtStartup is the ULPDU of a Terminate that is the first message of its
// stream.
func terminateAtStartup(code ddp.Code) []byte {
	h := ddp.Untagged{Last: true, RsvdULP: control(Terminate), QN: QNTerminate, MSN: ddp.FirstMSN}
	b := make([]byte, ddp.UntaggedLen, ddp.UntaggedLen+MaxTerminateLen)
	h.Put(b)
	t := Term{Layer: LayerLLP, Code: uint8(code)}
	return t.Append(b)
}

// AwaitRequest starts l as the responder, as mpa.ReadRequest does.
func AwaitRequest(ctx context.Context, l llp.Conn, timeout time.Duration) (Incoming, error) {
	return ddp.ReadRequest(ctx, l, timeout)
}

// Outbound is a message to be sent.
type Outbound struct {
	Op    Op       // Write, ReadRequest, or one of the Sends
	SGL   mem.SGL  // what is sent; of a ReadRequest the sink, one span of a registered region at most
	STag  mem.STag // of a Write where it goes, of a ReadRequest what is read
	TO    uint64   // in STag's region
	Inv   mem.STag // of SendInv and SendSEInv
	Token uint64   // handed back to the Owner
}

// WorkSource yields the messages of the send queue.
type WorkSource interface {
	// Next sets m to the next message and returns true; or returns false where
	// there is none, or where it is a ReadRequest and reads is false, since as
	// many as the peer allows are outstanding.
	Next(m *Outbound, reads bool) bool
}

// Received is a message that came in by Send.
type Received struct {
	Op  Op
	Len int      // octets
	Inv mem.STag // invalidated, where Op.Invalidates
}

// Owner is told what happens. Its methods run inside Receive and Transmit; they
// must not block and must not call the Stream.
type Owner interface {
	// RecvBuffer takes the next buffer for a Send; false where there is none,
	// which ends the stream (RFC 5041 section 7.1). Its octets are placed as they
	// come, and belong to the Stream until Received.
	RecvBuffer() (mem.SGL, bool)
	// Received says that the message in the oldest buffer taken came in whole.
	Received(r Received)
	// Sent says that TCP has taken all of a message. Its memory is free.
	Sent(token uint64)
	// ReadDone says that the Response to a ReadRequest has been placed.
	ReadDone(token uint64)
	// Failed says that the memory of a message, or the sink of a ReadRequest,
	// could not be used. The stream ends with it.
	Failed(token uint64, err error)
}

// Config says what a Stream works on.
type Config struct {
	Table *mem.Table
	PD    mem.PD
	Owner Owner
	// MaxDepth bounds IRD and ORD where they were not negotiated; 0 means 128.
	MaxDepth int
}

const defaultMaxDepth = 128

// Stats counts messages, by kind.
type Stats struct {
	SendsTx, WritesTx, ReadRequestsTx, ReadResponsesTx atomic.Uint64
	SendsRx, WritesRx, ReadRequestsRx, ReadResponsesRx atomic.Uint64
	TerminatesTx, TerminatesRx                         atomic.Uint64
}

// Classes of messages, to tell them apart when they are sent.
const (
	classSend uint8 = iota
	classWrite
	classRead
	classResponse
	classTerminate
)

// Stream is an RDMAP stream. One goroutine at a time calls Receive, Transmit and
// Drain; none of them blocks. Conn gives access to the connection.
type Stream struct {
	Conn *Conn
	cfg  Config
	orq  ring[read]
	irq  ring[response]

	err        error // ended the receiving half, if any
	term       *Term // to be sent
	termQueued bool  // given to ddp
	termSent   bool
	termErr    error // what term is about
	answered   bool  // the last message was a Read Response: the send queue is next

	work          WorkSource
	out           Outbound
	responding    bool // a Read Response is being sent
	offendingRead bool // the fault is about a Read Request's contents
	unanswered    bool // the fault is about the first of irq, whose Response cannot be sent

	readBuf [ReadRequestLen]byte
	termBuf [MaxTerminateLen + 64]byte
	readSGL mem.SGL
	termSGL mem.SGL
	stats   Stats
}

// NewStream begins RDMAP on c.
func NewStream(c *Conn, cfg Config) *Stream {
	limit := cfg.MaxDepth
	if limit <= 0 {
		limit = defaultMaxDepth
	}
	s := &Stream{Conn: c, cfg: cfg}
	s.orq.slots = make([]read, min(c.ORD(), limit))
	s.irq.slots = make([]response, min(c.IRD(), limit))
	s.readSGL = mem.SGL{mem.NewLocal(s.readBuf[:]).Span(0, len(s.readBuf))}
	s.termSGL = mem.SGL{mem.NewLocal(s.termBuf[:]).Span(0, len(s.termBuf))}
	return s
}

// Stats returns the counters, which go on counting.
func (s *Stream) Stats() *Stats { return &s.stats }

// IRD and ORD return the depths in use.
func (s *Stream) IRD() int { return len(s.irq.slots) }

// ORD returns how many Read Requests may be outstanding.
func (s *Stream) ORD() int { return len(s.orq.slots) }

// OutstandingReads returns the Read Requests that wait for their Response.
func (s *Stream) OutstandingReads() int { return s.orq.n }

// Pending says whether the Stream has something of its own to send: a Read
// Response, a Terminate, or the rest of a message.
func (s *Stream) Pending() bool {
	return s.term != nil && !s.termSent || s.sending() && (s.irq.n > 0 || s.Conn.Busy())
}

// sending says whether messages still go out: after the peer's FIN they do (RFC
// 5041 section 6.2.1).
func (s *Stream) sending() bool { return s.err == nil || s.err == io.EOF }

// TerminateSent says that the Terminate has gone out: half-close now (RFC 5040
// section 6.2.1).
func (s *Stream) TerminateSent() bool { return s.termSent }

// Receive takes what has come in, about budget octets at most, and returns the
// octets taken: 0 and nil where nothing waits. io.EOF says that the peer closed
// its side between messages, io.ErrUnexpectedEOF within one; a *TerminateError
// that the stream is over: by the peer's Terminate, or with one of ours that
// Transmit is to send. Others are those of the connection. All are final; Drain
// what follows.
func (s *Stream) Receive(budget int) (octets int, err error) {
	if s.err != nil {
		return 0, s.err
	}
	octets, err = s.Conn.Receive(budget, (*handler)(s))
	if err == nil {
		return octets, nil
	}
	if te := (*TerminateError)(nil); errors.As(err, &te) { // the peer's
		s.err = err
		return octets, err
	}
	if s.isFault(err) {
		return octets, s.fault(err)
	}
	s.err = err
	return octets, err
}

// isFault tells what deserves a Terminate from the end of the connection.
func (s *Stream) isFault(err error) bool {
	var op *opError
	var de *ddp.Error
	var le *ddp.LLPError
	var lo *localError
	var be *BufferError
	var ce *mem.CheckError
	return errors.As(err, &be) || errors.As(err, &op) || errors.As(err, &de) || errors.As(err, &le) || errors.As(err, &lo) || errors.As(err, &ce) ||
		errors.Is(err, ddp.ErrShort)
}

// fault ends the stream with a Terminate. The first fault wins (RFC 5040 section
// 7.1).
func (s *Stream) fault(err error) error {
	if !s.sending() {
		return s.err
	}
	c, headers := wireCodes(err)
	t := &Term{Layer: c.layer, Type: c.typ, Code: c.code}
	if headers {
		s.quote(t)
	}
	s.term = t
	s.Conn.Abandon() // nothing follows the Terminate, nor the fault
	s.err = &TerminateError{Layer: c.layer, Type: c.typ, Code: c.code, Term: *t, Err: err}
	return s.err
}

// quote puts the headers of the message at fault into t.
func (s *Stream) quote(t *Term) {
	if s.unanswered {
		// Not the segment that came last, but the Read Request of a while ago.
		r := s.irq.first()
		h := ddp.Untagged{Last: true, RsvdULP: control(ReadRequest), QN: QNRead, MSN: r.msn}
		t.HasLen, t.Segment = true, ddp.UntaggedLen+ReadRequestLen
		t.DDP, t.RDMAP = make([]byte, ddp.UntaggedLen), make([]byte, ReadRequestLen)
		h.Put(t.DDP)
		r.req.Put(t.RDMAP)
		return
	}
	hdr, n := s.Conn.Offender()
	if len(hdr) == 0 {
		return
	}
	t.HasLen, t.Segment = true, uint16(n)
	t.DDP = append([]byte(nil), hdr...)
	if s.offendingRead {
		t.RDMAP = append([]byte(nil), s.readBuf[:]...)
	}
}

// Fail ends the stream with a Terminate for a local catastrophic error.
func (s *Stream) Fail(err error) error { return s.fault(&localError{err}) }

// Transmit sends what is due, at most one super-packet, and returns its octets on
// the wire: 0 and nil where nothing is. A Terminate goes first, and then nothing
// more; else Read Responses and the messages of work, which may be nil, take
// turns. llp.ErrWouldBlock says that the send buffer is full, ErrNotOpen that the
// peer must speak first; a *TerminateError that a message's memory failed, and
// that a Terminate is now due. Others are those of the connection.
func (s *Stream) Transmit(work WorkSource) (octets int, err error) {
	if !s.sending() && (s.term == nil || s.termSent) {
		return 0, nil
	}
	s.work = work
	octets, err = s.Conn.Send((*source)(s))
	s.work = nil
	if err == ErrNotOpen && s.term != nil {
		// The very first FPDU was bad, and only a good one lets a responder speak
		// (RFC 5044 section 7.1.2, rule 4): the close has to tell.
		s.termSent = true
		return 0, nil
	}
	if err != nil && s.termErr != nil {
		err = s.fault(s.termErr)
		s.termErr = nil
	}
	return octets, err
}

// Drain discards what comes in after the end of the stream. It returns io.EOF
// and errors as Receive does.
func (s *Stream) Drain(budget int) (octets int, err error) { return s.Conn.Drain(budget) }

// source is the Stream as ddp sees it when sending.
type source Stream

// Next implements ddp.Source.
func (p *source) Next(m *ddp.Message) bool {
	s := (*Stream)(p)
	if s.term != nil {
		if s.termQueued {
			return false
		}
		s.termQueued = true
		return s.terminate(m)
	}
	// A message of the other kind is next where one waits: neither the peer's
	// reads nor our own work can hold up the other for more than one message.
	if s.answered {
		s.answered = false
		return s.pull(m) || s.respond(m)
	}
	return s.respond(m) || s.pull(m)
}

func (s *Stream) terminate(m *ddp.Message) bool {
	b := s.term.Append(m.Hdr[:0])
	*m = ddp.Message{RsvdULP: control(Terminate), QN: QNTerminate, Hdr: m.Hdr, HdrLen: len(b), Class: classTerminate}
	return true
}

func (s *Stream) respond(m *ddp.Message) bool {
	r := s.irq.first()
	if r == nil || s.responding {
		return false
	}
	s.responding, s.answered = true, true
	m.Tagged, m.RsvdULP, m.HdrLen = true, control(ReadResponse), 0
	m.STag, m.TO = r.req.SinkSTag, r.req.SinkTO
	m.SGL, m.Len = r.span[:], r.span[0].Len
	m.Class = classResponse
	return true
}

func (s *Stream) pull(m *ddp.Message) bool {
	o := &s.out
	if s.work == nil || !s.work.Next(o, !s.orq.full()) {
		return false
	}
	m.RsvdULP, m.RsvdULP4, m.HdrLen = control(o.Op), 0, 0
	m.SGL, m.Len = o.SGL, o.SGL.Len()
	m.Class, m.Token = classSend, o.Token
	switch o.Op {
	case Write:
		m.Class = classWrite
		m.Tagged, m.STag, m.TO = true, o.STag, o.TO
	case ReadRequest:
		r := s.orq.push()
		*r = read{token: o.Token}
		req := ReadReq{Size: uint32(m.Len), SrcSTag: o.STag, SrcTO: o.TO}
		if len(o.SGL) > 0 {
			r.sink = o.SGL[0]
			req.SinkSTag, req.SinkTO = r.sink.Region.STag(), r.sink.Region.Base()+uint64(r.sink.Off)
		}
		m.Tagged, m.QN = false, QNRead
		m.SGL, m.Len, m.Class = nil, 0, classRead
		req.Put(m.Hdr[:])
		m.HdrLen = ReadRequestLen
	default:
		m.Tagged, m.QN = false, QNSend
		if o.Op.Invalidates() {
			m.RsvdULP4 = uint32(o.Inv)
		}
	}
	return true
}

// Sent implements ddp.Source.
func (p *source) Sent(class uint8, token uint64) {
	s := (*Stream)(p)
	switch class {
	case classSend:
		s.stats.SendsTx.Add(1)
		s.cfg.Owner.Sent(token)
	case classWrite:
		s.stats.WritesTx.Add(1)
		s.cfg.Owner.Sent(token)
	case classRead:
		s.stats.ReadRequestsTx.Add(1)
		s.cfg.Owner.Sent(token)
	case classResponse:
		s.stats.ReadResponsesTx.Add(1)
		s.irq.pop()
		s.responding = false
	case classTerminate:
		s.stats.TerminatesTx.Add(1)
		s.termSent = true
	}
}

// Failed implements ddp.Source.
func (p *source) Failed(class uint8, token uint64, err error) {
	s := (*Stream)(p)
	if class == classResponse {
		// The region was taken away while its Response was under way.
		s.termErr, s.unanswered = protection(err), true
		return
	}
	s.cfg.Owner.Failed(token, err)
	s.termErr = &localError{err}
}

// handler is the Stream as ddp sees it when receiving.
type handler Stream

// Tagged implements ddp.Handler.
func (p *handler) Tagged(h *ddp.Tagged, n int) (mem.Span, error) {
	s := (*Stream)(p)
	op, ok := ParseControl(h.RsvdULP)
	switch {
	case !ok:
		return mem.Span{}, versionError(h.RsvdULP)
	case op == Write:
		return s.cfg.Table.Check(h.STag, h.TO, uint64(n), mem.RemoteWrite, s.cfg.PD)
	case op == ReadResponse:
		if r := s.orq.first(); r != nil {
			return r.place(h, n)
		}
		return mem.Span{}, operationError(CodeOpcode, "Read Response with no Read Request outstanding (RFC 5040 section 7.1)")
	}
	return mem.Span{}, operationError(CodeOpcode, "%v in a tagged segment (RFC 5040 section 4.2)", op)
}

func versionError(control uint8) error {
	return operationError(CodeVersion, "RDMAP version %d, 1 is supported (RFC 5040 section 4.1)", control>>6)
}

// TaggedDone implements ddp.Handler.
func (p *handler) TaggedDone(h *ddp.Tagged, n int) error {
	s := (*Stream)(p)
	if op, _ := ParseControl(h.RsvdULP); op == Write {
		if h.Last {
			s.stats.WritesRx.Add(1)
		}
		return nil
	}
	r := s.orq.first()
	if r.got += n; h.Last {
		s.stats.ReadResponsesRx.Add(1)
		token := r.token
		s.orq.pop()
		s.cfg.Owner.ReadDone(token)
	}
	return nil
}

// Untagged implements ddp.Handler.
func (p *handler) Untagged(h *ddp.Untagged, first bool) (mem.SGL, error) {
	s := (*Stream)(p)
	op, ok := ParseControl(h.RsvdULP)
	if !ok {
		return nil, versionError(h.RsvdULP)
	}
	switch {
	case h.QN == QNSend && op >= Send && op <= SendSEInv:
		if !first {
			return nil, nil
		}
		if buf, ok := s.cfg.Owner.RecvBuffer(); ok {
			return buf, nil
		}
		return nil, ddp.ErrNoBuffer // no back-pressure here: the peer must know our credits
	case h.QN == QNRead && op == ReadRequest:
		if first && s.irq.full() {
			return nil, &ddp.Error{Type: ddp.TypeUntagged, Code: ddp.CodeNoBuffer,
				Detail: fmt.Sprintf("Read Request beyond the IRD of %d (RFC 5040 section 6.1)", len(s.irq.slots))}
		}
		return s.readSGL, nil
	case h.QN == QNTerminate && op == Terminate:
		return s.termSGL, nil
	}
	return nil, operationError(CodeOpcode, "%v on QN %d (RFC 5040 section 4.2)", op, h.QN)
}

// UntaggedDone implements ddp.Handler.
func (p *handler) UntaggedDone(h *ddp.Untagged, n int) error {
	s := (*Stream)(p)
	op, _ := ParseControl(h.RsvdULP)
	switch h.QN {
	case QNRead:
		return s.request(h.MSN, n)
	case QNTerminate:
		return s.terminated(n)
	}
	r := Received{Op: op, Len: n}
	if op.Invalidates() {
		// After all of the message is placed, before its owner learns of it (RFC
		// 5040 section 5.3).
		r.Inv = mem.STag(h.RsvdULP4)
		if _, err := s.cfg.Table.Invalidate(r.Inv, s.cfg.PD); err != nil {
			// Code 9 is in two tables of section 4.8; figure 10 calls it a protection error.
			return &opError{TypeProtection, CodeInvalidation, err}
		}
	}
	s.stats.SendsRx.Add(1)
	s.cfg.Owner.Received(r)
	return nil
}

// terminated takes the peer's Terminate, which is never answered by another.
func (s *Stream) terminated(n int) error {
	s.stats.TerminatesRx.Add(1)
	t, ok := ParseTerm(append([]byte(nil), s.termBuf[:n]...))
	if !ok {
		t = Term{Layer: LayerRDMAP, Type: TypeOperation, Code: CodeUnspecified}
	}
	s.Conn.Abandon()
	return &TerminateError{Layer: t.Layer, Type: t.Type, Code: t.Code, Remote: true, Term: t}
}

// IsEOF says whether err is the peer's FIN, between messages or within one.
func IsEOF(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
