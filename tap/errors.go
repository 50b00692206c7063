package tap

import (
	"errors"
	"fmt"
	"os"
)

// What can be wrong with a device, found by errors.Is in what Open, Create and
// Delete return.
var (
	// ErrClosed says that the device was closed; it is os.ErrClosed.
	ErrClosed = os.ErrClosed
	// ErrNoTUN: the kernel's TUN/TAP driver is not there.
	ErrNoTUN = errors.New("no TUN/TAP driver")
	// ErrPermission: the process may not do it.
	ErrPermission = errors.New("not permitted")
	// ErrName: not a name that an interface can have.
	ErrName = errors.New("bad interface name")
	// ErrNotTAP: an interface has the name, but is no TAP or macvtap.
	ErrNotTAP = errors.New("not a TAP interface")
	// ErrExists: the interface exists, and was not to.
	ErrExists = errors.New("interface exists")
	// ErrNotExist: no interface has the name.
	ErrNotExist = errors.New("no such interface")
	// ErrBusy: another process holds the device.
	ErrBusy = errors.New("device in use")
	// ErrQueueMode: the device was made for another number of queues.
	ErrQueueMode = errors.New("wrong queue mode")
	// ErrDown: the interface is down.
	ErrDown = errors.New("interface is down")
	// ErrMTU: an MTU that the device does not take.
	ErrMTU = errors.New("bad MTU")
	// ErrUnsupported: this operating system has no TAPs.
	ErrUnsupported = errors.New("TAP devices need Linux")
)

// Error says what failed on which device, why, and what to do about it.
type Error struct {
	Op     string // open, create, delete, read, write
	Name   string // of the interface
	Err    error  // one of the errors above
	Cause  error  // the system's error; may be nil
	Remedy string // what to do; may be empty
}

func (e *Error) Error() string {
	s := fmt.Sprintf("tap: %s %s: %v", e.Op, e.Name, e.Err)
	if e.Cause != nil {
		s += fmt.Sprintf(" (%v)", e.Cause)
	}
	if e.Remedy != "" {
		s += ": " + e.Remedy
	}
	return s
}

func (e *Error) Unwrap() []error { return []error{e.Err, e.Cause} }
