package mpa

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/iwarp/internal/golden"
	"github.com/softrnic/softrnic/iwarp/llp/llptest"
	"github.com/softrnic/softrnic/iwarp/mem"
)

// one is a Source of a single ULPDU, its first hdr octets as a header.
type one struct {
	ulpdu []byte
	hdr   int
}

func (o *one) Next(max int, u *ULPDU) (bool, error) {
	if o.ulpdu == nil || len(o.ulpdu) > max {
		return false, nil
	}
	u.HdrLen = copy(u.Hdr[:o.hdr], o.ulpdu)
	payload := mem.NewLocal(o.ulpdu[u.HdrLen:])
	u.SGL, u.Off, u.Len = mem.SGL{payload.Span(0, payload.Len())}, 0, payload.Len()
	o.ulpdu = nil
	if u.Len > 0 {
		return true, u.SGL.Acquire()
	}
	return true, nil
}

// What a Conn sends for the ULPDU of a golden frame is that frame.
func TestGoldenFramesAreSent(t *testing.T) {
	for _, name := range append(golden.Names(t, ""), golden.Names(t, "nocrc/")...) {
		f := golden.Frame(t, name)
		if bytes.HasPrefix(f, []byte("MPA")) {
			continue
		}
		a, b := pair(t, llptest.Options{}, !strings.HasPrefix(name, "nocrc/"))
		ulpdu := f[lenLen : lenLen+int(binary.BigEndian.Uint16(f))]
		for _, hdr := range []int{14, 18, len(ulpdu)} {
			if hdr > min(len(ulpdu), MaxHeader) {
				continue
			}
			if n, err := a.Send(&one{ulpdu, hdr}); err != nil || n != len(f) {
				t.Fatalf("%s: %d octets, %v", name, n, err)
			}
			v, err := b.LLP().Receive(len(f), len(f))
			if err != nil || !bytes.Equal(bytes.Join(v, nil), f) {
				t.Errorf("%s with a header of %d: sent as\n%x, want\n%x; %v", name, hdr, bytes.Join(v, nil), f, err)
			}
			// And read again, by the peer.
			var got []byte
			if _, err := b.Receive(len(f), receiverFunc(func(v mem.Vec) error { got = bytes.Join(v, nil); return nil })); err != nil || !bytes.Equal(got, ulpdu) {
				t.Errorf("%s: received as %x: %v", name, got, err)
			}
		}
	}
}

// siw sends what was in its memory as PAD. The RFC asks receivers for no check, and
// the CRC covers it.
func TestPadIsNotLookedAt(t *testing.T) {
	f := golden.Frame(t, "pad/siw-send-2")
	d := Deframer{CRC: true}
	d.Feed([][]byte{f})
	if v, err := d.Next(); err != nil || v.Len() != 20 {
		t.Errorf("%d octets, %v", v.Len(), err)
	}
}

// Without CRC the field is there, and whatever is in it will do (RFC 5044 section 4.4).
func TestCRCOff(t *testing.T) {
	for _, name := range golden.Names(t, "nocrc/siw") {
		f := golden.Frame(t, name)
		for _, sum := range []uint32{0, 1, 0xffffffff} {
			binary.LittleEndian.PutUint32(f[len(f)-crcLen:], sum)
			d := Deframer{}
			d.Feed([][]byte{f})
			if v, err := d.Next(); err != nil || d.Passed() != len(f) || FPDULen(v.Len()) != len(f) {
				t.Errorf("%s: %v", name, err)
			}
			d = Deframer{CRC: true}
			d.Feed([][]byte{f})
			e := (*Error)(nil)
			if _, err := d.Next(); !errors.As(err, &e) || e.Code != CodeCRC {
				t.Errorf("%s with CRC on: %v", name, err)
			}
		}
	}
}

// The CRC of RFC 5044 figures 5 and 6, markers included, is the one that we know.
func TestFiguresWithMarkers(t *testing.T) {
	names := golden.Names(t, "markers/")
	if len(names) != 2 {
		t.Error(names)
	}
	for _, name := range names {
		f := golden.Frame(t, name)
		n := len(f) - crcLen
		if got, want := crc32.Checksum(f[:n], castagnoli), binary.LittleEndian.Uint32(f[n:]); got != want {
			t.Errorf("%s: CRC %#08x, want %#08x", name, got, want)
		}
	}
}

// What siw says at startup, bit by bit, and the same octets out of our codec.
func TestGoldenStartup(t *testing.T) {
	want := map[string]Frame{
		"mpa-request-siw":         {CRC: true, Revision: 2, Enhanced: true, IRD: 1, ORD: 1},
		"mpa-reply-siw":           {Reply: true, CRC: true, Revision: 2, Enhanced: true, IRD: 1, ORD: 1},
		"mpa-request-siw-rev1":    {CRC: true, Revision: 1},
		"mpa-reply-siw-rev1":      {Reply: true, CRC: true, Revision: 1},
		"mpa-request-siw-p2p":     {CRC: true, Revision: 2, Enhanced: true, PeerToPeer: true, WriteRTR: true, ReadRTR: true, IRD: 1, ORD: 1},
		"mpa-reply-siw-p2p":       {Reply: true, CRC: true, Revision: 2, Enhanced: true, PeerToPeer: true, WriteRTR: true, IRD: 1, ORD: 1},
		"mpa-reply-siw-reject":    {Reply: true, Reject: true, Revision: 2, Enhanced: true},
		"mpa-request-siw-private": {Revision: 2, Enhanced: true, IRD: 0, ORD: 1},
		"mpa-reply-siw-private":   {Reply: true, Revision: 2, Enhanced: true, IRD: 1, ORD: 0},
		"nocrc/mpa-request-siw":   {Revision: 2, Enhanced: true, IRD: 1, ORD: 1},
	}
	for _, name := range append(golden.Names(t, "mpa-"), golden.Names(t, "nocrc/mpa-")...) {
		b := golden.Frame(t, name)
		f, rest, err := ParseFrame(b)
		if err != nil || len(rest) > 0 {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if again, err := f.Append(nil); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%s: came out as\n%x, want\n%x; %v", name, again, b, err)
		}
		n := 0
		if strings.HasSuffix(name, "private") {
			n = 40 // rsockets' connection data
		}
		if len(f.PrivateData) != n {
			t.Errorf("%s: %d octets of private data, want %d", name, len(f.PrivateData), n)
		}
		f.PrivateData = nil
		w, ok := want[name]
		w.PrivateData = nil
		if !ok || !equal(f, w) {
			t.Errorf("%s: %+v, want %+v", name, f, w)
		}
	}
}

func equal(a, b Frame) bool {
	data := bytes.Equal(a.PrivateData, b.PrivateData)
	a.PrivateData, b.PrivateData = nil, nil
	x, _ := a.Append(nil)
	y, _ := b.Append(nil)
	return data && bytes.Equal(x, y)
}

// Our Requests and Replies are what siw's are, in the same place.
func TestOurFramesAreThoseOfSiw(t *testing.T) {
	for _, c := range []struct {
		request, reply string
		p              Params
	}{
		{"mpa-request-siw", "mpa-reply-siw", Params{IRD: 1, ORD: 1}},
		{"mpa-request-siw-rev1", "mpa-reply-siw-rev1", Params{Revision: 1}},
		{"mpa-request-siw-p2p", "mpa-reply-siw-p2p", Params{IRD: 0, ORD: 1}}, // but for IRD
	} {
		sent := map[*llptest.Conn][]byte{}
		la, lb := llptest.Pipe(llptest.Options{Segment: func(from *llptest.Conn, p []byte) { sent[from] = append(sent[from], p...) }})
		request, reply := golden.Frame(t, c.request), golden.Frame(t, c.reply)
		if c.request == "mpa-request-siw-p2p" {
			la.Send(&octets{request}) // we never ask for that
			reply[21] = 0
		} else {
			go Connect(t.Context(), la, c.p)
		}
		in, err := ReadRequest(t.Context(), lb, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(sent[la], request) {
			t.Errorf("%s: sent %x", c.request, sent[la])
		}
		if _, err := in.Accept(c.p); err != nil || !bytes.Equal(sent[lb], reply) {
			t.Errorf("%s: replied %x, want %x; %v", c.request, sent[lb], reply, err)
		}
	}
}
