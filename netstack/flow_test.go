package netstack

import (
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

func TestFlowDepart(t *testing.T) {
	f := &flow{}
	probe := segment{seq: 0xfffff000, payload: 1, flags: header.TCPFlagAck}
	if _, ok := f.depart(probe); ok {
		t.Error("a zero window probe counts as the first octet")
	}
	// Sequence numbers that wrap, twice round.
	seq, total := uint32(0xfffff001), uint64(0)
	for i := range 200_000 {
		off, ok := f.depart(segment{seq: seq, payload: 65320})
		if !ok || off != total || f.sent() != total+65320 {
			t.Fatalf("segment %d: offset %d %v, sent %d, want %d", i, off, ok, f.sent(), total)
		}
		seq, total = seq+65320, total+65320
	}
	// A retransmission changes nothing.
	if off, ok := f.depart(segment{seq: seq - 100_000, payload: 1420}); !ok || off != total-100_000 || f.sent() != total {
		t.Errorf("retransmission: offset %d %v, sent %d, want %d, %d", off, ok, f.sent(), total-100_000, total)
	}
}

func TestFlowCell(t *testing.T) {
	f := &flow{}
	for _, off := range []uint64{20, 5000, 9000} {
		f.restart(off, 0)
	}
	for _, tc := range []struct {
		off     uint64
		left    int
		aligned bool
		run     uint64
	}{
		{0, 1000, true, 20}, // before all that is known
		{20, 1000, true, 4980},
		{1020, 1000, true, 3980},
		{1021, 999, false, 3979},
		{4999, 21, false, 1},
		{5000, 1000, true, 4000},
		{8999, 1, false, 1},
		{9000, 1000, true, 0},
		{9500, 500, false, 0},
	} {
		left, aligned, run := f.cell(tc.off, 1000)
		if left != tc.left || aligned != tc.aligned || run != tc.run {
			t.Errorf("cell(%d) = %d, %v, %d, want %d, %v, %d", tc.off, left, aligned, run, tc.left, tc.aligned, tc.run)
		}
	}
}

func TestFlowRestartsBounded(t *testing.T) {
	f := &flow{}
	for i := range uint64(10_000) {
		f.restart(100+10*i, 10*i) // ten octets back at most
	}
	if n := len(f.restarts); n > 16 {
		t.Errorf("%d restarts kept where 12 are of use", n)
	}
	f = &flow{}
	for i := range uint64(10_000) {
		f.restart(10*i, 0)
	}
	if n := len(f.restarts); n > maxRestarts {
		t.Errorf("%d restarts kept, want at most %d", n, maxRestarts)
	}
	if left, aligned, _ := f.cell(99_990, 100); left != 100 || !aligned {
		t.Errorf("the last one is lost: %d, %v", left, aligned)
	}
	if n := testing.AllocsPerRun(1000, func() {
		f.restart(f.restarts[len(f.restarts)-1]+10, 0)
		f.cell(f.restarts[len(f.restarts)-1], 1420)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestFlowTable(t *testing.T) {
	var ft flowTable
	ap := netip.MustParseAddrPort
	k := keyOf(ap("10.0.0.1:1000"), ap("10.0.0.2:2000"))
	ip := make([]byte, 20)
	header.IPv4(ip).Encode(&header.IPv4Fields{SrcAddr: toAddress(ap("10.0.0.1:1").Addr()), DstAddr: toAddress(ap("10.0.0.2:1").Addr())})
	th := []byte{1000 >> 8, 1000 & 0xff, 2000 >> 8, 2000 & 0xff}
	if got := keyFrom(ip, th); got != k {
		t.Errorf("key of an IPv4 packet %x, want %x", got, k)
	}
	k6 := keyOf(ap("[fd00::1]:1000"), ap("[fd00::2]:2000"))
	ip = make([]byte, 40)
	header.IPv6(ip).Encode(&header.IPv6Fields{SrcAddr: toAddress(ap("[fd00::1]:1").Addr()), DstAddr: toAddress(ap("[fd00::2]:1").Addr())})
	if got := keyFrom(ip, th); got != k6 {
		t.Errorf("key of an IPv6 packet %x, want %x", got, k6)
	}
	f, f6 := ft.add(k), ft.add(k6)
	if ft.find(k) != f || ft.find(k6) != f6 || ft.find(k) != f || ft.len() != 2 {
		t.Error("flows not found")
	}
	again := ft.add(k) // the same addresses again
	ft.remove(k, f)    // the old one ends late
	if ft.find(k) != again {
		t.Error("a late end took the new flow away")
	}
	ft.remove(k, again)
	if ft.find(k) != nil || ft.len() != 1 {
		t.Error("removed and still found")
	}
	ft.clear()
	ft.add(k)
	if ft.find(k) != nil || ft.find(k6) != nil {
		t.Error("found after clear")
	}
}

// TestACKHold walks through what may and what must not be held or left out.
func TestACKHold(t *testing.T) {
	const ack, psh, fin, rst = header.TCPFlagAck, header.TCPFlagAck | header.TCPFlagPsh, header.TCPFlagAck | header.TCPFlagFin, header.TCPFlagAck | header.TCPFlagRst
	type step struct {
		why  string
		s    segment
		want string // h: held, f: the held one goes first, x: the held one is left out
	}
	start := []step{{"the first data", segment{seq: 100, ack: 1000, flags: psh, window: 50, payload: 100}, ""}}
	pure := segment{seq: 200, ack: 2000, flags: ack, window: 50, options: 12}
	with := func(f func(*segment)) segment { s := pure; f(&s); return s }
	held := append(start, step{"a pure ACK", pure, "h"})
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"data supersedes", append(held, step{"data", with(func(s *segment) { s.payload = 10; s.flags = psh }), "x"})},
		{"data with an older ACK", append(held, step{"data", with(func(s *segment) { s.payload = 10; s.ack = 1500 }), "f"})},
		{"FIN supersedes", append(held, step{"FIN", with(func(s *segment) { s.flags = fin }), "x"})},
		{"newer supersedes", append(held, step{"newer", with(func(s *segment) { s.ack = 3000 }), "hx"}, step{"newer", with(func(s *segment) { s.ack = 4000 }), "hx"})},
		{"window update supersedes", append(held, step{"update", with(func(s *segment) { s.window = 60 }), "hx"})},
		{"duplicate ACKs all leave", append(held, step{"dup", pure, "f"}, step{"dup", pure, ""}, step{"dup", pure, ""})},
		{"SACK leaves and so does what was held", append(held, step{"sack", with(func(s *segment) { s.options = 24 }), "f"})},
		{"SACK with a newer ACK", append(held, step{"sack", with(func(s *segment) { s.options = 24; s.ack = 3000 }), "x"})},
		{"RST", append(held, step{"rst", with(func(s *segment) { s.flags = rst }), "f"})},
		{"keepalive probe", append(held, step{"probe", with(func(s *segment) { s.seq = 199 }), "f"})},
		{"zero window probe", append(held, step{"probe", with(func(s *segment) { s.seq = 199; s.payload = 1; s.ack = 1999 }), "f"})},
		{"older ACK", append(held, step{"older", with(func(s *segment) { s.ack = 1500 }), "f"})},
		{"ACKs that wrap", append(start,
			step{"before", with(func(s *segment) { s.ack = 0x7ffffff0 }), "h"},
			step{"next", with(func(s *segment) { s.ack = 0xffffff00 }), "hx"},
			step{"after the wrap", with(func(s *segment) { s.ack = 16 }), "hx"})},
		{"nothing known yet", []step{{"an ACK", pure, ""}, {"the same", pure, ""}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var h ackHold
			f := &flow{}
			h.begin()
			var pkts []*stack.PacketBuffer
			for _, st := range tc.steps {
				pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{})
				pkts = append(pkts, pkt)
				was := f.ack.held
				v := h.admit(f, st.s, pkt)
				got := ""
				if v.hold {
					got += "h"
					if f.ack.held != pkt {
						t.Errorf("%s: held is another packet", st.why)
					}
				}
				if v.first != nil {
					got += "f"
				}
				if v.spare != nil {
					got += "x"
				}
				if v.first != nil && v.first != was || v.spare != nil && v.spare != was {
					t.Errorf("%s: another packet than the held one", st.why)
				}
				if got != st.want {
					t.Errorf("%s: %q, want %q", st.why, got, st.want)
				}
				for _, p := range []*stack.PacketBuffer{v.first, v.spare} {
					if p != nil {
						p.DecRef()
					}
				}
			}
			// A flush lets go of the rest, once.
			last := f.ack.held
			var sent []*stack.PacketBuffer
			h.flush(func(p *stack.PacketBuffer) { sent = append(sent, p) })
			if last != nil && (len(sent) != 1 || sent[0] != last) || last == nil && len(sent) != 0 {
				t.Errorf("flush sent %d packets", len(sent))
			}
			h.flush(func(*stack.PacketBuffer) { t.Error("flushed twice") })
			for _, p := range pkts {
				if n := p.ReadRefs(); n != 1 {
					t.Errorf("a packet has %d references at the end, want 1", n)
				}
				p.DecRef()
			}
			if f.ack.listed || len(h.held) != 0 {
				t.Error("something is still listed")
			}
		})
	}
}

// TestACKHoldClosed: outside of a batch everything leaves at once.
func TestACKHoldClosed(t *testing.T) {
	var h ackHold
	f := &flow{}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{})
	defer pkt.DecRef()
	h.admit(f, segment{seq: 100, ack: 1, flags: header.TCPFlagAck | header.TCPFlagPsh, payload: 100}, pkt)
	if v := h.admit(f, segment{seq: 200, ack: 2, flags: header.TCPFlagAck}, pkt); v.hold {
		t.Error("held with no receive loop at work")
	}
	h.begin()
	h.end()
	if v := h.admit(f, segment{seq: 200, ack: 3, flags: header.TCPFlagAck}, pkt); v.hold {
		t.Error("held after the end of the batch")
	}
}

// TestACKHoldManyFlows: each flow has its own held ACK, and a flush takes them all.
func TestACKHoldManyFlows(t *testing.T) {
	var h ackHold
	h.begin()
	fs := make([]flow, 100)
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{})
	defer pkt.DecRef()
	round := func(n uint32) (sent int) {
		for i := range fs {
			h.admit(&fs[i], segment{seq: 100 * n, ack: 10 * n, flags: header.TCPFlagAck | header.TCPFlagPsh, payload: 100}, pkt)
			for k := uint32(1); k < 4; k++ {
				v := h.admit(&fs[i], segment{seq: 100*n + 100, ack: 10*n + k, flags: header.TCPFlagAck}, pkt)
				if !v.hold {
					t.Fatal("not held")
				}
				if v.spare != nil {
					v.spare.DecRef()
				}
			}
		}
		h.flush(func(*stack.PacketBuffer) { sent++ })
		return sent
	}
	for n := range uint32(3) {
		if sent := round(n + 1); sent != len(fs) {
			t.Errorf("round %d: %d ACKs flushed, want %d", n, sent, len(fs))
		}
	}
	n := uint32(3)
	if a := testing.AllocsPerRun(100, func() { n++; round(n) }); a != 0 {
		t.Errorf("%v allocations", a)
	}
}
