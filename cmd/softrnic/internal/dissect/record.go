package dissect

import (
	"fmt"
	"strings"
	"time"
)

// Kinds of a Record.
const (
	Request = "mpa-request"
	Reply   = "mpa-reply"
	FPDU    = "fpdu"
)

// What became of an FPDU's CRC.
const (
	CRCOk  = "ok"
	CRCBad = "bad"
	CRCOff = "off" // the connection does without
)

// Record is one MPA frame or FPDU. The parts that do not belong to its kind are
// nil. Numbers are as on the wire, lengths in octets.
type Record struct {
	Frame int       `json:"frame"` // the packet that completed it, from 1
	Time  time.Time `json:"time"`
	Src   string    `json:"src"`
	Dst   string    `json:"dst"`
	Kind  string    `json:"kind"`
	*Startup
	*Segment
	*Tagged
	*Untagged
	*ReadRequest
	*Terminate

	// Wire is the whole of it as captured, lent until the next record: markers
	// included.
	Wire []byte `json:"-"`
	// Markers are the octets of markers in Wire.
	Markers int `json:"markers,omitempty"`
}

// Startup is what an MPA Request or Reply says (RFC 5044 section 7.1.1, RFC 6581
// section 9).
type Startup struct {
	Revision    int      `json:"revision"`
	WantMarkers bool     `json:"want_markers"` // M
	WantCRC     bool     `json:"want_crc"`     // C
	Reject      bool     `json:"reject"`       // R
	Enhanced    bool     `json:"enhanced"`     // S
	PDLength    int      `json:"pd_length"`    // with the enhanced data
	IRD         *int     `json:"ird,omitempty"`
	ORD         *int     `json:"ord,omitempty"`
	PeerToPeer  bool     `json:"peer_to_peer,omitempty"` // A
	RTR         []string `json:"rtr,omitempty"`          // send, write, read: B, C, D
	PrivateLen  int      `json:"private_len"`
	Private     string   `json:"private,omitempty"` // in hexadecimal
}

// Segment is the DDP segment of an FPDU.
type Segment struct {
	Opcode string `json:"opcode"`
	Len    int    `json:"len"` // of the payload
	CRC    string `json:"crc"`
	ULPDU  int    `json:"ulpdu"` // ULPDU_Length
	Last   bool   `json:"last"`
	Fault  string `json:"fault,omitempty"` // what is wrong with it
}

// Tagged says where the payload of a tagged segment goes (RFC 5041 section 4.2).
type Tagged struct {
	STag uint32 `json:"stag"`
	TO   uint64 `json:"to"`
}

// Untagged says where the payload of an untagged segment goes (RFC 5041 section
// 4.3), and which STag it invalidates.
type Untagged struct {
	QN  uint32  `json:"qn"`
	MSN uint32  `json:"msn"`
	MO  uint32  `json:"mo"`
	Inv *uint32 `json:"inv_stag,omitempty"`
	Imm string  `json:"immediate,omitempty"` // eight octets in hexadecimal
}

// ReadRequest is an RDMA Read Request (RFC 5040 section 4.4).
type ReadRequest struct {
	SinkSTag uint32 `json:"sink_stag"`
	SinkTO   uint64 `json:"sink_to"`
	Size     uint32 `json:"size"`
	SrcSTag  uint32 `json:"src_stag"`
	SrcTO    uint64 `json:"src_to"`
}

// Terminate is the payload of a Terminate (RFC 5040 section 4.8).
type Terminate struct {
	Layer  uint8  `json:"layer"`
	Type   uint8  `json:"etype"`
	Code   uint8  `json:"code"`
	Reason string `json:"reason"`
	// Swapped: layer, type and flags came in the order of siw's bit fields instead
	// of the RFC's.
	Swapped    bool   `json:"swapped,omitempty"`
	Terminated string `json:"terminated,omitempty"` // the headers of what was refused
}

// String returns r as a line of text, without its frame number and time.
func (r *Record) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s > %s %s", r.Src, r.Dst, r.Kind)
	if s := r.Startup; s != nil {
		fmt.Fprintf(&b, " rev=%d M=%d C=%d R=%d S=%d", s.Revision, bit(s.WantMarkers), bit(s.WantCRC), bit(s.Reject), bit(s.Enhanced))
		if s.IRD != nil {
			fmt.Fprintf(&b, " ird=%d ord=%d", *s.IRD, *s.ORD)
		}
		if s.PeerToPeer {
			fmt.Fprintf(&b, " rtr=%s", strings.Join(s.RTR, ","))
		}
		fmt.Fprintf(&b, " private=%d", s.PrivateLen)
	}
	if s := r.Segment; s != nil {
		fmt.Fprintf(&b, " %-13s len=%d", s.Opcode, s.Len)
	}
	if t := r.Tagged; t != nil {
		fmt.Fprintf(&b, " stag=%#08x to=%#x", t.STag, t.TO)
	}
	if u := r.Untagged; u != nil {
		fmt.Fprintf(&b, " qn=%d msn=%d mo=%d", u.QN, u.MSN, u.MO)
		if u.Inv != nil {
			fmt.Fprintf(&b, " inv=%#08x", *u.Inv)
		}
		if u.Imm != "" {
			fmt.Fprintf(&b, " imm=%s", u.Imm)
		}
	}
	if q := r.ReadRequest; q != nil {
		fmt.Fprintf(&b, " size=%d sink=%#08x/%#x src=%#08x/%#x", q.Size, q.SinkSTag, q.SinkTO, q.SrcSTag, q.SrcTO)
	}
	if t := r.Terminate; t != nil {
		fmt.Fprintf(&b, " %d/%d/%#02x (%s)", t.Layer, t.Type, t.Code, t.Reason)
		if t.Terminated != "" {
			fmt.Fprintf(&b, " of %s", t.Terminated)
		}
	}
	if s := r.Segment; s != nil {
		if s.Last {
			b.WriteString(" last")
		}
		fmt.Fprintf(&b, " crc=%s", s.CRC)
		if r.Markers > 0 {
			fmt.Fprintf(&b, " markers=%d", r.Markers/markerLen)
		}
		if s.Fault != "" {
			fmt.Fprintf(&b, " FAULT: %s", s.Fault)
		}
	}
	return b.String()
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
