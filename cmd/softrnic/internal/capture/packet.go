package capture

import (
	"encoding/binary"
	"net/netip"
)

// Flags of a Segment, at their places in TCP's header.
const (
	FIN = 0x01
	SYN = 0x02
	RST = 0x04
	ACK = 0x10
)

// Segment is a TCP segment, or a super-packet of several. Payload aliases the
// packet.
type Segment struct {
	Src, Dst netip.AddrPort
	Seq, Ack uint32
	Flags    uint8
	Payload  []byte
	Len      int // of the payload on the wire: more than was captured, maybe
}

// Verdict says what a packet is to us.
type Verdict uint8

const (
	TCP         Verdict = iota // a segment
	Other                      // no TCP
	Fragment                   // a piece of an IP packet; these are not joined
	UnknownLink                // a link type that is not known
	Truncated                  // captured without all its headers
)

// Link types.
const (
	linkNull     = 0
	linkEthernet = 1
	linkRawBSD   = 12
	linkRawBSD2  = 14
	linkRaw      = 101
	linkLoop     = 108
	linkCooked   = 113
	linkIPv4     = 228
	linkIPv6     = 229
	linkCooked2  = 276
)

// ParseSegment finds the TCP segment in p.
func ParseSegment(p *Packet, s *Segment) Verdict {
	b := p.Data
	ether := 0 // what Ethernet calls the payload; 0: look
	need := func(n int) bool { return len(b) >= n }
	switch p.Link {
	case linkEthernet:
		if !need(14) {
			return Truncated
		}
		ether, b = int(binary.BigEndian.Uint16(b[12:])), b[14:]
	case linkCooked:
		if !need(16) {
			return Truncated
		}
		ether, b = int(binary.BigEndian.Uint16(b[14:])), b[16:]
	case linkCooked2:
		if !need(20) {
			return Truncated
		}
		ether, b = int(binary.BigEndian.Uint16(b)), b[20:]
	case linkNull, linkLoop: // an address family, whose numbers differ by system
		if !need(4) {
			return Truncated
		}
		b = b[4:]
	case linkRaw, linkRawBSD, linkRawBSD2, linkIPv4, linkIPv6:
	default:
		return UnknownLink
	}
	for tags := 0; tags < 4 && (ether == 0x8100 || ether == 0x88a8 || ether == 0x9100); tags++ { // VLANs
		if !need(4) {
			return Truncated
		}
		ether, b = int(binary.BigEndian.Uint16(b[2:])), b[4:]
	}
	if ether != 0 && ether != 0x0800 && ether != 0x86dd {
		return Other
	}
	if len(b) == 0 {
		return Truncated
	}
	switch b[0] >> 4 {
	case 4:
		return s.parseV4(b)
	case 6:
		return s.parseV6(b)
	}
	return Other
}

func (s *Segment) parseV4(b []byte) Verdict {
	if len(b) < 20 {
		return Truncated
	}
	head, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	switch {
	case head < 20:
		return Other
	case b[9] != 6:
		return Other
	case binary.BigEndian.Uint16(b[6:])&0x3fff != 0:
		return Fragment
	case len(b) < head:
		return Truncated
	}
	if total == 0 { // a super-packet before the NIC has cut it
		total = len(b)
	}
	if total < head {
		return Other
	}
	src, dst := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	return s.parseTCP(src, dst, b[head:min(total, len(b))], total-head)
}

func (s *Segment) parseV6(b []byte) Verdict {
	if len(b) < 40 {
		return Truncated
	}
	n := int(binary.BigEndian.Uint16(b[4:]))
	next := b[6]
	src, dst := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	b = b[40:]
	if n == 0 { // a super-packet, or a jumbogram
		n = len(b)
	}
	b = b[:min(n, len(b))]
	for range 8 { // extension headers
		switch next {
		case 6:
			return s.parseTCP(src, dst, b, n)
		case 0, 43, 60: // hop-by-hop options, routing, destination options
			if len(b) < 8 {
				return Truncated
			}
			l := int(b[1])*8 + 8
			if len(b) < l {
				return Truncated
			}
			next, b, n = b[0], b[l:], n-l
		case 44:
			if len(b) < 8 {
				return Truncated
			}
			if binary.BigEndian.Uint16(b[2:])&^6 != 0 { // an offset, or more to come
				return Fragment
			}
			next, b, n = b[0], b[8:], n-8
		default:
			return Other
		}
	}
	return Other
}

func (s *Segment) parseTCP(src, dst netip.Addr, b []byte, n int) Verdict {
	if len(b) < 20 {
		return Truncated
	}
	head := int(b[12]>>4) * 4
	if head < 20 || n < head {
		return Other
	}
	if len(b) < head {
		return Truncated
	}
	s.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	s.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	s.Seq, s.Ack = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	s.Flags, s.Payload, s.Len = b[13], b[head:], n-head
	return TCP
}
