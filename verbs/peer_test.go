package verbs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/iwarp/llp/llptest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/verbstest"
)

// A dialogue: on one side a Device, on the other the test, which writes and wants
// octets, in a bubble where time passes only when nothing else happens. The frames
// are made here, from the RFCs, and not by the code under test.

// tagged is a tagged ULPDU of RDMAP opcode op (RFC 5041 section 4.2).
func tagged(last bool, op byte, stag verbs.STag, to uint64, payload string) []byte {
	b := []byte{0x81, 0x40 | op}
	if last {
		b[0] |= 0x40
	}
	b = binary.BigEndian.AppendUint32(b, uint32(stag))
	b = binary.BigEndian.AppendUint64(b, to)
	return append(b, payload...)
}

// untagged is an untagged ULPDU (RFC 5041 section 4.3).
func untagged(last bool, op byte, inv verbs.STag, qn, msn, mo uint32, payload string) []byte {
	b := []byte{0x01, 0x40 | op}
	if last {
		b[0] |= 0x40
	}
	for _, w := range []uint32{uint32(inv), qn, msn, mo} {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return append(b, payload...)
}

func readRequest(msn uint32, sink verbs.STag, sinkTO uint64, n uint32, src verbs.STag, srcTO uint64) []byte {
	b := untagged(true, 1, 0, 1, msn, 0, "")
	b = binary.BigEndian.AppendUint32(b, uint32(sink))
	b = binary.BigEndian.AppendUint64(b, sinkTO)
	b = binary.BigEndian.AppendUint32(b, n)
	b = binary.BigEndian.AppendUint32(b, uint32(src))
	return binary.BigEndian.AppendUint64(b, srcTO)
}

// fpdu frames a ULPDU (RFC 5044 section 4.1).
func fpdu(ulpdu []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

func fromHex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// request and reply are startup frames of revision 1 that ask for CRC (RFC 5044
// section 7.1.1).
func request(private string) []byte { return startupFrame("MPA ID Req Frame", 0x40, private) }
func reply(private string) []byte   { return startupFrame("MPA ID Rep Frame", 0x40, private) }

func startupFrame(key string, flags byte, private string) []byte {
	b := append([]byte(key), flags, 1)
	b = binary.BigEndian.AppendUint16(b, uint16(len(private)))
	return append(b, private...)
}

// peer is the test's side of a connection.
type peer struct {
	t testing.TB
	c llp.Conn
}

type octets []byte

func (o octets) Len() int { return len(o) }
func (o octets) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return copy(p, o), nil
}

func (p *peer) write(parts ...[]byte) {
	p.t.Helper()
	if err := p.c.Send(octets(bytes.Join(parts, nil))); err != nil {
		p.t.Fatal("write:", err)
	}
}

// take returns the next n octets.
func (p *peer) take(why string, n int) []byte {
	p.t.Helper()
	synctest.Wait()
	s, err := p.c.Receive(n, n)
	if err != nil {
		p.t.Fatalf("%s: %v", why, err)
	}
	b := bytes.Join(s, nil)[:n]
	if err := p.c.Consume(n); err != nil {
		p.t.Fatal(err)
	}
	return b
}

func (p *peer) want(why string, octets []byte) {
	p.t.Helper()
	if got := p.take(why, len(octets)); !bytes.Equal(got, octets) {
		p.t.Fatalf("%s:\ngot  %x\nwant %x", why, got, octets)
	}
}

// fpdu returns the ULPDU of the next FPDU, whose CRC must be right.
func (p *peer) fpdu(why string) []byte {
	p.t.Helper()
	head := p.take(why, 2)
	n := int(binary.BigEndian.Uint16(head))
	rest := p.take(why, (n+2+3)&^3-2+4)
	if whole := append(head, rest...); !bytes.Equal(whole, fpdu(rest[:n])) {
		p.t.Fatalf("%s: FPDU %x, with its length, pad and CRC %x", why, whole, fpdu(rest[:n]))
	}
	return rest[:n]
}

// wantTerminate wants a Terminate of these codes (RFC 5040 section 4.8), and
// returns the headers that it quotes.
func (p *peer) wantTerminate(why string, layer, typ, code byte) []byte {
	p.t.Helper()
	u := p.fpdu(why)
	if want := untagged(true, 7, 0, 2, 1, 0, string([]byte{layer<<4 | typ, code})); !bytes.HasPrefix(u, want) {
		p.t.Fatalf("%s:\ngot  %x\nwant %x, a Terminate", why, u, want)
	}
	if flags := u[20]; flags&0x80 == 0 {
		return nil
	}
	return u[24:]
}

func (p *peer) wantIdle(why string) {
	p.t.Helper()
	synctest.Wait()
	if s, err := p.c.Receive(1, 1<<16); !errors.Is(err, llp.ErrWouldBlock) {
		p.t.Fatalf("%s: %x, %v", why, s, err)
	}
}

func (p *peer) wantFIN(why string) {
	p.t.Helper()
	synctest.Wait()
	if s, err := p.c.Receive(1, 1<<16); err != io.EOF {
		p.t.Fatalf("%s: %x, %v, want FIN", why, s, err)
	}
}

func (p *peer) wantReset(why string) {
	p.t.Helper()
	synctest.Wait()
	if s, err := p.c.Receive(1, 1<<16); !errors.Is(err, llp.ErrReset) {
		p.t.Fatalf("%s: %x, %v, want RST", why, s, err)
	}
}

var (
	peerAddr   = verbstest.AddrA
	deviceAddr = netip.AddrPortFrom(verbstest.AddrB, 4791)
)

// scene is a Device with a QP, and the network it shares with the test.
type scene struct {
	*verbstest.Side
	stack llp.Stack // the test's
	l     *verbs.Listener
}

func newScene(t testing.TB, o llptest.Options, cfg verbs.Config) *scene {
	t.Helper()
	net := llptest.NewNet(o)
	d, err := verbs.Open(net.Stack(deviceAddr.Addr()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	l, err := d.Listen(deviceAddr, verbs.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return &scene{Side: verbstest.NewSide(t, d, verbstest.Options{}), stack: net.Stack(peerAddr), l: l}
}

func (s *scene) dial() *peer {
	s.T.Helper()
	c, err := s.stack.Dial(context.Background(), netip.AddrPort{}, deviceAddr)
	if err != nil {
		s.T.Fatal(err)
	}
	return &peer{s.T, c}
}

// accept lets the test connect to the Device.
func (s *scene) accept(params verbs.ConnParams) *peer {
	s.T.Helper()
	p := s.dial()
	p.write(request("hi"))
	r, err := s.l.Accept(context.Background())
	if err != nil {
		s.T.Fatal(err)
	}
	if _, err := r.Accept(s.QP, params); err != nil {
		s.T.Fatal(err)
	}
	p.want("Reply", reply(""))
	return p
}

// connect lets the Device connect to the test.
func (s *scene) connect() *peer {
	s.T.Helper()
	l, err := s.stack.Listen(netip.AddrPortFrom(peerAddr, 7), 1)
	if err != nil {
		s.T.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		_, err := s.QP.Connect(context.Background(), l.Addr(), verbs.ConnParams{Revision: 1})
		done <- err
	}()
	c, err := l.Accept(context.Background())
	if err != nil {
		s.T.Fatal(err)
	}
	p := &peer{s.T, c}
	p.want("Request", request(""))
	p.write(reply(""))
	if err := <-done; err != nil {
		s.T.Fatal(err)
	}
	return p
}

// wantWCs wants exactly these completions: "7 Send success", in any order of the
// two queues.
func (s *scene) wantWCs(why string, want ...string) {
	s.T.Helper()
	synctest.Wait()
	var wcs [64]verbs.WC
	n, err := s.CQ.Poll(wcs[:])
	var got []string
	for _, wc := range wcs[:n] {
		got = append(got, describe(wc))
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		s.T.Errorf("%s: completions\ngot  %s\nwant %s\n%v", why, strings.Join(got, ", "), strings.Join(want, ", "), err)
	}
}

func (s *scene) peerPort() netip.AddrPort { return netip.AddrPortFrom(peerAddr, 7) }
