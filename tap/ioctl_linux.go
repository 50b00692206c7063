package tap

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// openTUN opens the driver's device.
func openTUN(op, name string) (int, error) {
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return -1, &Error{Op: op, Name: name, Err: ErrNoTUN, Cause: err,
			Remedy: tunPath + " is missing: modprobe tun; in a container, pass it in (--device /dev/net/tun)"}
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return -1, &Error{Op: op, Name: name, Err: ErrPermission, Cause: err,
			Remedy: fmt.Sprintf("%s is not open to you: run as root, or chmod 0666 %s (the usual mode; the kernel checks privileges itself)", tunPath, tunPath)}
	}
	return -1, &Error{Op: op, Name: name, Err: ErrNoTUN, Cause: err}
}

// openMacvtap opens the character device of a macvtap interface.
func openMacvtap(name string, index int) (int, error) {
	path := fmt.Sprintf("/dev/tap%d", index)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		return fd, nil
	}
	e := &Error{Op: "open", Name: name, Err: ErrPermission, Cause: err}
	switch {
	case errors.Is(err, unix.EBUSY):
		e.Err, e.Remedy = ErrBusy, "another process holds "+path
	case errors.Is(err, unix.ENOENT):
		e.Err, e.Remedy = ErrNotExist, path+" is missing"
		if b, err := os.ReadFile(fmt.Sprintf("/sys/class/net/%s/macvtap/tap%d/dev", name, index)); err == nil {
			e.Remedy += ": mknod " + path + " c " + strings.Replace(strings.TrimSpace(string(b)), ":", " ", 1)
		}
	default:
		e.Remedy = "run as root, or chown " + path
	}
	return -1, e
}

// setIFF attaches fd to the interface, with the virtio-net header.
func setIFF(fd int, name string, flags uint16) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | flags)
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
}

// wantedOffloads is a variable for tests of a kernel that refuses them.
var wantedOffloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6

// setOffloads asks, once for a device, for what the virtio-net header can say, and does without where
// the kernel does not have it.
func setOffloads(fd int, cfg Config) (Offload, error) {
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, VNetHdrLen); err != nil {
		return 0, refusal("open", cfg.Name, fmt.Errorf("TUNSETVNETHDRSZ: %w", err))
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, wantedOffloads); err != nil {
		cfg.Logger.Warn("the kernel refuses checksum and segmentation offload: this will be slow", "tap", cfg.Name, "err", err)
		return 0, nil
	}
	return OffloadCsum | OffloadTSO4 | OffloadTSO6, nil
}

// refusal names the reason and the remedy of what the kernel refused.
func refusal(op, name string, err error) error {
	e := &Error{Op: op, Name: name, Cause: err, Err: ErrPermission}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		e.Remedy = fmt.Sprintf("run as root or with CAP_NET_ADMIN, or have it made for you: ip tuntap add %s mode tap user $USER && ip link set %s up", name, name)
	case errors.Is(err, unix.EBUSY):
		e.Err, e.Remedy = ErrBusy, "another process holds it, or it is a TUN: stop that, or use another name"
	case errors.Is(err, unix.EINVAL):
		e.Err, e.Remedy = ErrQueueMode, "it was made with another number of queues: open it with one, or make it again"
	case errors.Is(err, unix.EEXIST):
		e.Err = ErrExists
	case errors.Is(err, unix.ENODEV):
		e.Err = ErrNotExist
	case errors.Is(err, unix.E2BIG):
		e.Err, e.Remedy = ErrQueueMode, "all of its queues are in use"
	default:
		e.Err = errors.New("refused")
	}
	return e
}

// withSocket runs f with a socket of the calling thread's network namespace.
func withSocket(f func(s int) error) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return f(s)
}

// ifreq runs one ioctl on the interface.
func ifreq(name string, req uint, f func(*unix.Ifreq)) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if f != nil {
		f(ifr)
	}
	return withSocket(func(s int) error { return unix.IoctlIfreq(s, req, ifr) })
}

func query[T any](name string, req uint, get func(*unix.Ifreq) T) (T, error) {
	var zero T
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return zero, err
	}
	if err := withSocket(func(s int) error { return unix.IoctlIfreq(s, req, ifr) }); err != nil {
		return zero, err
	}
	return get(ifr), nil
}

func ifIndex(name string) (int, error) {
	n, err := query(name, unix.SIOCGIFINDEX, (*unix.Ifreq).Uint32)
	return int(n), err
}

func getMTU(name string) (int, error) {
	n, err := query(name, unix.SIOCGIFMTU, (*unix.Ifreq).Uint32)
	return int(n), err
}

func setMTU(name string, mtu int) error {
	return ifreq(name, unix.SIOCSIFMTU, func(i *unix.Ifreq) { i.SetUint32(uint32(mtu)) })
}

func isUp(name string) (bool, error) {
	f, err := query(name, unix.SIOCGIFFLAGS, (*unix.Ifreq).Uint16)
	return f&unix.IFF_UP != 0, err
}

// isHeld says whether a process has a queue of the TAP: it has a carrier from the
// first to the last of them. One that is down does not tell, and counts as free.
func isHeld(name string) bool {
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_GLINK}
	ifr := struct { // struct ifreq, with a pointer in its union
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(ifr.name[:unix.IFNAMSIZ-1], name)
	err := withSocket(func(s int) error {
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr))); e != 0 {
			return e
		}
		return nil
	})
	return err == nil && value.data != 0
}

func setUp(name string, up bool) error {
	f, err := query(name, unix.SIOCGIFFLAGS, (*unix.Ifreq).Uint16)
	if err != nil {
		return err
	}
	if f &^= unix.IFF_UP; up {
		f |= unix.IFF_UP
	}
	return ifreq(name, unix.SIOCSIFFLAGS, func(i *unix.Ifreq) { i.SetUint16(f) })
}

// ensureUp brings the interface up where it is down and we may.
func ensureUp(name string) error {
	up, err := isUp(name)
	if err == nil && !up {
		err = setUp(name, true)
	}
	if err != nil {
		return &Error{Op: "open", Name: name, Err: ErrDown, Cause: err, Remedy: "ip link set " + name + " up"}
	}
	return nil
}
