package mpa

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	lenLen = 2 // ULPDU_Length
	crcLen = 4

	// Overhead is what an FPDU adds to a ULPDU apart from PAD, in octets.
	Overhead = lenLen + crcLen
	// MaxULPDU is the longest ULPDU in octets (RFC 5044 section 3).
	MaxULPDU = 64768
	// MinMULPDU is the least that the layer above is ever held to, in octets, however
	// small a segment is (RFC 5044 section 4.5).
	MinMULPDU = 128
	// MinFPDU is the shortest FPDU in octets, that of an empty ULPDU.
	MinFPDU = 8
)

// castagnoli is CRC32c's polynomial, 0x11EDC6F41 (RFC 5044 section 4.4).
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func pad(ulpdu int) int { return -(lenLen + ulpdu) & 3 }

// FPDULen returns the octets of the FPDU that carries a ULPDU of n octets.
func FPDULen(n int) int { return lenLen + n + pad(n) + crcLen }

// MULPDU returns the largest ULPDU whose FPDU fits in a segment of emss octets
// (RFC 5044 section 4.5), from MinMULPDU to MaxULPDU.
func MULPDU(emss int) int { return min(MaxULPDU, max(MinMULPDU, emss-(Overhead+emss%4))) }

// AppendFPDU appends the FPDU of ulpdu to b: for tools, tests, and startup. A Conn
// writes FPDUs without joining their parts first.
func AppendFPDU(b, ulpdu []byte, crc bool) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	b = append(b, make([]byte, pad(len(ulpdu)))...)
	var sum uint32
	if crc {
		sum = crc32.Checksum(b[start:], castagnoli)
	}
	return binary.LittleEndian.AppendUint32(b, sum)
}
