package tap

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

const (
	childEnv = "TAP_TEST_CHILD" // name of the interface that a child process opens
	tunEnv   = "TAP_TEST_TUN"   // the TUN device that it uses
)

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if p := os.Getenv(tunEnv); p != "" {
			tunPath = p
		}
		t, err := Open(Config{Name: name})
		if err != nil {
			fmt.Println(err)
			os.Exit(3)
		}
		fmt.Println("opened", t.MTU(), t.Offloads())
		t.Close()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// inNetns runs f in a network namespace of its own, with its own /sys; it skips, or
// fails with CI=true, where that needs root.
func inNetns(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root, for a network namespace")
		}
		t.Skip("needs root, for a network namespace")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("sysfs", "/sys", "sysfs", 0, "")); err != nil {
			t.Errorf("mount /sys: %v", err)
			return
		}
		f(t)
	}()
	<-done
}

func ip(t *testing.T, line string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", line, err, out)
	}
	return string(out)
}

func open(t *testing.T, cfg Config) *TAP {
	t.Helper()
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// frameOf makes a broadcast frame of a private EtherType.
func frameOf(payload string) []byte {
	b := append(bytes.Repeat([]byte{0xff}, 6), 2, 0, 0, 0, 0, 9, 0x88, 0xb5)
	b = append(b, payload...)
	return append(b, make([]byte, max(0, 60-len(b)))...)
}

// carry sends f from one queue until it comes to the other: a bridge forwards nothing
// of a port whose carrier is new.
func carry(t *testing.T, from, to Queue, f Frame, payload string) Frame {
	t.Helper()
	stop, stopped := make(chan struct{}), make(chan struct{})
	defer func() { close(stop); <-stopped }()
	go func() {
		defer close(stopped)
		for {
			if n, err := from.WriteBatch([]Frame{f}); n != 1 || err != nil {
				t.Errorf("WriteBatch: %d, %v", n, err)
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return await(t, to, []byte(payload))
}

// await reads frames until one has the payload.
func await(t *testing.T, q Queue, payload []byte) Frame {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	buf := make([]byte, MaxFrame)
	for time.Now().Before(deadline) {
		f := []Frame{{Bufs: [][]byte{buf[:14], buf[14:100], buf[100:]}}}
		n, err := q.ReadBatch(f)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			if err := q.Wait(100 * time.Millisecond); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if bytes.Contains(buf[:f[0].N], payload) {
			f[0].Bufs = [][]byte{buf[:f[0].N]}
			return f[0]
		}
	}
	t.Fatalf("no frame with %.20q came", payload)
	return Frame{}
}

func TestNetnsFramesCross(t *testing.T) {
	inNetns(t, func(t *testing.T) {
		ip(t, "link add br0 type bridge mcast_snooping 0")
		ip(t, "link set br0 up")
		a, b := open(t, Config{Name: "a0"}), open(t, Config{Name: "b0", Queues: 2})
		ip(t, "link set a0 master br0")
		ip(t, "link set b0 master br0")
		if a.MTU() != 1500 || a.Offloads() != OffloadCsum|OffloadTSO4|OffloadTSO6 || len(b.Queues()) != 2 || a.MAC()[0]&3 != 2 {
			t.Errorf("%d %v %d %v", a.MTU(), a.Offloads(), len(b.Queues()), a.MAC())
		}
		ports := func(q Queue, to []Queue, payload string, f Frame) {
			t.Helper()
			buf := make([]byte, MaxFrame)
			// Again and again: a bridge forwards nothing of a port whose carrier is new.
			for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
				if n, err := q.WriteBatch([]Frame{f, f}); n != 2 || err != nil {
					t.Fatalf("WriteBatch: %d, %v", n, err)
				}
				for _, q := range to { // the kernel chooses the queue
					for {
						f := []Frame{{Bufs: [][]byte{buf}}}
						n, err := q.ReadBatch(f)
						if err != nil {
							t.Fatal(err)
						}
						if n == 0 {
							break
						}
						if bytes.Contains(buf[:f[0].N], []byte(payload)) {
							return
						}
					}
				}
			}
			t.Errorf("%q did not come", payload)
		}
		ports(a.Queues()[0], b.Queues(), "from a to b", Frame{Bufs: [][]byte{frameOf("from a "), []byte("from a to b")}})
		ports(b.Queues()[1], a.Queues(), "from b to a", Frame{Bufs: [][]byte{frameOf("from b to a")}})

		// A super-packet crosses whole, with its header.
		payload := bytes.Repeat([]byte("payload of a super-packet. "), 1000)
		p := append(append(bytes.Repeat([]byte{0xff}, 6), 2, 0, 0, 0, 0, 9, 8, 0),
			0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
			0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0)
		p = append(p, payload...)
		p[16], p[17] = byte((len(p)-14)>>8), byte(len(p)-14)
		sum := 0
		for i := 14; i < 34; i += 2 {
			sum += int(p[i])<<8 | int(p[i+1])
		}
		sum = ^(sum&0xffff + sum>>16)
		p[24], p[25] = byte(sum>>8), byte(sum)
		h := VNetHdr{Flags: HdrNeedsCsum, GSOType: GSOTCPv4, HdrLen: 54, GSOSize: 1400, CsumStart: 34, CsumOffset: 16}
		var pieces [][]byte
		for rest := p; len(rest) > 0; { // more than one writev takes
			n := min(20, len(rest))
			pieces = append(pieces, rest[:n])
			rest = rest[n:]
		}
		if len(pieces) < maxIOV {
			t.Fatalf("%d pieces", len(pieces))
		}
		b2 := open(t, Config{Name: "c0"})
		ip(t, "link set c0 master br0")
		f := carry(t, a.Queues()[0], b2.Queues()[0], Frame{Hdr: h, Bufs: pieces}, string(payload))
		if f.Hdr.GSOType != GSOTCPv4 || f.Hdr.GSOSize != 1400 || f.Hdr.Flags&HdrNeedsCsum == 0 || !bytes.Equal(f.Bufs[0], p) {
			t.Errorf("%+v, %d octets of %d", f.Hdr, f.N, len(p))
		}
	})
}

// What was made before is as it was afterwards, and cannot be had twice.
func TestNetnsAttach(t *testing.T) {
	inNetns(t, func(t *testing.T) {
		for _, made := range []string{"tuntap add x0 mode tap user 1234 group 99", "tuntap add x0 mode tap user 1234 multi_queue", "tuntap add x0 mode tap vnet_hdr"} {
			ip(t, made)
			ip(t, "link set x0 mtu 4000 address 02:11:22:33:44:55 up")
			ip(t, "addr add 10.3.2.1/24 dev x0")
			state := func() string {
				flags := ip(t, "-o link show x0")
				flags = strings.Join(strings.Fields(flags)[3:], " ")
				for _, carrier := range []string{"NO-CARRIER,", ",LOWER_UP", "state UP", "state DOWN", "state UNKNOWN"} {
					flags = strings.ReplaceAll(flags, carrier, "")
				}
				owner := strings.ReplaceAll(ip(t, "tuntap show"), " vnet_hdr", "") // a flag of who is attached
				return flags + owner + ip(t, "-o -4 addr show x0")
			}
			before := state()
			d, err := Open(Config{Name: "x0"})
			if err != nil {
				t.Fatalf("%s: %v", made, err)
			}
			if d.MTU() != 4000 || d.Offloads() == 0 || d.Name() != "x0" {
				t.Errorf("%s: MTU %d, offloads %v", made, d.MTU(), d.Offloads())
			}
			for queues := range 3 {
				if _, err := Open(Config{Name: "x0", Queues: queues}); !errors.Is(err, ErrBusy) {
					t.Errorf("%s: opened twice, with %d queues: %v", made, queues, err)
				}
			}
			if err := Delete("x0"); !errors.Is(err, ErrBusy) {
				t.Errorf("%s: deleted while open: %v", made, err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			if after := state(); after != before {
				t.Errorf("%s: before\n%s\nafter\n%s", made, before, after)
			}
			if d, err := Open(Config{Name: "x0", Queues: 2}); strings.Contains(made, "multi") && err == nil {
				d.Close()
			} else if strings.Contains(made, "multi") || !errors.Is(err, ErrQueueMode) {
				t.Errorf("%s: two queues: %v", made, err)
			}
			if _, err := Open(Config{Name: "x0", CreateOnly: true}); !errors.Is(err, ErrExists) {
				t.Errorf("CreateOnly: %v", err)
			}
			if _, err := Open(Config{Name: "x0", MTU: 4001}); !errors.Is(err, ErrMTU) {
				t.Errorf("MTU: %v", err)
			}
			if err := Delete("x0"); err != nil {
				t.Errorf("%s: %v", made, err)
			}
		}
	})
}

func TestNetnsCreateListDelete(t *testing.T) {
	inNetns(t, func(t *testing.T) {
		owner, group := 1234, 77
		if err := Create(Config{Name: "keep0", MTU: 9000, Owner: &owner, Group: &group, Queues: 2}); err != nil {
			t.Fatal(err)
		}
		all, err := List()
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		i := all[0]
		if i.Name != "keep0" || i.MTU != 9000 || !i.Up || i.Owner != owner || i.Group != group || !i.MultiQueue || !i.Persistent || !i.Known {
			t.Errorf("%+v", i)
		}
		if err := Create(Config{Name: "keep0"}); !errors.Is(err, ErrExists) {
			t.Errorf("made twice: %v", err)
		}
		gone := open(t, Config{Name: "gone0"})
		mac := gone.MAC()
		if _, err := Open(Config{Name: "gone0"}); !errors.Is(err, ErrBusy) {
			t.Errorf("one that was created, opened twice: %v", err)
		}
		defer func() {
			if again := open(t, Config{Name: "gone0"}); again.MAC().String() != mac.String() {
				t.Errorf("MAC %v, before it was %v", again.MAC(), mac)
			}
			if other := open(t, Config{Name: "other0"}); other.MAC().String() == mac.String() {
				t.Errorf("two TAPs have MAC %v", mac)
			}
		}()
		if _, err := net.InterfaceByName("gone0"); err == nil {
			t.Log("net.InterfaceByName sees the namespace of this thread")
		}
		if err := gone.Close(); err != nil {
			t.Error(err)
		}
		if _, err := ifIndex("gone0"); !errors.Is(err, unix.ENODEV) {
			t.Errorf("a TAP that is not persistent is still there: %v", err)
		}
		if err := errors.Join(Delete("keep0")); err != nil {
			t.Error(err)
		}
		if err := Delete("keep0"); !errors.Is(err, ErrNotExist) {
			t.Errorf("deleted twice: %v", err)
		}
	})
}

func TestNetnsRefusals(t *testing.T) {
	inNetns(t, func(t *testing.T) {
		ip(t, "link add d0 type bridge")
		for name, c := range map[string]struct {
			cfg Config
			err error
		}{
			"not a TAP":   {Config{Name: "d0"}, ErrNotTAP},
			"not there":   {Config{Name: "n0", AttachOnly: true}, ErrNotExist},
			"not a TAP 2": {Config{Name: "lo"}, ErrNotTAP},
		} {
			_, err := Open(c.cfg)
			var e *Error
			if !errors.Is(err, c.err) || !errors.As(err, &e) || e.Remedy == "" {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := Delete("d0"); !errors.Is(err, ErrNotTAP) {
			t.Errorf("Delete: %v", err)
		}
		// A frame to an interface that is down.
		d := open(t, Config{Name: "down0"})
		ip(t, "link set down0 down")
		if _, err := d.Queues()[0].WriteBatch([]Frame{{Bufs: [][]byte{frameOf("x")}}}); !errors.Is(err, ErrDown) {
			t.Errorf("write while down: %v", err)
		}
	})
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", "sixteen-octets-x", "a/b", "a b", ".", "..", "x%d", "a:b", "tab\t"} {
		if _, err := Open(Config{Name: name}); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, cfg := range map[string]Config{"MTU": {Name: "x", MTU: 67}, "MTU 2": {Name: "x", MTU: 65522}} {
		if _, err := Open(cfg); !errors.Is(err, ErrMTU) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNoTUN(t *testing.T) {
	defer func(p string) { tunPath = p }(tunPath)
	tunPath = filepath.Join(t.TempDir(), "tun")
	_, err := Open(Config{Name: "none0"})
	if !errors.Is(err, ErrNoTUN) || !strings.Contains(err.Error(), "modprobe tun") {
		t.Errorf("%v", err)
	}
}

// A kernel that refuses offloads is said so once, and then done without.
func TestNetnsNoOffloads(t *testing.T) {
	inNetns(t, func(t *testing.T) {
		defer func(n int) { wantedOffloads = n }(wantedOffloads)
		wantedOffloads = 1 << 30
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		a, err := Open(Config{Name: "a0", Queues: 2, Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "level=WARN"); a.Offloads() != 0 || n != 1 {
			t.Errorf("offloads %v, %d warnings: %s", a.Offloads(), n, log.String())
		}
		a.Close()
		ip(t, "tuntap add b0 mode tap multi_queue")
		log.Reset()
		b, err := Open(Config{Name: "b0", Queues: 2, Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "level=WARN"); b.Offloads() != 0 || n != 1 {
			t.Errorf("offloads %v, %d warnings: %s", b.Offloads(), n, log.String())
		}
		if n, err := b.Queues()[1].WriteBatch([]Frame{{Bufs: [][]byte{frameOf("x")}}}); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		b.Close()
	})
}

func TestNetnsQueue(t *testing.T) {
	inNetns(t, func(t *testing.T) {
		d, err := Open(Config{Name: "q0"})
		if err != nil {
			t.Fatal(err)
		}
		ip(t, "link set q0 addrgenmode none")
		q := d.Queues()[0]
		drain(q)
		begin := time.Now()
		if err := q.Wait(20 * time.Millisecond); err != nil {
			t.Errorf("Wait: %v", err)
		} else if took := time.Since(begin); took < 20*time.Millisecond {
			if n, _ := q.ReadBatch([]Frame{{Bufs: [][]byte{make([]byte, MaxFrame)}}}); n == 0 {
				t.Errorf("Wait ended after %v with nothing to read", took)
			}
		}
		q.Wake() // before Wait: not lost
		begin = time.Now()
		if err := q.Wait(5 * time.Second); err != nil || time.Since(begin) > 4*time.Second {
			t.Errorf("Wake before Wait: %v after %v", err, time.Since(begin))
		}
		for range 200 { // during Wait, at any moment
			go q.Wake()
			if err := q.Wait(5 * time.Second); err != nil {
				t.Fatal(err)
			}
		}
		if time.Since(begin) > 4*time.Second {
			t.Errorf("wake-ups were lost: %v", time.Since(begin))
		}
		one := []Frame{{Bufs: [][]byte{frameOf("x")}}}
		read := []Frame{{Bufs: [][]byte{make([]byte, MaxFrame)}}}
		if n := testing.AllocsPerRun(100, func() {
			if _, err := q.WriteBatch(one); err != nil {
				t.Fatal(err)
			}
			if _, err := q.ReadBatch(read); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%v allocations per frame written and one read", n)
		}
		// No child inherits the descriptor.
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, e := range fds {
			if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); to != tunPath {
				continue
			}
			found++
			var fd int
			fmt.Sscan(e.Name(), &fd)
			if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || fl&unix.FD_CLOEXEC == 0 {
				t.Errorf("descriptor %d is not close-on-exec: %v", fd, err)
			}
		}
		if found != 1 {
			t.Errorf("%d descriptors of %s, want 1", found, tunPath)
		}
		// Close ends a Wait.
		drain(q)
		done := make(chan error)
		go func() { done <- q.Wait(-1) }()
		time.Sleep(10 * time.Millisecond)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil && !errors.Is(err, os.ErrClosed) {
			t.Errorf("Wait: %v", err)
		}
		if err := q.Wait(-1); !errors.Is(err, ErrClosed) {
			t.Errorf("Wait: %v", err)
		}
		if _, err := q.ReadBatch(read); !errors.Is(err, ErrClosed) {
			t.Errorf("ReadBatch: %v", err)
		}
		if _, err := q.WriteBatch(one); !errors.Is(err, ErrClosed) {
			t.Errorf("WriteBatch: %v", err)
		}
		if err := d.Close(); !errors.Is(err, ErrClosed) {
			t.Errorf("second Close: %v", err)
		}
	})
}

func drain(q Queue) {
	f := []Frame{{Bufs: [][]byte{make([]byte, MaxFrame)}}}
	for {
		if n, err := q.ReadBatch(f); n == 0 || err != nil {
			return
		}
	}
}

func TestNetnsDescriptor(t *testing.T) {
	inNetns(t, func(t *testing.T) {
		ip(t, "link add br0 type bridge mcast_snooping 0")
		ip(t, "link set br0 up")
		other := open(t, Config{Name: "o0"})
		ip(t, "tuntap add fd0 mode tap")
		ip(t, "link set fd0 up master br0")
		ip(t, "link set o0 master br0")
		fd, err := openTUN("open", "fd0")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Config{UseFD: true, FD: fd}); !errors.Is(err, ErrNotTAP) {
			t.Errorf("not attached yet: %v", err)
		}
		if err := setIFF(fd, "fd0", 0); err != nil {
			t.Fatal(err)
		}
		d := open(t, Config{UseFD: true, FD: fd})
		if d.Name() != "fd0" || d.MTU() != 1500 || d.Offloads() == 0 {
			t.Errorf("%q %d %v", d.Name(), d.MTU(), d.Offloads())
		}
		carry(t, d.Queues()[0], other.Queues()[0], Frame{Bufs: [][]byte{frameOf("through a descriptor")}}, "through a descriptor")
		d.Close()

		// Without a virtio-net header there are no offloads, but frames.
		fd, err = openTUN("open", "fd0")
		if err != nil {
			t.Fatal(err)
		}
		ifr, _ := unix.NewIfreq("fd0")
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
			t.Fatal(err)
		}
		d = open(t, Config{UseFD: true, FD: fd})
		if d.Offloads() != 0 {
			t.Errorf("offloads %v", d.Offloads())
		}
		carry(t, d.Queues()[0], other.Queues()[0], Frame{Bufs: [][]byte{frameOf("without a header")}}, "without a header")
		carry(t, other.Queues()[0], d.Queues()[0], Frame{Bufs: [][]byte{frameOf("and back")}}, "and back")
	})
}

// A macvtap is a physical NIC without a bridge; here the NIC is one end of a veth
// pair, and the other end has a TAP behind a bridge.
func TestNetnsMacvtap(t *testing.T) {
	inNetns(t, func(t *testing.T) {
		ip(t, "link add nic0 type veth peer name nic1")
		ip(t, "link set nic0 up")
		ip(t, "link set nic1 up")
		ip(t, "link add link nic0 name mvt0 type macvtap mode bridge")
		index, err := ifIndex("mvt0")
		if err != nil {
			t.Fatal(err)
		}
		node := fmt.Sprintf("/dev/tap%d", index)
		if _, err := os.Stat(node); err != nil {
			// No udev here: the error says what to do, and the test does it.
			_, err := Open(Config{Name: "mvt0"})
			if !errors.Is(err, ErrNotExist) || !strings.Contains(err.Error(), "mknod "+node+" c ") {
				t.Fatalf("without its device: %v", err)
			}
			f := strings.Fields(err.Error()[strings.Index(err.Error(), "mknod "):])
			if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v: %s", f, err, out)
			}
			defer os.Remove(node)
		}
		ip(t, "link add br0 type bridge mcast_snooping 0")
		ip(t, "link set br0 up")
		ip(t, "link set nic1 master br0")
		other := open(t, Config{Name: "o0"})
		ip(t, "link set o0 master br0")
		d := open(t, Config{Name: "mvt0"})
		if !strings.Contains(ip(t, "link show mvt0"), d.MAC().String()) || d.Offloads() == 0 {
			t.Errorf("MAC %v, offloads %v", d.MAC(), d.Offloads())
		}
		f := frameOf("from a macvtap")
		copy(f[6:], d.MAC())
		carry(t, d.Queues()[0], other.Queues()[0], Frame{Bufs: [][]byte{f}}, "from a macvtap")
		f = frameOf("to a macvtap")
		copy(f, d.MAC())
		carry(t, other.Queues()[0], d.Queues()[0], Frame{Bufs: [][]byte{f}}, "to a macvtap")
	})
}

// What a process may do without being root.
func TestNetnsPrivileges(t *testing.T) {
	inNetns(t, func(t *testing.T) {
		const nobody = 65534
		// A TUN device with the usual mode, wherever this machine's has another.
		dir, err := os.MkdirTemp("", "tun")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if err := errors.Join(os.Chmod(dir, 0o755), unix.Mount("tun", dir, "tmpfs", 0, "mode=0755")); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
		tun := filepath.Join(dir, "tun")
		if err := errors.Join(unix.Mknod(tun, unix.S_IFCHR, int(unix.Mkdev(10, 200))), os.Chmod(tun, 0o666)); err != nil {
			t.Fatal(err)
		}
		// water opens no other than this one; the mount is this namespace's alone.
		if err := unix.Mount(tun, tunPath, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		self := filepath.Join(dir, "self") // where nobody may read it
		b, err := os.ReadFile("/proc/self/exe")
		if err == nil {
			err = os.WriteFile(self, b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		run := func(name, tun string, attr *syscall.SysProcAttr) (string, error) {
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), childEnv+"="+name, tunEnv+"="+tun)
			cmd.SysProcAttr = attr
			cmd.Dir = "/"
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		user := func(caps ...uintptr) *syscall.SysProcAttr {
			return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, AmbientCaps: caps}
		}
		if out, err := run("new0", tunPath, user()); err == nil || !strings.Contains(out, "not permitted") || !strings.Contains(out, "ip tuntap add new0") {
			t.Errorf("an unprivileged user: %v: %s", err, out)
		}
		shut := filepath.Join(dir, "shut")
		if err := errors.Join(unix.Mknod(shut, unix.S_IFCHR, int(unix.Mkdev(10, 200))), os.Chmod(shut, 0o600)); err != nil {
			t.Fatal(err)
		}
		if out, err := run("new0", shut, user()); err == nil || !strings.Contains(out, "chmod 0666") {
			t.Errorf("a TUN device of mode 0600: %v: %s", err, out)
		}
		if out, err := run("new0", tunPath, user(unix.CAP_NET_ADMIN)); err != nil {
			t.Errorf("CAP_NET_ADMIN only: %v: %s", err, out)
		}
		ip(t, fmt.Sprintf("tuntap add own0 mode tap user %d", nobody))
		ip(t, "link set own0 up")
		if out, err := run("own0", tunPath, user()); err != nil {
			t.Errorf("the owner: %v: %s", err, out)
		}
		ip(t, "link set own0 down")
		if out, err := run("own0", tunPath, user()); err == nil || !strings.Contains(out, "is down") || !strings.Contains(out, "ip link set own0 up") {
			t.Errorf("the owner of one that is down: %v: %s", err, out)
		}
		rootless := &syscall.SysProcAttr{Credential: &syscall.Credential{NoSetGroups: true}, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}}}
		if out, err := run("new0", tunPath, rootless); err != nil {
			t.Errorf("rootless, in a namespace of its own: %v: %s", err, out)
		}
	})
}
