// Package dissect turns a capture into records: one per MPA Request or Reply, and
// one per FPDU with the DDP and RDMAP headers in it. It follows the startup of
// each connection, so it knows about CRC and markers; where a capture begins
// within a connection it looks for an FPDU whose CRC is right.
package dissect
