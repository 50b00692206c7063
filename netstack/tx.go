package netstack

import (
	"github.com/softrnic/softrnic/tap"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// maxBufs is the most pieces that one frame is made of: the kernel takes 1024, and
// the header may be three.
const maxBufs = 1000

// txScratch is what one frame on its way out needs, used again by the next.
type txScratch struct {
	payload [][]byte // the payload's views
	bufs    [][]byte // what all frames are made of
	ends    []int    // where each frame's pieces end in bufs
	frames  []tap.Frame
	headers [][maxHeader]byte
}

// reset empties s and lets go of what it pointed to.
func (s *txScratch) reset() {
	clear(s.payload)
	clear(s.bufs)
	clear(s.frames)
	s.payload, s.bufs, s.ends, s.frames = s.payload[:0], s.bufs[:0], s.ends[:0], s.frames[:0]
}

// packet is an outgoing TCP packet, taken apart.
type packet struct {
	pkt          *stack.PacketBuffer
	link, ip, th []byte // its headers
	seg          segment
	flow         *flow // nil where it is none of a Conn's
}

// WritePackets implements stack.LinkWriter. It never blocks: what the device has no
// room for is lost, as on a wire.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for _, pkt := range pkts.AsSlice() {
		l.writePacket(pkt)
	}
	return pkts.Len(), nil
}

func (l *link) writePacket(pkt *stack.PacketBuffer) {
	p, ok := l.dissect(pkt)
	if !ok {
		l.emit(&p)
		return
	}
	if p.flow != nil {
		if pkt.GSOOptions.Type != stack.GSONone {
			p.flow.setMSS(int(pkt.GSOOptions.MSS))
		}
		if !l.cfg.NoACKHold {
			v := l.hold.admit(p.flow, p.seg, pkt)
			if v.spare != nil {
				v.spare.DecRef()
				l.count.acksSpared.Add(1)
			}
			if v.first != nil {
				l.emitHeld(v.first)
				v.first.DecRef()
			}
			if v.hold {
				l.count.acksHeld.Add(1)
				return
			}
		}
	}
	l.emit(&p)
}

// emitHeld sends a packet that ACK hold had kept.
func (l *link) emitHeld(pkt *stack.PacketBuffer) {
	p, _ := l.dissect(pkt)
	l.emit(&p)
}

// dissect finds the headers of a TCP packet; ok is false for all others.
func (l *link) dissect(pkt *stack.PacketBuffer) (p packet, ok bool) {
	p.pkt = pkt
	if pkt.TransportProtocolNumber != header.TCPProtocolNumber {
		return p, false
	}
	p.link, p.ip, p.th = pkt.LinkHeader().Slice(), pkt.NetworkHeader().Slice(), pkt.TransportHeader().Slice()
	if len(p.th) < header.TCPMinimumSize || len(p.ip) < header.IPv4MinimumSize ||
		len(p.link)+len(p.ip)+len(p.th) > maxHeader {
		return p, false
	}
	h := header.TCP(p.th)
	p.seg = segment{
		seq: h.SequenceNumber(), ack: h.AckNumber(), flags: h.Flags(), window: h.WindowSize(),
		options: len(p.th) - header.TCPMinimumSize, payload: pkt.Data().Size(),
	}
	p.flow = l.flows.find(keyFrom(p.ip, p.th))
	return p, true
}

// emit makes a packet into frames and gives them to the device.
func (l *link) emit(p *packet) {
	s := l.scratch.Get().(*txScratch)
	l.frame(s, p)
	q := l.queues[0]
	if n := uint32(len(l.queues)); n > 1 {
		q = l.queues[p.pkt.Hash%n]
	}
	l.write(q, s.frames)
	s.reset()
	l.scratch.Put(s)
}

// write gives frames to the device and counts them. A frame that it refuses is
// skipped: TCP sends it again.
func (l *link) write(q tap.Queue, frames []tap.Frame) {
	c := &l.count
	for len(frames) > 0 {
		n, err := q.WriteBatch(frames)
		n = min(max(n, 0), len(frames))
		for i := range frames[:n] {
			f := &frames[i]
			octets := 0
			for _, b := range f.Bufs {
				octets += len(b)
			}
			c.txFrames.Add(1)
			c.txOctets.Add(uint64(octets))
			if f.Hdr.GSOType != tap.GSONone {
				c.txSuper.Add(1)
			}
		}
		if frames = frames[n:]; len(frames) > 0 {
			c.txErrors.Add(1)
			if frames = frames[1:]; err == nil {
				continue
			}
			if l.stopped.Load() {
				return
			}
		}
	}
}

// frame fills s.frames with what p is sent as.
func (l *link) frame(s *txScratch, p *packet) {
	gso := p.pkt.GSOOptions
	mss := int(gso.MSS)
	if p.th == nil || gso.Type == stack.GSONone || !gso.NeedsCsum || mss == 0 {
		// Not TCP, or SYN or RST: whole, with its checksum.
		s.collect(p.pkt, 0)
		s.bufs = append(s.bufs, s.payload...)
		s.frames = append(s.frames, tap.Frame{Bufs: s.bufs})
		return
	}
	s.collect(p.pkt, len(p.link)+len(p.ip)+len(p.th))
	var off uint64
	grid := p.flow != nil && p.seg.payload > 0
	if p.flow != nil {
		mss = min(mss, int(p.flow.emss.Load()))
	}
	if grid {
		off, grid = p.flow.depart(p.seg)
	}
	tso := tap.OffloadTSO4
	if gso.Type == stack.GSOTCPv6 {
		tso = tap.OffloadTSO6
	}
	sent := 0
	for c := (cutter{views: s.payload}); ; {
		n, run := p.seg.payload-sent, 0
		if grid {
			left, aligned, ends := p.flow.cell(off+uint64(sent), mss)
			if !aligned {
				n = min(n, left)
			}
			if ends > 0 {
				n = min(n, int(min(ends, maxPayload)))
			}
		}
		if l.offloads&tso == 0 {
			n = min(n, mss)
		}
		at := len(s.bufs)
		// The header's place: filled when all are known, as its memory may move.
		s.bufs = append(s.bufs, nil)
		s.bufs, run = c.next(s.bufs, n)
		n = run
		s.ends = append(s.ends, at)
		s.frames = append(s.frames, tap.Frame{N: n})
		if sent += n; sent >= p.seg.payload {
			break
		}
	}
	l.headers(s, p, mss)
}

// collect lists the views of pkt without the first skip octets, its headers.
func (s *txScratch) collect(pkt *stack.PacketBuffer, skip int) {
	vl, off := pkt.AsViewList()
	off += skip
	for v := vl.Front(); v != nil; v = v.Next() {
		b := v.AsSlice()
		if off >= len(b) {
			off -= len(b)
			continue
		}
		s.payload = append(s.payload, b[off:])
		off = 0
	}
}
