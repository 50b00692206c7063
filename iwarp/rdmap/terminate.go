package rdmap

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/iwarp/ddp"
)

// MaxTerminateLen is the longest payload of a Terminate in octets: control,
// segment length, an untagged DDP header and a Read Request's.
const MaxTerminateLen = 4 + 2 + ddp.UntaggedLen + ReadRequestLen

const (
	flagM = 1 << 15 // the DDP segment length is there
	flagD = 1 << 14 // the DDP header is there
	flagR = 1 << 13 // the RDMAP header is there
)

// Term is the payload of a Terminate (RFC 5040 section 4.8).
//
//	 0       4        8        16             32           48
//	+-------+--------+--------+-----+--------+------------+---------------
//	| Layer | EType  |  Code  | MDR | zeros  | DDP length | DDP header, Read Request header
//
// Nothing pads the two octets of the DDP segment length.
type Term struct {
	Layer   Layer
	Type    uint8
	Code    uint8
	HasLen  bool   // M
	Segment uint16 // length of the terminated DDP segment, in octets
	DDP     []byte // D: its header, of 14 or 18 octets; nil for none
	RDMAP   []byte // R: the Read Request header; nil for none
}

// Append appends the payload to b.
func (t *Term) Append(b []byte) []byte {
	w := uint32(t.Layer&0xf)<<28 | uint32(t.Type&0xf)<<24 | uint32(t.Code)<<16
	if t.HasLen {
		w |= flagM
	}
	if t.DDP != nil {
		w |= flagD
	}
	if t.RDMAP != nil {
		w |= flagR
	}
	b = binary.BigEndian.AppendUint32(b, w)
	if t.HasLen || t.DDP != nil || t.RDMAP != nil {
		b = binary.BigEndian.AppendUint16(b, t.Segment)
	}
	b = append(b, t.DDP...)
	return append(b, t.RDMAP...)
}

// ParseTerm reads the payload of a Terminate; DDP and RDMAP alias b. It takes
// anything of at least the control's four octets: implementations differ in what
// they leave out, and the codes are what matters. ok is false below that.
func ParseTerm(b []byte) (t Term, ok bool) {
	if len(b) < 4 {
		return t, false
	}
	w := binary.BigEndian.Uint32(b)
	t.Layer, t.Type, t.Code = Layer(w>>28), uint8(w>>24)&0xf, uint8(w>>16)
	b = b[4:]
	if len(b) < 2 {
		return t, true
	}
	t.HasLen, t.Segment = w&flagM != 0, binary.BigEndian.Uint16(b)
	b = b[2:]
	if w&flagD != 0 && len(b) > 0 {
		n := ddp.UntaggedLen
		if ddp.IsTagged(b[0]) {
			n = ddp.TaggedLen
		}
		if len(b) < n {
			return t, true
		}
		t.DDP, b = b[:n], b[n:]
	}
	if w&flagR != 0 && len(b) >= ReadRequestLen {
		t.RDMAP = b[:ReadRequestLen]
	}
	return t, true
}
