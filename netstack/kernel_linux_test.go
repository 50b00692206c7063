package netstack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/softrnic/softrnic/tap"
	"golang.org/x/sys/unix"
)

// kernelTAP is a tap.Device on one queue of a real TAP, as little as these tests
// need of it, so that they stand on the kernel alone.
type kernelTAP struct {
	name    string
	mtu     int
	mac     net.HardwareAddr
	off     tap.Offload
	fd, efd int
	iov     []unix.Iovec
	mu      sync.Mutex // of the writer
	wiov    []unix.Iovec
	wbuf    [tap.VNetHdrLen]byte
	closing sync.Once
	closed  chan struct{}
}

func openTAP(name string, mtu int, mac net.HardwareAddr, offloads bool) (*kernelTAP, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return nil, fmt.Errorf("TUNSETIFF %s: %w", name, err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, tap.VNetHdrLen); err != nil {
		return nil, fmt.Errorf("TUNSETVNETHDRSZ: %w", err)
	}
	d := &kernelTAP{name: name, mtu: mtu, mac: mac, fd: fd, closed: make(chan struct{})}
	if offloads {
		if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6); err != nil {
			return nil, fmt.Errorf("TUNSETOFFLOAD: %w", err)
		}
		d.off = allOffloads
	}
	if d.efd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *kernelTAP) Name() string          { return d.name }
func (d *kernelTAP) MTU() int              { return d.mtu }
func (d *kernelTAP) MAC() net.HardwareAddr { return d.mac }
func (d *kernelTAP) Offloads() tap.Offload { return d.off }
func (d *kernelTAP) Queues() []tap.Queue   { return []tap.Queue{d} }

func (d *kernelTAP) Close() error {
	d.closing.Do(func() {
		close(d.closed)
		d.Wake()
		unix.Close(d.fd)
		unix.Close(d.efd)
	})
	return nil
}

func vec(iov []unix.Iovec, b []byte) []unix.Iovec {
	if len(b) == 0 {
		return iov
	}
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return append(iov, v)
}

func (d *kernelTAP) ReadBatch(fs []tap.Frame) (int, error) {
	var hdr [tap.VNetHdrLen]byte
	for i := range fs {
		d.iov = vec(d.iov[:0], hdr[:])
		for _, b := range fs[i].Bufs {
			d.iov = vec(d.iov, b)
		}
		n, _, e := unix.RawSyscall(unix.SYS_READV, uintptr(d.fd), uintptr(unsafe.Pointer(&d.iov[0])), uintptr(len(d.iov)))
		switch {
		case e == unix.EAGAIN || e == unix.EINTR:
			return i, nil
		case e != 0:
			return i, e
		}
		le := func(k int) uint16 { return uint16(hdr[k]) | uint16(hdr[k+1])<<8 }
		fs[i].Hdr = tap.VNetHdr{Flags: hdr[0], GSOType: hdr[1], HdrLen: le(2), GSOSize: le(4), CsumStart: le(6), CsumOffset: le(8)}
		fs[i].N = int(n) - tap.VNetHdrLen
	}
	return len(fs), nil
}

func (d *kernelTAP) WriteBatch(fs []tap.Frame) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range fs {
		h := fs[i].Hdr
		d.wbuf = [tap.VNetHdrLen]byte{h.Flags, h.GSOType, byte(h.HdrLen), byte(h.HdrLen >> 8), byte(h.GSOSize), byte(h.GSOSize >> 8),
			byte(h.CsumStart), byte(h.CsumStart >> 8), byte(h.CsumOffset), byte(h.CsumOffset >> 8)}
		d.wiov = vec(d.wiov[:0], d.wbuf[:])
		for _, b := range fs[i].Bufs {
			d.wiov = vec(d.wiov, b)
		}
		if _, _, e := unix.RawSyscall(unix.SYS_WRITEV, uintptr(d.fd), uintptr(unsafe.Pointer(&d.wiov[0])), uintptr(len(d.wiov))); e != 0 && e != unix.EAGAIN {
			return i, e
		}
	}
	return len(fs), nil
}

func (d *kernelTAP) Wait(timeout time.Duration) error {
	ms := -1
	if timeout >= 0 {
		ms = int(timeout / time.Millisecond)
	}
	p := []unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}, {Fd: int32(d.efd), Events: unix.POLLIN}}
	unix.Poll(p, ms)
	if p[1].Revents != 0 {
		var b [8]byte
		unix.Read(d.efd, b[:])
	}
	select {
	case <-d.closed:
		return net.ErrClosed
	default:
		return nil
	}
}

func (d *kernelTAP) Wake() { unix.Write(d.efd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// kernelNet is a network namespace with a bridge, for TAPs and for sockets.
type kernelNet struct {
	t  testing.TB
	do chan func()
}

// newKernelNet makes one that ends with the test; it skips, or fails with CI=true,
// where it may not.
func newKernelNet(t testing.TB, mtu int) *kernelNet {
	t.Helper()
	cannot := func(what string, err error) {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s: %v", what, err)
		}
		t.Skipf("%s: %v: needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN", what, err)
	}
	n := &kernelNet{t: t, do: make(chan func())}
	ready := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked: the thread ends with us, in its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		ready <- err
		if err != nil {
			return
		}
		for f := range n.do {
			f()
		}
	}()
	if err := <-ready; err != nil {
		cannot("a network namespace", err)
	}
	t.Cleanup(func() { close(n.do); <-ended })
	if f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0); err != nil {
		cannot("/dev/net/tun", err)
	} else {
		f.Close()
	}
	if _, err := exec.LookPath("ip"); err != nil {
		cannot("iproute2", err)
	}
	n.in(func() error {
		// A packet filter on the bridge costs more than the bridge.
		for _, f := range []string{"iptables", "ip6tables", "arptables"} {
			_ = os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+f, []byte("0"), 0) // absent where there is none
		}
		return nil
	})
	n.ip("link add nsbr0 mtu %d type bridge mcast_snooping 0", mtu)
	n.ip("link set nsbr0 up")
	return n
}

// ip runs the ip command in the namespace.
func (n *kernelNet) ip(format string, args ...any) {
	n.t.Helper()
	line := fmt.Sprintf(format, args...)
	n.in(func() error {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %v: %s", line, err, out)
		}
		return nil
	})
}

// in runs f in the namespace.
func (n *kernelNet) in(f func() error) {
	n.t.Helper()
	err := make(chan error, 1)
	n.do <- func() { err <- f() }
	if err := <-err; err != nil {
		n.t.Fatal(err)
	}
}

// tap makes a TAP on the bridge.
func (n *kernelNet) tap(name string, last byte, mtu int, offloads bool) *kernelTAP {
	n.t.Helper()
	var d *kernelTAP
	n.in(func() (err error) {
		d, err = openTAP(name, mtu, net.HardwareAddr{2, 0, 0, 1, 0, last}, offloads)
		return err
	})
	n.ip("link set %s mtu %d master nsbr0 up", name, mtu)
	n.t.Cleanup(func() { d.Close() })
	return d
}

// TestNetnsTwoTAPs moves data between two stacks over two real TAPs on a bridge.
func TestNetnsTwoTAPs(t *testing.T) {
	for _, tc := range []struct {
		mtu      int
		offloads bool
	}{{1500, true}, {9000, true}, {1500, false}} {
		t.Run(fmt.Sprint(tc.mtu, tc.offloads), func(t *testing.T) {
			checkLeaks(t)
			n := newKernelNet(t, tc.mtu)
			a, b := stacksOn(t, n.tap("nsa", 1, tc.mtu, tc.offloads), n.tap("nsb", 2, tc.mtu, tc.offloads), Config{})
			for _, v6 := range []bool{false, true} {
				x, y := connect(t, a, b, v6)
				exchange(t, x, y, 32<<20)
				x.Close()
				y.Close()
			}
			st := a.Stats()
			if (st.TxSuper > 0) != tc.offloads || (b.Stats().RxSuper > 0) != tc.offloads {
				t.Errorf("super-packets: %d out, %d in", st.TxSuper, b.Stats().RxSuper)
			}
			if st.TCPChecksumErrors+b.Stats().TCPChecksumErrors != 0 {
				t.Error("checksum errors")
			}
			t.Logf("%+v", st)
		})
	}
}

// TestNetnsKernelPeer moves data between a stack and the kernel's own TCP, both ways
// and both families, with either end dialling.
func TestNetnsKernelPeer(t *testing.T) {
	for _, offloads := range []bool{true, false} {
		t.Run(fmt.Sprint(offloads), func(t *testing.T) {
			checkLeaks(t)
			n := newKernelNet(t, 1500)
			dev := n.tap("nsa", 1, 1500, offloads)
			a := newStack(t, dev, Config{Addrs: prefixesA})
			for _, p := range prefixesB {
				n.ip("addr add %v dev nsbr0 %s", p, map[bool]string{true: "nodad"}[p.Addr().Is6()])
			}
			for _, v6 := range []bool{false, true} {
				var kl net.Listener
				n.in(func() (err error) {
					kl, err = net.Listen("tcp", netip.AddrPortFrom(addr(prefixesB, v6), 0).String())
					return err
				})
				defer kl.Close()
				accepted := make(chan net.Conn, 1)
				go func() {
					if c, err := kl.Accept(); err == nil {
						accepted <- c
					} else {
						close(accepted)
					}
				}()
				c, err := a.Dial(bg(t), netip.AddrPort{}, kl.Addr().(*net.TCPAddr).AddrPort())
				if err != nil {
					t.Fatal(err)
				}
				kernelExchange(t, newTester(c), <-accepted, 16<<20)

				l, err := a.Listen(netip.AddrPortFrom(addr(prefixesA, v6), 0), 0)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				var kc net.Conn
				n.in(func() (err error) {
					kc, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
					return err
				})
				d, err := l.Accept(bg(t))
				if err != nil {
					t.Fatal(err)
				}
				kernelExchange(t, newTester(d), kc, 16<<20)
			}
			st := a.Stats()
			if st.TCPChecksumErrors != 0 || offloads && st.RxUnverified > 100 {
				t.Errorf("%d checksum errors, %d of %d frames unverified", st.TCPChecksumErrors, st.RxUnverified, st.RxFrames)
			}
			t.Logf("%+v", st)
		})
	}
}

// kernelExchange sends n octets each way between x and a socket, and closes both.
func kernelExchange(t *testing.T, x *tester, kc net.Conn, n int) {
	t.Helper()
	if kc == nil {
		t.Fatal("the kernel's end did not come up")
	}
	defer kc.Close()
	out, back := noise(n, 1), noise(n, 2)
	want := out
	errs := make(chan error, 2)
	go func() {
		_, err := kc.Write(back)
		errs <- err
	}()
	go func() {
		got := make([]byte, n)
		_, err := io.ReadFull(kc, got)
		if err == nil && !bytes.Equal(got, want) {
			err = errors.New("the kernel received other octets")
		}
		errs <- err
	}()
	var got []byte
	for len(out) > 0 || len(got) < n {
		moved := false
		if r := x.Room(); len(out) > 0 && r.Space > 0 {
			o := octets(out[:min(len(out), r.Space, r.MaxBatch)])
			k := len(o)
			if err := x.Send(&o); err != nil {
				t.Fatal(err)
			}
			out, moved = out[k:], true
		}
		if bs, err := x.Receive(1, 1<<16); err == nil {
			k := 0
			for _, b := range bs {
				got = append(got, b...)
				k += len(b)
			}
			if err := x.Consume(k); err != nil {
				t.Fatal(err)
			}
			moved = true
		}
		if !moved {
			if err := x.wait(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !bytes.Equal(got, back) {
		t.Error("other octets came from the kernel")
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	x.CloseWrite()
	if k, err := kc.Read(make([]byte, 1)); k != 0 || err != io.EOF {
		t.Errorf("the kernel's end reads %d, %v after our FIN", k, err)
	}
	kc.Close()
	x.wants(t, 1, io.EOF)
	x.Close()
}

// tapPair is two TAPs on a bridge, for benchmarks.
func tapPair(b *testing.B) (x, y tap.Device) {
	n := newKernelNet(b, 1500)
	return n.tap("nsa", 1, 1500, true), n.tap("nsb", 2, 1500, true)
}
