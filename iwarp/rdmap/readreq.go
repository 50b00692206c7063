package rdmap

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/iwarp/mem"
)

// ReadRequestLen is the payload of an RDMA Read Request in octets.
const ReadRequestLen = 28

// ReadReq is the header of an RDMA Read Request (RFC 5040 section 4.4).
//
//	0          4                12      16         20               28
//	+----------+----------------+-------+----------+----------------+
//	| SinkSTag |     SinkTO     | Size  | SrcSTag  |     SrcTO      |
type ReadReq struct {
	SinkSTag mem.STag // where the Response goes
	SinkTO   uint64
	Size     uint32   // octets
	SrcSTag  mem.STag // what to read
	SrcTO    uint64
}

// ParseReadReq reads the header from the ReadRequestLen octets of b.
func ParseReadReq(b []byte) (r ReadReq, ok bool) {
	if len(b) != ReadRequestLen {
		return r, false
	}
	return ReadReq{
		SinkSTag: mem.STag(binary.BigEndian.Uint32(b)),
		SinkTO:   binary.BigEndian.Uint64(b[4:]),
		Size:     binary.BigEndian.Uint32(b[12:]),
		SrcSTag:  mem.STag(binary.BigEndian.Uint32(b[16:])),
		SrcTO:    binary.BigEndian.Uint64(b[20:]),
	}, true
}

// Put writes r into the first ReadRequestLen octets of b.
func (r *ReadReq) Put(b []byte) {
	binary.BigEndian.PutUint32(b, uint32(r.SinkSTag))
	binary.BigEndian.PutUint64(b[4:], r.SinkTO)
	binary.BigEndian.PutUint32(b[12:], r.Size)
	binary.BigEndian.PutUint32(b[16:], uint32(r.SrcSTag))
	binary.BigEndian.PutUint64(b[20:], r.SrcTO)
}
