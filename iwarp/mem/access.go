package mem

import "strings"

// Access is a set of rights on a region (RFC 5040 section 5.2, RFC 5042
// section 6.2).
type Access uint8

const (
	// LocalWrite lets the owner's own receives and reads write to the region.
	LocalWrite Access = 1 << iota
	// RemoteRead lets a peer read the region with an RDMA Read Request.
	RemoteRead
	// RemoteWrite lets a peer write to the region with an RDMA Write.
	RemoteWrite
	// RemoteInvalidate lets a peer invalidate the region's STag with a Send with
	// Invalidate. It is not implied by any other right: an STag that several
	// streams use must not be taken away by one of them (RFC 5042 section 6.2.2).
	RemoteInvalidate

	allAccess = LocalWrite | RemoteRead | RemoteWrite | RemoteInvalidate
)

var accessNames = [...]string{"local-write", "remote-read", "remote-write", "remote-invalidate"}

// String lists the rights by name, "none" for no right.
func (a Access) String() string {
	if a == 0 {
		return "none"
	}
	var s []string
	for i, name := range accessNames {
		if a&(1<<i) != 0 {
			s = append(s, name)
		}
	}
	if a&^allAccess != 0 {
		s = append(s, "unknown")
	}
	return strings.Join(s, "|")
}
