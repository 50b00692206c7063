package netstack

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tap"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// rawTCP is an Ethernet frame from a to b of testPair, with a TCP segment.
func rawTCP(t testing.TB, sport, dport uint16, seq, ack uint32, flags header.TCPFlags, opts, payload []byte) []byte {
	t.Helper()
	for len(opts)%4 != 0 {
		opts = append(opts, 1)
	}
	f := make([]byte, 14+20+20+len(opts)+len(payload))
	header.Ethernet(f).Encode(&header.EthernetFields{SrcAddr: "\x02\x00\x00\x00\x00\x01", DstAddr: "\x02\x00\x00\x00\x00\x02", Type: header.IPv4ProtocolNumber})
	src, dst := toAddress(prefixesA[0].Addr()), toAddress(prefixesB[0].Addr())
	ip := header.IPv4(f[14:])
	ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(f) - 14), TTL: 64, Protocol: uint8(header.TCPProtocolNumber), SrcAddr: src, DstAddr: dst})
	ip.SetChecksum(^ip.CalculateChecksum())
	th := header.TCP(f[34:])
	th.Encode(&header.TCPFields{SrcPort: sport, DstPort: dport, SeqNum: seq, AckNum: ack, DataOffset: uint8(20 + len(opts)), Flags: flags, WindowSize: 65535})
	copy(f[54:], opts)
	copy(f[54+len(opts):], payload)
	th.SetChecksum(header.PseudoHeaderChecksum(header.TCPProtocolNumber, src, dst, uint16(len(f)-34)))
	finishChecksum(f[34:54+len(opts)], [][]byte{f[54+len(opts):]})
	return f
}

// capture keeps the frames that a wire carries.
func capture(w *wire) func() [][]byte {
	var fs [][]byte
	w.mu.Lock()
	defer w.mu.Unlock()
	w.see = func(_ tap.VNetHdr, f []byte) bool {
		fs = append(fs, bytes.Clone(f))
		return true
	}
	return func() [][]byte {
		w.mu.Lock()
		defer w.mu.Unlock()
		got := fs
		fs = nil
		return got
	}
}

// unhex reads octets written with blanks.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "", "\t", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestVLAN compares frames with octets written by hand, in both directions.
func TestVLAN(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 1500, allOffloads)
	frames := capture(db.out)
	b := newStack(t, db, Config{Addrs: prefixesB, VLAN: 0x123})
	for i := 0; ; i++ {
		if len(db.out.frames) >= 2 || i > 100 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	// What New announces: an ARP reply for 10.9.0.2 to all, with the tag.
	announced := unhex(t, `ffffffffffff 020000000002 8100 0123 0806
		0001 0800 06 04 0002 020000000002 0a090002 020000000002 0a090002`)
	found := false
	for _, f := range frames() {
		if len(f) < 18 || f[12] != 0x81 || f[13] != 0 || f[14] != 1 || f[15] != 0x23 {
			t.Errorf("a frame without the tag: %x", f)
		}
		found = found || bytes.Equal(f, announced)
	}
	if !found {
		t.Errorf("no announcement %x", announced)
	}
	// An ARP request in the VLAN is answered in it, to the octet.
	ask := func(tag string) []byte {
		return unhex(t, `ffffffffffff 020000000001 `+tag+` 0806
			0001 0800 06 04 0001 020000000001 0a090001 000000000000 0a090002`)
	}
	answer := unhex(t, `020000000001 020000000002 8100 0123 0806
		0001 0800 06 04 0002 020000000002 0a090002 020000000001 0a090001`)
	answers := func() (n int) {
		time.Sleep(30 * time.Millisecond)
		for _, f := range frames() {
			if bytes.Equal(f, answer) {
				n++
			} else if f[16] == 8 && f[17] == 6 && f[25] == 2 && !bytes.Equal(f, announced) {
				t.Errorf("answer %x\n  want %x", f, answer)
			}
		}
		return n
	}
	for _, tc := range []struct {
		tag  string
		want int
	}{
		{"8100 0123", 1},
		{"8100 e123", 1}, // a priority changes nothing
		{"8100 0124", 0},
		{"8100 0000", 0},
		{"", 0},
		{"88a8 0123", 0},
		{"8100 0123 8100 0123", 0}, // two tags
	} {
		before := b.Stats()
		da.out.put(tap.VNetHdr{}, ask(tc.tag))
		if n := answers(); n != tc.want {
			t.Errorf("tag %q: %d answers, want %d", tc.tag, n, tc.want)
		}
		after := b.Stats()
		if dropped := after.RxVLAN - before.RxVLAN + after.RxOther - before.RxOther; dropped != uint64(1-tc.want) {
			t.Errorf("tag %q: %d counted as dropped", tc.tag, dropped)
		}
	}
	// And TCP works through it, in super-packets and without offloads.
	for _, off := range []tap.Offload{allOffloads, 0} {
		da, db := testPair(t, 1500, off)
		x := newStack(t, da, Config{Addrs: prefixesA, VLAN: 5})
		y := newStack(t, db, Config{Addrs: prefixesB, VLAN: 5})
		for _, v6 := range []bool{false, true} {
			c, d := connect(t, x, y, v6)
			exchange(t, c, d, 2<<20)
			c.Abort()
			d.Abort()
		}
		if off != 0 && x.Stats().TxSuper == 0 {
			t.Error("no super-packet")
		}
	}
}

// TestUntagged: without VLAN, priority tags count as none and other tags are dropped.
func TestUntagged(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 1500, allOffloads)
	newStack(t, db, Config{Addrs: prefixesB[:1]})
	frames := capture(db.out)
	for _, tc := range []struct {
		tag  string
		want bool
	}{{"", true}, {"8100 6000", true}, {"8100 0001", false}} {
		frames()
		da.out.put(tap.VNetHdr{}, unhex(t, `ffffffffffff 020000000001 `+tc.tag+` 0806 0001 0800 06 04 0001 020000000001 0a090001 000000000000 0a090002`))
		time.Sleep(30 * time.Millisecond)
		answer := unhex(t, `020000000001 020000000002 0806 0001 0800 06 04 0002 020000000002 0a090002 020000000001 0a090001`)
		got := false
		for _, f := range frames() {
			got = got || bytes.Equal(f, answer)
		}
		if got != tc.want {
			t.Errorf("tag %q: answered: %v, want %v", tc.tag, got, tc.want)
		}
	}
}

// TestMACFilter: what is for another station is dropped, whatever it says inside.
func TestMACFilter(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 1500, allOffloads)
	b := newStack(t, db, Config{Addrs: prefixesB[:1]})
	for i, dst := range []string{"020000000002", "ffffffffffff", "01005e000001", "020000000003", "000000000000"} {
		before := b.Stats()
		f := rawTCP(t, 1, 2, 3, 4, header.TCPFlagSyn, nil, nil)
		copy(f, unhex(t, dst))
		da.out.put(tap.VNetHdr{}, f)
		time.Sleep(20 * time.Millisecond)
		after := b.Stats()
		want := uint64(0)
		if i >= 3 {
			want = 1
		}
		if got := after.RxOther - before.RxOther; got != want {
			t.Errorf("to %s: %d dropped, want %d", dst, got, want)
		}
	}
}

// TestMalformed: no frame, however broken, ends anything or is missed by the
// counters, and a connection beside it goes on.
func TestMalformed(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 1500, allOffloads)
	a, b := stacksOn(t, da, db, Config{})
	x, y := connect(t, a, b, false)
	c := x.Conn.(*conn)
	good := rawTCP(t, c.local.Port(), c.remote.Port(), 1, 1, header.TCPFlagAck|header.TCPFlagPsh, []byte{1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0}, noise(200, 1))
	before := b.Stats()
	for n := range len(good) {
		da.out.put(tap.VNetHdr{}, good[:n])
		da.out.put(tap.VNetHdr{Flags: tap.HdrDataValid}, good[:n])
	}
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20_000 {
		f := bytes.Clone(good[:r.IntN(len(good)+1)])
		for range r.IntN(4) {
			if len(f) > 12 {
				f[12+r.IntN(len(f)-12)] = byte(r.Uint32())
			}
		}
		if r.IntN(4) == 0 && len(f) > 14 {
			f[14] = 0x60 | f[14]&0xf // IPv6
			f[12], f[13] = 0x86, 0xdd
		}
		h := tap.VNetHdr{Flags: uint8(r.IntN(4)), GSOType: uint8(r.IntN(6)), GSOSize: uint16(r.Uint32()), CsumStart: uint16(r.Uint32()), CsumOffset: uint16(r.Uint32())}
		da.out.put(h, f)
		if r.IntN(100) == 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	exchange(t, x, y, 1<<20)
	after := b.Stats()
	if after.RxBad-before.RxBad < 2*14 {
		t.Errorf("seed %d: %d frames shorter than their header counted", seed, after.RxBad-before.RxBad)
	}
	x.Abort()
	y.Abort()
}

// TestTinyMSS: a peer that asks for segments of one octet gets small ones, and no
// more harm is done.
func TestTinyMSS(t *testing.T) {
	for _, off := range []tap.Offload{allOffloads, 0} {
		checkLeaks(t)
		da, db := testPair(t, 1500, off)
		b := newStack(t, db, Config{Addrs: prefixesB[:1]})
		l, err := b.Listen(netip.MustParseAddrPort("10.9.0.2:5001"), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		frames := capture(db.out)
		arp := unhex(t, `ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 0a090001 000000000000 0a090002`)
		da.out.put(tap.VNetHdr{}, arp)
		da.out.put(tap.VNetHdr{}, rawTCP(t, 4000, 5001, 100, 0, header.TCPFlagSyn, []byte{2, 4, 0, 1}, nil))
		var iss uint32
		for i := 0; iss == 0; i++ {
			if i > 1000 {
				t.Fatal("no SYN-ACK")
			}
			time.Sleep(time.Millisecond)
			for _, f := range frames() {
				if f[12] == 8 && f[13] == 0 && f[23] == 6 && f[47] == 0x12 {
					iss = header.TCP(f[34:]).SequenceNumber()
				}
			}
		}
		da.out.put(tap.VNetHdr{}, rawTCP(t, 4000, 5001, 101, iss+1, header.TCPFlagAck, nil, nil))
		y, err := l.Accept(bg(t))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			o := octets(noise(10_000, 1))
			if err := y.Send(&o); err != nil {
				t.Fatal(err)
			}
			if r := y.Room(); r.EMSS < 4 || r.Left < 1 || r.MaxBatch < 1 {
				t.Errorf("room %+v", r)
			}
		}
		got := 0
		for i := 0; got == 0; i++ {
			if i > 1000 {
				t.Fatal("nothing was sent")
			}
			time.Sleep(time.Millisecond)
			for _, f := range frames() {
				if f[12] == 8 && f[23] == 6 && len(f) > 54 {
					got++
				}
			}
		}
		y.Abort()
	}
}

// TestCutter: pieces never are more than a frame takes, and no octet is lost.
func TestCutter(t *testing.T) {
	var views [][]byte
	all := noise(60_000, 1)
	for rest := all; len(rest) > 0; rest = rest[min(len(rest), 23):] {
		views = append(views, rest[:min(len(rest), 23)])
	}
	c := cutter{views: views}
	var got []byte
	for left := len(all); left > 0; {
		bufs, n := c.next(nil, min(left, 30_000))
		if len(bufs) > maxBufs || n == 0 {
			t.Fatalf("%d pieces, %d octets", len(bufs), n)
		}
		got = append(got, bytes.Join(bufs, nil)...)
		left -= n
	}
	if !bytes.Equal(got, all) {
		t.Error("octets differ")
	}
}

// TestManySmallWrites: a super-packet of more pieces than the kernel takes leaves as
// several frames.
func TestManySmallWrites(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 65521, allOffloads)
	frames := &frameCounter{testDev: da}
	a, b := stacksOn(t, frames, db, Config{})
	x, y := connect(t, a, b, false)
	exchange(t, x, y, 4<<20) // so that much may be sent at once
	// Fill the peer's window, and behind it queue small writes.
	total := 0
	for total < 2<<20+300_000 {
		if err := x.send(make([]byte, 10_000), 0); err != nil {
			t.Fatal(err)
		}
		total += 10_000
	}
	if err := x.send(make([]byte, 100_000), 20); err != nil {
		t.Fatal(err)
	}
	total += 100_000
	if got, err := y.recv(total, 1<<16); err != nil || len(got) != total {
		t.Fatalf("%d octets, %v", len(got), err)
	}
	if most := int(frames.most.Load()); most > maxBufs+3 || most < maxBufs {
		t.Errorf("the largest frame is of %d pieces, want %d", most, maxBufs+1)
	}
	x.Abort()
	y.Abort()
}

// twoQueues is a device with two queues.
type twoQueues struct{ *testDev }

func (d twoQueues) Queues() []tap.Queue { return []tap.Queue{d.testDev, d.testDev} }

// TestTwoQueues: two receive loops deliver at once; the wire reorders by that.
func TestTwoQueues(t *testing.T) {
	for _, off := range []tap.Offload{allOffloads, 0} {
		checkLeaks(t)
		da, db := testPair(t, 1500, off)
		a, b := stacksOn(t, twoQueues{da}, twoQueues{db}, Config{})
		x, y := connect(t, a, b, false)
		z, w := connect(t, a, b, true)
		done := make(chan struct{})
		go func() {
			exchange(t, z, w, 2<<20)
			close(done)
		}()
		exchange(t, x, y, 2<<20)
		<-done
		if n := a.Stats().TCPChecksumErrors + b.Stats().TCPChecksumErrors; n != 0 {
			t.Errorf("%d checksum errors", n)
		}
		for _, c := range []*tester{x, y, z, w} {
			c.Abort()
		}
		a.Close()
		b.Close()
	}
}

// TestPinnedMemory: a peer that sends one octet in each segment, to one who does not
// read, makes us hold a bounded amount of memory.
func TestPinnedMemory(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 1500, allOffloads)
	a, b := stacksOn(t, da, db, Config{})
	x, y := connect(t, a, b, false)
	resegment(da.out, 1)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 20 {
		if err := x.send(noise(1000, 1), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond)
	runtime.GC()
	runtime.ReadMemStats(&after)
	queued, _ := y.Conn.(*conn).ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
	grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d segments of one octet hold %d octets of memory", queued, grown)
	if queued < 2000 || grown > 40<<20 {
		t.Errorf("%d segments of one octet hold %d octets of memory", queued, grown)
	}
	x.Abort()
	y.Abort()
}

// TestAnnouncesAgain: what a bridge has swallowed in the first moments is said again,
// so that peers who knew another MAC for the address do not talk to it for minutes.
func TestAnnouncesAgain(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 1500, allOffloads)
	var mu sync.Mutex
	arp, nd := 0, 0
	da.out.mu.Lock()
	da.out.see = func(_ tap.VNetHdr, f []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case len(f) >= 42 && f[12] == 8 && f[13] == 6 && f[21] == 2 && bytes.Equal(f[28:32], []byte{10, 9, 0, 1}):
			arp++
		case len(f) > 54 && f[12] == 0x86 && f[54] == 136:
			nd++
		}
		return false
	}
	da.out.mu.Unlock()
	s := newStack(t, da, Config{Addrs: prefixesA})
	defer db.Close()
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return arp >= 3 && nd >= 3
	}
	for deadline := time.Now().Add(10 * time.Second); !enough() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if !enough() {
		t.Errorf("%d ARP and %d ND announcements", arp, nd)
	}
	begin := time.Now()
	s.Close()
	if took := time.Since(begin); took > time.Second {
		t.Errorf("Close waited %v for announcements to come", took)
	}
}
