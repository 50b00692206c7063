package taptest

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/tap"
)

// parsed says where the parts of a TCP frame are, in octets from its start.
type parsed struct {
	ip, tcp, payload int
	v6               bool
}

// parse finds the TCP parts of a frame; ok is false for anything else.
func parse(b []byte) (p parsed, ok bool) {
	if len(b) < 14 {
		return p, false
	}
	typ, at := binary.BigEndian.Uint16(b[12:]), 14
	if typ == 0x8100 && len(b) >= 18 {
		typ, at = binary.BigEndian.Uint16(b[16:]), 18
	}
	p.ip = at
	switch {
	case typ == 0x0800 && len(b) >= at+20 && b[at+9] == 6:
		p.tcp = at + int(b[at]&15)*4
		if binary.BigEndian.Uint16(b[at+6:])&0x3fff != 0 { // a fragment
			return p, false
		}
	case typ == 0x86dd && len(b) >= at+40 && b[at+6] == 6:
		p.tcp, p.v6 = at+40, true
	default:
		return p, false
	}
	if len(b) < p.tcp+20 {
		return p, false
	}
	p.payload = p.tcp + int(b[p.tcp+12]>>4)*4
	return p, p.payload >= p.tcp+20 && p.payload <= len(b)
}

// sum adds the 16-bit words of b to s, in one's complement.
func sum(s uint32, b []byte) uint32 {
	for len(b) >= 2 {
		s += uint32(b[0])<<8 | uint32(b[1])
		b = b[2:]
		s = s&0xffff + s>>16
	}
	if len(b) > 0 {
		s += uint32(b[0]) << 8
	}
	return s&0xffff + s>>16
}

// finish writes the lengths and checksums of a TCP frame.
func (p parsed) finish(b []byte) {
	n := len(b) - p.tcp
	ip := b[p.ip:]
	var s uint32
	if p.v6 {
		binary.BigEndian.PutUint16(ip[4:], uint16(n))
		s = sum(0, ip[8:40])
	} else {
		hlen := p.tcp - p.ip
		binary.BigEndian.PutUint16(ip[2:], uint16(n+hlen))
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum(0, ip[:hlen])))
		s = sum(0, ip[12:20])
	}
	s += 6 + uint32(n)
	t := b[p.tcp:]
	t[16], t[17] = 0, 0
	s = sum(s&0xffff+s>>16, t)
	binary.BigEndian.PutUint16(t[16:], ^uint16(s))
}

// segments calls f with the frames that a wire would carry: super-packets cut at
// their GSO size, checksums in place. f may change what it is given and must not
// keep it.
func segments(h tap.VNetHdr, b []byte, f func(b []byte)) {
	p, ok := parse(b)
	if h.GSOType == tap.GSONone || !ok || h.GSOSize == 0 || p.payload == len(b) {
		if h.Flags&tap.HdrNeedsCsum != 0 && ok {
			p.finish(b)
		} else if at := int(h.CsumStart); h.Flags&tap.HdrNeedsCsum != 0 && at+int(h.CsumOffset)+2 <= len(b) {
			binary.BigEndian.PutUint16(b[at+int(h.CsumOffset):], ^uint16(sum(0, b[at:])))
		}
		f(b)
		return
	}
	payload := b[p.payload:]
	seq := binary.BigEndian.Uint32(b[p.tcp+4:])
	id := binary.BigEndian.Uint16(b[p.ip+4:])
	flags := b[p.tcp+13]
	const fin, psh, cwr = 0x01, 0x08, 0x80
	for off := 0; off < len(payload); {
		n := min(len(payload)-off, int(h.GSOSize))
		s := append(append([]byte(nil), b[:p.payload]...), payload[off:off+n]...)
		binary.BigEndian.PutUint32(s[p.tcp+4:], seq+uint32(off))
		fl := flags
		if off+n < len(payload) {
			fl &^= fin | psh
		}
		if off > 0 {
			fl &^= cwr
		}
		s[p.tcp+13] = fl
		if !p.v6 {
			binary.BigEndian.PutUint16(s[p.ip+4:], id)
			id++
		}
		p.finish(s)
		f(s)
		off += n
	}
}
