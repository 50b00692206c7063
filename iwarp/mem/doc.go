// Package mem says what a peer may touch: regions of registered memory, the
// STags that name them, the rights on them, and the one function through which
// every octet of payload moves.
//
// It is the leaf that mpa, ddp, rdmap and verbs share, and knows nothing of
// wires. A check returns a Span (region, offset, length) rather than a slice,
// since a region may one day lie in another process; octets move by Gather (out
// of registered memory) and Scatter (into it).
//
// Three promises hold for every region: nothing is moved before its bounds,
// rights and protection domain were checked; nothing is moved once Deregister
// has returned; and within one segment that ends a message the last octets
// become visible after all others.
package mem
