package netstack

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/iwarp/llp"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// flowKey names a TCP connection: both addresses, in 16 octets each, and ports.
type flowKey struct {
	l0, l1, r0, r1 uint64
	ports          uint32
}

// keyOf returns the key of the connection from local to remote.
func keyOf(local, remote netip.AddrPort) flowKey {
	l, r := local.Addr().As16(), remote.Addr().As16()
	be := binary.BigEndian
	return flowKey{
		be.Uint64(l[:8]), be.Uint64(l[8:]), be.Uint64(r[:8]), be.Uint64(r[8:]),
		uint32(local.Port())<<16 | uint32(remote.Port()),
	}
}

// v4in6 is the upper part of the second half of an IPv4 address in IPv6's form.
const v4in6 = 0xffff << 32

// keyFrom returns the key of an outgoing packet, whose headers are whole.
func keyFrom(ip, tcp []byte) flowKey {
	be := binary.BigEndian
	ports := be.Uint32(tcp)
	if ip[0]>>4 == 4 {
		return flowKey{0, v4in6 | uint64(be.Uint32(ip[12:])), 0, v4in6 | uint64(be.Uint32(ip[16:])), ports}
	}
	return flowKey{be.Uint64(ip[8:]), be.Uint64(ip[16:]), be.Uint64(ip[24:]), be.Uint64(ip[32:]), ports}
}

// maxRestarts is how many starts of grids a flow remembers at most, the latest: far
// more than what waits to be sent has, and enough for most of what may be sent again.
const maxRestarts = 1024

// flow is what the link endpoint knows of one connection of ours. Conn makes it
// before it sends its first octet. Offsets count the octets that Conn sent, from 0.
type flow struct {
	// emss is the payload of a full segment, learnt at the first segment that left.
	emss atomic.Int32

	mu       sync.Mutex
	based    bool
	base     uint32 // sequence number of octet 0
	egressed uint64 // octets that have left at least once
	// restarts are the offsets at which a grid of EMSS-sized cells starts, ascending.
	restarts []uint64

	// ack is guarded by the link's ACK hold.
	ack ackState
}

// setMSS learns the segment size that TCP uses.
func (f *flow) setMSS(mss int) {
	if e := int32(min(mss&^3, llp.MaxEMSS)); e > 0 && f.emss.Load() != e {
		f.emss.Store(e)
	}
}

// restart starts a new grid at offset off, which is after the last one. Those before
// the one that holds keep are forgotten when room is short: nothing before keep can
// be sent any more.
func (f *flow) restart(off, keep uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.restarts) == cap(f.restarts) || len(f.restarts) >= maxRestarts {
		i, found := slices.BinarySearch(f.restarts, keep)
		if !found {
			i--
		}
		if len(f.restarts) >= maxRestarts {
			i = max(i, maxRestarts/4)
		}
		if i > 0 {
			f.restarts = slices.Delete(f.restarts, 0, i)
		}
	}
	f.restarts = append(f.restarts, off)
}

// sent returns the octets that have left so far.
func (f *flow) sent() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.egressed
}

// depart notes that the payload of s leaves now, and returns the offset of its first
// octet; ok is false for what is not the connection's: the octet of a zero window
// probe, which lies before what is unacknowledged and does not push.
func (f *flow) depart(s segment) (off uint64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.based {
		if s.payload == 1 && s.flags&header.TCPFlagPsh == 0 {
			return 0, false
		}
		f.based, f.base = true, s.seq
	}
	// The segment is within 2 GiB of what left last, so 32 bits suffice.
	off = f.egressed + uint64(int64(int32(s.seq-(f.base+uint32(f.egressed)))))
	if int64(off) < 0 {
		return 0, false
	}
	f.egressed = max(f.egressed, off+uint64(s.payload))
	return off, true
}

// cell tells where offset off lies on the grid: left is the room from there to the
// end of its cell of emss octets, aligned says that a cell starts there, and run is
// how far this grid goes on, 0 for as far as was sent. An offset before all that is
// remembered counts as aligned.
func (f *flow) cell(off uint64, emss int) (left int, aligned bool, run uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, found := slices.BinarySearch(f.restarts, off)
	if found {
		i++
	}
	if i < len(f.restarts) {
		run = f.restarts[i] - off
	}
	if i == 0 {
		return emss, true, run
	}
	past := int((off - f.restarts[i-1]) % uint64(emss))
	return emss - past, past == 0, run
}

// flowTable finds flows by their addresses. One connection is most of the traffic,
// so the one found last is tried first.
type flowTable struct {
	mu    sync.RWMutex
	m     map[flowKey]*flowEntry
	last  atomic.Pointer[flowEntry]
	ended bool
}

type flowEntry struct {
	key  flowKey
	flow *flow
}

// add makes the flow of a connection. A leftover of the same addresses is replaced.
func (t *flowTable) add(k flowKey) *flow {
	f := &flow{}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = make(map[flowKey]*flowEntry)
	}
	if !t.ended {
		t.m[k] = &flowEntry{k, f}
	}
	t.last.Store(nil)
	return f
}

// remove forgets f, unless its addresses are another's by now.
func (t *flowTable) remove(k flowKey, f *flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.m[k]; e != nil && e.flow == f {
		delete(t.m, k)
	}
	t.last.Store(nil)
}

// find returns the flow of k, or nil.
func (t *flowTable) find(k flowKey) *flow {
	if e := t.last.Load(); e != nil && e.key == k {
		return e.flow
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	e := t.m[k]
	if e == nil {
		return nil
	}
	t.last.Store(e)
	return e.flow
}

// len returns how many flows there are.
func (t *flowTable) len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.m)
}

// clear forgets all flows and takes no more.
func (t *flowTable) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.m, t.ended = nil, true
	t.last.Store(nil)
}

// ackState is what ACK hold knows of a flow.
type ackState struct {
	known   bool // something acknowledged has left
	ack     uint32
	window  uint16
	haveSeq bool
	seq     uint32 // the next sequence number, as the last segment left it
	held    *stack.PacketBuffer
	listed  bool // in ackHold.held
}

// ackHold holds pure ACKs back while a receive loop works on a batch of frames:
// most often the answer follows within microseconds and acknowledges too. The hold
// is open only then, and each end of a batch lets go of what is held.
//
// What the peer must see is never left out: duplicate ACKs, SACKs, probes and
// everything with data leave at once, after the ACK that was held before them
// unless they say as much (RFC 5681 section 4.2 allows such ACKs to be left out).
type ackHold struct {
	mu   sync.Mutex
	open int // receive loops that are at work
	held []*flow
	free []*flow // spare storage for held
}

// segment is what ACK hold looks at.
type segment struct {
	seq, ack uint32
	flags    header.TCPFlags
	window   uint16
	options  int // octets of TCP options
	payload  int
}

// verdict is what to do with a segment that is about to leave.
type verdict struct {
	hold  bool                // keep it, do not send it now
	first *stack.PacketBuffer // send this one before it
	spare *stack.PacketBuffer // release this one, its ACK is in the segment
}

// admit decides about one segment of f. pkt is referenced where the verdict is hold.
func (h *ackHold) admit(f *flow, s segment, pkt *stack.PacketBuffer) (v verdict) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := &f.ack
	pure := s.payload == 0 && s.flags == header.TCPFlagAck && s.options <= header.TCPOptionTSLength+2 &&
		a.haveSeq && s.seq == a.seq
	newer := !a.known || int32(s.ack-a.ack) > 0
	same := a.known && s.ack == a.ack
	dup := same && s.window == a.window
	if a.held != nil {
		switch {
		case newer, same && s.payload > 0, same && s.flags&header.TCPFlagFin != 0, pure && same && !dup:
			v.spare = a.held
		default:
			v.first = a.held
		}
		a.held = nil
	}
	if pure && h.open > 0 && (newer || same && !dup) {
		v.hold = true
		a.held = pkt.IncRef()
		if !a.listed {
			a.listed = true
			h.held = append(h.held, f)
		}
	}
	if s.flags&header.TCPFlagAck != 0 && (newer || same) {
		a.known, a.ack, a.window = true, s.ack, s.window
	}
	end := s.seq + uint32(s.payload)
	if s.flags&header.TCPFlagFin != 0 {
		end++
	}
	if !a.haveSeq || int32(end-a.seq) > 0 {
		a.haveSeq, a.seq = true, end
	}
	return v
}

// begin opens the hold for one receive loop.
func (h *ackHold) begin() {
	h.mu.Lock()
	h.open++
	h.mu.Unlock()
}

// end closes it again. What is held must be flushed afterwards.
func (h *ackHold) end() {
	h.mu.Lock()
	h.open--
	h.mu.Unlock()
}

// flush hands everything held to send, which may call admit.
func (h *ackHold) flush(send func(*stack.PacketBuffer)) {
	h.mu.Lock()
	if len(h.held) == 0 {
		h.mu.Unlock()
		return
	}
	fs := h.held
	h.held, h.free = h.free[:0], nil
	h.mu.Unlock()
	for i, f := range fs {
		h.mu.Lock()
		pkt := f.ack.held
		f.ack.held, f.ack.listed = nil, false
		h.mu.Unlock()
		fs[i] = nil
		if pkt != nil {
			send(pkt)
			pkt.DecRef()
		}
	}
	h.mu.Lock()
	if h.free == nil {
		h.free = fs[:0]
	}
	h.mu.Unlock()
}
