package netstack

import (
	"net/netip"
	"testing"

	"github.com/softrnic/softrnic/tap"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// sink is a device that takes everything and has, each time it is asked, one frame
// to give.
type sink struct {
	*testDev
	hdr   tap.VNetHdr
	frame []byte
}

func (d *sink) Queues() []tap.Queue                    { return []tap.Queue{d} }
func (d *sink) WriteBatch(fs []tap.Frame) (int, error) { return len(fs), nil }
func (d *sink) ReadBatch(fs []tap.Frame) (int, error) {
	b := d.frame
	for _, p := range fs[0].Bufs {
		b = b[copy(p, b):]
	}
	fs[0].N, fs[0].Hdr = len(d.frame), d.hdr
	return 1, nil
}

// discard is a dispatcher that drops what it is given.
type discard struct {
	stack.NetworkDispatcher
	octets int
}

func (d *discard) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	d.octets += pkt.Data().Size()
}

// outgoing is a TCP packet as gVisor hands it to the link endpoint.
func outgoing(l *link, payload int, seq uint32) *stack.PacketBuffer {
	b := buffer.MakeWithData(noise(payload, 1))
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{ReserveHeaderBytes: 14 + 20 + 32, Payload: b})
	th := header.TCP(pkt.TransportHeader().Push(32))
	th.Encode(&header.TCPFields{SrcPort: 1, DstPort: 2, SeqNum: seq, DataOffset: 32, Flags: header.TCPFlagAck | header.TCPFlagPsh})
	pkt.TransportProtocolNumber = header.TCPProtocolNumber
	ip := header.IPv4(pkt.NetworkHeader().Push(20))
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(min(52+payload, 65535)), Protocol: 6, SrcAddr: toAddress(prefixesA[0].Addr()), DstAddr: toAddress(prefixesB[0].Addr())})
	pkt.NetworkProtocolNumber = header.IPv4ProtocolNumber
	pkt.EgressRoute.RemoteLinkAddress = "\x02\x00\x00\x00\x00\x02"
	l.AddHeader(pkt)
	pkt.GSOOptions = stack.GSO{Type: stack.GSOTCPv4, NeedsCsum: true, CsumOffset: 16, MSS: 1420, L3HdrLen: 20, MaxSize: gsoMaxSize}
	return pkt
}

// TestAllocsLink holds the link endpoint at no allocation per frame, both ways.
func TestAllocsLink(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector, which allocates")
	}
	for _, off := range []tap.Offload{allOffloads, 0} {
		dev, _ := testPair(t, 1500, off)
		s := &sink{testDev: dev}
		cfg, err := Config{Addrs: prefixesA}.settled(s)
		if err != nil {
			t.Fatal(err)
		}
		l := newLink(s, cfg)
		f := l.flows.add(keyOf(netip.AddrPortFrom(prefixesA[0].Addr(), 1), netip.AddrPortFrom(prefixesB[0].Addr(), 2)))
		f.restart(0, 0)
		pkt := outgoing(l, 65320, 1)
		if n := testing.AllocsPerRun(200, func() { l.writePacket(pkt) }); n != 0 {
			t.Errorf("offloads %d: %v allocations per super-packet out", off, n)
		}
		f.restart(1000, 0) // so that it is cut
		before := l.count.txFrames.Load()
		if n := testing.AllocsPerRun(200, func() { l.writePacket(pkt) }); n != 0 {
			t.Errorf("offloads %d: %v allocations per super-packet that is cut", off, n)
		}
		if l.count.txFrames.Load()-before < 400 {
			t.Error("it was not cut")
		}
		pkt.DecRef()
	}

	dev, _ := testPair(t, 1500, allOffloads)
	s := &sink{testDev: dev, hdr: tap.VNetHdr{Flags: tap.HdrNeedsCsum, GSOType: tap.GSOTCPv4, GSOSize: 1420}}
	s.frame = rawTCP(t, 1, 2, 3, 4, header.TCPFlagAck, make([]byte, 12), nil)
	copy(s.frame, dev.MAC()) // to us
	s.frame = append(s.frame, noise(65320, 1)...)
	cfg, err := Config{Addrs: prefixesA}.settled(s)
	if err != nil {
		t.Fatal(err)
	}
	l := newLink(s, cfg)
	d := &discard{}
	l.Attach(d)
	r := newReceiver(l, s)
	if n := testing.AllocsPerRun(500, func() {
		if n, _ := s.ReadBatch(r.frames[:]); n != 1 {
			t.Fatal("no frame")
		}
		r.deliver(0)
		r.post(0)
	}); n != 0 {
		t.Errorf("%v allocations per super-packet in", n)
	}
	if want := 501 * (len(s.frame) - 14); d.octets != want {
		t.Errorf("%d octets delivered, want %d", d.octets, want)
	}
}
