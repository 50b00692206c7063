// Package mpa frames ULPDUs on a TCP connection and starts such connections
// (RFC 5044, RFC 6581).
//
// On the wire every ULPDU is an FPDU:
//
//	0               2                     2+n  +0..3     +4
//	+---------------+-------- ... --------+-----+---------+
//	| ULPDU_Length  |        ULPDU        | PAD |   CRC   |
//	+---------------+-------- ... --------+-----+---------+
//
// The length counts the ULPDU alone. PAD makes the FPDU a multiple of four
// octets. CRC32c covers all before it and is stored least significant octet
// first, unlike everything else; the field is there even where CRC is off.
//
// A connection begins with a Request and a Reply (startup.go) that agree on CRC,
// markers, and the depths of the read queues (negotiate.go). Then a Conn writes
// FPDUs straight into TCP segments, each within one segment where it can
// (batch.go), and finds them again however TCP cut the stream (deframe.go).
// Nothing is delivered before its CRC was verified.
package mpa
