package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const sample = "../../testdata/pcaps/siw-rping-p2p-crc"

func open(t testing.TB, b []byte) *Reader {
	t.Helper()
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func all(t testing.TB, b []byte) (ps []Packet) {
	t.Helper()
	r := open(t, b)
	for {
		var p Packet
		err := r.Next(&p)
		if err == io.EOF {
			return ps
		}
		if err != nil {
			t.Fatal(err)
		}
		p.Data = slices.Clone(p.Data)
		ps = append(ps, p)
	}
}

// TestFormats reads one capture in the formats that Wireshark's editcap made of it.
func TestFormats(t *testing.T) {
	read := func(name string) []byte {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	pcap := read(sample + ".pcap")
	want := all(t, pcap)
	if len(want) < 10 {
		t.Fatalf("%d packets", len(want))
	}
	swapped := slices.Clone(pcap)
	for at, n := 0, len(swapped); at < n; {
		words := 4
		if at == 0 {
			words = 6
			slices.Reverse(swapped[4:6])
			slices.Reverse(swapped[6:8])
		}
		size := 0
		if at > 0 {
			size = int(binary.LittleEndian.Uint32(swapped[at+8:]))
		}
		for w := range words {
			if at == 0 && w == 1 { // two halves
				continue
			}
			slices.Reverse(swapped[at+4*w : at+4*w+4])
		}
		at += 4*words + size
	}
	for name, b := range map[string][]byte{
		"pcapng":           read(sample + ".pcapng"),
		"nanosecond pcap":  read(sample + ".nsec.pcap"),
		"the other endian": swapped,
	} {
		if d := cmp.Diff(want, all(t, b)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// TestCutFile ends a capture after each octet: an error at most, never a wrong packet.
func TestCutFile(t *testing.T) {
	for _, ext := range []string{".pcap", ".pcapng"} {
		b, err := os.ReadFile(sample + ext)
		if err != nil {
			t.Fatal(err)
		}
		want := all(t, b)
		for n := range len(b) {
			r, err := NewReader(bytes.NewReader(b[:n]))
			if err != nil {
				if !errors.Is(err, ErrFormat) {
					t.Fatalf("%s, %d octets: %v", ext, n, err)
				}
				continue
			}
			var p Packet
			i := 0
			for ; ; i++ {
				if err = r.Next(&p); err != nil {
					break
				}
				if !bytes.Equal(p.Data, want[i].Data) {
					t.Fatalf("%s, %d octets: packet %d differs", ext, n, i+1)
				}
			}
			if err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%s, %d octets: %v", ext, n, err)
			}
		}
	}
}

func TestNotACapture(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "0 octets",
		"abc":                  "3 octets",
		"hello, world":         "68656c6c",
		"\x1f\x8b\x08\x00":     "gunzip",
		"\x28\xb5\x2f\xfd":     "zstd -dc",
		"\xd4\xc3\xb2\xa1\x02": "header is cut short",
	} {
		_, err := NewReader(strings.NewReader(in))
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

// TestHugeClaims: a length in a file allocates nothing.
func TestHugeClaims(t *testing.T) {
	le := binary.LittleEndian
	pcap := le.AppendUint32(nil, magicMicro)
	pcap = append(pcap, make([]byte, 20+8)...)
	pcap = le.AppendUint32(pcap, 0x7fffffff)
	pcap = le.AppendUint32(pcap, 0x7fffffff)
	ng := le.AppendUint32(nil, blockSection)
	ng = le.AppendUint32(ng, 28)
	ng = le.AppendUint32(ng, byteOrderMagic)
	ng = append(ng, make([]byte, 16)...)
	ng = le.AppendUint32(ng, blockEnhanced)
	ng = le.AppendUint32(ng, 0xfffffffc)
	for _, b := range [][]byte{pcap, ng} {
		var p Packet
		if err := open(t, b).Next(&p); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "claims") {
			t.Error(err)
		}
	}
	// What is not for us may be of any size.
	le.PutUint32(ng[28:], 0x0bad)
	var p Packet
	if err := open(t, ng).Next(&p); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

func TestResolution(t *testing.T) {
	for b, want := range map[byte]uint64{0: 1, 3: 1e3, 6: 1e6, 9: 1e9, 12: 1e12, 0x8a: 1024, 0xff: 1e9, 100: 1e9} {
		if got := resolution(b); got != want {
			t.Errorf("%#x: %d, want %d", b, got, want)
		}
	}
	for _, units := range []uint64{1, 1e3, 1e6, 1e9, 1e12, 1 << 10, 1 << 40} {
		if got := fraction(units/2, units); units > 1 && time.Duration(got).Round(time.Millisecond) != 500*time.Millisecond {
			t.Errorf("half of %d: %d ns", units, got)
		}
	}
}

// TestHalf puts pieces of a stream in, in any order, more than once, with other
// octets the second time, over the wrap of sequence numbers; the first captured
// octets come out in order, and holes are told.
func TestHalf(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 7))
		isn := uint32(rng.Uint64())
		n := 1 + rng.IntN(5000)
		var h Half
		h.Start(isn)
		got := make([]byte, 0, n)
		lost := make([]bool, 0, n)
		out := func(p Piece) {
			got = append(got, p.Data...)
			lost = append(lost, make([]bool, len(p.Data))...)
			for range p.Lost {
				got, lost = append(got, 0), append(lost, true)
			}
		}
		first := make([]byte, n) // as captured first; 0 where never
		for range rng.IntN(60) {
			off := rng.IntN(n)
			l := 1 + rng.IntN(min(700, n-off))
			p := make([]byte, l)
			for i := range p {
				p[i] = byte(1 + rng.IntN(255))
				// What has been handed out is settled; what was pending too.
				if first[off+i] == 0 && off+i >= len(got) {
					first[off+i] = p[i]
				}
			}
			h.Add(isn+1+uint32(off), p, l, out)
		}
		h.Flush(out)
		want := slices.Clone(first[:len(got)])
		for i := range want {
			if (want[i] == 0) != lost[i] || want[i] != got[i] {
				t.Fatalf("seed %d, octet %d of %d: got %#x (lost %v), want %#x", seed, i, len(got), got[i], lost[i], want[i])
			}
		}
		for i := len(got); i < n; i++ {
			if first[i] != 0 {
				t.Fatalf("seed %d: octet %d never came out", seed, i)
			}
		}
		if h.held != 0 || len(h.pending) != 0 {
			t.Fatalf("seed %d: %d octets in %d chunks are left", seed, h.held, len(h.pending))
		}
	}
}

// TestLinks finds the same segment behind every link type.
func TestLinks(t *testing.T) {
	eth := all(t, mustRead(t, sample+".pcap"))[3]
	ip := eth.Data[14:]
	var want Segment
	if v := ParseSegment(&eth, &want); v != TCP || want.Len == 0 {
		t.Fatalf("%v %+v", v, want)
	}
	for name, p := range map[string]Packet{
		"VLAN":    {Link: linkEthernet, Data: slices.Concat(eth.Data[:12], []byte{0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0}, ip)},
		"raw":     {Link: linkRaw, Data: ip},
		"IPv4":    {Link: linkIPv4, Data: ip},
		"null":    {Link: linkNull, Data: slices.Concat([]byte{2, 0, 0, 0}, ip)},
		"cooked":  {Link: linkCooked, Data: slices.Concat(make([]byte, 14), []byte{8, 0}, ip)},
		"cooked2": {Link: linkCooked2, Data: slices.Concat([]byte{8, 0}, make([]byte, 18), ip)},
		"padded":  {Link: linkEthernet, Data: slices.Concat(eth.Data, make([]byte, 9))},
	} {
		var s Segment
		if v := ParseSegment(&p, &s); v != TCP {
			t.Errorf("%s: %v", name, v)
		} else if d := cmp.Diff(want, s, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	big := slices.Clone(ip)
	big[2], big[3] = 0, 0 // a super-packet before the NIC has cut it
	fragment := slices.Clone(ip)
	fragment[6] = 0x20
	udp := slices.Clone(ip)
	udp[9] = 17
	for name, c := range map[string]struct {
		p    Packet
		want Verdict
	}{
		"super-packet": {Packet{Link: linkRaw, Data: big}, TCP},
		"fragment":     {Packet{Link: linkRaw, Data: fragment}, Fragment},
		"UDP":          {Packet{Link: linkRaw, Data: udp}, Other},
		"Wi-Fi":        {Packet{Link: 105, Data: ip}, UnknownLink},
		"ARP":          {Packet{Link: linkEthernet, Data: append(make([]byte, 12), 8, 6, 0, 0)}, Other},
		"short":        {Packet{Link: linkRaw, Data: ip[:30]}, Truncated},
		"empty":        {Packet{Link: linkEthernet}, Truncated},
	} {
		var s Segment
		if v := ParseSegment(&c.p, &s); v != c.want {
			t.Errorf("%s: verdict %d, want %d", name, v, c.want)
		}
	}
}

// TestIPv6Headers passes extension headers, and stops at fragments.
func TestIPv6Headers(t *testing.T) {
	tcp := make([]byte, 20, 24)
	tcp[12] = 5 << 4
	tcp = append(tcp, "data"...)
	packet := func(next byte, rest ...byte) *Packet {
		b := make([]byte, 40)
		b[0], b[5], b[6] = 0x60, byte(len(rest)+len(tcp)), next
		return &Packet{Link: linkRaw, Data: slices.Concat(b, rest, tcp)}
	}
	for name, c := range map[string]struct {
		p    *Packet
		want Verdict
	}{
		"plain":           {packet(6), TCP},
		"hop-by-hop":      {packet(0, 6, 0, 0, 0, 0, 0, 0, 0), TCP},
		"two":             {packet(60, 43, 0, 0, 0, 0, 0, 0, 0, 6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), TCP},
		"atomic fragment": {packet(44, 6, 0, 0, 0, 0, 0, 0, 0), TCP},
		"fragment":        {packet(44, 6, 0, 0, 1, 0, 0, 0, 0), Fragment},
		"UDP":             {packet(17), Other},
		"beyond the end":  {packet(0, 6, 200), Truncated},
	} {
		var s Segment
		if v := ParseSegment(c.p, &s); v != c.want || v == TCP && string(s.Payload) != "data" {
			t.Errorf("%s: verdict %d, want %d; %q", name, v, c.want, s.Payload)
		}
	}
}

func mustRead(t testing.TB, name string) []byte {
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzReader: no file makes it panic, or take more memory than it may.
func FuzzReader(f *testing.F) {
	for _, ext := range []string{".pcap", ".pcapng", ".nsec.pcap"} {
		f.Add(mustRead(f, sample+ext))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := NewReader(bytes.NewReader(b))
		if err != nil {
			return
		}
		var p Packet
		var s Segment
		for r.Next(&p) == nil {
			if v := ParseSegment(&p, &s); v == TCP && (s.Len < len(s.Payload) || len(s.Payload) > len(p.Data)) {
				t.Fatalf("%d octets of %d captured in a packet of %d", len(s.Payload), s.Len, len(p.Data))
			}
		}
		if cap(r.buf) > MaxPacket+2*maxDescription {
			t.Fatalf("a buffer of %d octets", cap(r.buf))
		}
	})
}
