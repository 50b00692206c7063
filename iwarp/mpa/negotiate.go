package mpa

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/mem"
)

// DefaultTimeout is how long a startup may take where nothing else is said. The
// RFCs name no value.
const DefaultTimeout = 10 * time.Second

// Params are one side's part of a startup.
type Params struct {
	// Revision is 1 (RFC 5044) or 2 (RFC 6581); 0 means 2. The responder always
	// answers in the initiator's revision and ignores it.
	Revision int
	// NoCRC does without CRC32c where the peer does too. CRC is on otherwise
	// (RFC 5044 section 4.4).
	NoCRC bool
	// PrivateData go to the peer's program: at most 512 octets, 508 at revision 2.
	PrivateData []byte
	// IRD and ORD are the depths that this side can do, from 0 to MaxDepth, or
	// NoNegotiation.
	IRD, ORD int
	// Timeout ends the startup; 0 means DefaultTimeout.
	Timeout time.Duration
	// RelaxedFirst lets a responder send before the initiator's first FPDU,
	// against RFC 5044 section 7.1.2, rule 4, for programs that expect it.
	RelaxedFirst bool
	// Terminate returns the ULPDU of a Terminate message with an error code of the
	// LLP layer, for an initiator to whom the responder has granted what cannot be
	// (RFC 6581 section 9.1). The layer above knows messages, this one does not:
	// where it is nil, such a connection is reset.
	Terminate func(Code) []byte
}

// Peer is what the other side announced.
type Peer struct {
	Revision    int
	Enhanced    bool // IRD and ORD were announced
	CRC         bool
	Markers     bool
	PeerToPeer  bool
	IRD, ORD    int // -1 where not announced; may be NoNegotiation
	PrivateData []byte
}

func peerOf(f *Frame) Peer {
	p := Peer{Revision: int(f.Revision), Enhanced: f.Enhanced, CRC: f.CRC, Markers: f.Markers, PeerToPeer: f.PeerToPeer,
		IRD: -1, ORD: -1, PrivateData: f.PrivateData}
	if f.Enhanced {
		p.IRD, p.ORD = f.IRD, f.ORD
	}
	return p
}

func privateDataError(n int, enhanced bool) error {
	limit := MaxPrivateData
	if enhanced {
		limit -= enhancedLen
	}
	return fmt.Errorf("%w: %d octets, at most %d at this revision", ErrPrivateData, n, limit)
}

func (p *Params) check() error {
	for _, d := range []struct {
		name string
		n    int
	}{{"IRD", p.IRD}, {"ORD", p.ORD}} {
		if d.n < 0 || d.n > NoNegotiation {
			return fmt.Errorf("mpa: %s %d is not from 0 to %d (RFC 6581 section 9.1)", d.name, d.n, MaxDepth)
		}
	}
	if p.Revision < 0 || p.Revision > 2 {
		return fmt.Errorf("mpa: revision %d is neither 1 nor 2", p.Revision)
	}
	return nil
}

func (p *Params) timeout() time.Duration {
	if p.Timeout > 0 {
		return p.Timeout
	}
	return DefaultTimeout
}

// Connect starts c as the initiator: it sends a Request and waits for the Reply
// until ctx ends or the timeout passes. It returns the Conn and what the
// responder announced. A *RejectedError says that the responder refused; on any
// error c has been closed.
func Connect(ctx context.Context, c llp.Conn, p Params) (*Conn, Peer, error) {
	rev := p.Revision
	if rev == 0 {
		rev = 2
	}
	f := Frame{CRC: !p.NoCRC, Revision: uint8(rev), PrivateData: p.PrivateData, Enhanced: rev >= 2, IRD: p.IRD, ORD: p.ORD}
	err := p.check()
	var req []byte
	if err == nil {
		req, err = f.Append(nil)
	}
	if err != nil {
		c.Abort()
		return nil, Peer{}, err
	}
	s := newStartup(ctx, c, p.timeout()) // the clock runs before the Request goes out
	defer s.end()
	if err := s.send(req); err != nil {
		return nil, Peer{}, s.fail(err)
	}
	r, err := s.read()
	if err != nil {
		return nil, Peer{}, s.fail(err)
	}
	peer := peerOf(&r)
	crc := f.CRC || r.CRC
	ird, ord := p.IRD, p.ORD
	switch {
	case !r.Reply:
		err = errorf(CodeFrame, "a Request came where a Reply was due: both sides are initiators (RFC 5044 section 7.1.2)")
	case r.Reject: // whatever its revision: some refuse one by naming another
		c.Close()
		return nil, peer, &RejectedError{peer}
	case int(r.Revision) < 1 || int(r.Revision) > rev:
		err = errorf(CodeFrame, "Reply of revision %d to a Request of revision %d", r.Revision, rev)
	case r.Markers:
		err = ErrMarkers
	case r.Enhanced && f.Enhanced:
		if r.IRD != NoNegotiation {
			ord = min(p.ORD, r.IRD)
		}
		if p.IRD != NoNegotiation && r.ORD != NoNegotiation && r.ORD > p.IRD {
			err = errorf(CodeIRD, "the responder wants ORD %d, IRD is %d here (RFC 6581 section 9.1)", r.ORD, p.IRD)
			if p.Terminate != nil && s.send(AppendFPDU(nil, p.Terminate(CodeIRD), crc)) == nil {
				c.Close() // a reset might overtake the Terminate
			}
		}
	}
	if err != nil {
		return nil, peer, s.fail(err)
	}
	return newConn(c, peer, crc, ird, ord, true), peer, nil
}

// Incoming is a connection whose Request has come in and waits for an answer:
// Accept or Reject, one of them once.
type Incoming struct {
	c    llp.Conn
	peer Peer
	req  Frame
}

// ReadRequest starts c as the responder: it waits for the Request until ctx ends
// or timeout passes (0: DefaultTimeout). It holds at most 532 octets of the
// peer's. On an error c has been closed, at once and without an answer where the
// Request was malformed (RFC 5044 section 7.1.2).
func ReadRequest(ctx context.Context, c llp.Conn, timeout time.Duration) (*Incoming, error) {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	s := newStartup(ctx, c, timeout)
	defer s.end()
	f, err := s.read()
	switch {
	case err != nil:
	case f.Reply:
		err = errorf(CodeFrame, "a Reply came where a Request was due (RFC 5044 section 7.1.2)")
	case f.Revision < 1 || f.Revision > 2:
		err = errorf(CodeFrame, "Request of revision %d, 1 and 2 are supported", f.Revision)
	case f.Markers:
		err = ErrMarkers
	default:
		return &Incoming{c, peerOf(&f), f}, nil
	}
	return nil, s.fail(err)
}

// Peer returns what the Request announced.
func (in *Incoming) Peer() Peer { return in.peer }

// Conn returns the connection, for its addresses.
func (in *Incoming) Conn() llp.Conn { return in.c }

// Accept answers the Request and returns the connection in full operation. It
// does not wait for the peer. Where p is not valid nothing is sent and the
// connection still waits for an answer; on other errors it has been closed.
func (in *Incoming) Accept(p Params) (*Conn, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	q := &in.req
	crc := !p.NoCRC || q.CRC
	f := Frame{Reply: true, CRC: crc, Revision: q.Revision, PrivateData: p.PrivateData, Enhanced: q.Enhanced}
	ird, ord := p.IRD, p.ORD
	if q.Enhanced {
		// The words cross: our ORD answers the peer's IRD (RFC 6581 section 9.1).
		if f.IRD = ird; q.ORD == NoNegotiation {
			f.IRD = NoNegotiation
		}
		switch {
		case q.IRD == NoNegotiation:
			f.ORD = NoNegotiation
		case ord == NoNegotiation:
			ord = q.IRD
			f.ORD = ord
		default:
			ord = min(ord, q.IRD)
			f.ORD = ord
		}
		f.offerRTR(q, ird)
	}
	b, err := f.Append(nil)
	if err != nil {
		return nil, err
	}
	if err := in.c.Send(&octets{b}); err != nil {
		in.c.Abort()
		return nil, fmt.Errorf("mpa: sending the Reply to %v: %w", in.c.RemoteAddr(), err)
	}
	return newConn(in.c, in.peer, crc, ird, ord, p.RelaxedFirst), nil
}

// offerRTR answers q's wish for a peer-to-peer connection. The RTR message may be
// a zero-length RDMA Write or Read: both are ordinary messages that consume nothing
// here, while a zero-length Send would take a receive buffer of the program's. At
// least one kind must be offered, even where the peer named neither (RFC 6581
// section 9.2).
func (f *Frame) offerRTR(q *Frame, ird int) {
	if !q.PeerToPeer {
		return
	}
	f.PeerToPeer, f.WriteRTR, f.ReadRTR = true, q.WriteRTR, q.ReadRTR && ird > 0
	if !f.WriteRTR && !f.ReadRTR {
		f.WriteRTR = true
	}
}

// Reject refuses the connection with private data, at most 512 octets, 508 where
// the Request was enhanced, and closes it. Where they are too long nothing is
// sent and the connection still waits for an answer.
func (in *Incoming) Reject(private []byte) error {
	q := &in.req
	f := Frame{Reply: true, Reject: true, CRC: q.CRC, Revision: q.Revision, Enhanced: q.Enhanced, PrivateData: private}
	f.offerRTR(q, 0)
	b, err := f.Append(nil)
	if err != nil {
		return err
	}
	if err = in.c.Send(&octets{b}); err != nil {
		in.c.Abort()
		return fmt.Errorf("mpa: rejecting %v: %w", in.c.RemoteAddr(), err)
	}
	return in.c.Close()
}

// Abort resets the connection without an answer.
func (in *Incoming) Abort() { in.c.Abort() }

// octets is a Batch of a startup frame.
type octets struct{ b []byte }

func (o *octets) Len() int { return len(o.b) }

func (o *octets) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(p) < len(o.b) {
		return 0, llp.ErrNoRoom
	}
	return copy(p, o.b), nil
}

// startup lets one goroutine wait for an llp.Conn.
type startup struct {
	c       llp.Conn
	ctx     context.Context
	cancel  context.CancelFunc
	parent  context.Context
	bell    chan struct{}
	timeout time.Duration
}

func newStartup(ctx context.Context, c llp.Conn, timeout time.Duration) *startup {
	s := &startup{c: c, parent: ctx, bell: make(chan struct{}, 1), timeout: timeout}
	s.ctx, s.cancel = context.WithTimeout(ctx, timeout)
	c.Notify(func(llp.Event) {
		select {
		case s.bell <- struct{}{}:
		default:
		}
	})
	return s
}

func (s *startup) end() {
	s.cancel()
	s.c.Notify(nil)
}

// fail closes the connection and says why it failed.
func (s *startup) fail(err error) error {
	s.c.Abort()
	return fmt.Errorf("mpa: startup with %v: %w", s.c.RemoteAddr(), err)
}

func (s *startup) wait() error {
	select {
	case <-s.bell:
		return nil
	case <-s.ctx.Done():
		return s.over()
	}
}

// over says why the startup must end, nil where it need not yet.
func (s *startup) over() error {
	if err := s.parent.Err(); err != nil {
		return err
	}
	if s.ctx.Err() != nil {
		return fmt.Errorf("%w after %v: the peer speaks no MPA, or is gone", ErrTimeout, s.timeout)
	}
	return nil
}

func (s *startup) send(b []byte) error {
	for {
		if err := s.over(); err != nil {
			return err
		}
		err := s.c.Send(&octets{b})
		if !errors.Is(err, llp.ErrWouldBlock) {
			return err
		}
		if err := s.wait(); err != nil {
			return err
		}
	}
}

// read returns the frame that comes in and leaves what follows it in the stream.
func (s *startup) read() (Frame, error) {
	var scratch [FrameLen + MaxPrivateData]byte
	for need := 1; ; {
		if err := s.over(); err != nil {
			return Frame{}, err
		}
		slices, err := s.c.Receive(need, len(scratch))
		switch {
		case errors.Is(err, llp.ErrWouldBlock):
			if err := s.wait(); err != nil {
				return Frame{}, err
			}
			continue
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return Frame{}, errorf(CodeClosed, "the peer closed the connection during startup")
		case err != nil:
			return Frame{}, err
		}
		v := mem.Vec(slices)
		have := min(v.Len(), len(scratch))
		b := scratch[:0]
		if h := v.Head(have, scratch[:]); len(h) > 0 {
			b = append(b, h...)
		}
		f, rest, err := ParseFrame(b)
		if err == ErrShort {
			need = have + 1
			continue
		} else if err != nil {
			return Frame{}, err
		}
		f.PrivateData = append([]byte(nil), f.PrivateData...)
		return f, s.c.Consume(have - len(rest))
	}
}
