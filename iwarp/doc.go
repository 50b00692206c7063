// Package iwarp holds the protocols of an iWARP RNIC, one folder each, from the
// connection up:
//
//	llp    what MPA asks of TCP; llp/llptest is one in memory
//	mpa    framing and startup                      RFC 5044, RFC 6581
//	ddp    segments, placement                      RFC 5041
//	rdmap  Send, Write, Read, Terminate             RFC 5040
//	mem    registered memory, which all of them share; RFC 5042
//
// Each imports the one before it, and mem. The package itself is empty. Frames
// to test against lie in testdata/frames.
package iwarp
