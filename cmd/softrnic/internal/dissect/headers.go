package dissect

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/softrnic/softrnic/iwarp/ddp"
	"github.com/softrnic/softrnic/iwarp/mpa"
	"github.com/softrnic/softrnic/iwarp/rdmap"
)

const unknown = "unknown"

// Opcodes of RFC 7306 that show something of their payload.
const (
	opImmediate   = 0x8
	opImmediateSE = 0x9
	lastAssigned  = 0xb
	immediateLen  = 8
)

// startup fills in the part of r that is a Request's or a Reply's. wire is all of
// it.
func startup(f *mpa.Frame, wire []byte) *Startup {
	s := &Startup{
		Revision:    int(f.Revision),
		WantMarkers: f.Markers, WantCRC: f.CRC, Reject: f.Reject, Enhanced: f.Enhanced,
		PDLength:   len(wire) - mpa.FrameLen,
		PrivateLen: len(f.PrivateData), Private: hex.EncodeToString(f.PrivateData),
	}
	if f.Enhanced {
		ird, ord := f.IRD, f.ORD
		s.IRD, s.ORD, s.PeerToPeer = &ird, &ord, f.PeerToPeer
		for _, o := range []struct {
			on   bool
			name string
		}{{f.SendRTR, "send"}, {f.WriteRTR, "write"}, {f.ReadRTR, "read"}} {
			if o.on {
				s.RTR = append(s.RTR, o.name)
			}
		}
	}
	return s
}

// segment fills in the parts of r that a ULPDU has.
func segment(r *Record, u []byte) {
	s := &Segment{ULPDU: len(u), Opcode: unknown}
	r.Segment = s
	if len(u) == 0 {
		s.Fault = "an empty ULPDU"
		return
	}
	var op rdmap.Op
	var versionOK bool
	var payload []byte
	if ddp.IsTagged(u[0]) {
		h, err := ddp.ParseTagged(u)
		if err != nil {
			s.fault(u, err)
			return
		}
		r.Tagged = &Tagged{uint32(h.STag), h.TO}
		s.Last, payload = h.Last, u[ddp.TaggedLen:]
		op, versionOK = rdmap.ParseControl(h.RsvdULP)
	} else {
		h, err := ddp.ParseUntagged(u)
		if err != nil {
			s.fault(u, err)
			return
		}
		r.Untagged = &Untagged{QN: uint32(h.QN), MSN: uint32(h.MSN), MO: h.MO}
		s.Last, payload = h.Last, u[ddp.UntaggedLen:]
		op, versionOK = rdmap.ParseControl(h.RsvdULP)
		if op.Invalidates() {
			inv := h.RsvdULP4
			r.Untagged.Inv = &inv
		}
	}
	s.Len = len(payload)
	if op <= lastAssigned {
		s.Opcode = op.String()
	}
	switch {
	case !versionOK:
		s.Fault = fmt.Sprintf("RDMAP control octet %#02x: not version 1", u[1])
	case op > lastAssigned:
		s.Fault = fmt.Sprintf("opcode %#x is not assigned", uint8(op))
	case ddp.IsTagged(u[0]) != (op == rdmap.Write || op == rdmap.ReadResponse):
		s.Fault = fmt.Sprintf("%s in a segment of the other kind (tagged, untagged)", op)
	case r.Untagged != nil:
		r.untaggedPayload(op, payload)
	}
}

func (s *Segment) fault(u []byte, err error) {
	if errors.Is(err, ddp.ErrShort) {
		s.Fault = fmt.Sprintf("%d octets are no whole DDP header", len(u))
		return
	}
	s.Fault = err.Error()
}

func (r *Record) untaggedPayload(op rdmap.Op, p []byte) {
	switch op {
	case rdmap.ReadRequest:
		q, ok := rdmap.ParseReadReq(p)
		if !ok {
			r.Segment.Fault = fmt.Sprintf("%d octets of payload, a Read Request has %d", len(p), rdmap.ReadRequestLen)
			return
		}
		r.ReadRequest = &ReadRequest{uint32(q.SinkSTag), q.SinkTO, q.Size, uint32(q.SrcSTag), q.SrcTO}
	case rdmap.Terminate:
		if r.Untagged.MO != 0 { // a later piece of one
			return
		}
		r.Terminate = terminate(p)
		if r.Terminate == nil {
			r.Segment.Fault = fmt.Sprintf("%d octets of payload, a Terminate has 4 or more", len(p))
		}
	case opImmediate, opImmediateSE:
		if len(p) != immediateLen {
			r.Segment.Fault = fmt.Sprintf("%d octets of payload, immediate data are %d", len(p), immediateLen)
			return
		}
		r.Untagged.Imm = hex.EncodeToString(p)
	}
}

// terminate reads a Terminate. siw writes its control as bit fields of a
// little-endian machine: layer and type change places in their octet, and the
// flags M, D and R lie at the other end of theirs. No flag of the RFC's can be
// there, so it can be told.
func terminate(p []byte) *Terminate {
	var t Terminate
	if len(p) >= 4 && p[2]&0xe0 == 0 && p[2]&0x07 != 0 {
		q := make([]byte, len(p))
		copy(q, p)
		q[0] = p[0]<<4 | p[0]>>4
		q[2] = p[2]&1<<7 | p[2]&2<<5 | p[2]&4<<3
		p, t.Swapped = q, true
	}
	term, ok := rdmap.ParseTerm(p)
	if !ok {
		return nil
	}
	t.Layer, t.Type, t.Code = uint8(term.Layer), term.Type, term.Code
	t.Reason = rdmap.Describe(term.Layer, term.Type, term.Code)
	t.Terminated = refused(&term)
	return &t
}

// refused describes the segment that a Terminate is about.
func refused(t *rdmap.Term) string {
	if t.DDP == nil {
		return ""
	}
	var s string
	if ddp.IsTagged(t.DDP[0]) {
		h, err := ddp.ParseTagged(t.DDP)
		if err != nil {
			return err.Error()
		}
		op, _ := rdmap.ParseControl(h.RsvdULP)
		s = fmt.Sprintf("%s stag=%#08x to=%#x", op, uint32(h.STag), h.TO)
	} else {
		h, err := ddp.ParseUntagged(t.DDP)
		if err != nil {
			return err.Error()
		}
		op, _ := rdmap.ParseControl(h.RsvdULP)
		s = fmt.Sprintf("%s qn=%d msn=%d mo=%d", op, h.QN, h.MSN, h.MO)
	}
	if q, ok := rdmap.ParseReadReq(t.RDMAP); ok {
		s += fmt.Sprintf(" size=%d sink=%#08x/%#x src=%#08x/%#x", q.Size, uint32(q.SinkSTag), q.SinkTO, uint32(q.SrcSTag), q.SrcTO)
	}
	return s
}

// plausible says whether a stream may have an FPDU at the start of b: what the
// header's fixed bits allow. ok is false where b is too short to say.
func plausible(b []byte) (yes, ok bool) {
	if len(b) < 4 {
		return false, false
	}
	n := int(binary.BigEndian.Uint16(b))
	if n < ddp.TaggedLen || n > mpa.MaxULPDU || b[2]&0x3f != 0x01 || b[3]&0xf0 != 0x40 {
		return false, true
	}
	op := rdmap.Op(b[3] & 0xf)
	tagged := ddp.IsTagged(b[2])
	return op <= lastAssigned && tagged == (op == rdmap.Write || op == rdmap.ReadResponse) && (tagged || n >= ddp.UntaggedLen), true
}
