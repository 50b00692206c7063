package netns

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestNetnsLab: two hosts reach each other over the bridge, and nobody else sees it.
func TestNetnsLab(t *testing.T) {
	l, err := New()
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("missing:", err)
	}
	defer l.Close()
	if err := l.TAP("tapA", 9000); err != nil {
		t.Fatal(err)
	}
	a, err := l.Host("vA", 1500, netip.MustParsePrefix("10.0.0.1/24"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Host("vB", 1500, netip.MustParsePrefix("10.0.0.2/24"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/sys/class/net/tapA"); err == nil {
		t.Error("the TAP shows outside the namespace")
	}
	if err := l.Do(func() error { _, err := os.Stat("/sys/class/net/tapA"); return err }); err != nil {
		t.Error("the TAP does not show inside:", err)
	}
	var out bytes.Buffer
	cmd := exec.Command("ip", "-o", "link")
	cmd.Stdout = &out
	if err := l.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"br0", "tapA", "vA", "vB"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s among\n%s", want, out.String())
		}
	}
	if !strings.Contains(out.String(), "mtu 9000") {
		t.Errorf("no MTU 9000 among\n%s", out.String())
	}
	var ln net.Listener
	if err := b(func() (err error) { ln, err = net.Listen("tcp", "10.0.0.2:0"); return }); err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	err = a(func() error {
		c, err := net.DialTimeout("tcp", ln.Addr().String(), 5*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
