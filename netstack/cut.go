package netstack

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/tap"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// maxHeader holds all headers of a TCP frame: Ethernet with a tag, IPv4 with
// options or IPv6, TCP with options.
const maxHeader = 18 + 60 + 60

// cutter walks through the payload of a packet.
type cutter struct {
	views [][]byte
	off   int // octets of views[0] that are passed
}

// next appends the pieces of the next n octets to bufs and returns how many octets
// they are: fewer than n only where they are too many pieces for one frame.
func (c *cutter) next(bufs [][]byte, n int) ([][]byte, int) {
	got := 0
	for pieces := 0; got < n && len(c.views) > 0 && pieces < maxBufs; pieces++ {
		b := c.views[0][c.off:]
		if len(b) > n-got {
			b = b[:n-got]
			c.off += len(b)
		} else {
			c.views, c.off = c.views[1:], 0
		}
		bufs = append(bufs, b)
		got += len(b)
	}
	return bufs, got
}

// headers gives every frame of s its headers, a patched copy of p's, and its
// virtio-net header. Frames of more than mss octets of payload are super-packets.
func (l *link) headers(s *txScratch, p *packet, mss int) {
	if n := len(s.frames); n > len(s.headers) {
		s.headers = make([][maxHeader]byte, n)
	}
	if len(s.frames) > 1 {
		l.count.txCut.Add(1)
	}
	sent := 0
	for i := range s.frames {
		f := &s.frames[i]
		n := f.N
		at, end := s.ends[i], len(s.bufs)
		if i+1 < len(s.ends) {
			end = s.ends[i+1]
		}
		h := s.headers[i][:len(p.link)+len(p.ip)+len(p.th)]
		buildHeader(h, p, sent, n)
		s.bufs[at] = h
		f.Bufs = s.bufs[at:end]
		l3 := len(p.link) + len(p.ip)
		if l.offloads&tap.OffloadCsum == 0 {
			finishChecksum(h[l3:], f.Bufs[1:])
		} else {
			f.Hdr = tap.VNetHdr{Flags: tap.HdrNeedsCsum, CsumStart: uint16(l3), CsumOffset: header.TCPChecksumOffset}
		}
		if n > mss {
			f.Hdr.GSOType, f.Hdr.GSOSize, f.Hdr.HdrLen = tap.GSOTCPv4, uint16(mss), uint16(len(h))
			if p.ip[0]>>4 == 6 {
				f.Hdr.GSOType = tap.GSOTCPv6
			}
		}
		sent += n
	}
}

// buildHeader writes into h the headers of p for the n octets of its payload that
// start at off: lengths, sequence number and sums are those of that part, and the
// TCP checksum is the pseudo-header's sum. Flags that belong to the last octet go
// with it.
func buildHeader(h []byte, p *packet, off, n int) {
	copy(h[copy(h[copy(h, p.link):], p.ip)+len(p.link):], p.th) // headers only
	if off == 0 && n == p.seg.payload {
		return // whole: gVisor's header is right
	}
	be := binary.BigEndian
	ip, th := h[len(p.link):len(p.link)+len(p.ip)], header.TCP(h[len(p.link)+len(p.ip):])
	tcpLen := len(th) + n
	if ip[0]>>4 == 4 {
		v4 := header.IPv4(ip)
		v4.SetTotalLength(uint16(len(ip) + tcpLen))
		v4.SetChecksum(0)
		v4.SetChecksum(^v4.CalculateChecksum())
	} else {
		be.PutUint16(ip[4:], uint16(len(ip)-header.IPv6MinimumSize+tcpLen))
	}
	th.SetSequenceNumber(p.seg.seq + uint32(off))
	if off+n < p.seg.payload {
		th.SetFlags(uint8(p.seg.flags &^ (header.TCPFlagPsh | header.TCPFlagFin)))
	}
	// The pseudo-header's sum has the length in it: take out the old, add the new
	// (RFC 1624 section 3).
	old := len(p.th) + p.seg.payload
	th.SetChecksum(checksum.Combine(checksum.Combine(th.Checksum(), ^uint16(old)), uint16(tcpLen)))
}

// finishChecksum completes the TCP checksum, for a device that does not.
func finishChecksum(th []byte, payload [][]byte) {
	var c checksum.Checksumer
	c.Add(th) // the field holds the pseudo-header's sum
	for _, b := range payload {
		c.Add(b)
	}
	header.TCP(th).SetChecksum(^c.Checksum())
}
