package netstack

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/softrnic/softrnic/iwarp/llp"
	"gvisor.dev/gvisor/pkg/tcpip"
)

// OpError says which operation failed, on which addresses, and why. Err is one of
// llp's errors where one fits, so errors.Is finds it.
type OpError struct {
	Op     string         // dial, listen, accept, send, receive, ...
	Local  netip.AddrPort // zero where not yet known
	Remote netip.AddrPort // zero for a listener
	Err    error
}

// Error names the operation, both addresses and the cause.
func (e *OpError) Error() string {
	switch {
	case e.Remote.IsValid() && e.Local.IsValid():
		return fmt.Sprintf("netstack: %s %v -> %v: %v", e.Op, e.Local, e.Remote, e.Err)
	case e.Remote.IsValid():
		return fmt.Sprintf("netstack: %s %v: %v", e.Op, e.Remote, e.Err)
	case e.Local.IsValid():
		return fmt.Sprintf("netstack: %s %v: %v", e.Op, e.Local, e.Err)
	}
	return fmt.Sprintf("netstack: %s: %v", e.Op, e.Err)
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// stackError is a gVisor error that none of llp's stands for, by its text.
type stackError string

func (e stackError) Error() string { return string(e) }

// errNotLocal is the cause where a local address is none of the stack's.
var errNotLocal = errors.New("not an address of this stack")

// fromTCPIP turns an error of gVisor's into one of ours. It is the only place
// where they cross.
func fromTCPIP(err tcpip.Error) error {
	switch err.(type) {
	case nil:
		return nil
	case *tcpip.ErrConnectionReset, *tcpip.ErrAborted, *tcpip.ErrConnectionAborted:
		return llp.ErrReset
	case *tcpip.ErrTimeout:
		return llp.ErrTimeout
	case *tcpip.ErrConnectionRefused:
		return llp.ErrRefused
	case *tcpip.ErrHostUnreachable, *tcpip.ErrNetworkUnreachable, *tcpip.ErrHostDown, *tcpip.ErrNoNet:
		return llp.ErrUnreachable
	case *tcpip.ErrClosedForSend, *tcpip.ErrClosedForReceive, *tcpip.ErrNotConnected, *tcpip.ErrInvalidEndpointState:
		return llp.ErrClosed
	case *tcpip.ErrPortInUse, *tcpip.ErrNoPortAvailable, *tcpip.ErrDuplicateAddress:
		return llp.ErrInUse
	case *tcpip.ErrWouldBlock:
		return llp.ErrWouldBlock
	case *tcpip.ErrBadLocalAddress:
		return errNotLocal
	}
	return stackError(err.String())
}
