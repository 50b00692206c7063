// Package bridge puts TAPs and physical NICs on Linux bridges, so that an RNIC
// reaches the LAN. It is apart from package tap so that programs which only own a
// TAP do not carry netlink.
//
// What is asked for twice is done once: attaching what is attached, and detaching
// what is not, are no errors.
package bridge

import "errors"

// Errors found by errors.Is in what Attach, Detach and Show return.
var (
	// ErrDefaultRoute: the interface carries the default route. On a bridge its
	// addresses and routes no longer work, and with them this host's connection.
	ErrDefaultRoute = errors.New("the interface carries the default route")
	// ErrNotExist: no interface has the name.
	ErrNotExist = errors.New("no such interface")
	// ErrNotBridge: the interface is no bridge.
	ErrNotBridge = errors.New("not a bridge")
	// ErrPermission: the process lacks CAP_NET_ADMIN.
	ErrPermission = errors.New("not permitted: run as root or with CAP_NET_ADMIN")
	// ErrElsewhere: the interface is on another bridge.
	ErrElsewhere = errors.New("the interface is on another bridge")
	// ErrUnsupported: this operating system has no Linux bridges.
	ErrUnsupported = errors.New("bridges need Linux")
)

// Options of Attach and Detach.
type Options struct {
	Force  bool // enslave even the interface that carries the default route
	Create bool // make the bridge where it does not exist
	DryRun bool // change nothing; return the commands only
}

// Port is an interface on a bridge.
type Port struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // tuntap, veth, device, ...
	MTU  int    `json:"mtu"`  // octets
	Up   bool   `json:"up"`
}

// Info describes a bridge.
type Info struct {
	Name  string `json:"name"`
	MTU   int    `json:"mtu"` // octets
	Up    bool   `json:"up"`
	Ports []Port `json:"ports"`
}
