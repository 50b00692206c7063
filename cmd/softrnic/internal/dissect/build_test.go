package dissect

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/softrnic/softrnic/iwarp/ddp"
	"github.com/softrnic/softrnic/iwarp/mem"
	"github.com/softrnic/softrnic/iwarp/mpa"
	"github.com/softrnic/softrnic/iwarp/rdmap"
)

// The packets of these tests are built with gopacket, so that reader and writer
// are not by the same hand.

var (
	clientEnd = netip.MustParseAddrPort("192.0.2.1:40000")
	serverEnd = netip.MustParseAddrPort("192.0.2.2:7174")
)

// part is one TCP segment of a dialogue.
type part struct {
	server   bool // sent by the server
	seq      uint32
	syn      bool
	rst      bool
	data     []byte
	cut      int // octets of data that the capture lacks at the end
	from, to netip.AddrPort
}

// talk builds the segments of a connection, one at a time.
type talk struct {
	seq   [2]uint32
	ends  [2]netip.AddrPort
	parts []part
}

func newTalk(clientISN, serverISN uint32) *talk {
	c := &talk{seq: [2]uint32{clientISN, serverISN}, ends: [2]netip.AddrPort{clientEnd, serverEnd}}
	for i := range 2 {
		c.parts = append(c.parts, part{server: i == 1, seq: c.seq[i], syn: true, from: c.ends[i], to: c.ends[1-i]})
		c.seq[i]++
	}
	return c
}

func (c *talk) say(server bool, data []byte) {
	i := bit(server)
	c.parts = append(c.parts, part{server: server, seq: c.seq[i], data: data, from: c.ends[i], to: c.ends[1-i]})
	c.seq[i] += uint32(len(data))
}

// hello is the startup.
func (c *talk) hello(t testing.TB, request, reply mpa.Frame) {
	reply.Reply = true
	for i, f := range []mpa.Frame{request, reply} {
		f.Revision = 1
		b, err := f.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		c.say(i == 1, b)
	}
}

// wrap puts a part in a frame, with VLAN tags where tags > 0.
func wrap(t testing.TB, p part, tags int) []byte {
	buf := gopacket.NewSerializeBuffer()
	tcp := &layers.TCP{SrcPort: layers.TCPPort(p.from.Port()), DstPort: layers.TCPPort(p.to.Port()), Seq: p.seq, Window: 65535, SYN: p.syn, RST: p.rst, ACK: !p.syn || p.server, PSH: len(p.data) > 0}
	var ip gopacket.SerializableLayer
	eth := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	if p.from.Addr().Is4() {
		ip4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: p.from.Addr().AsSlice(), DstIP: p.to.Addr().AsSlice()}
		_ = tcp.SetNetworkLayerForChecksum(ip4)
		ip = ip4
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: p.from.Addr().AsSlice(), DstIP: p.to.Addr().AsSlice()}
		_ = tcp.SetNetworkLayerForChecksum(ip6)
		ip = ip6
	}
	stack := []gopacket.SerializableLayer{eth}
	inner := eth.EthernetType
	for range tags {
		stack = append(stack, &layers.Dot1Q{VLANIdentifier: 7, Type: layers.EthernetTypeDot1Q})
	}
	if tags > 0 {
		eth.EthernetType = layers.EthernetTypeDot1Q
		stack[tags].(*layers.Dot1Q).Type = inner
	}
	stack = append(stack, ip, tcp, gopacket.Payload(p.data))
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, stack...); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()[:len(buf.Bytes())-p.cut]
}

// file writes parts as a pcap capture.
func file(t testing.TB, parts []part) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = le.AppendUint32(b, 1<<18)
	b = le.AppendUint32(b, 1)
	for i, p := range parts {
		data := wrap(t, p, i%3) // a VLAN tag or two now and then
		for _, n := range []int{1e9, i, len(data), len(data) + p.cut} {
			b = le.AppendUint32(b, uint32(n))
		}
		b = append(b, data...)
	}
	return b
}

// fileNG writes parts as a pcapng capture, big-endian, with options and a block
// that nobody knows.
func fileNG(t testing.TB, parts []part) []byte {
	be := binary.BigEndian
	var b []byte
	block := func(typ uint32, body []byte) {
		for len(body)%4 != 0 {
			body = append(body, 0)
		}
		b = be.AppendUint32(b, typ)
		b = be.AppendUint32(b, uint32(len(body)+12))
		b = append(b, body...)
		b = be.AppendUint32(b, uint32(len(body)+12))
	}
	block(0x0a0d0d0a, append([]byte{0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0}, bytes.Repeat([]byte{0xff}, 8)...))
	block(0x0bad, octets(9, 1))
	block(1, []byte{0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0}) // nanoseconds
	for i, p := range parts {
		data := wrap(t, p, i%3)
		stamp := uint64(1e18) + uint64(i)*1000
		e := be.AppendUint32(nil, 0)
		e = be.AppendUint64(e, stamp)
		e = be.AppendUint32(e, uint32(len(data)))
		e = be.AppendUint32(e, uint32(len(data)+p.cut))
		e = append(e, data...)
		for len(e)%4 != 0 {
			e = append(e, 0)
		}
		block(6, append(e, 0, 1, 0, 2, 'h', 'i', 0, 0, 0, 0, 0, 0)) // a comment
	}
	return b
}

func octets(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + seed)
	}
	return b
}

func writeULPDU(stag uint32, to uint64, n int) []byte {
	b := make([]byte, ddp.TaggedLen)
	(&ddp.Tagged{Last: true, RsvdULP: 0x40, STag: mem.STag(stag), TO: to}).Put(b)
	return append(b, octets(n, int(to))...)
}

func sendULPDU(op rdmap.Op, msn uint32, payload []byte) []byte {
	h := ddp.Untagged{Last: true, RsvdULP: 0x40 | uint8(op), MSN: ddp.MSN(msn)}
	switch op {
	case rdmap.ReadRequest:
		h.QN = 1
	case rdmap.Terminate:
		h.QN = 2
	}
	b := make([]byte, ddp.UntaggedLen)
	h.Put(b)
	return append(b, payload...)
}

// marked is a stream of FPDUs with markers, written from the text of RFC 5044
// section 4.3 and not from the code under test.
func marked(ulpdus ...[]byte) []byte {
	var s []byte
	for _, u := range ulpdus {
		start, head := len(s), -1
		put := func(octet byte) {
			if len(s)%512 == 0 {
				ptr := 0
				if head >= 0 {
					ptr = len(s) - head
				}
				s = append(s, 0, 0, byte(ptr>>8), byte(ptr))
			}
			if head < 0 {
				head = len(s)
			}
			s = append(s, octet)
		}
		body := binary.BigEndian.AppendUint16(nil, uint16(len(u)))
		body = append(body, u...)
		for len(body)%4 != 0 {
			body = append(body, 0)
		}
		for _, o := range body {
			put(o)
		}
		if len(s)%512 == 0 { // in front of the CRC, and covered by it
			s = append(s, 0, 0, byte((len(s)-head)>>8), byte(len(s)-head))
		}
		s = binary.LittleEndian.AppendUint32(s, crc32.Checksum(s[start:], castagnoli))
	}
	return s
}
