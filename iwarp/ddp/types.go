package ddp

// QN names a queue of untagged buffers.
type QN uint32

// MSN counts the messages of one queue, from 1, and wraps to 0 (RFC 5041 section
// 4.3).
type MSN uint32

// FirstMSN is the MSN of a queue's first message.
const FirstMSN MSN = 1

// Before says whether m comes before n, in arithmetic that wraps.
func (m MSN) Before(n MSN) bool { return int32(m-n) < 0 }

// The control octet (RFC 5041 section 4.1).
const (
	flagTagged  = 0x80
	flagLast    = 0x40
	maskVersion = 0x03
	version     = 0x01
)

// Lengths of headers in octets.
const (
	TaggedLen   = 14
	UntaggedLen = 18
	MaxLen      = UntaggedLen
)

// IsTagged says which header follows, from a segment's first octet.
func IsTagged(control byte) bool { return control&flagTagged != 0 }
