package rdmap

import (
	"github.com/softrnic/softrnic/iwarp/ddp"
	"github.com/softrnic/softrnic/iwarp/mem"
)

// response is a Read Request of the peer that waits for its Response.
type response struct {
	req  ReadReq
	span [1]mem.Span // what is read
	msn  ddp.MSN     // of the Request
}

// request takes a Read Request of the peer whose octets are in s.readBuf.
func (s *Stream) request(msn ddp.MSN, n int) error {
	req, ok := ParseReadReq(s.readBuf[:min(n, ReadRequestLen)])
	if !ok {
		return operationError(CodeUnspecified, "Read Request of %d octets, %d are due (RFC 5040 section 4.4)", n, ReadRequestLen)
	}
	span, err := s.cfg.Table.Check(req.SrcSTag, req.SrcTO, uint64(req.Size), mem.RemoteRead, s.cfg.PD)
	if err != nil {
		s.offendingRead = true
		return protection(err)
	}
	r := s.irq.push()
	r.req, r.span[0], r.msn = req, span, msn
	s.stats.ReadRequestsRx.Add(1)
	return nil
}
