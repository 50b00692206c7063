// Package verbs is the RDMA programming interface: the objects and rules of
// ibverbs and rdma_cm in Go's manner, on iWARP.
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
// Cancellation. What waits takes a context; what is there already is returned
// even where the context has ended. Posts never block. Closing a QP completes
// every WR exactly once, in order, flushed where it did not succeed.
//
// Scheduling. A peer's Reads and Writes are served by the QP's own goroutine,
// without any goroutine of the program. They do share the Go scheduler with it: a
// program that computes on all Ps delays them; run the RNIC in a process of its
// own where that matters.
package verbs
