package tap

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/songgao/water"
	"golang.org/x/sys/unix"
)

// tunPath is a variable for tests of its absence.
var tunPath = "/dev/net/tun"

// TAP is a TAP or macvtap interface, a Device.
type TAP struct {
	name     string
	mtu      int
	mac      net.HardwareAddr
	offloads Offload
	queues   []Queue
	closing  sync.Once
}

var _ Device = (*TAP)(nil)

// Open opens the device that cfg names, and makes it where it does not exist. It
// does not block.
//
// A device that is made comes from water, but is attached to by x/sys first: water
// cannot ask for the virtio-net header, and the kernel takes that from the first
// who attaches to a device of several queues. What water then opens has it. A
// device that exists is attached to by x/sys alone, which changes nothing of it.
func Open(cfg Config) (*TAP, error) {
	if err := cfg.check("open"); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.UseFD {
		return openFD(cfg)
	}
	index, err := ifIndex(cfg.Name)
	switch {
	case errors.Is(err, unix.ENODEV) && cfg.AttachOnly:
		return nil, &Error{Op: "open", Name: cfg.Name, Err: ErrNotExist, Remedy: "create it: softrnic tap create " + cfg.Name}
	case errors.Is(err, unix.ENODEV):
		return create(cfg)
	case err != nil:
		return nil, &Error{Op: "open", Name: cfg.Name, Err: ErrName, Cause: err}
	case cfg.CreateOnly:
		return nil, &Error{Op: "create", Name: cfg.Name, Err: ErrExists, Remedy: "delete it, or attach to it"}
	}
	return attach(cfg, index)
}

// Create makes a TAP that outlives the process: Open with Persist, and Close.
func Create(cfg Config) error {
	cfg.Persist, cfg.CreateOnly = true, true
	t, err := Open(cfg)
	if err != nil {
		return err
	}
	return t.Close()
}

// create makes the device. What is refused is refused before anything is made.
func create(cfg Config) (*TAP, error) {
	n := max(1, cfg.Queues)
	helper, err := openTUN("create", cfg.Name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(helper)
	if err := setIFF(helper, cfg.Name, unix.IFF_MULTI_QUEUE|unix.IFF_TUN_EXCL); err != nil {
		return nil, refusal("create", cfg.Name, err)
	}
	t := &TAP{name: cfg.Name, mtu: cfg.MTU, mac: cfg.MAC}
	if t.offloads, err = setOffloads(helper, cfg); err != nil {
		return nil, err
	}
	fail := func(what string, err error) (*TAP, error) {
		t.Close()
		return nil, refusal("create", cfg.Name, fmt.Errorf("%s: %w", what, err))
	}
	for range n {
		f, err := openWater(cfg)
		if err != nil {
			return fail("water", err)
		}
		q, err := newQueue(f, VNetHdrLen)
		if err != nil {
			f.Close()
			return fail("queue", err)
		}
		t.queues = append(t.queues, q)
	}
	for _, o := range []struct {
		name string
		req  uint
		id   *int
	}{{"TUNSETOWNER", unix.TUNSETOWNER, cfg.Owner}, {"TUNSETGROUP", unix.TUNSETGROUP, cfg.Group}} {
		if o.id != nil {
			if err := unix.IoctlSetInt(helper, o.req, *o.id); err != nil {
				return fail(o.name, err)
			}
		}
	}
	if t.mtu == 0 {
		t.mtu = defaultMTU
	}
	if t.mac == nil {
		t.mac = ownMAC(cfg.Name)
	}
	if err := setMTU(cfg.Name, t.mtu); err != nil {
		return fail("MTU", err)
	}
	if err := setUp(cfg.Name, true); err != nil {
		return fail("up", err)
	}
	return t, nil
}

// openWater joins a queue to a device that has one already.
func openWater(cfg Config) (*os.File, error) {
	// water opens without close-on-exec; no child may be started in between.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	ifce, err := water.New(water.Config{DeviceType: water.TAP,
		PlatformSpecificParams: water.PlatformSpecificParams{Name: cfg.Name, Persist: cfg.Persist, MultiQueue: true}})
	if err != nil {
		return nil, err
	}
	f, ok := ifce.ReadWriteCloser.(*os.File)
	if !ok {
		ifce.Close()
		return nil, fmt.Errorf("water gave a %T, not a file", ifce.ReadWriteCloser)
	}
	rc, err := f.SyscallConn()
	if err == nil {
		err = rc.Control(func(fd uintptr) { unix.CloseOnExec(int(fd)) })
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// attach opens a device that exists.
func attach(cfg Config, index int) (*TAP, error) {
	macvtap := isMacvtap(cfg.Name)
	if !macvtap && !isTAP(cfg.Name) {
		return nil, &Error{Op: "open", Name: cfg.Name, Err: ErrNotTAP, Remedy: "choose another name, or make a macvtap on it: ip link add link " + cfg.Name + " name mvt0 type macvtap mode bridge"}
	}
	mtu, err := getMTU(cfg.Name)
	if err != nil {
		return nil, refusal("open", cfg.Name, err)
	}
	if cfg.MTU > mtu {
		return nil, &Error{Op: "open", Name: cfg.Name, Err: ErrMTU, Remedy: fmt.Sprintf("%d was asked for, the interface has %d: ip link set %s mtu %d", cfg.MTU, mtu, cfg.Name, cfg.MTU)}
	}
	if !macvtap && isHeld(cfg.Name) {
		// The kernel would let us share a device of several queues, and give each of
		// us some of the flows.
		return nil, &Error{Op: "open", Name: cfg.Name, Err: ErrBusy, Remedy: "another process holds it: stop that, or use another name"}
	}
	t := &TAP{name: cfg.Name, mtu: mtu, mac: cfg.MAC}
	flags := uint16(0)
	for i := range max(1, cfg.Queues) {
		var fd int
		if macvtap {
			fd, err = openMacvtap(cfg.Name, index)
		} else {
			fd, err = openTUN("open", cfg.Name)
		}
		if err != nil {
			t.Close()
			return nil, err
		}
		if i == 0 {
			// Whether it has several queues is found by trying.
			flags = unix.IFF_MULTI_QUEUE
			if err = setIFF(fd, cfg.Name, flags); errors.Is(err, unix.EINVAL) && cfg.Queues <= 1 {
				flags = 0
				err = setIFF(fd, cfg.Name, flags)
			}
		} else {
			err = setIFF(fd, cfg.Name, flags)
		}
		if err != nil {
			unix.Close(fd)
			t.Close()
			return nil, refusal("open", cfg.Name, err)
		}
		if i == 0 { // they are the device's, not the queue's
			if t.offloads, err = setOffloads(fd, cfg); err != nil {
				unix.Close(fd)
				t.Close()
				return nil, err
			}
		}
		f := os.NewFile(uintptr(fd), cfg.Name)
		q, err := newQueue(f, VNetHdrLen)
		if err != nil {
			f.Close()
			t.Close()
			return nil, refusal("open", cfg.Name, err)
		}
		t.queues = append(t.queues, q)
	}
	if t.mac == nil {
		if t.mac = ownMAC(cfg.Name); macvtap {
			ifi, err := net.InterfaceByIndex(index)
			if err != nil {
				t.Close()
				return nil, refusal("open", cfg.Name, err)
			}
			t.mac = ifi.HardwareAddr
		}
	}
	if err := ensureUp(cfg.Name); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// openFD takes over a descriptor that is attached already.
func openFD(cfg Config) (*TAP, error) {
	name := fmt.Sprintf("descriptor %d", cfg.FD)
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlIfreq(cfg.FD, unix.TUNGETIFF, ifr); err != nil {
		return nil, &Error{Op: "open", Name: name, Err: ErrNotTAP, Cause: err, Remedy: "give a descriptor that is attached to a TAP interface"}
	}
	flags := ifr.Uint16()
	name = ifr.Name()
	if flags&unix.IFF_TAP == 0 || flags&unix.IFF_NO_PI == 0 {
		return nil, &Error{Op: "open", Name: name, Err: ErrNotTAP, Remedy: "attach it with IFF_TAP and IFF_NO_PI"}
	}
	if err := unix.SetNonblock(cfg.FD, true); err != nil {
		return nil, refusal("open", name, err)
	}
	unix.CloseOnExec(cfg.FD)
	cfg.Name = name
	t := &TAP{name: name, mac: cfg.MAC, mtu: cfg.MTU}
	hdr := 0
	if flags&unix.IFF_VNET_HDR != 0 {
		hdr = VNetHdrLen
		if t.offloads, err = setOffloads(cfg.FD, cfg); err != nil {
			return nil, err
		}
	} else {
		cfg.Logger.Warn("no offloads: the descriptor was attached without IFF_VNET_HDR", "tap", name)
	}
	// The interface may be in another network namespace, where only its descriptor
	// reaches; then the caller says what the MTU is.
	if mtu, err := getMTU(name); err == nil && t.mtu == 0 {
		t.mtu = mtu
	}
	if t.mtu == 0 {
		t.mtu = defaultMTU
	}
	if t.mac == nil {
		t.mac = ownMAC(name)
		if ifi, err := net.InterfaceByName(name); err == nil && isMacvtap(name) {
			t.mac = ifi.HardwareAddr
		}
	}
	f := os.NewFile(uintptr(cfg.FD), name)
	q, err := newQueue(f, hdr)
	if err != nil {
		f.Close()
		return nil, refusal("open", name, err)
	}
	t.queues = []Queue{q}
	return t, nil
}

// Name implements Device.
func (t *TAP) Name() string { return t.name }

// MTU implements Device.
func (t *TAP) MTU() int { return t.mtu }

// MAC implements Device.
func (t *TAP) MAC() net.HardwareAddr { return t.mac }

// Offloads implements Device.
func (t *TAP) Offloads() Offload { return t.offloads }

// Queues implements Device.
func (t *TAP) Queues() []Queue { return t.queues }

// Close implements Device.
func (t *TAP) Close() error {
	err := error(&Error{Op: "close", Name: t.name, Err: ErrClosed})
	t.closing.Do(func() {
		err = nil
		for _, q := range t.queues {
			err = errors.Join(err, q.(*queue).close())
		}
	})
	return err
}

// Delete removes a TAP interface that no process holds.
func Delete(name string) error {
	if err := checkName("delete", name); err != nil {
		return err
	}
	if _, err := ifIndex(name); errors.Is(err, unix.ENODEV) {
		return &Error{Op: "delete", Name: name, Err: ErrNotExist, Remedy: "softrnic tap list names those of this network namespace"}
	}
	if !isTAP(name) {
		return &Error{Op: "delete", Name: name, Err: ErrNotTAP, Remedy: "only TAPs are deleted here"}
	}
	fd, err := openTUN("delete", name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if isHeld(name) {
		return &Error{Op: "delete", Name: name, Err: ErrBusy, Remedy: "another process holds it: stop that first"}
	}
	if err = setIFF(fd, name, 0); errors.Is(err, unix.EINVAL) {
		err = setIFF(fd, name, unix.IFF_MULTI_QUEUE)
	}
	if err != nil {
		return refusal("delete", name, err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0); err != nil {
		return refusal("delete", name, err)
	}
	return nil
}

// List returns the TAP interfaces of the network namespace.
func List() ([]Info, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("tap: list: %w", err)
	}
	var out []Info
	for _, i := range all {
		if !isTAP(i.Name) {
			continue
		}
		f := flagsOf(i.Name)
		out = append(out, Info{Name: i.Name, Index: i.Index, MTU: i.MTU, MAC: i.HardwareAddr, Up: i.Flags&net.FlagUp != 0,
			Owner: sysInt(i.Name, "owner", -1), Group: sysInt(i.Name, "group", -1),
			MultiQueue: f&unix.IFF_MULTI_QUEUE != 0, Persistent: f&iffPersist != 0, Known: f != 0})
	}
	return out, nil
}

const iffPersist = 0x0800

func sysInt(name, file string, otherwise int) int {
	b, err := os.ReadFile("/sys/class/net/" + name + "/" + file)
	if err != nil {
		return otherwise
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 0, 64)
	if err != nil {
		return otherwise
	}
	return int(n)
}

func flagsOf(name string) int { return sysInt(name, "tun_flags", 0) }
func isMacvtap(name string) bool {
	_, err := os.Stat("/sys/class/net/" + name + "/macvtap")
	return err == nil || driver(name) == "macvtap"
}
func driver(name string) (d string) {
	_ = withSocket(func(s int) error {
		info, err := unix.IoctlGetEthtoolDrvinfo(s, name)
		if err == nil {
			d = unix.ByteSliceToString(info.Driver[:])
			if d == "tun" {
				d = unix.ByteSliceToString(info.Bus_info[:])
			}
		}
		return err
	})
	return d
}

func isTAP(name string) bool { return driver(name) == "tap" }
