// Package llp is the contract between MPA and the TCP connection below it: what
// RFC 5044 section 5 and RFC 5041 section 3 ask of the lower layer protocol,
// written with standard types only. netstack implements it on gVisor's TCP,
// llptest in memory; nothing above this package knows which.
//
// Two words say who owns octets. Memory that is lent is the callee's until the
// call returns (Batch.Read), or until Consume (Conn.Receive). Nothing here hands
// memory over for good.
package llp

import (
	"context"
	"errors"
	"net/netip"
)

// Errors of a connection. Both ends of an implementation report them so that
// errors.Is finds them; the text of the wrapping error names the addresses.
var (
	// ErrWouldBlock says that nothing was done for want of queued octets or of
	// send space; Notify's function is called when it is worth another try.
	ErrWouldBlock = errors.New("llp: would block")
	// ErrNoRoom is what Batch.Read returns where p is shorter than Len.
	ErrNoRoom = errors.New("llp: no room for the whole batch")
	// ErrReset says that the peer, or Abort, reset the connection.
	ErrReset = errors.New("llp: connection reset")
	// ErrTimeout says that the peer did not answer for the user timeout.
	ErrTimeout = errors.New("llp: connection timed out")
	// ErrRefused says that nothing listens at the peer's port.
	ErrRefused = errors.New("llp: connection refused")
	// ErrUnreachable says that no route or no neighbour leads to the peer.
	ErrUnreachable = errors.New("llp: peer unreachable")
	// ErrClosed says that this end had closed the connection, listener or stack.
	ErrClosed = errors.New("llp: closed")
	// ErrInUse says that a local address is taken.
	ErrInUse = errors.New("llp: address in use")
)

// MaxEMSS is the largest EMSS that Room reports, in octets: an FPDU that fills a
// segment of this size carries the largest ULPDU of RFC 5044 section 3 (64768).
const MaxEMSS = 64776

// Event is a set of edges that Notify's function is told of.
type Event uint8

const (
	// Readable: octets, the end of the stream or an error came in.
	Readable Event = 1 << iota
	// Writable: send space was freed after Send had returned ErrWouldBlock or
	// Room had shown too little of it.
	Writable
	// Down: the connection is gone in both directions; Receive and Send say why.
	Down
)

// Room describes the send side of a Conn at this moment. All figures are octets
// of TCP payload.
type Room struct {
	// EMSS is the payload of a full segment, after TCP options: a multiple of 4
	// and at most MaxEMSS (RFC 5044 section 5.1).
	EMSS int
	// Left is the room in the segment that the next octet goes to: EMSS where
	// the next Send starts a new one, else less. It may be wrong by a
	// retransmission; alignment is then lost for one segment and nothing else.
	Left int
	// Space is what one Send is certain to take now; zero or less means that a
	// Writable edge will follow. As the caller is the only writer, Space only
	// grows until the next Send.
	Space int
	// MaxBatch is the largest batch worth sending at once: what one super-packet
	// holds, a multiple of EMSS. Space reaches at least MaxBatch when the
	// connection is idle. Where Left is less than EMSS, the segment at hand counts
	// as whole in it.
	MaxBatch int
}

// Batch is one or more FPDUs on their way out. It writes itself into memory
// that the LLP lends.
type Batch interface {
	// Len is the number of octets still to be read.
	Len() int
	// Read fills p, the memory of TCP segments, lent until Read returns. An
	// empty p reads nothing and is no error. Where p is shorter than Len, Read
	// fails with ErrNoRoom and nothing is queued.
	Read(p []byte) (int, error)
}

// Conn is a TCP connection as MPA sees it (RFC 5044 section 5).
//
// One goroutine at a time calls Room, Send, Receive and Consume. The other
// methods may be called from anywhere, except from within Notify's function.
type Conn interface {
	// Room returns what Send has to work with. It does not block.
	Room() Room
	// Send queues all of b, or none of it: ErrWouldBlock for want of send space,
	// the error of b.Read if that failed, or the error that ended the
	// connection. b is the caller's again when Send returns. It does not block.
	Send(b Batch) error
	// Receive returns the octets that follow those consumed, in order, as slices
	// of segment memory: at least need of them, and no more than budget plus
	// the rest of one segment. They are valid until the next Receive, Consume
	// or Abort and must not be written. Fewer than need: ErrWouldBlock while
	// more can come; io.EOF after the peer's FIN with nothing left,
	// io.ErrUnexpectedEOF with less than need left; else the error that ended
	// the connection. need is at least 1. It does not block.
	Receive(need, budget int) ([][]byte, error)
	// Consume releases n octets from the front, and with them the peer's window.
	// n is at most what the last Receive returned.
	Consume(n int) error
	// Notify sets f, to be called on each edge; f is called once at once with
	// what already holds. f runs on any goroutine, with locks held: it must not
	// block and must not call the Conn. A nil f ends notification.
	Notify(f func(Event))
	// CloseWrite sends FIN after what was queued (half-close).
	CloseWrite() error
	// Abort resets the connection: RST to the peer, every later call fails with
	// ErrReset or ErrClosed. It may be called more than once.
	Abort()
	// Close releases the connection: FIN after what was queued, then nothing
	// more is read. The TCP stack finishes in the background. The memory that
	// Receive lent is invalid afterwards.
	Close() error
	// LocalAddr and RemoteAddr are the two ends of the connection.
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
}

// Listener waits for connections.
type Listener interface {
	// Accept blocks until a connection is established, ctx ends or Close is
	// called (ErrClosed).
	Accept(ctx context.Context) (Conn, error)
	// Addr is the local end; its port is the chosen one where Listen was asked
	// for port 0.
	Addr() netip.AddrPort
	// Close ends Accept and resets what was established but not accepted.
	Close() error
}

// Stack makes connections.
type Stack interface {
	// Dial connects local to remote and blocks until the connection is
	// established, refused, timed out, or ctx ends. A zero local, or a zero
	// address or port in it, is chosen by the stack.
	Dial(ctx context.Context, local, remote netip.AddrPort) (Conn, error)
	// Listen binds addr; an unspecified address means all addresses of the
	// stack, of both families where it is IPv6. backlog bounds the connections
	// that are not yet accepted; 0 means the default, 256.
	Listen(addr netip.AddrPort, backlog int) (Listener, error)
}
