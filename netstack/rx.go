package netstack

import (
	"encoding/binary"
	"runtime"
	"time"

	"github.com/softrnic/softrnic/tap"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// rxBatch frames are delivered before the loop yields, so that TCP handles them
	// and ACKs them together. Yielding for every frame makes the sender's
	// super-packets shrink to single segments.
	rxBatch = 32

	// holdFor is how long an ACK that came after its batch is held while the loop looks
	// for more: long enough for an answer made on another processor.
	holdFor = 5 * time.Microsecond

	// A frame is received into views of these sizes. Headers have the first for
	// themselves: gVisor makes them contiguous, and would copy all of a view that
	// also holds payload. The rest grow, so that what TCP queues for a short segment
	// pins at most eight times its length, or 2 KiB, and the last is not touched by
	// anything but super-packets.
	rxHeaderCap = 128
	rxSmall     = 2048
	rxMedium    = 8192
	rxLarge     = tap.MaxFrame - 54 - rxSmall - rxMedium
	rxTiers     = 4

	// rxHeaderLen is the first guess of the length of all headers of a frame:
	// Ethernet, IPv4, TCP with timestamps.
	rxHeaderLen = etherLen + header.IPv4MinimumSize + header.TCPMinimumSize + 12
)

var rxSizes = [rxTiers]int{rxHeaderLen, rxSmall, rxMedium, rxLarge}

// receiver is the receive loop of one queue. All of it belongs to one goroutine.
type receiver struct {
	l      *link
	q      tap.Queue
	frames [rxBatch]tap.Frame
	bufs   [rxBatch][rxTiers][]byte
	views  [rxBatch][rxTiers]*buffer.View
	// headers is the length of the headers of the last TCP segment with payload:
	// the next one's are most likely as long.
	headers int
	spin    spinner
	send    func(*stack.PacketBuffer) // method value, made once
}

func newReceiver(l *link, q tap.Queue) *receiver {
	r := &receiver{l: l, q: q, headers: rxHeaderLen, spin: spinner{most: l.cfg.SpinFor, now: l.cfg.SpinFor}}
	r.send = l.emitHeld
	for i := range r.frames {
		r.post(i)
	}
	return r
}

// post gives frame i whole views to be received into.
func (r *receiver) post(i int) {
	for j := range r.views[i] {
		v := r.views[i][j]
		switch {
		case v == nil && j == 0:
			v = buffer.NewView(rxHeaderCap)
			v.Grow(r.headers)
		case v == nil:
			v = buffer.NewViewSize(rxSizes[j])
		case j == 0 && v.Size() != r.headers:
			v.Reset()
			v.CapLength(0)
			v.Grow(r.headers)
		default:
			continue
		}
		r.views[i][j] = v
		r.bufs[i][j] = v.AsSlice()
	}
	r.frames[i].Bufs = r.bufs[i][:]
}

// run receives until the link is stopped or the device closed.
func (r *receiver) run() {
	hold := !r.l.cfg.NoACKHold
	open := false
	defer func() {
		if open {
			r.l.hold.end()
		}
		r.l.hold.flush(r.send)
		for i := range r.views {
			for _, v := range r.views[i] {
				v.Release()
			}
		}
	}()
	for !r.l.stopped.Load() {
		n, err := r.q.ReadBatch(r.frames[:])
		if n > 0 {
			if hold && !open {
				open = true
				r.l.hold.begin()
			}
			for i := range n {
				r.deliver(i)
				r.post(i)
			}
			r.spin.found(&r.l.count)
			// TCP's processors run now and, where the next step does not wait for
			// another thread, so does whoever answers.
			runtime.Gosched()
			r.l.hold.flush(r.send)
			continue
		}
		if err != nil {
			if !r.l.stopped.Load() {
				r.l.cfg.Logger.Warn("netstack: receiving ends", "dev", r.l.dev.Name(), "err", err)
			}
			return
		}
		if r.spin.again() {
			runtime.Gosched()
			if r.spin.last.Sub(r.spin.since) >= holdFor {
				r.l.hold.flush(r.send)
			}
			continue
		}
		if open {
			open = false
			r.l.hold.end()
			r.l.hold.flush(r.send)
		}
		r.l.count.rxSleeps.Add(1)
		before := time.Now()
		if err := r.q.Wait(-1); err != nil {
			if !r.l.stopped.Load() {
				r.l.cfg.Logger.Warn("netstack: receiving ends", "dev", r.l.dev.Name(), "err", err)
			}
			return
		}
		r.spin.slept(time.Since(before))
	}
}

// spinner decides whether to look for the next frame again or to sleep. Looking
// pays where frames follow each other within its limit and the processor has
// nothing else to do; it learns both.
type spinner struct {
	most time.Duration // the limit; 0 never looks again
	now  time.Duration // the limit of now, between 0 and most

	since  time.Time // when this search began
	last   time.Time // the last look
	banned time.Time // no search before this: others need the processor
}

const (
	// spinLost is how long a yield may take before it means that others want the
	// processor; spinPause is how long it is left to them then.
	spinLost  = 200 * time.Microsecond
	spinPause = 20 * time.Millisecond
)

// again reports whether to look again at once.
func (s *spinner) again() bool {
	if s.now == 0 {
		return false
	}
	now := time.Now()
	switch {
	case s.since.IsZero():
		if now.Before(s.banned) {
			return false
		}
		s.since, s.last = now, now
		return true
	case now.Sub(s.last) > spinLost:
		s.now, s.banned = s.most/8, now.Add(spinPause)
	case now.Sub(s.since) < s.now:
		s.last = now
		return true
	default:
		// In vain: look less long the next time.
		s.now -= s.now / 4
	}
	if s.now < s.most/8 {
		s.now = s.most / 8
	}
	s.since = time.Time{}
	return false
}

// found notes that a frame came.
func (s *spinner) found(c *counters) {
	if !s.since.IsZero() {
		s.since = time.Time{}
		c.rxSpun.Add(1)
	}
}

// slept notes how long sleep took: where less than the limit, a longer search would
// have been better.
func (s *spinner) slept(d time.Duration) {
	s.since = time.Time{}
	if d < s.most {
		s.now = min(s.most, 2*s.now+s.most/8)
	}
}

// deliver checks the Ethernet header of frame i and hands the rest to gVisor, with
// the views it lies in.
func (r *receiver) deliver(i int) {
	l, f := r.l, &r.frames[i]
	c := &l.count
	if f.N < etherLen || f.N > tap.MaxFrame {
		c.rxBad.Add(1)
		return
	}
	eth := r.bufs[i][0] // at least 54 octets long, though fewer may be the frame's
	typ, hdrLen, ok := l.parseEther(eth, f.N)
	if !ok {
		return
	}
	kind := l.kindOf(eth)
	if kind == tcpip.PacketOtherHost {
		c.rxOther.Add(1)
		return
	}
	switch typ {
	case header.IPv4ProtocolNumber, header.IPv6ProtocolNumber, header.ARPProtocolNumber:
	default:
		c.rxOther.Add(1)
		return
	}
	r.guessHeaders(i, typ, hdrLen)
	c.rxFrames.Add(1)
	c.rxOctets.Add(uint64(f.N))
	if f.Hdr.GSOType != tap.GSONone {
		c.rxSuper.Add(1)
	}

	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: r.take(i)})
	defer pkt.DecRef()
	if _, ok := pkt.LinkHeader().Consume(hdrLen); !ok {
		c.rxBad.Add(1)
		return
	}
	pkt.NetworkProtocolNumber = typ
	pkt.PktType = kind
	d := l.disp.Load()
	if d == nil {
		return
	}
	verified := f.Hdr.Flags&(tap.HdrNeedsCsum|tap.HdrDataValid) != 0
	if !verified {
		c.rxUnverified.Add(1)
	}
	if len(l.queues) > 1 {
		l.verify.Lock()
		defer l.verify.Unlock()
	}
	l.unsafe.Store(!verified)
	d.DeliverNetworkPacket(typ, pkt)
	l.unsafe.Store(false)
}

// take moves the views of frame i, cut to its length, into a buffer.
func (r *receiver) take(i int) (b buffer.Buffer) {
	rem := r.frames[i].N
	for j := 0; rem > 0 && j < rxTiers; j++ {
		v := r.views[i][j]
		r.views[i][j] = nil
		if v.Size() > rem {
			v.CapLength(rem)
		}
		rem -= v.Size()
		one := buffer.MakeWithView(v)
		b.Merge(&one)
	}
	return b
}

// parseEther returns the EtherType and the length of the Ethernet header of a frame
// of n octets, and whether its VLAN is ours. A tag with VLAN 0 carries a priority
// only (IEEE 802.1Q) and counts as none.
func (l *link) parseEther(eth []byte, n int) (typ tcpip.NetworkProtocolNumber, hdrLen int, ok bool) {
	typ, hdrLen = tcpip.NetworkProtocolNumber(binary.BigEndian.Uint16(eth[12:])), etherLen
	vlan := uint16(0)
	if typ == tagType {
		if n < etherLen+vlanLen {
			l.count.rxBad.Add(1)
			return 0, 0, false
		}
		vlan = binary.BigEndian.Uint16(eth[14:]) & 0xfff
		typ, hdrLen = tcpip.NetworkProtocolNumber(binary.BigEndian.Uint16(eth[16:])), etherLen+vlanLen
	}
	if vlan != l.cfg.VLAN {
		l.count.rxVLAN.Add(1)
		return 0, 0, false
	}
	return typ, hdrLen, true
}

// kindOf says whom the frame is for.
func (l *link) kindOf(eth []byte) tcpip.PacketType {
	switch dst := eth[:header.EthernetAddressSize]; {
	case string(dst) == string(l.mac):
		return tcpip.PacketHost
	case string(dst) == string(header.EthernetBroadcastAddress):
		return tcpip.PacketBroadcast
	case dst[0]&1 != 0:
		return tcpip.PacketMulticast
	}
	return tcpip.PacketOtherHost
}

// guessHeaders learns from frame i how long the headers of TCP segments with payload
// are, for the views to be posted.
func (r *receiver) guessHeaders(i int, typ tcpip.NetworkProtocolNumber, off int) {
	n := r.frames[i].N
	if n < off+header.IPv4MinimumSize+header.TCPMinimumSize || n < r.headers {
		return
	}
	at := func(k int) int {
		if b := r.bufs[i][0]; k < len(b) {
			return int(b[k])
		} else if k -= len(b); k < rxSmall {
			return int(r.bufs[i][1][k])
		}
		return 0
	}
	var h int
	switch typ {
	case header.IPv4ProtocolNumber:
		if at(off+9) != int(header.TCPProtocolNumber) {
			return
		}
		h = off + at(off)&0xf*4
	case header.IPv6ProtocolNumber:
		if at(off+6) != int(header.TCPProtocolNumber) {
			return
		}
		h = off + header.IPv6MinimumSize
	default:
		return
	}
	h += at(h+12) >> 4 * 4
	if h > n-64 || h > rxHeaderCap || h < rxHeaderLen-12 {
		return // no payload worth it, or nonsense
	}
	r.headers = h
}
