package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// MaxPacket is the longest packet that a Reader takes, in octets: well above any
// super-packet.
const MaxPacket = 1 << 20

// ErrFormat says that a file is no capture, or not one that can be read on.
var ErrFormat = errors.New("not a capture")

// Packet is one packet of a capture. Data is lent until the next call of Next.
type Packet struct {
	N    int // from 1
	Time time.Time
	Link int // link type, as in the registry of tcpdump.org
	Data []byte
}

// Reader reads pcap (of either byte order, in micro- or nanoseconds) and pcapng.
type Reader struct {
	br   *bufio.Reader
	bo   binary.ByteOrder
	next func(*Packet) error
	n    int
	buf  []byte

	nano bool    // pcap
	link int     // pcap
	ifs  []iface // pcapng: the interfaces of the section
}

type iface struct {
	link   int
	units  uint64 // per second
	offset int64  // seconds
}

const (
	magicMicro = 0xa1b2c3d4
	magicNano  = 0xa1b23c4d

	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 2 // obsolete
	blockSimple    = 3
	blockEnhanced  = 6
	byteOrderMagic = 0x1a2b3c4d

	maxDescription = 64 << 10 // octets of a section's or an interface's block
	maxInterfaces  = 1 << 16
)

// NewReader reads the beginning of a capture. An error that is ErrFormat says what
// it is instead.
func NewReader(r io.Reader) (*Reader, error) {
	rd := &Reader{br: bufio.NewReaderSize(r, 64<<10)}
	head, err := rd.br.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if len(head) < 4 {
		return nil, fmt.Errorf("%w: %d octets", ErrFormat, len(head))
	}
	le, be := binary.LittleEndian.Uint32(head), binary.BigEndian.Uint32(head)
	switch {
	case le == blockSection:
		rd.next = rd.nextNG
		return rd, nil
	case le == magicMicro || le == magicNano:
		rd.bo, rd.nano = binary.LittleEndian, le == magicNano
	case be == magicMicro || be == magicNano:
		rd.bo, rd.nano = binary.BigEndian, be == magicNano
	case head[0] == 0x1f && head[1] == 0x8b:
		return nil, fmt.Errorf("%w but gzip's: unpack it first (gunzip -c FILE | softrnic decode -)", ErrFormat)
	case be == 0x28b52ffd:
		return nil, fmt.Errorf("%w but zstd's: unpack it first (zstd -dc FILE | softrnic decode -)", ErrFormat)
	default:
		return nil, fmt.Errorf("%w: it begins with %x, neither pcap's nor pcapng's", ErrFormat, head)
	}
	var h [24]byte
	if _, err := io.ReadFull(rd.br, h[:]); err != nil {
		return nil, fmt.Errorf("%w: its header is cut short", ErrFormat)
	}
	rd.link = int(rd.bo.Uint32(h[20:]) & 0x0fffffff) // the rest says whether there is an FCS
	rd.next = rd.nextPCAP
	return rd, nil
}

// Next reads the next packet. io.EOF is the end of the capture; io.ErrUnexpectedEOF
// an end within a packet.
func (r *Reader) Next(p *Packet) error {
	err := r.next(p)
	switch {
	case err == nil:
		r.n++
		p.N = r.n
	case err == io.ErrUnexpectedEOF:
		err = fmt.Errorf("the capture is cut short in packet %d: %w", r.n+1, err)
	}
	return err
}

func (r *Reader) read(n int) ([]byte, error) {
	if cap(r.buf) < n {
		r.buf = make([]byte, max(n, 4096))
	}
	b := r.buf[:n]
	if _, err := io.ReadFull(r.br, b); err != nil {
		return nil, unexpected(err)
	}
	return b, nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (r *Reader) nextPCAP(p *Packet) error {
	var h [16]byte
	if _, err := io.ReadFull(r.br, h[:]); err != nil {
		return err
	}
	n := r.bo.Uint32(h[8:])
	if n > MaxPacket {
		return fmt.Errorf("%w: packet %d claims %d octets, more than %d", ErrFormat, r.n+1, n, MaxPacket)
	}
	frac := int64(r.bo.Uint32(h[4:]))
	if !r.nano {
		frac *= 1000
	}
	p.Time, p.Link = time.Unix(int64(r.bo.Uint32(h[0:])), frac).UTC(), r.link
	var err error
	p.Data, err = r.read(int(n))
	return err
}

func (r *Reader) nextNG(p *Packet) error {
	for {
		found, err := r.block(p)
		if found || err != nil {
			return err
		}
	}
}

// block reads one block of pcapng; found says that it held a packet.
func (r *Reader) block(p *Packet) (found bool, err error) {
	var h [12]byte
	if _, err := io.ReadFull(r.br, h[:8]); err != nil {
		return false, err
	}
	section := binary.LittleEndian.Uint32(h[:]) == blockSection // a palindrome
	if section {
		if _, err := io.ReadFull(r.br, h[8:]); err != nil {
			return false, unexpected(err)
		}
		switch uint32(byteOrderMagic) {
		case binary.LittleEndian.Uint32(h[8:]):
			r.bo = binary.LittleEndian
		case binary.BigEndian.Uint32(h[8:]):
			r.bo = binary.BigEndian
		default:
			return false, fmt.Errorf("%w: a section has the byte order %x", ErrFormat, h[8:])
		}
	}
	typ, total := r.bo.Uint32(h[0:]), r.bo.Uint32(h[4:])
	if total < 12 || total%4 != 0 {
		return false, fmt.Errorf("%w: a block of type %d claims %d octets", ErrFormat, typ, total)
	}
	body := int64(total) - 12 // without type and the two lengths
	if section {
		body -= 4
		if body < 0 {
			return false, fmt.Errorf("%w: a section's block claims %d octets", ErrFormat, total)
		}
	}
	limit := int64(0)
	switch typ {
	case blockSection:
		r.ifs = r.ifs[:0]
	case blockInterface:
		limit = maxDescription
	case blockPacket, blockSimple, blockEnhanced:
		limit = MaxPacket + maxDescription // a packet and its options
	}
	if limit == 0 { // not for us
		n, err := io.CopyN(io.Discard, r.br, body+4)
		if n < body+4 {
			err = unexpected(err)
		}
		return false, err
	}
	if body > limit {
		return false, fmt.Errorf("%w: a block of type %d claims %d octets, more than %d", ErrFormat, typ, total, limit)
	}
	b, err := r.read(int(body) + 4)
	if err != nil {
		return false, err
	}
	b = b[:body]
	if typ == blockInterface {
		return false, r.addInterface(b)
	}
	return true, r.packetNG(p, typ, b)
}

func (r *Reader) addInterface(b []byte) error {
	if len(b) < 8 || len(r.ifs) == maxInterfaces {
		return fmt.Errorf("%w: interface %d of a section is described in %d octets", ErrFormat, len(r.ifs), len(b))
	}
	f := iface{link: int(r.bo.Uint16(b)), units: 1e6}
	for b = b[8:]; len(b) >= 4; { // options
		code, n := r.bo.Uint16(b), int(r.bo.Uint16(b[2:]))
		if b = b[4:]; code == 0 || n > len(b) {
			break
		}
		switch v := b[:n]; {
		case code == 9 && n >= 1: // if_tsresol
			f.units = resolution(v[0])
		case code == 14 && n >= 8: // if_tsoffset
			f.offset = int64(r.bo.Uint64(v))
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	r.ifs = append(r.ifs, f)
	return nil
}

// resolution returns the units of time in a second. What is finer than can be
// counted is taken as nanoseconds.
func resolution(b byte) uint64 {
	n := uint64(1)
	for range b & 0x7f {
		if b&0x80 != 0 {
			n *= 2
		} else {
			n *= 10
		}
		if n > 1e18 {
			return 1e9
		}
	}
	return n
}

func (r *Reader) packetNG(p *Packet, typ uint32, b []byte) error {
	short := fmt.Errorf("%w: the block of packet %d has %d octets", ErrFormat, r.n+1, len(b))
	id, n, stamp := 0, 0, uint64(0)
	switch {
	case typ == blockSimple && len(b) >= 4:
		n, b = int(min(r.bo.Uint32(b), uint32(len(b)-4))), b[4:]
	case typ != blockSimple && len(b) >= 20:
		id = int(r.bo.Uint32(b))
		if typ == blockPacket {
			id = int(r.bo.Uint16(b))
		}
		stamp = uint64(r.bo.Uint32(b[4:]))<<32 | uint64(r.bo.Uint32(b[8:]))
		n, b = int(min(r.bo.Uint32(b[12:]), MaxPacket+1)), b[20:]
	default:
		return short
	}
	if n > len(b) || n > MaxPacket {
		return fmt.Errorf("%w: packet %d claims %d octets of a block's %d", ErrFormat, r.n+1, n, len(b))
	}
	if id >= len(r.ifs) {
		return fmt.Errorf("%w: packet %d is of interface %d, of %d", ErrFormat, r.n+1, id, len(r.ifs))
	}
	f := r.ifs[id]
	p.Link, p.Data = f.link, b[:n]
	p.Time = time.Time{}
	if typ != blockSimple {
		p.Time = time.Unix(int64(stamp/f.units)+f.offset, fraction(stamp%f.units, f.units)).UTC()
	}
	return nil
}

// fraction returns n units of a second in nanoseconds.
func fraction(n, units uint64) int64 {
	if units > 1e9 {
		return int64(n / (units / 1e9))
	}
	return int64(n * 1e9 / units)
}
