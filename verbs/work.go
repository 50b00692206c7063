package verbs

import (
	"github.com/softrnic/softrnic/iwarp/mem"
	"github.com/softrnic/softrnic/iwarp/rdmap"
)

// The two interfaces between a QP and its queues. Rings of this process implement
// them (sendq.go, recvq.go, CQ); queues that lie in memory shared with another
// process can too, and then hold the work requests where that process wrote them.

// sendSource is a send queue as the QP's step sees it. Tokens name its work
// requests in order.
type sendSource interface {
	rdmap.WorkSource // Next resolves the next WR; a fenced one waits for Reads
	sent(token uint64)
	readDone(token uint64)
	failed(token uint64, st Status, err error)
	blame(about rdmap.Subject, st Status, err error) // fails what a Terminate is about
	reading() bool                                   // a Read has not completed
	idle() bool                                      // nothing waits to be sent, and no Read for its Response
	unsent() bool                                    // something waits to be sent
	flush(err error)                                 // completes all that is left, and what is posted from now on
}

// recvSource is a receive queue as the QP's step sees it.
type recvSource interface {
	take() (mem.SGL, bool)                          // the next buffer
	received(r rdmap.Received)                      // the oldest one taken is full
	flush(first Status, firstErr error, rest error) // first is for one that was taken and not completed
}

// completionSink takes completions.
type completionSink interface {
	complete(wc WC)
}
