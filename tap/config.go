package tap

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
)

// MaxName is the longest name of an interface, in octets.
const MaxName = 15

// Limits of an MTU, in octets of an IP packet.
const (
	MinMTU     = 68
	MaxMTU     = 65521
	defaultMTU = 1500
)

// Config says which device Open opens, and how it makes one.
type Config struct {
	// Name of a TAP or macvtap interface. One that exists is attached to, and left
	// as it is; one that does not is created.
	Name string
	// FD is the descriptor of a TAP or macvtap that the process was given, where
	// UseFD is set. Open takes it over where it succeeds.
	FD    int
	UseFD bool

	// AttachOnly fails with ErrNotExist rather than create, CreateOnly with
	// ErrExists rather than attach.
	AttachOnly, CreateOnly bool
	// Queues is the number of data queues; 0 means 1. One TCP connection uses one.
	Queues int

	// The rest describes a device that is created.

	// MTU in octets; 0 means 1500. Of a device that exists, the least that it must
	// have; 0 means any.
	MTU int
	// MAC is the address for the device's user (see Device.MAC); nil means one of its
	// own that stays the same for this name on this host, for a macvtap that of the
	// interface.
	MAC net.HardwareAddr
	// Owner and Group may attach to it without privileges; nil means nobody.
	Owner, Group *int
	// Persist keeps the interface when it is closed.
	Persist bool

	// Logger takes what Open had to do without; nil discards.
	Logger *slog.Logger
}

func (c *Config) check(op string) error {
	bad := func(err error, format string, args ...any) error {
		return &Error{Op: op, Name: c.Name, Err: err, Remedy: fmt.Sprintf(format, args...)}
	}
	if c.UseFD {
		if c.Name != "" {
			return bad(ErrName, "give a name or a descriptor, not both")
		}
		if c.FD < 0 {
			return bad(ErrName, "descriptor %d: give that of an open TAP", c.FD)
		}
	} else if err := checkName(op, c.Name); err != nil {
		return err
	}
	switch {
	case c.Queues < 0 || c.Queues > 256:
		return bad(ErrQueueMode, "%d queues: from 1 to 256", c.Queues)
	case c.MTU != 0 && (c.MTU < MinMTU || c.MTU > MaxMTU):
		return bad(ErrMTU, "MTU %d is not from %d to %d", c.MTU, MinMTU, MaxMTU)
	case c.MAC != nil && (len(c.MAC) != 6 || c.MAC[0]&1 != 0):
		return bad(ErrName, "MAC %v is not a unicast Ethernet address", c.MAC)
	case c.AttachOnly && c.CreateOnly:
		return bad(ErrName, "AttachOnly and CreateOnly exclude each other")
	}
	return nil
}

func checkName(op, name string) error {
	remedy := ""
	switch {
	case name == "":
		remedy = "give a name of 1 to 15 octets"
	case len(name) > MaxName:
		remedy = fmt.Sprintf("%d octets: the kernel takes at most %d", len(name), MaxName)
	case name == "." || name == ".." || name == "all" || name == "default":
		remedy = "the name is reserved"
	case strings.ContainsAny(name, "/:%") || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		remedy = "no '/', ':', '%', blank or control character may be in it"
	}
	if remedy == "" {
		return nil
	}
	return &Error{Op: op, Name: fmt.Sprintf("%q", name), Err: ErrName, Remedy: remedy}
}

// ownMAC returns an address of the locally administered range for the user of the
// TAP called name: the same each time on this host, so that peers who know it need
// not learn another after a restart; another one for another name, host or network
// namespace.
func ownMAC(name string) net.HardwareAddr {
	h := sha256.New()
	host, err := os.Hostname()
	if err != nil { // then it is at least unique
		host = rand.Text()
	}
	id, _ := os.ReadFile("/etc/machine-id")
	netns, _ := os.Readlink("/proc/thread-self/ns/net") // neither is everywhere
	fmt.Fprintf(h, "softrnic\x00%s\x00%s\x00%s\x00%s", host, id, netns, name)
	b := net.HardwareAddr(h.Sum(nil)[:6])
	b[0] = b[0]&^1 | 2
	return b
}

// Info describes a TAP interface.
type Info struct {
	Name       string
	Index      int
	MTU        int
	MAC        net.HardwareAddr // of the kernel's side
	Up         bool
	Owner      int // -1 for none
	Group      int // -1 for none
	MultiQueue bool
	Persistent bool
	// Known says that the kernel told the last four: it does so in /sys, which must
	// be mounted for this network namespace.
	Known bool
}

// Check says what is wrong with c that can be told without looking at the system.
// Open and Create check the same.
func (c Config) Check() error { return c.check("open") }
