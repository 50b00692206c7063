package rdmap

import (
	"github.com/softrnic/softrnic/iwarp/ddp"
	"github.com/softrnic/softrnic/iwarp/mem"
)

// Subject is the message that a Terminate is about.
type Subject struct {
	Op   Op
	STag mem.STag // of a Write or Read Response where it goes, of a ReadRequest what is read
	TO   uint64   // in STag's region
	MSN  uint32   // of a Send
}

// Subject returns what t is about, as far as the headers that it quotes tell: peers
// may leave them out.
func (t *Term) Subject() (s Subject, ok bool) {
	if req, ok := ParseReadReq(t.RDMAP); ok {
		return Subject{Op: ReadRequest, STag: req.SrcSTag, TO: req.SrcTO}, true
	}
	switch len(t.DDP) {
	case ddp.TaggedLen:
		if h, err := ddp.ParseTagged(t.DDP); err == nil {
			s.Op, ok = ParseControl(h.RsvdULP)
			s.STag, s.TO = h.STag, h.TO
		}
	case ddp.UntaggedLen:
		if h, err := ddp.ParseUntagged(t.DDP); err == nil && h.QN == QNSend {
			s.Op, ok = ParseControl(h.RsvdULP)
			s.MSN = uint32(h.MSN)
		}
	}
	return s, ok
}
