package mpa

import "encoding/binary"

// Lengths of startup frames, in octets.
const (
	FrameLen       = 20  // without private data
	MaxPrivateData = 512 // with the enhanced data, where there are any
	enhancedLen    = 4

	keyLen       = 16
	keyRequest   = "MPA ID Req Frame"
	keyReply     = "MPA ID Rep Frame"
	flagMarkers  = 0x80
	flagCRC      = 0x40
	flagReject   = 0x20
	flagEnhanced = 0x10

	flagHigh  = 0x8000 // A in the IRD word, C in the ORD word
	flagLow   = 0x4000 // B in the IRD word, D in the ORD word
	depthMask = 0x3fff

	// NoNegotiation as IRD or ORD says that the depth is not negotiated here
	// (RFC 6581 section 9.1).
	NoNegotiation = 0x3fff
	// MaxDepth is the largest IRD or ORD that a frame can carry.
	MaxDepth = NoNegotiation - 1
)

// Frame is a Request or Reply (RFC 5044 section 7.1.1, RFC 6581 section 9).
//
//	0                16      17      18        20        [24]
//	+---------------+-------+-------+---------+---------+--------------
//	| key           |M C R S|  Rev  |PD_Length| IRD ORD | private data
//
// IRD and ORD are there where S is set and Rev is at least 2. PD_Length counts
// them.
type Frame struct {
	Reply    bool
	Markers  bool // M: the sender wants to receive markers
	CRC      bool // C: the sender wants CRC
	Reject   bool // R, in a Reply: the connection is refused
	Enhanced bool // S: IRD, ORD and the flags A to D are there
	Revision uint8

	PeerToPeer        bool // A
	SendRTR           bool // B: zero-length Send
	WriteRTR, ReadRTR bool // C, D: zero-length RDMA Write, zero-length RDMA Read
	IRD, ORD          int  // 14 bits each
	PrivateData       []byte
}

// ParseFrame splits b into a frame and what follows it; PrivateData aliases b.
// ErrShort says that b may be the beginning of a frame; a wrong key is told from
// the first octet that differs.
func ParseFrame(b []byte) (f Frame, rest []byte, err error) {
	key := b[:min(len(b), keyLen)]
	switch {
	case string(key) == keyRequest[:len(key)]:
	case string(key) == keyReply[:len(key)]:
		f.Reply = true
	default:
		return f, nil, errorf(CodeFrame, "key %q is neither %q nor %q (RFC 5044 section 7.1.1)", key, keyRequest, keyReply)
	}
	if len(b) < FrameLen {
		return f, nil, ErrShort
	}
	flags := b[keyLen]
	f.Markers, f.CRC = flags&flagMarkers != 0, flags&flagCRC != 0
	f.Reject = f.Reply && flags&flagReject != 0
	f.Revision = b[17]
	n := int(binary.BigEndian.Uint16(b[18:]))
	if n > MaxPrivateData {
		return f, nil, errorf(CodeFrame, "PD_Length %d exceeds %d (RFC 5044 section 7.1.1)", n, MaxPrivateData)
	}
	f.Enhanced = f.Revision >= 2 && flags&flagEnhanced != 0 // below revision 2 the bit is reserved
	if f.Enhanced && n < enhancedLen {
		return f, nil, errorf(CodeFrame, "PD_Length %d has no room for IRD and ORD though S is set (RFC 6581 section 9)", n)
	}
	if len(b) < FrameLen+n {
		return f, nil, ErrShort
	}
	data, rest := b[FrameLen:FrameLen+n], b[FrameLen+n:]
	if f.Enhanced {
		ird, ord := binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:])
		f.IRD, f.ORD = int(ird&depthMask), int(ord&depthMask)
		// Without A, the others mean nothing (RFC 6581 section 9.2).
		if f.PeerToPeer = ird&flagHigh != 0; f.PeerToPeer {
			f.SendRTR, f.WriteRTR, f.ReadRTR = ird&flagLow != 0, ord&flagHigh != 0, ord&flagLow != 0
		}
		data = data[enhancedLen:]
	}
	f.PrivateData = data
	return f, rest, nil
}

// Append appends f to b. It fails with ErrPrivateData where PrivateData are
// longer than 512 octets, 508 in an enhanced frame.
func (f *Frame) Append(b []byte) ([]byte, error) {
	n := len(f.PrivateData)
	if f.Enhanced {
		n += enhancedLen
	}
	if n > MaxPrivateData {
		return b, privateDataError(len(f.PrivateData), f.Enhanced)
	}
	key := keyRequest
	if f.Reply {
		key = keyReply
	}
	b = append(b, key...)
	b = append(b, bit(f.Markers, flagMarkers)|bit(f.CRC, flagCRC)|bit(f.Reject, flagReject)|bit(f.Enhanced, flagEnhanced), f.Revision)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	if f.Enhanced {
		b = append(b, bit(f.PeerToPeer, flagHigh>>8)|bit(f.SendRTR, flagLow>>8)|byte(f.IRD>>8)&(depthMask>>8), byte(f.IRD))
		b = append(b, bit(f.WriteRTR, flagHigh>>8)|bit(f.ReadRTR, flagLow>>8)|byte(f.ORD>>8)&(depthMask>>8), byte(f.ORD))
	}
	return append(b, f.PrivateData...), nil
}

func bit(on bool, b byte) byte {
	if on {
		return b
	}
	return 0
}
