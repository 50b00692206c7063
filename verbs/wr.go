package verbs

import (
	"math"

	"github.com/softrnic/softrnic/iwarp/mem"
)

// STag names registered memory on the wire.
type STag = mem.STag

// Op is what a work request does.
type Op uint8

const (
	OpSend    Op = iota // to a receive WR of the peer
	OpSendInv           // the same, and invalidate an STag of the peer's
	OpWrite             // to memory of the peer
	OpRead              // from memory of the peer
	OpRecv              // of a WC: a receive WR
)

var opNames = [...]string{"Send", "SendInv", "Write", "Read", "Recv"}

func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "unknown"
}

// Flags modify a SendWR, and describe a WC.
type Flags uint8

const (
	// Signaled asks for a WC. Without it a WR only completes visibly in error.
	Signaled Flags = 1 << iota
	// Solicited makes the receiver's WC a solicited one (Sends only). In a WC: it
	// is.
	Solicited
	// Fence holds the WR until all Reads before it have completed.
	Fence
	// Inline copies the octets at the post: their memory is free at once, and need
	// not be registered.
	Inline
	// Invalidated, in a WC: the peer's Send invalidated WC.InvSTag.
	Invalidated
)

// MaxMessage is the longest message in octets (RFC 5041 section 4.3).
const MaxMessage = math.MaxUint32

// SGE is a piece of registered memory: Len octets from Off of MR. One of no octets
// is not looked at.
type SGE struct {
	MR  *MR
	Off int
	Len int
}

// SendWR is a work request for the send queue.
type SendWR struct {
	ID    uint64 // the program's, handed back in the WC
	Op    Op
	SGL   []SGE  // what is sent; of a Read the one place where it goes
	Data  []byte // what is sent, with Inline; SGL must be empty then
	Flags Flags

	RemoteSTag STag   // of a Write or Read
	RemoteTO   uint64 // in it, in octets
	InvSTag    STag   // of a SendInv
}

// RecvWR is a work request for the receive queue: a buffer for one Send.
type RecvWR struct {
	ID  uint64
	SGL []SGE
}
