package taptest

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tap"
	"golang.org/x/sys/unix"
)

// Two kernels' TCP, each behind a real TAP, with the relay and its faults as the
// wire between them.
func TestNetnsRelayWithFaults(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root, for network namespaces")
		}
		t.Skip("needs root, for network namespaces")
	}
	type end struct {
		dev tap.Device
		do  chan func()
	}
	var ends [2]end
	for i := range ends {
		e := &ends[i]
		e.do = make(chan func())
		ready := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with its namespace
			err := unix.Unshare(unix.CLONE_NEWNET)
			if err == nil {
				e.dev, err = tap.Open(tap.Config{Name: "w0"})
			}
			if err == nil {
				var out []byte
				if out, err = exec.Command("ip", "addr", "add", []string{"10.9.0.1/24", "10.9.0.2/24"}[i], "dev", "w0").CombinedOutput(); err != nil {
					t.Logf("%s", out)
				}
			}
			ready <- err
			for f := range e.do {
				f()
			}
		}()
		t.Cleanup(func() { close(e.do) })
		if err := <-ready; err != nil {
			t.Fatal(err)
		}
	}
	in := func(i int, f func()) {
		done := make(chan struct{})
		ends[i].do <- func() { f(); close(done) }
		<-done
	}
	// Kernels send super-packets; the faults cut them.
	a := Faults{Seed: 5, Drop: 0.01, Duplicate: 0.01, Reorder: 0.01, Flip: 0.01}.Wrap(ends[0].dev)
	b := Faults{Seed: 6, Drop: 0.01, Flip: 0.01}.Wrap(ends[1].dev)
	ctx, cancel := context.WithCancel(context.Background())
	relayed := make(chan error)
	go func() { relayed <- Relay(ctx, a, b) }()
	defer func() {
		cancel()
		if err := <-relayed; err != nil {
			t.Error(err)
		}
		a.Close()
		b.Close()
	}()

	payload := []byte(strings.Repeat("through a wire with faults. ", 40_000))
	var l net.Listener
	var c net.Conn
	var err error
	in(1, func() { l, err = net.Listen("tcp4", "10.9.0.2:0") })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan []byte)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- nil
			return
		}
		defer c.Close()
		b, _ := io.ReadAll(c)
		got <- b
	}()
	in(0, func() { c, err = net.DialTimeout("tcp4", l.Addr().String(), 20*time.Second) })
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := c.Write(payload); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if b := <-got; !bytes.Equal(b, payload) {
		t.Errorf("%d octets came of %d, or others", len(b), len(payload))
	}
	n := b.Counts()
	if n.Frames < 500 || n.Dropped == 0 || n.Flipped == 0 {
		t.Errorf("%+v: the faults did not hit", n)
	}
}
