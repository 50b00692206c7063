package verbs

// Status says how a work request ended. The names are those of ibverbs.
type Status uint8

const (
	Success              Status = iota
	LocalLength                 // a message was longer than its receive buffer
	LocalQPOperation            // the QP could not do it
	LocalProtection             // local memory could not be accessed
	WRFlush                     // the connection ended first
	BadResponse                 // the Response to a Read was not what was asked for
	RemoteInvalidRequest        // the peer found the request invalid
	RemoteAccess                // the peer's memory could not be accessed
	RemoteOperation             // the peer could not do it
	Fatal                       // something else
)

var statusTexts = [...]string{"success", "local length error", "local QP operation error", "local protection error",
	"Work Request Flushed Error", "bad response error",
	"remote invalid request error", "remote access error", "remote operation error", "fatal error"}

// String returns the text of ibv_wc_status_str.
func (s Status) String() string {
	if int(s) < len(statusTexts) {
		return statusTexts[s]
	}
	return "unknown"
}

// WC is a work completion. ID, Status, Op, QP are always valid; ByteLen, Flags and
// InvSTag only with Success, Err only without.
type WC struct {
	ID      uint64
	Status  Status
	Op      Op
	ByteLen uint32 // octets received, read, written or sent
	Flags   Flags  // Solicited, Invalidated: of a Recv
	InvSTag STag   // the STag that a Send invalidated
	QP      *QP
	Err     error // why, in detail
}
