// Package verbs is the RDMA programming interface: the objects and rules of
// ibverbs and rdma_cm in Go's manner, on iWARP.
//
//	Device ─┬─ PD ─┬─ MR    registered memory, named by an STag
//	        │      └─ QP ── connected to one QP of a peer
//	        ├─ CQ           where the WCs of any number of QPs arrive
//	        └─ Listener ─── ConnRequest, answered with a QP or a refusal
//
// A Device makes protection domains (PD), completion queues (CQ) and listeners. In
// a PD memory is registered (MR) and queue pairs (QP) are made. A QP is connected
// to one of a peer; work requests (WR) are posted to its send and receive queues,
// and each that asks for it ends as a work completion (WC) in a CQ. An RDMA Write
// or Read names memory of the peer by STag and TO; the peer's program is not
// involved.
//
// Ownership. The memory that a WR names belongs to the QP from the post until its
// WC was polled, or that of a later WR of the same queue; inline data are copied
// at the post. Registered memory stays the program's, who must not be surprised
// that a peer with the right to it changes it; MR.Load reads it cleanly.
//
// Credits. iWARP has no back-pressure: a Send that finds no receive posted ends the
// connection (RFC 5041 section 7.1). Programs count.
//
// Order. WRs of one queue complete in the order of their posts. A Send arrives
// after all that was posted before it; a Read may see what a later Write wrote,
// and what it fetched is not there for a later WR, unless that has Fence (RFC 5040
// section 5.5). A completed Write or Send has left; it may not have arrived.
//
// Failure. What breaks a rule ends the connection, with a Terminate that tells the
// peer why. The WR that was at fault has its status where it can be told, those
// behind it WRFlush, each completed once and in order; QP.Err says the rest, for
// errors.Is and errors.As. A peer can end its own connection and do no more harm
// than that.
//
// Cancellation. What waits takes a context; what is there already is returned
// even where the context has ended. Posts never block. Closing a QP completes
// every WR exactly once, in order, flushed where it did not succeed.
//
// Scheduling. A peer's Reads and Writes are served by the QP's own goroutine,
// without any goroutine of the program. They do share the Go scheduler with it, and
// a program that computes on all Ps delays them by its time slices of 10 ms: a Read
// of 64 octets over TAPs took 25 to 30 us where the target's program slept, and 40 ms
// where it computed with two goroutines for each P (integration/bench, "target
// computing"; BenchmarkReadWhileComputing for a pair within one process). Run the
// RNIC in a process of its own where that matters.
package verbs
