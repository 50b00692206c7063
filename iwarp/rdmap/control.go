package rdmap

import "github.com/softrnic/softrnic/iwarp/ddp"

// Op is the opcode of a message (RFC 5040 section 4.3).
type Op uint8

const (
	Write        Op = 0x0
	ReadRequest  Op = 0x1
	ReadResponse Op = 0x2
	Send         Op = 0x3
	SendInv      Op = 0x4 // Send with Invalidate
	SendSE       Op = 0x5 // Send with Solicited Event
	SendSEInv    Op = 0x6 // Send with Solicited Event and Invalidate
	Terminate    Op = 0x7
)

var opNames = [...]string{"write", "read-request", "read-response", "send", "send-inv", "send-se", "send-se-inv", "terminate",
	"immediate", "immediate-se", "atomic-request", "atomic-response"}

// String returns the opcode's name, as the tools print it.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "unassigned"
}

// Invalidates says whether o carries an STag to invalidate.
func (o Op) Invalidates() bool { return o == SendInv || o == SendSEInv }

// Solicited says whether o asks for an event at the receiver.
func (o Op) Solicited() bool { return o == SendSE || o == SendSEInv }

// The queues of untagged messages (RFC 5040 section 4.2).
const (
	QNSend      ddp.QN = 0
	QNRead      ddp.QN = 1
	QNTerminate ddp.QN = 2
)

// The control octet (RFC 5040 section 4.1): version in the top bits, two bits
// reserved, opcode.
const (
	maskVersion = 0xc0
	version     = 0x40
	maskOp      = 0x0f
)

func control(o Op) uint8 { return version | uint8(o) }

// ParseControl reads the control octet. ok says that the version is 1.
func ParseControl(b uint8) (o Op, ok bool) { return Op(b & maskOp), b&maskVersion == version }
