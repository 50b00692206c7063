package verbs

import (
	"errors"
	"fmt"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/mem"
	"github.com/softrnic/softrnic/iwarp/rdmap"
)

// Errors that a program can act on. What is returned wraps one of them with the
// values.
var (
	// ErrState: the object's state does not allow the call.
	ErrState = errors.New("verbs: wrong state")
	// ErrFull: the queue has no free slot; poll completions first.
	ErrFull = errors.New("verbs: queue full")
	// ErrTooBig: more SGEs, octets or entries than the object was made for.
	ErrTooBig = errors.New("verbs: too big")
	// ErrInvalid: an argument makes no sense.
	ErrInvalid = errors.New("verbs: invalid argument")
	// ErrBusy: the object is still in use.
	ErrBusy = errors.New("verbs: in use")
	// ErrClosed: the object, or its device, was closed.
	ErrClosed = errors.New("verbs: closed")
	// ErrOverflow: a completion found the CQ full. It and the QPs that use it are
	// lost.
	ErrOverflow = errors.New("verbs: completion queue overflow")
	// ErrFlushed is the Err of a WC with WRFlush where nothing more is known.
	ErrFlushed = errors.New("verbs: flushed: the connection ended before this work request")
	// ErrDisconnected says that the peer closed the connection while work was
	// outstanding.
	ErrDisconnected = errors.New("verbs: disconnected by the peer")
	// ErrTimeout says that the peer did not answer in time: TCP gave the connection
	// up, or the peer did not close its side of it.
	ErrTimeout = llp.ErrTimeout
	// ErrStartupTimeout: the peer did not finish the MPA startup in time.
	ErrStartupTimeout = rdmap.ErrStartupTimeout
	// ErrPrivateData: more private data than a frame can carry, 512 octets at MPA
	// revision 1 and 508 at revision 2.
	ErrPrivateData = rdmap.ErrPrivateData
)

// Verdicts on memory, found by errors.Is in errors of posts and completions.
var (
	ErrSTag   = mem.ErrSTag
	ErrBounds = mem.ErrBounds
	ErrAccess = mem.ErrAccess
	ErrPD     = mem.ErrPD
	ErrWrap   = mem.ErrWrap
)

type (
	// TerminateError says that a Terminate message ended the connection (RFC 5040
	// section 4.8).
	TerminateError = rdmap.TerminateError
	// RejectedError says that the peer refused the connection, with its private
	// data.
	RejectedError = rdmap.RejectedError
	// CheckError is a verdict on memory with the STag, TO and length.
	CheckError = mem.CheckError
)

func errorf(err error, format string, args ...any) error {
	return fmt.Errorf("%w: %s", err, fmt.Sprintf(format, args...))
}
