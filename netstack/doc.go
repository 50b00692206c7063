// Package netstack is gVisor's TCP/IP as an iWARP lower layer protocol: it
// implements llp.Stack, llp.Listener and llp.Conn over the queues of a
// tap.Device. It knows nothing of iWARP, and nothing of gVisor's shows in its
// exported names.
//
// # How gVisor is set up, and why
//
// The link endpoint is our own (link.go). It offers gVisor TSO, whatever the
// device can do, so that TCP always works in super-packets of up to 65455
// octets of payload; where the device lacks TSO or checksum offload, the cut and
// the sums are made here (cut.go), on the way out. CapabilityTXChecksumOffload
// stays unset, as SYN and RST rely on gVisor's own sums. gVisor takes a
// received packet's checksum as verified or not by what Capabilities says at
// that moment, so the receive loop sets that for each frame (rx.go).
//
// TCP: SACK is on (without it gVisor's splitting of segments may panic), RACK
// too unless Config.NoRACK, the smallest retransmission timeout is 10 ms, the
// largest 2 s (so that a connection resumes within 2 s of the end of an outage,
// however long it was), Nagle is off, buffers are fixed (automatic tuning lets
// flows stall), TIME_WAIT is short. Keepalive and the user timeout say how long a
// silent peer is borne.
//
// # FPDU alignment
//
// RFC 5044 section 5 wants FPDUs to start where TCP segments start. gVisor
// merges and splits what is written as windows allow, so alignment is made in
// two places. Conn.Room tells MPA how much is left of the segment that the next
// octet goes to, or that a new one starts because nothing waits to be sent. And
// the flow table (flow.go) remembers, in sequence numbers, where such a grid of
// EMSS-sized cells was started anew; a super-packet that leaves the grid is cut
// there into frames of its own. So a segment starts with an FPDU header however
// gVisor cut, except after a loss or where the peer's window ended within one.
//
// # Copies
//
// No payload octet is copied in this package: TCP's chunks are filled by
// llp.Batch.Read, sent as they lie, received into views that TCP queues and
// Conn.Receive lends. Headers are built and patched in memory of our own.
//
// # Goroutines
//
// One per tap queue (the receive loop), and gVisor's TCP processors. Both end
// within Stack.Close, which returns when they have.
package netstack
