package netstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/iwarp/llp"
	"github.com/softrnic/softrnic/tap"
)

func TestListenWildcard(t *testing.T) {
	a, b := stacks(t, 1500, allOffloads, Config{})
	for _, tc := range []struct {
		wild   string
		v4, v6 bool
	}{
		{"0.0.0.0", true, false},
		{"::", true, true},
	} {
		l, err := b.Listen(netip.AddrPortFrom(netip.MustParseAddr(tc.wild), 5001), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, v6 := range []bool{false, true} {
			want := tc.v4 && !v6 || tc.v6 && v6
			c, err := a.Dial(bg(t), netip.AddrPort{}, netip.AddrPortFrom(addr(prefixesB, v6), 5001))
			if (err == nil) != want || !want && !errors.Is(err, llp.ErrRefused) {
				t.Errorf("listen on %s, dial v6=%v: %v", tc.wild, v6, err)
			}
			if err != nil {
				continue
			}
			d, err := l.Accept(bg(t))
			if err != nil {
				t.Fatal(err)
			}
			if got := d.LocalAddr(); got != netip.AddrPortFrom(addr(prefixesB, v6), 5001) {
				t.Errorf("accepted at %v", got)
			}
			exchange(t, newTester(c), newTester(d), 100_000)
			c.Abort()
			d.Abort()
		}
		if tc.v6 {
			// The address that an interface makes itself from its MAC.
			c, err := a.Dial(bg(t), netip.AddrPort{}, netip.MustParseAddrPort("[fe80::ff:fe00:2%a]:5001"))
			if err != nil {
				t.Error("link-local: ", err)
			} else {
				c.Abort()
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestListenErrors(t *testing.T) {
	_, b := stacks(t, 1500, allOffloads, Config{})
	ap := netip.MustParseAddrPort
	l, err := b.Listen(ap("10.9.0.2:5001"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l.Addr() != ap("10.9.0.2:5001") {
		t.Errorf("Addr is %v", l.Addr())
	}
	if _, err := b.Listen(ap("10.9.0.2:5001"), 0); !errors.Is(err, llp.ErrInUse) {
		t.Errorf("a taken port: %v", err)
	}
	for _, s := range []string{"10.9.0.1:5001", "[fd00:9::1]:5001"} {
		if _, err := b.Listen(ap(s), 0); !errors.Is(err, errNotLocal) {
			t.Errorf("another's address: %v", err)
		}
	}
	if _, err := b.Listen(netip.AddrPort{}, 0); err == nil {
		t.Error("no address at all")
	}
	if _, err := b.Listen(ap("10.9.0.2:0"), -1); err == nil {
		t.Error("a negative backlog")
	}
	l2, err := b.Listen(ap("10.9.0.2:0"), 1)
	if err != nil || l2.Addr().Port() == 0 {
		t.Errorf("any port: %v, %v", l2.Addr(), err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := l2.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled Accept: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { l2.Close() })
	if _, err := l2.Accept(bg(t)); !errors.Is(err, llp.ErrClosed) {
		t.Errorf("Accept while Close: %v", err)
	}
	if _, err := l2.Accept(bg(t)); !errors.Is(err, llp.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	if err := l2.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
}

func TestDialErrors(t *testing.T) {
	a, _ := stacks(t, 1500, allOffloads, Config{})
	ap := netip.MustParseAddrPort
	var wg sync.WaitGroup
	for _, tc := range []struct {
		local, remote string
		want          error
	}{
		{"", "10.9.0.2:1", llp.ErrRefused},
		{"", "[fd00:9::2]:1", llp.ErrRefused},
		{"", "10.9.0.99:1", llp.ErrUnreachable},    // nobody answers ARP
		{"", "[fd00:9::99]:1", llp.ErrUnreachable}, // nor NDP
		{"", "10.77.0.1:1", llp.ErrUnreachable},    // no route
		{"10.9.0.2:0", "10.9.0.2:1", errNotLocal},  // not ours
		{"10.9.0.1:0", "[fd00:9::2]:1", nil},       // two families
		{"", "10.9.0.2:0", nil}, {"", "0.0.0.0:1", nil}, {"", "224.0.0.1:1", nil},
	} {
		wg.Go(func() { // some wait for 3 s
			local := netip.AddrPort{}
			if tc.local != "" {
				local = ap(tc.local)
			}
			start := time.Now()
			c, err := a.Dial(bg(t), local, ap(tc.remote))
			if err == nil {
				c.Abort()
			}
			if err == nil || tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("Dial from %v to %s gives %v, want %v", tc.local, tc.remote, err, tc.want)
			}
			t.Logf("%v: %v", time.Since(start).Round(time.Millisecond), err)
		})
	}
	wg.Wait()
	if n := len(a.ns.RegisteredEndpoints()); n != 0 {
		t.Errorf("%d endpoints are left", n)
	}
}

// TestDialCancel ends a Dial at any moment.
func TestDialCancel(t *testing.T) {
	a, b := stacks(t, 1500, allOffloads, Config{})
	l, err := b.Listen(netip.MustParseAddrPort("10.9.0.2:5001"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	ok := 0
	for i := range 200 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i*3)*time.Microsecond)
		c, err := a.Dial(ctx, netip.AddrPort{}, l.Addr())
		cancel()
		switch {
		case err == nil:
			ok++
			c.Abort()
		case !errors.Is(err, context.DeadlineExceeded):
			t.Errorf("after %d us: %v", i*3, err)
		}
	}
	t.Logf("%d of 200 were faster than their deadline", ok)
	for i := 0; len(a.ns.RegisteredEndpoints()) > 0; i++ {
		if i == 100 {
			t.Fatalf("%d endpoints are left", len(a.ns.RegisteredEndpoints()))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestDialFrom: the local address and port are those asked for, and free again for
// another connection soon.
func TestDialFrom(t *testing.T) {
	a, b := stacks(t, 1500, allOffloads, Config{TimeWait: 50 * time.Millisecond})
	l, err := b.Listen(netip.MustParseAddrPort("[::]:5001"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, s := range []string{"10.9.0.1:4000", "[fd00:9::1]:4000", "0.0.0.0:4001"} {
		local := netip.MustParseAddrPort(s)
		remote := netip.AddrPortFrom(addr(prefixesB, local.Addr().Is6()), 5001)
		for round := range 3 {
			c, err := a.Dial(bg(t), local, remote)
			for errors.Is(err, llp.ErrInUse) && round > 0 {
				time.Sleep(10 * time.Millisecond) // TIME_WAIT
				c, err = a.Dial(bg(t), local, remote)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := c.LocalAddr(); got.Port() != local.Port() || !local.Addr().IsUnspecified() && got != local {
				t.Errorf("dialled from %v, want %v", got, local)
			}
			d, err := l.Accept(bg(t))
			if err != nil {
				t.Fatal(err)
			}
			x, y := newTester(c), newTester(d)
			x.Close()
			y.wants(t, 1, io.EOF)
			y.Close()
		}
	}
}

// TestRestart: a listener's port is free for the next one at once, whatever its
// connections are doing; and so it is for a stack that starts again on the wire.
func TestRestart(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 1500, allOffloads)
	a, b := stacksOn(t, da, db, Config{TimeWait: time.Minute})
	where := netip.MustParseAddrPort("10.9.0.2:5001")
	for round := range 6 {
		l, err := b.Listen(where, 0)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		c, err := a.Dial(bg(t), netip.AddrPort{}, where)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		d, err := l.Accept(bg(t))
		if err != nil {
			t.Fatal(err)
		}
		x, y := newTester(c), newTester(d)
		switch round {
		case 0: // established
		case 1: // we are in TIME_WAIT
			y.Close()
			x.wants(t, 1, io.EOF)
			x.Close()
		case 2: // they are
			x.Close()
			y.wants(t, 1, io.EOF)
			y.Close()
		case 3:
			y.Close() // FIN_WAIT
		case 4: // the process dies: a stack starts anew, with the peer still connected
			db.out.mu.Lock()
			db.out.see = func(tap.VNetHdr, []byte) bool { return false }
			db.out.mu.Unlock()
			b.Close()
			db.out.mu.Lock()
			db.out.see = nil
			db.out.mu.Unlock()
			b = newStack(t, db, Config{Addrs: prefixesB})
			continue
		}
		l.Close()
	}
}

// TestCloseResetsUnaccepted: who waits in the backlog of a listener that closes is
// told so.
func TestCloseResetsUnaccepted(t *testing.T) {
	a, b := stacks(t, 1500, allOffloads, Config{})
	l, err := b.Listen(netip.MustParseAddrPort("10.9.0.2:5001"), 0)
	if err != nil {
		t.Fatal(err)
	}
	var xs []*tester
	for range 5 {
		c, err := a.Dial(bg(t), netip.AddrPort{}, l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		xs = append(xs, newTester(c))
	}
	// Dial returns at the SYN-ACK; b has them when its handshakes are done too.
	for deadline := time.Now().Add(10 * time.Second); b.ns.Stats().TCP.PassiveConnectionOpenings.Value() < 5 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	l.Close()
	for _, x := range xs {
		x.wants(t, 1, llp.ErrReset)
		x.Close()
	}
}

// TestBacklog: a flood of SYNs neither takes memory without bound nor keeps others
// out, as SYN cookies answer beyond the backlog.
func TestBacklog(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 1500, allOffloads)
	a, b := stacksOn(t, da, db, Config{})
	l, err := b.Listen(netip.MustParseAddrPort("10.9.0.2:5001"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := a.Dial(bg(t), netip.AddrPort{}, l.Addr()) // neighbours know each other now
	if err != nil {
		t.Fatal(err)
	}
	defer c.Abort()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const n = 20_000
	for i := range n {
		da.out.put(tap.VNetHdr{}, rawTCP(t, uint16(1024+i%60000), 5001, uint32(i), 0, 0x02, []byte{2, 4, 1460 >> 8, 1460 & 0xff}, nil))
		if i%1000 == 999 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if d := int64(after.HeapAlloc) - int64(before.HeapAlloc); d > 24<<20 {
		t.Errorf("%d SYNs took %d octets", n, d)
	}
	st := b.Stats()
	if st.TCPSYNCookies == 0 {
		t.Error("no SYN cookie was sent")
	}
	t.Logf("%d SYN cookies, %d overflows, heap %d -> %d", st.TCPSYNCookies, st.TCPListenOverflows, before.HeapAlloc, after.HeapAlloc)
	// While the backlog is full of the flood's half-open connections:
	x, err := a.Dial(bg(t), netip.AddrPort{}, l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	var y llp.Conn
	for y == nil || y.RemoteAddr() != x.LocalAddr() {
		if y != nil {
			y.Abort()
		}
		if y, err = l.Accept(bg(t)); err != nil {
			t.Fatal(err)
		}
	}
	exchange(t, newTester(x), newTester(y), 1<<20)
	x.Abort()
	y.Abort()
}

// TestAcceptMany: many Accepts at once, and connections that come together.
func TestAcceptMany(t *testing.T) {
	a, b := stacks(t, 1500, allOffloads, Config{})
	l, err := b.Listen(netip.MustParseAddrPort("10.9.0.2:5001"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var wg, all sync.WaitGroup
	all.Add(100)
	hold := func(c llp.Conn, err error) {
		all.Done()
		if err != nil {
			t.Error(err)
			return
		}
		all.Wait() // for a reset could overtake the other end's call
		c.Abort()
	}
	for range 50 {
		wg.Go(func() { hold(l.Accept(bg(t))) })
		wg.Go(func() { hold(a.Dial(bg(t), netip.AddrPort{}, l.Addr())) })
	}
	wg.Wait()
}

func TestConfig(t *testing.T) {
	dev, _ := testPair(t, 1500, allOffloads)
	p, a := netip.MustParsePrefix, netip.MustParseAddr
	one := []netip.Prefix{p("10.0.0.1/24")}
	for i, tc := range []struct {
		cfg  Config
		want string // part of the error; empty for none
	}{
		{Config{Addrs: one}, ""},
		{Config{Addrs: []netip.Prefix{p("10.0.0.1/32"), p("10.0.1.0/31"), p("fd00::1/128")}}, ""},
		{Config{}, "no address"},
		{Config{Addrs: []netip.Prefix{p("10.0.0.0/24")}}, "10.0.0.0/24"},
		{Config{Addrs: []netip.Prefix{p("10.0.0.255/24")}}, "broadcast"},
		{Config{Addrs: []netip.Prefix{p("224.0.0.1/24")}}, "unicast"},
		{Config{Addrs: []netip.Prefix{p("127.0.0.1/8")}}, "unicast"},
		{Config{Addrs: []netip.Prefix{one[0], p("10.0.0.1/16")}}, "twice"},
		{Config{Addrs: one, Gateways: []netip.Addr{a("10.0.0.254")}}, ""},
		{Config{Addrs: one, Gateways: []netip.Addr{a("10.0.1.254")}}, "10.0.1.254"},
		{Config{Addrs: one, Gateways: []netip.Addr{a("10.0.0.1")}}, "address of this stack"},
		{Config{Addrs: one, Gateways: []netip.Addr{a("fd00::1")}}, "fd00::1"},
		{Config{Addrs: one, Gateways: []netip.Addr{a("10.0.0.254"), a("10.0.0.253")}}, "second default"},
		{Config{Addrs: one, Routes: []Route{{p("10.1.0.0/16"), a("10.0.0.254")}}}, ""},
		{Config{Addrs: one, Routes: []Route{{p("10.1.0.1/16"), a("10.0.0.254")}}}, "10.1.0.0/16"},
		{Config{Addrs: one, Routes: []Route{{p("10.1.0.0/16"), a("10.1.0.254")}}}, "10.1.0.254"},
		{Config{Addrs: one, Routes: []Route{{p("fd00::/16"), a("10.0.0.254")}}}, "famil"},
		{Config{Addrs: one, Routes: []Route{{p("fd00::/16"), netip.Addr{}}}}, "famil"},
		{Config{Addrs: one, Routes: []Route{{p("10.1.0.0/16"), netip.Addr{}}, {p("10.1.0.0/16"), a("10.0.0.254")}}}, "twice"},
		{Config{Addrs: one, MTU: 575}, "575"},
		{Config{Addrs: one, MTU: 1501}, "1501"},
		{Config{Addrs: one, MTU: 576}, ""},
		{Config{Addrs: []netip.Prefix{p("fd00::1/64")}, MTU: 1279}, "1280"},
		{Config{Addrs: one, VLAN: 4095}, "4095"},
		{Config{Addrs: one, MAC: []byte{1, 2, 3, 4, 5, 6}}, "unicast"},
		{Config{Addrs: one, MAC: []byte{2, 3, 4, 5, 6}}, "02:03:04:05:06"},
		{Config{Addrs: one, SendBuffer: 1000}, "send buffer of 1000"},
		{Config{Addrs: one, ReceiveBuffer: 1 << 30}, "receive buffer"},
		{Config{Addrs: one, UserTimeout: -1}, "less than nothing"},
	} {
		s, err := New(dev, tc.cfg)
		if s != nil {
			s.Close()
		}
		if (err == nil) != (tc.want == "") || err != nil && !contains(err.Error(), tc.want) {
			t.Errorf("case %d, %+v: error %v, want %q in it", i, tc.cfg, err, tc.want)
		}
	}
}

func contains(s, part string) bool {
	for i := 0; i+len(part) <= len(s); i++ {
		if s[i:i+len(part)] == part {
			return true
		}
	}
	return false
}

// TestRoutes: gateways and static routes lead where they say, and the source is the
// address that the next hop can answer.
func TestRoutes(t *testing.T) {
	checkLeaks(t)
	da, db := testPair(t, 1500, allOffloads)
	p, a := netip.MustParsePrefix, netip.MustParseAddr
	x := newStack(t, da, Config{
		Addrs:    []netip.Prefix{p("10.1.0.1/24"), p("10.2.0.1/24"), p("fd01::1/64")},
		Gateways: []netip.Addr{a("10.2.0.9"), a("fd01::9")},
		Routes:   []Route{{p("172.16.0.0/16"), a("10.1.0.9")}, {p("172.16.5.0/24"), netip.Addr{}}},
	})
	// The other side is the gateways and what lies behind them.
	y := newStack(t, db, Config{
		Addrs: []netip.Prefix{p("10.1.0.9/24"), p("10.2.0.9/24"), p("fd01::9/64"), p("172.16.0.1/32"), p("172.16.5.1/32"), p("192.0.2.1/32"), p("2001:db8::1/128")},
	})
	l, err := y.Listen(netip.MustParseAddrPort("[::]:80"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tc := range []struct{ to, from string }{
		{"10.1.0.9", "10.1.0.1"}, {"10.2.0.9", "10.2.0.1"}, {"fd01::9", "fd01::1"},
		{"192.0.2.1", "10.2.0.1"}, {"2001:db8::1", "fd01::1"}, {"172.16.0.1", "10.1.0.1"},
	} {
		c, err := x.Dial(bg(t), netip.AddrPort{}, netip.AddrPortFrom(a(tc.to), 80))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := c.LocalAddr().Addr(); got != a(tc.from) {
			t.Errorf("to %s from %v, want %s", tc.to, got, tc.from)
		}
		c.Abort()
	}
	if _, err := x.Dial(bg(t), netip.AddrPort{}, netip.AddrPortFrom(a("172.16.5.1"), 80)); err != nil {
		t.Error("a directly reachable subnet: ", err)
	}
	if fmt.Sprint(x.Addrs()) != "[10.1.0.1/24 10.2.0.1/24 fd01::1/64]" {
		t.Errorf("Addrs is %v", x.Addrs())
	}
}
