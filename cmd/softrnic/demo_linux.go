package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/softrnic/softrnic"
	"github.com/softrnic/softrnic/tap"
	"github.com/vishvananda/netlink"
)

// The demo on TAPs is four processes of this program. The first starts the lab in a
// network namespace (and a user namespace, where it is not root); the lab starts
// the two RNICs, each in a namespace of its own, and gives each one end of a veth
// pair. When they end, the kernel removes all that was made, whatever ended them.

const demoRoleEnv = "SOFTRNIC_DEMO_ROLE" // lab, client or server, in the processes that demo starts

// demoSpec is what the processes are told, by the environment.
type demoSpec struct {
	MiB, MTU    int
	NoCRC, JSON bool
	Memory      bool // the Ethernet is a socket, descriptor 3
}

const demoSpecEnv = "SOFTRNIC_DEMO_SPEC"

// init turns a process that the demo started into what it is for, before any flag
// is looked at.
func init() {
	role := os.Getenv(demoRoleEnv)
	if role == "" {
		return
	}
	err := demoRole(role)
	if err != nil && !errors.Is(err, context.Canceled) { // an interrupt is reported once
		fmt.Fprintln(os.Stderr, "softrnic:", oneLine(err))
	}
	switch {
	case err == nil:
		os.Exit(0)
	case errors.Is(err, errNoLab):
		os.Exit(exitNoLab)
	}
	os.Exit(1)
}

const exitNoLab = 77 // of the lab: it could not be made, and nothing was printed

func demoRole(role string) error {
	var s demoSpec
	if err := json.Unmarshal([]byte(os.Getenv(demoSpecEnv)), &s); err != nil {
		return err
	}
	o := demoOptions{mib: s.MiB, mtu: s.MTU, noCRC: s.NoCRC, out: format{s.JSON}, memory: s.Memory}
	ctx, stop := signalContext()
	defer stop()
	if role == "lab" {
		return demoLab(ctx, o)
	}
	// One P for each RNIC is fastest where they share two cores.
	runtime.GOMAXPROCS(1)
	client := role == "client"
	cfg := softrnic.Config{Addrs: demoAddrs[1:], MTU: o.mtu}
	if o.memory {
		dev, err := demoSocket(o.mtu)
		if err != nil {
			return err
		}
		cfg.Device = dev
	} else {
		if err := demoWire(ctx, o.mtu); err != nil {
			return err
		}
		cfg.TAP = "tap0"
	}
	if client {
		cfg.Addrs = demoAddrs[:1]
	}
	return demoPeer(ctx, cfg, client, o, os.Stdin, os.Stdout)
}

func (o *demoOptions) spec() string {
	b, err := json.Marshal(demoSpec{o.mib, o.mtu, o.noCRC, o.out.json, o.memory})
	if err != nil {
		panic(err) // of numbers and flags
	}
	return string(b)
}

// demoTAP runs the lab, in namespaces that this process may make.
func demoTAP(ctx context.Context, o demoOptions, w, errw io.Writer) error {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w: %w: run as root, or make /dev/net/tun accessible", errNoLab, err)
	}
	f.Close()
	cmd, err := demoStart("lab", o)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd.Stdout, cmd.Stderr = w, errw
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: %w", errNoLab, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(os.Interrupt) })
	defer stop()
	err = cmd.Wait()
	var ee *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &ee) && ee.ExitCode() == exitNoLab:
		return errNoLab
	case errors.As(err, &ee):
		return errors.New("the demo failed, see above")
	}
	return err
}

// demoStart prepares a process of this program in a network namespace of its own,
// which dies with us.
func demoStart(role string, o demoOptions) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoLab, err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), demoRoleEnv+"="+role, demoSpecEnv+"="+o.spec())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

// demoLab starts the two RNICs, joins their namespaces, and conducts them.
func demoLab(ctx context.Context, o demoOptions) error {
	runtime.LockOSThread() // Pdeathsig counts threads
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wires := [2]string{"wire-a", "wire-b"}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: wires[0], MTU: o.mtu}, PeerName: wires[1]}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("%w: veth: %w", errNoLab, err)
	}
	peers, reap, err := demoChildren(o, os.Stderr, nil, func(i int, cmd *exec.Cmd) error {
		link, err := netlink.LinkByName(wires[i])
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMTU(link, o.mtu); err != nil {
			return err
		}
		if err := netlink.LinkSetNsPid(link, cmd.Process.Pid); err != nil {
			return fmt.Errorf("%w: veth: %w", errNoLab, err)
		}
		return nil
	})
	defer reap()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { peers[0].close(); peers[1].close() })
	defer stop()
	return demoRun(ctx, peers, "tap", 2, o, os.Stdout, os.Stderr)
}

// demoChildren starts the two RNICs, with what before changes of each command and
// after does to each process; either may be nil. reap ends what was started, also
// where err is not nil.
func demoChildren(o demoOptions, errw io.Writer, before func(i int, cmd *exec.Cmd), after func(i int, cmd *exec.Cmd) error) (peers [2]*remote, reap func(), err error) {
	var running []*exec.Cmd
	var inputs []io.Closer
	reap = func() { demoReap(running, inputs) }
	for i, role := range []string{"client", "server"} {
		cmd, err := demoStart(role, o)
		if err != nil {
			return peers, reap, err
		}
		cmd.Stderr = errw
		if before != nil {
			before(i, cmd)
		}
		in, err := cmd.StdinPipe()
		if err != nil {
			return peers, reap, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return peers, reap, err
		}
		if err := cmd.Start(); err != nil {
			return peers, reap, fmt.Errorf("%w: %w", errNoLab, err)
		}
		running, inputs = append(running, cmd), append(inputs, in)
		if after != nil {
			if err := after(i, cmd); err != nil {
				return peers, reap, err
			}
		}
		peers[i] = newRemote(in, out)
	}
	return peers, reap, nil
}

// demoReap ends the RNICs: without input they close, and end.
func demoReap(running []*exec.Cmd, inputs []io.Closer) {
	for _, in := range inputs {
		in.Close()
	}
	timer := time.AfterFunc(5*time.Second, func() {
		for _, cmd := range running {
			_ = cmd.Process.Kill()
		}
	})
	defer timer.Stop()
	for _, cmd := range running {
		_ = cmd.Wait()
	}
}

// demoWire waits for this namespace's end of the veth pair, and puts it and a new
// TAP on a bridge.
func demoWire(ctx context.Context, mtu int) error {
	wire, err := awaitWire(ctx)
	if err != nil {
		return err
	}
	off := false
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", MTU: mtu}, MulticastSnooping: &off}
	if err := netlink.LinkAdd(br); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	// A packet filter on the bridge costs more than the bridge.
	for _, f := range []string{"iptables", "ip6tables", "arptables"} {
		_ = os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+f, []byte("0"), 0) // absent where there is none
	}
	if err := tap.Create(tap.Config{Name: "tap0", MTU: mtu}); err != nil {
		return err
	}
	port, err := netlink.LinkByName("tap0")
	if err != nil {
		return err
	}
	for _, l := range []netlink.Link{wire, port} {
		if err := netlink.LinkSetMaster(l, br); err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
	}
	for _, l := range []netlink.Link{wire, port, br} {
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("%s: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

func awaitWire(ctx context.Context) (netlink.Link, error) {
	for range 500 {
		for _, name := range []string{"wire-a", "wire-b"} {
			if l, err := netlink.LinkByName(name); err == nil {
				return l, nil
			}
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return nil, errors.New("the veth pair did not come")
}
