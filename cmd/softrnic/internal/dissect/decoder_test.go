package dissect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/capture"
	"github.com/softrnic/softrnic/iwarp/mpa"
	"github.com/softrnic/softrnic/iwarp/rdmap"
)

// texts are the lines of records from one side, without the ends.
func texts(rs []record, src netip.AddrPort) []string {
	var out []string
	for _, r := range rs {
		if r.Src == src.String() {
			_, s, _ := strings.Cut(r.String(), r.Dst+" ")
			out = append(out, s)
		}
	}
	return out
}

func want(t *testing.T, got, want []string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestOrder cuts a connection into segments of random sizes, sends some twice, some
// with what came before, shuffles them, and lets sequence numbers wrap: the same
// records come out, in pcap and pcapng.
func TestOrder(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := newTalk(-uint32(rng.IntN(3000)), -uint32(rng.IntN(300000)))
		c.hello(t, mpa.Frame{CRC: true}, mpa.Frame{})
		var client, server []string
		client = append(client, "mpa-request rev=1 M=0 C=1 R=0 S=0 private=0")
		server = append(server, "mpa-reply rev=1 M=0 C=0 R=0 S=0 private=0")
		var streams [2][]byte
		for i := range 40 {
			n := rng.IntN(3000)
			streams[0] = mpa.AppendFPDU(streams[0], writeULPDU(5, uint64(i), n), true)
			client = append(client, fmt.Sprintf("fpdu write         len=%d stag=0x00000005 to=%#x last crc=ok", n, i))
			n = rng.IntN(60000)
			streams[1] = mpa.AppendFPDU(streams[1], sendULPDU(rdmap.Send, uint32(i+1), octets(n, i)), true)
			server = append(server, fmt.Sprintf("fpdu send          len=%d qn=0 msn=%d mo=0 last crc=ok", n, i+1))
		}
		begin := len(c.parts)
		for i, s := range streams {
			for off := 0; off < len(s); {
				n := min(1+rng.IntN(1+rng.IntN(30000)), len(s)-off)
				c.say(i == 1, s[off:off+n])
				p := c.parts[len(c.parts)-1]
				switch back := min(off, rng.IntN(2000)); rng.IntN(4) {
				case 0: // again
					c.parts = append(c.parts, p)
				case 1: // with what came before
					p.seq -= uint32(back)
					p.data = s[off-back : off+n]
					c.parts = append(c.parts, p)
				}
				off += n
			}
		}
		body := c.parts[begin:]
		for i := range body { // by up to a few places
			j := min(len(body)-1, i+rng.IntN(6))
			body[i], body[j] = body[j], body[i]
		}
		for name, f := range map[string][]byte{"pcap": file(t, c.parts), "pcapng": fileNG(t, c.parts)} {
			rs, notes := decode(t, f)
			if len(notes) > 0 {
				t.Errorf("seed %d, %s: notes: %q", seed, name, notes)
			}
			want(t, texts(rs, clientEnd), client)
			want(t, texts(rs, serverEnd), server)
			if t.Failed() {
				t.Fatalf("seed %d, %s", seed, name)
			}
		}
	}
}

func TestIPv6(t *testing.T) {
	c := newTalk(1, 1)
	c.ends = [2]netip.AddrPort{netip.MustParseAddrPort("[2001:db8::1]:1"), netip.MustParseAddrPort("[2001:db8::2]:2")}
	c.parts = nil
	c.hello(t, mpa.Frame{}, mpa.Frame{})
	c.say(false, mpa.AppendFPDU(nil, writeULPDU(1, 2, 3), false))
	rs, notes := decode(t, file(t, c.parts))
	if len(rs) != 3 || len(notes) > 0 || rs[2].Src != "[2001:db8::1]:1" || rs[2].CRC != CRCOff {
		t.Errorf("%+v, %q", rs, notes)
	}
}

// TestMarkers decodes directions with markers, which the receiver asks for.
func TestMarkers(t *testing.T) {
	var us [][]byte
	var client []string
	for i := range 60 {
		n := []int{0, 1, 2, 3, 480, 484, 488, 490, 496, 500, 508, 512, 1440, 8000}[i%14]
		us = append(us, writeULPDU(9, uint64(i), n))
		client = append(client, fmt.Sprintf("fpdu write         len=%d stag=0x00000009 to=%#x last crc=ok", n, i))
	}
	stream := marked(us...)
	for _, both := range []bool{false, true} {
		c := newTalk(100, 4294967000)
		c.hello(t, mpa.Frame{CRC: true, Markers: both}, mpa.Frame{CRC: true, Markers: true})
		for part := range slices.Chunk(stream, 1000) {
			c.say(false, part)
		}
		reply := sendULPDU(rdmap.Send, 1, octets(600, 1))
		if both {
			c.say(true, marked(reply))
		} else {
			c.say(true, mpa.AppendFPDU(nil, reply, true))
		}
		rs, notes := decode(t, file(t, c.parts))
		if len(notes) > 0 {
			t.Error(notes)
		}
		var got []string
		octets := 0
		for _, s := range texts(rs, clientEnd)[1:] {
			s, m, _ := strings.Cut(s, " markers=")
			got = append(got, s)
			if m != "" {
				var n int
				fmt.Sscan(m, &n)
				octets += 4 * n
			}
		}
		want(t, got, client)
		if n := 4 * ((len(stream) + 511) / 512); octets != n {
			t.Errorf("%d octets of markers in %d, want %d", octets, len(stream), n)
		}
		if got := texts(rs, serverEnd)[1]; both != strings.Contains(got, "markers=2") || !strings.Contains(got, "crc=ok") {
			t.Errorf("markers asked for by the client: %v; its peer's FPDU: %s", both, got)
		}
	}
}

// TestWrongMarker: the CRC is right and a marker is not (RFC 5044 section 8, code 3).
func TestWrongMarker(t *testing.T) {
	s := marked(writeULPDU(9, 0, 1000))
	s[512+3] ^= 4
	fixCRC(s)
	c := newTalk(1, 1)
	c.hello(t, mpa.Frame{CRC: true}, mpa.Frame{Markers: true})
	c.say(false, s)
	rs, _ := decode(t, file(t, c.parts))
	if r := rs[2]; r.CRC != CRCOk || !strings.Contains(r.Fault, "marker 508 octets into the FPDU points back 504") {
		t.Error(r.String())
	}
}

func fixCRC(fpdu []byte) {
	body := fpdu[:len(fpdu)-4]
	binary.LittleEndian.PutUint32(fpdu[len(body):], crc32.Checksum(body, castagnoli))
}

// faulty is a connection of ten Writes whose stream f may change.
func faulty(t *testing.T, f func(stream []byte, at func(i int) int)) ([]record, []string) {
	var s []byte
	var starts []int
	for i := range 10 {
		starts = append(starts, len(s))
		s = mpa.AppendFPDU(s, writeULPDU(7, uint64(i), 300+i), true)
	}
	if f != nil {
		f(s, func(i int) int { return starts[i] })
	}
	c := newTalk(1, 1)
	c.hello(t, mpa.Frame{CRC: true}, mpa.Frame{CRC: true})
	for p := range slices.Chunk(s, 500) {
		c.say(false, p)
	}
	return decode(t, file(t, c.parts))
}

func offsets(rs []record) (good, bad []uint64) {
	for _, r := range rs {
		if r.Tagged == nil {
			continue
		}
		if r.CRC == CRCOk {
			good = append(good, r.TO)
		} else {
			bad = append(bad, r.TO)
		}
	}
	return good, bad
}

func TestBadCRC(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s []byte, at func(int) int)
		bad   []uint64
		good  []uint64
		note  string
	}{
		"nothing": {nil, nil, []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, ""},
		"payload": {func(s []byte, at func(int) int) { s[at(3)+100] ^= 1 }, []uint64{3}, []uint64{0, 1, 2, 4, 5, 6, 7, 8, 9}, ""},
		"CRC":     {func(s []byte, at func(int) int) { s[at(4)-1] ^= 0x80 }, []uint64{3}, []uint64{0, 1, 2, 4, 5, 6, 7, 8, 9}, ""},
		"length": {func(s []byte, at func(int) int) { s[at(3)+1] ^= 0x10 }, []uint64{3}, []uint64{0, 1, 2, 4, 5, 6, 7, 8, 9},
			"no FPDU follows the one with a wrong CRC"},
		"length too long": {func(s []byte, at func(int) int) { s[at(3)] = 0xff }, nil, []uint64{0, 1, 2, 4, 5, 6, 7, 8, 9}, "ULPDU_Length 65341 exceeds 64768"},
	} {
		t.Run(name, func(t *testing.T) {
			rs, notes := faulty(t, c.spoil)
			good, bad := offsets(rs)
			if d := cmp.Diff(c.good, good) + cmp.Diff(c.bad, bad); d != "" {
				t.Error(d)
			}
			if all := strings.Join(notes, "\n"); !strings.Contains(all, c.note) || (c.note == "") != (all == "") {
				t.Errorf("notes: %s", all)
			}
		})
	}
}

// TestLate begins a capture at each of the packets of a connection, and leaves one
// out: what can be found again is found, and what is missing is said.
func TestLate(t *testing.T) {
	for _, crc := range []bool{true, false} {
		c := newTalk(1, 1)
		c.hello(t, mpa.Frame{CRC: crc}, mpa.Frame{CRC: crc})
		var s []byte
		for i := range 20 {
			s = mpa.AppendFPDU(s, writeULPDU(7, uint64(i), 300+i), crc)
		}
		for p := range slices.Chunk(s, 400) {
			c.say(false, p)
		}
		for from := 3; from < 15; from++ {
			rs, notes := decode(t, file(t, c.parts[from:]))
			last := rs[len(rs)-1]
			// Without CRC, the last FPDU found may wait for one more behind it.
			if len(rs) < 15-from || last.Tagged == nil || last.TO != 19 {
				t.Errorf("CRC %v, from packet %d: %d records, the last %v; %q", crc, from, len(rs), last.String(), notes)
			}
			for _, r := range rs {
				if r.Segment != nil && (r.Fault != "" || r.Opcode != "" && r.Opcode != "write" || crc && r.CRC == CRCBad) {
					t.Errorf("CRC %v, from packet %d: %s", crc, from, r.String())
				}
			}
			if from > 3 && !strings.Contains(strings.Join(notes, "\n"), "the capture began within the connection") {
				t.Errorf("CRC %v, from packet %d: notes: %q", crc, from, notes)
			}
		}
		for skip := 4; skip < 14; skip++ {
			rs, notes := decode(t, file(t, slices.Concat(c.parts[:skip], c.parts[skip+1:])))
			if n := len(rs); n < 2+20-3 || rs[n-1].Tagged == nil || rs[n-1].TO != 19 {
				t.Errorf("CRC %v, without packet %d: %d records, the last %v", crc, skip, n, rs[n-1].String())
			}
			if !strings.Contains(strings.Join(notes, "\n"), "400 octets were not captured") {
				t.Errorf("CRC %v, without packet %d: notes: %q", crc, skip, notes)
			}
		}
	}
}

// TestShortCapture has packets of which only the beginning was captured.
func TestShortCapture(t *testing.T) {
	c := newTalk(1, 1)
	c.hello(t, mpa.Frame{CRC: true}, mpa.Frame{CRC: true})
	for i := range 10 {
		c.say(false, mpa.AppendFPDU(nil, writeULPDU(7, uint64(i), 1000), true))
	}
	c.parts[6].cut = 900
	rs, notes := decode(t, file(t, c.parts))
	good, bad := offsets(rs)
	if d := cmp.Diff([]uint64{0, 1, 3, 4, 5, 6, 7, 8, 9}, good) + cmp.Diff([]uint64(nil), bad); d != "" {
		t.Error(d)
	}
	if len(notes) == 0 || !strings.Contains(notes[0], "900 octets were not captured") {
		t.Errorf("notes: %q", notes)
	}
}

// TestAgain uses the same ends for a second connection.
func TestAgain(t *testing.T) {
	c := newTalk(1000, 1)
	c.hello(t, mpa.Frame{CRC: true}, mpa.Frame{})
	c.say(false, mpa.AppendFPDU(nil, writeULPDU(1, 1, 10), true))
	d := newTalk(500, 70000)
	d.hello(t, mpa.Frame{}, mpa.Frame{})
	d.say(false, mpa.AppendFPDU(nil, writeULPDU(1, 2, 10), false))
	rs, notes := decode(t, file(t, slices.Concat(c.parts, d.parts)))
	want(t, texts(rs, clientEnd), []string{
		"mpa-request rev=1 M=0 C=1 R=0 S=0 private=0",
		"fpdu write         len=10 stag=0x00000001 to=0x1 last crc=ok",
		"mpa-request rev=1 M=0 C=0 R=0 S=0 private=0",
		"fpdu write         len=10 stag=0x00000001 to=0x2 last crc=off",
	})
	if len(notes) > 0 {
		t.Error(notes)
	}
}

// TestOther sees TCP that is not ours: nothing comes of it, and nothing is kept.
func TestOther(t *testing.T) {
	c := newTalk(1, 1)
	c.say(false, []byte("GET / HTTP/1.1\r\n\r\n"))
	c.say(true, bytes.Repeat([]byte("MPA ID Rep Frame"), 1000))
	rs, notes := decode(t, file(t, c.parts))
	if len(rs)+len(notes) > 0 {
		t.Errorf("%v, %q", rs, notes)
	}
}

func TestMalformedStartup(t *testing.T) {
	c := newTalk(1, 1)
	c.say(false, []byte("MPA ID Req Frame\x00\x01\xff\xff"))
	rs, notes := decode(t, file(t, c.parts))
	if len(rs) > 0 || len(notes) != 1 || !strings.Contains(notes[0], "PD_Length 65535") {
		t.Errorf("%v, %q", rs, notes)
	}
}

// TestOpcodes shows what each message's line says.
func TestOpcodes(t *testing.T) {
	u := func(op rdmap.Op, payload ...byte) []byte { return sendULPDU(op, 1, payload) }
	inv := u(rdmap.SendSEInv, 1)
	inv[5] = 0x2a
	readReq := make([]byte, rdmap.ReadRequestLen)
	(&rdmap.ReadReq{SinkSTag: 1, SinkTO: 2, Size: 3, SrcSTag: 4, SrcTO: 5}).Put(readReq)
	wrongVersion := u(rdmap.Send)
	wrongVersion[0] = 0x40
	for _, c := range []struct {
		ulpdu []byte
		want  string
	}{
		{u(rdmap.SendSE, 1, 2), "fpdu send-se       len=2 qn=0 msn=1 mo=0 last crc=ok"},
		{inv, "fpdu send-se-inv   len=1 qn=0 msn=1 mo=0 inv=0x0000002a last crc=ok"},
		{u(rdmap.ReadRequest, readReq...), "fpdu read-request  len=28 qn=1 msn=1 mo=0 size=3 sink=0x00000001/0x2 src=0x00000004/0x5 last crc=ok"},
		{u(8, 0, 1, 2, 3, 4, 5, 6, 7), "fpdu immediate     len=8 qn=0 msn=1 mo=0 imm=0001020304050607 last crc=ok"},
		{u(8, 0), "fpdu immediate     len=1 qn=0 msn=1 mo=0 last crc=ok FAULT: 1 octets of payload, immediate data are 8"},
		{u(0xd), "fpdu unknown       len=0 qn=0 msn=1 mo=0 last crc=ok FAULT: opcode 0xd is not assigned"},
		{u(rdmap.Write), "fpdu write         len=0 qn=0 msn=1 mo=0 last crc=ok FAULT: write in a segment of the other kind (tagged, untagged)"},
		{[]byte{0x41, 0x43, 0}, "fpdu unknown       len=0 crc=ok FAULT: 3 octets are no whole DDP header"},
		{nil, "fpdu unknown       len=0 crc=ok FAULT: an empty ULPDU"},
		{u(rdmap.ReadRequest, 1), "fpdu read-request  len=1 qn=1 msn=1 mo=0 last crc=ok FAULT: 1 octets of payload, a Read Request has 28"},
	} {
		c2 := newTalk(1, 1)
		c2.hello(t, mpa.Frame{CRC: true}, mpa.Frame{})
		c2.say(false, mpa.AppendFPDU(nil, c.ulpdu, true))
		rs, _ := decode(t, file(t, c2.parts))
		want(t, texts(rs, clientEnd)[1:], []string{c.want})
	}
	c := newTalk(1, 1)
	c.hello(t, mpa.Frame{CRC: true}, mpa.Frame{})
	c.say(false, mpa.AppendFPDU(nil, wrongVersion, true))
	rs, _ := decode(t, file(t, c.parts))
	if r := rs[2]; r.Opcode != unknown || !strings.Contains(r.Fault, "version") {
		t.Error(r.String())
	}
}

// TestTerminate reads the RFC's order and siw's.
func TestTerminate(t *testing.T) {
	refused := writeULPDU(0xdeadbeef, 16, 0)
	term := rdmap.Term{Layer: rdmap.LayerDDP, Type: 1, Code: 0, HasLen: true, Segment: 18, DDP: refused}
	ours := term.Append(nil)
	siw := slices.Concat([]byte{0x21, 0x02, 0x03, 0x00, 0, 18}, sendULPDU(rdmap.Send, 9, nil))
	for _, c := range []struct {
		payload []byte
		want    string
		swapped bool
	}{
		{ours, "1/1/0x00 (" + rdmap.Describe(rdmap.LayerDDP, 1, 0) + ") of write stag=0xdeadbeef to=0x10", false},
		{siw, "1/2/0x02 (" + rdmap.Describe(rdmap.LayerDDP, 2, 2) + ") of send qn=0 msn=9 mo=0", true},
		{[]byte{0x20, 2, 0, 0}, "2/0/0x02 (" + rdmap.Describe(rdmap.LayerLLP, 0, 2) + ")", false},
	} {
		k := newTalk(1, 1)
		k.hello(t, mpa.Frame{CRC: true}, mpa.Frame{})
		k.say(false, mpa.AppendFPDU(nil, sendULPDU(rdmap.Terminate, 1, c.payload), true))
		rs, _ := decode(t, file(t, k.parts))
		r := rs[2]
		if r.Terminate == nil || r.Swapped != c.swapped || !strings.Contains(r.String(), c.want+" last") {
			t.Errorf("%s, want %s", r.String(), c.want)
		}
	}
}

// TestEmitError ends the decoding at the first record that cannot be written.
func TestEmitError(t *testing.T) {
	stop := errors.New("stop")
	r, err := capture.NewReader(bytes.NewReader(read(t, pcaps+"siw-rping-crc.pcap")))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	d := Decoder{Emit: func(*Record) error { n++; return stop }}
	if _, err := d.Decode(r); !errors.Is(err, stop) || n != 1 {
		t.Errorf("%d records, %v", n, err)
	}
}

// TestBounds opens more connections than are kept, none of them ours.
func TestBounds(t *testing.T) {
	d := Decoder{Emit: func(*Record) error { return nil }}
	for i := range 3 * maxConns {
		s := capture.Segment{Src: netip.AddrPortFrom(clientEnd.Addr(), uint16(i)), Dst: netip.AddrPortFrom(serverEnd.Addr(), uint16(i>>16)),
			Seq: 1, Payload: []byte("MPA ID R"), Len: 8, Flags: capture.ACK}
		d.segment(&s)
	}
	if n := len(d.conns); n > maxConns || n != d.recent.Len() {
		t.Errorf("%d connections kept, in a list of %d", n, d.recent.Len())
	}
	// One with a hole keeps what comes after it, and no more than it may.
	s := capture.Segment{Src: clientEnd, Dst: serverEnd, Seq: 1, Payload: []byte("MPA ID R"), Len: 8}
	d.segment(&s)
	for i := range 3000 {
		s.Seq, s.Payload, s.Len = uint32(10+1400*i), make([]byte, 1400), 1400
		d.segment(&s)
	}
	if d.held > 8<<20 {
		t.Errorf("%d octets held", d.held)
	}
}

// FuzzDecode: no file makes it panic or run away.
func FuzzDecode(f *testing.F) {
	for _, name := range files(f, ".pcap") {
		f.Add(read(f, name))
	}
	c := newTalk(1, 1)
	c.hello(f, mpa.Frame{CRC: true, Markers: true}, mpa.Frame{Markers: true})
	c.say(false, marked(writeULPDU(1, 2, 3000), sendULPDU(rdmap.Terminate, 1, octets(40, 1))))
	f.Add(fileNG(f, c.parts))
	f.Fuzz(func(t *testing.T, file []byte) {
		r, err := capture.NewReader(bytes.NewReader(file))
		if err != nil {
			return
		}
		d := Decoder{Emit: func(r *Record) error { _ = r.String(); return nil }, Note: func(int, string) {}}
		_, _ = d.Decode(r)
	})
}

// FuzzStream: no octets on a connection make it panic, in a stream with markers or
// without.
func FuzzStream(f *testing.F) {
	f.Add(true, true, mpa.AppendFPDU(nil, writeULPDU(1, 2, 30), true), uint16(10))
	f.Add(false, false, mpa.AppendFPDU(nil, sendULPDU(rdmap.Send, 2, octets(30, 1)), false), uint16(1))
	f.Add(true, true, marked(writeULPDU(1, 2, 3000)), uint16(512))
	f.Fuzz(func(t *testing.T, crc, markers bool, stream []byte, cut uint16) {
		var d Decoder
		n := 0
		d.Emit = func(r *Record) error { n += len(r.Wire); _ = r.String(); return nil }
		seq := [2]uint32{1, 1}
		say := func(i int, b []byte, flags uint8) {
			s := capture.Segment{Src: clientEnd, Dst: serverEnd, Seq: seq[i], Payload: b, Len: len(b), Flags: flags}
			if i == 1 {
				s.Src, s.Dst = s.Dst, s.Src
			}
			d.segment(&s)
			seq[i] += uint32(len(b))
		}
		say(0, nil, capture.SYN)
		say(1, nil, capture.SYN)
		seq[0]++
		seq[1]++
		req, _ := (&mpa.Frame{CRC: crc, Revision: 1}).Append(nil)
		rep, _ := (&mpa.Frame{Reply: true, Markers: markers, Revision: 1}).Append(nil)
		say(0, req, 0)
		say(1, rep, 0)
		n = 0
		for p := range slices.Chunk(stream, int(cut)+1) {
			say(0, p, 0)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if n > len(stream) {
			t.Fatalf("%d octets of records in %d of stream", n, len(stream))
		}
	})
}
