// Package llptest is the LLP in memory: two connections joined without a TCP
// stack, for the tests of everything above. It has no clock and starts no
// goroutine, so it runs in a testing/synctest bubble. What TCP may do to a
// stream is settable: the segment size, the send space, how the stream is cut on
// the way, and how the connection ends. Memory that was lent is spoilt when it is
// consumed, so that a use after that shows.
//
// Conform holds any implementation of llp.Conn to the contract, this one
// included.
package llptest
