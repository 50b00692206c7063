package tap

import (
	"net"
	"time"
)

// VNetHdr is the virtio-net header that goes with a frame, in host order. The
// zero value says: a whole frame, checksummed.
type VNetHdr struct {
	Flags      uint8  // HdrNeedsCsum, HdrDataValid
	GSOType    uint8  // GSONone, GSOTCPv4 or GSOTCPv6
	HdrLen     uint16 // octets of all headers, Ethernet's included, with GSO
	GSOSize    uint16 // TCP payload octets per segment, with GSO
	CsumStart  uint16 // offset in the frame from which the checksum is summed
	CsumOffset uint16 // where it is stored, from CsumStart
}

// Values of VNetHdr's Flags and GSOType (the virtio specification's).
const (
	HdrNeedsCsum = 1 // the checksum field holds the pseudo-header's sum only
	HdrDataValid = 2 // the checksum was verified

	GSONone  = 0
	GSOTCPv4 = 1
	GSOTCPv6 = 4
)

// VNetHdrLen is the length of the header in front of a frame on the
// descriptor, in octets.
const VNetHdrLen = 10

// MaxFrame is the largest frame, a TSO super-packet, in octets: an IP packet of
// 65535 octets behind an Ethernet header with one VLAN tag.
const MaxFrame = 65535 + 18

// Offload is a set of what a device does for its user in both directions.
type Offload uint8

const (
	// OffloadCsum: frames may carry HdrNeedsCsum.
	OffloadCsum Offload = 1 << iota
	// OffloadTSO4: frames may be TCP over IPv4 super-packets.
	OffloadTSO4
	// OffloadTSO6: frames may be TCP over IPv6 super-packets.
	OffloadTSO6
)

// Frame is one Ethernet frame, without FCS, in one or more pieces of the user's
// memory. The device uses it only during the call it is given to.
type Frame struct {
	Hdr VNetHdr
	// Bufs are the frame's octets in order. For ReadBatch they are the space to
	// fill, MaxFrame octets in all, so that nothing is cut.
	Bufs [][]byte
	// N is the length of the frame in octets, set by ReadBatch. WriteBatch sends
	// all of Bufs and ignores it.
	N int
}

// Queue is one data queue of a Device. ReadBatch and Wait are for one goroutine
// at a time; WriteBatch and Wake are for any number.
type Queue interface {
	// ReadBatch fills frames with what has arrived, in order, and returns how
	// many it filled; 0 and nil where nothing waits. It does not block.
	ReadBatch(frames []Frame) (int, error)
	// WriteBatch sends frames in order and returns how many it took. It does not
	// block: what the other side has no room for is dropped, as a wire would,
	// and counts as taken. An error is about frames[n].
	WriteBatch(frames []Frame) (n int, err error)
	// Wait blocks until a frame may have arrived, Wake is called, or timeout has
	// passed (negative: for ever). It returns ErrClosed once the device is
	// closed. A Wake that comes before Wait is not lost.
	Wait(timeout time.Duration) error
	// Wake ends a Wait in progress, or the next one.
	Wake()
}

// Device is an Ethernet device whose other side is the kernel's, or in memory.
type Device interface {
	// Name is the interface's name.
	Name() string
	// MTU is the largest IP packet on the wire, in octets, as it was when the
	// device was opened.
	MTU() int
	// MAC is the address that the device's user should take for itself: for a
	// macvtap that of the interface, since only frames for it arrive; for a TAP
	// an address of its own, since the kernel's side keeps the interface's.
	MAC() net.HardwareAddr
	// Offloads says which of the header's requests the device honours.
	Offloads() Offload
	// Queues are the data queues, at least one.
	Queues() []Queue
	// Close gives the device up and unblocks everything. The interface itself
	// goes with it unless it is persistent. Later calls return ErrClosed.
	Close() error
}
