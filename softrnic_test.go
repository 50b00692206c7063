package softrnic_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic"
	"github.com/softrnic/softrnic/netstack"
	"github.com/softrnic/softrnic/tap"
	"github.com/softrnic/softrnic/tap/taptest"
	"github.com/softrnic/softrnic/verbs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two RNICs on a wire in memory. With TAP in place of Device the wire is a real one.
func ExampleOpen() {
	wireA, wireB := taptest.Pipe(taptest.Options{})
	a, err := softrnic.Open(context.Background(), softrnic.Config{Device: wireA, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}})
	if err != nil {
		log.Fatal(err)
	}
	defer a.Close()
	b, err := softrnic.Open(context.Background(), softrnic.Config{Device: wireB, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	l, err := b.Listen(netip.MustParseAddrPort("10.0.0.2:7174"), verbs.ListenConfig{})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if r, err := l.Accept(context.Background()); err == nil {
			_ = r.Reject([]byte("come back later"))
		}
	}()
	qp := newQP(a.Device)
	_, err = qp.Connect(context.Background(), l.Addr(), verbs.ConnParams{PrivateData: []byte("hello")})
	var rejected *verbs.RejectedError
	if errors.As(err, &rejected) {
		fmt.Printf("%s\n", rejected.Peer.PrivateData)
	}
	// Output: come back later
}

func newQP(d *verbs.Device) *verbs.QP {
	pd, err := d.AllocPD()
	if err != nil {
		panic(err)
	}
	cq, err := d.CreateCQ(64)
	if err != nil {
		panic(err)
	}
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, SignalAll: true, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16}})
	if err != nil {
		panic(err)
	}
	return qp
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// A Write and a Read from the device down to the wire and back, in both families,
// with a capture.
func TestOpen(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	wireA, wireB := taptest.Pipe(taptest.Options{MTU: 9000})
	var pcap buffer
	open := func(dev tap.Device, host string, w *buffer) *softrnic.RNIC {
		cfg := softrnic.Config{Device: dev, Addrs: []netip.Prefix{netip.MustParsePrefix("10.9.0." + host + "/24"), netip.MustParsePrefix("fd09::" + host + "/64")}}
		if w != nil {
			cfg.PCAP = w
		}
		r, err := softrnic.Open(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a, b := open(wireA, "1", &pcap), open(wireB, "2", nil)
	for _, addr := range []string{"10.9.0.2:4791", "[fd09::2]:4791"} {
		qa, qb := newQP(a.Device), newQP(b.Device)
		l, err := b.Listen(netip.MustParseAddrPort(addr), verbs.ListenConfig{})
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan error, 1)
		go func() {
			r, err := l.Accept(ctx)
			if err == nil {
				_, err = r.Accept(qb, verbs.ConnParams{})
			}
			accepted <- err
		}()
		info, err := qa.Connect(ctx, l.Addr(), verbs.ConnParams{})
		if err = errors.Join(err, <-accepted, l.Close()); err != nil {
			t.Fatal(err)
		}
		if !info.CRC || info.EMSS < 8900 || info.Remote != l.Addr() {
			t.Errorf("%+v", info)
		}
		src, err := qa.PD().RegMR(bytes.Repeat([]byte("0123456789"), 50000), verbs.LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		dst, err := qb.PD().RegMR(make([]byte, 1<<20), verbs.RemoteRead|verbs.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := qa.PostSend(
			verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{src.SGE(0, src.Len())}, RemoteSTag: dst.STag(), RemoteTO: 3},
			verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{src.SGE(5, 10)}, RemoteSTag: dst.STag(), RemoteTO: 3, Flags: verbs.Fence}); err != nil {
			t.Fatal(err)
		}
		if err := qa.Disconnect(ctx); err != nil {
			t.Fatal(err)
		}
		if got := string(src.Bytes()[5:15]); got != "0123456789" || !bytes.Equal(dst.Bytes()[3 : 3+src.Len()][100:], src.Bytes()[100:]) {
			t.Errorf("%s: other octets: %q", addr, got)
		}
	}
	if a.Stack().MTU() != 9000 || a.TAP().Name() == "" {
		t.Errorf("MTU %d, device %q", a.Stack().MTU(), a.TAP().Name())
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	b0 := pcap.b.Bytes()
	if len(b0) < 1e6 || binary.LittleEndian.Uint32(b0) != 0xa1b2c3d4 || !bytes.Contains(b0, []byte("MPA ID Req Frame")) {
		t.Errorf("the capture has %d octets", len(b0))
	}
	if _, err := a.AllocPD(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// closeCounter sees that a device is closed, once.
type closeCounter struct {
	tap.Device
	closes int
}

func (c *closeCounter) Close() error {
	c.closes++
	return c.Device.Close()
}

// What is wrong is refused with the value and what to do; nothing is left, and what
// Open was to take over has been closed.
func TestOpenErrors(t *testing.T) {
	ok := []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}
	p := netip.MustParsePrefix
	for name, c := range map[string]struct {
		cfg  softrnic.Config
		text []string
	}{
		"no address":        {softrnic.Config{}, []string{"no address", "10.0.0.1/24"}},
		"network address":   {softrnic.Config{Addrs: []netip.Prefix{p("10.0.0.0/24")}}, []string{"10.0.0.0/24", "give a host's"}},
		"invalid address":   {softrnic.Config{Addrs: []netip.Prefix{{}}}, []string{"invalid Prefix", "such as"}},
		"multicast":         {softrnic.Config{Addrs: []netip.Prefix{p("224.0.0.1/24")}}, []string{"224.0.0.1/24"}},
		"twice":             {softrnic.Config{Addrs: []netip.Prefix{ok[0], ok[0]}}, []string{"10.0.0.1", "twice"}},
		"MTU":               {softrnic.Config{Addrs: ok, MTU: 500}, []string{"MTU 500", "576 to 65521"}},
		"MTU of the device": {softrnic.Config{Addrs: ok, MTU: 9000}, []string{"MTU 9000", "mem0", "1500"}},
		"MAC":               {softrnic.Config{Addrs: ok, MAC: net.HardwareAddr{1, 2, 3, 4, 5, 6}}, []string{"01:02:03:04:05:06"}},
		"VLAN":              {softrnic.Config{Addrs: ok, VLAN: 4095}, []string{"VLAN 4095", "1 to 4094"}},
		"gateway":           {softrnic.Config{Addrs: ok, Gateways: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}, []string{"gateway 10.1.0.1", "10.0.0.1/24"}},
		"route":             {softrnic.Config{Addrs: ok, Routes: []netstack.Route{{Dst: p("10.1.1.0/16")}}}, []string{"10.1.1.0/16", "10.1.0.0/16"}},
		"two devices":       {softrnic.Config{Addrs: ok, TAP: "x"}, []string{"2 Ethernet devices", "give one"}},
		"buffer":            {softrnic.Config{Addrs: ok, TCP: netstack.Config{SendBuffer: 1}}, []string{"send buffer of 1 octets"}},
	} {
		a, other := taptest.Pipe(taptest.Options{})
		dev := &closeCounter{Device: a}
		c.cfg.Device = dev
		r, err := softrnic.Open(t.Context(), c.cfg)
		if err == nil {
			r.Close()
			t.Errorf("%s: no error", name)
			continue
		}
		for _, s := range c.text {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %q lacks %q", name, err, s)
			}
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: more than a line: %q", name, err)
		}
		if dev.closes != 1 {
			t.Errorf("%s: the device was closed %d times", name, dev.closes)
		}
		other.Close()
	}
	if _, err := softrnic.Open(t.Context(), softrnic.Config{Addrs: ok}); err == nil || !strings.Contains(err.Error(), "0 Ethernet devices") {
		t.Errorf("no device: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	a, other := taptest.Pipe(taptest.Options{})
	defer other.Close()
	dev := &closeCounter{Device: a}
	if _, err := softrnic.Open(ended, softrnic.Config{Addrs: ok, Device: dev}); !errors.Is(err, context.Canceled) || dev.closes != 1 {
		t.Errorf("cancelled: %v, closed %d times", err, dev.closes)
	}
}
