package netstack

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/tap"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	etherLen = header.EthernetMinimumSize // 14
	vlanLen  = 4                          // an 802.1Q tag
	tagType  = 0x8100

	// gsoMaxSize makes gVisor's largest TCP payload 65455 octets (it subtracts 161),
	// the most that an IPv4 packet holds behind a TCP header of 60.
	gsoMaxSize = 65616
	maxPayload = gsoMaxSize - 161
)

// link is gVisor's link endpoint on the queues of a tap.Device.
type link struct {
	dev      tap.Device
	offloads tap.Offload
	queues   []tap.Queue
	cfg      Config
	mac      tcpip.LinkAddress
	mtu      atomic.Uint32
	hdrLen   int // octets of the Ethernet header, tag included

	disp    atomic.Pointer[dispatcher]
	unsafe  atomic.Bool // the frame being delivered is not verified, see Capabilities
	verify  sync.Mutex  // guards unsafe where there are several queues
	stopped atomic.Bool
	loops   sync.WaitGroup
	scratch sync.Pool // *txScratch

	flows flowTable
	hold  ackHold
	count counters
}

// dispatcher boxes the interface for an atomic pointer.
type dispatcher struct{ stack.NetworkDispatcher }

var (
	_ stack.LinkEndpoint = (*link)(nil)
	_ stack.GSOEndpoint  = (*link)(nil)
)

// newLink makes the endpoint of a settled Config; start starts its receive loops.
func newLink(dev tap.Device, cfg Config) *link {
	l := &link{dev: dev, offloads: dev.Offloads(), queues: dev.Queues(), cfg: cfg, mac: tcpip.LinkAddress(cfg.MAC), hdrLen: etherLen}
	if l.offloads&tap.OffloadCsum == 0 {
		l.offloads = 0 // TSO needs it
	}
	if cfg.VLAN != 0 {
		l.hdrLen += vlanLen
	}
	l.mtu.Store(uint32(cfg.MTU))
	l.scratch.New = func() any { return new(txScratch) }
	return l
}

// start starts one receive loop per queue.
func (l *link) start() {
	for _, q := range l.queues {
		l.loops.Add(1)
		go func() {
			defer l.loops.Done()
			newReceiver(l, q).run()
		}()
	}
}

// stop ends the receive loops and waits for them. The endpoint can still write.
func (l *link) stop() {
	l.stopped.Store(true)
	for _, q := range l.queues {
		q.Wake()
	}
	l.loops.Wait()
}

// MTU implements stack.LinkEndpoint.
func (l *link) MTU() uint32 { return l.mtu.Load() }

// SetMTU implements stack.LinkEndpoint.
func (l *link) SetMTU(mtu uint32) { l.mtu.Store(mtu) }

// MaxHeaderLength implements stack.LinkEndpoint.
func (l *link) MaxHeaderLength() uint16 { return uint16(l.hdrLen) }

// LinkAddress implements stack.LinkEndpoint.
func (l *link) LinkAddress() tcpip.LinkAddress { return l.mac }

// SetLinkAddress implements stack.LinkEndpoint. The address is fixed by Config.
func (l *link) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities implements stack.LinkEndpoint. gVisor asks for them at the start of
// each delivery and takes the packet's checksums as verified if
// CapabilityRXChecksumOffload is among them; there is no other way to say so. So
// the answer is about the frame that is being delivered.
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	if l.unsafe.Load() {
		return stack.CapabilityResolutionRequired
	}
	return stack.CapabilityResolutionRequired | stack.CapabilityRXChecksumOffload
}

// Attach implements stack.LinkEndpoint.
func (l *link) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		l.disp.Store(nil)
		return
	}
	l.disp.Store(&dispatcher{d})
}

// IsAttached implements stack.LinkEndpoint.
func (l *link) IsAttached() bool { return l.disp.Load() != nil }

// Wait implements stack.LinkEndpoint. Stack.Close has stopped the loops by then.
func (l *link) Wait() {}

// ARPHardwareType implements stack.LinkEndpoint.
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// Close implements stack.LinkEndpoint. The device is not ours to close.
func (l *link) Close() {}

// SetOnCloseAction implements stack.LinkEndpoint.
func (l *link) SetOnCloseAction(func()) {}

// GSOMaxSize implements stack.GSOEndpoint.
func (l *link) GSOMaxSize() uint32 { return gsoMaxSize }

// SupportedGSO implements stack.GSOEndpoint: what the device cannot do, emit does.
func (l *link) SupportedGSO() stack.SupportedGSO { return stack.HostGSOSupported }

// AddHeader implements stack.LinkEndpoint.
func (l *link) AddHeader(pkt *stack.PacketBuffer) {
	h := pkt.LinkHeader().Push(l.hdrLen)
	header.Ethernet(h).Encode(&header.EthernetFields{
		SrcAddr: l.mac,
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
	l.tag(h, uint16(pkt.NetworkProtocolNumber))
}

// tag completes an Ethernet header with the 802.1Q tag, where frames carry one.
func (l *link) tag(h []byte, etherType uint16) {
	if l.cfg.VLAN != 0 {
		binary.BigEndian.PutUint16(h[12:], tagType)
		binary.BigEndian.PutUint16(h[14:], l.cfg.VLAN)
		binary.BigEndian.PutUint16(h[16:], etherType)
	}
}

// ParseHeader implements stack.LinkEndpoint.
func (l *link) ParseHeader(pkt *stack.PacketBuffer) bool {
	_, ok := pkt.LinkHeader().Consume(l.hdrLen)
	return ok
}

// announce sends what tells all neighbours that addr is at our MAC.
func (l *link) announce(addr netip.Addr) {
	to, typ, body := header.EthernetBroadcastAddress, header.ARPProtocolNumber, []byte(nil)
	if addr.Is4() {
		a := make(header.ARP, header.ARPSize)
		a.SetIPv4OverEthernet()
		a.SetOp(header.ARPReply)
		ip := addr.As4()
		for _, f := range [][]byte{a.HardwareAddressSender(), a.HardwareAddressTarget()} {
			putString(f, string(l.mac))
		}
		for _, f := range [][]byte{a.ProtocolAddressSender(), a.ProtocolAddressTarget()} {
			putString(f, string(ip[:]))
		}
		body = a
	} else {
		to, typ = header.EthernetAddressFromMulticastIPv6Address(header.IPv6AllNodesMulticastAddress), header.IPv6ProtocolNumber
		body = l.advertisement(addr)
	}
	frame := make([]byte, l.hdrLen, l.hdrLen+len(body))
	header.Ethernet(frame).Encode(&header.EthernetFields{SrcAddr: l.mac, DstAddr: to, Type: typ})
	l.tag(frame, uint16(typ))
	l.write(l.queues[0], []tap.Frame{{Bufs: [][]byte{frame, body}}})
}

// advertisement builds an unsolicited Neighbor Advertisement for addr with its IPv6
// header.
func (l *link) advertisement(addr netip.Addr) []byte {
	const optLen = 8 // the target's link-layer address
	n := header.ICMPv6NeighborAdvertMinimumSize + optLen
	p := make([]byte, header.IPv6MinimumSize+n)
	src, dst := toAddress(addr), header.IPv6AllNodesMulticastAddress
	header.IPv6(p).Encode(&header.IPv6Fields{
		PayloadLength: uint16(n), TransportProtocol: header.ICMPv6ProtocolNumber,
		HopLimit: header.NDPHopLimit, SrcAddr: src, DstAddr: dst,
	})
	ic := header.ICMPv6(p[header.IPv6MinimumSize:])
	ic.SetType(header.ICMPv6NeighborAdvert)
	na := header.NDPNeighborAdvert(ic.MessageBody())
	na.SetOverrideFlag(true)
	na.SetTargetAddress(src)
	na.Options().Serialize(header.NDPOptionsSerializer{header.NDPTargetLinkLayerAddressOption(l.mac)})
	ic.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: ic, Src: src, Dst: dst}))
	return p
}

// putString writes s into dst, octet by octet: addresses in headers only.
func putString(dst []byte, s string) {
	for i := range dst {
		dst[i] = s[i]
	}
}
