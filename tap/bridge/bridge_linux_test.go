package bridge

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func inNetns(t *testing.T, f func(ip func(string))) {
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
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		f(func(line string) { t.Helper(); ip(t, line) })
	}()
	<-done
}

func ip(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", line, err, out)
	}
}

func TestNetnsAttachDetach(t *testing.T) {
	inNetns(t, func(ip func(string)) {
		ip("link add nic0 type veth peer name far0")
		want := []string{"ip link add name br0 type bridge", "ip link set dev nic0 master br0", "ip link set dev nic0 up", "ip link set dev br0 up"}
		got, err := Attach("br0", "nic0", Options{DryRun: true, Create: true})
		if err != nil || strings.Join(got, ";") != strings.Join(want, ";") {
			t.Errorf("dry run: %q, %v", got, err)
		}
		if all, err := Show(""); err != nil || len(all) != 0 {
			t.Errorf("a dry run made %+v, %v", all, err)
		}
		if _, err := Attach("br0", "nic0", Options{}); !errors.Is(err, ErrNotExist) {
			t.Errorf("no bridge: %v", err)
		}
		if _, err := Attach("br0", "none0", Options{Create: true}); !errors.Is(err, ErrNotExist) {
			t.Errorf("no interface: %v", err)
		}
		if _, err := Attach("far0", "nic0", Options{Create: true}); !errors.Is(err, ErrNotBridge) {
			t.Errorf("not a bridge: %v", err)
		}
		if got, err := Attach("br0", "nic0", Options{Create: true}); err != nil || strings.Join(got, ";") != strings.Join(want, ";") {
			t.Errorf("%q, %v", got, err)
		}
		if got, err := Attach("br0", "nic0", Options{Create: true}); err != nil || len(got) != 0 {
			t.Errorf("again: %q, %v", got, err)
		}
		all, err := Show("br0")
		if err != nil || len(all) != 1 || !all[0].Up || len(all[0].Ports) != 1 || all[0].Ports[0].Name != "nic0" || all[0].Ports[0].Kind != "veth" {
			t.Errorf("%+v, %v", all, err)
		}
		if _, err := Show("nic0"); !errors.Is(err, ErrNotBridge) {
			t.Errorf("Show: %v", err)
		}
		ip("link add br1 type bridge")
		if _, err := Attach("br1", "nic0", Options{}); !errors.Is(err, ErrElsewhere) {
			t.Errorf("on another: %v", err)
		}
		for i, want := range []int{1, 0} {
			if got, err := Detach("nic0", Options{}); err != nil || len(got) != want {
				t.Errorf("detach %d: %q, %v", i, got, err)
			}
		}
	})
}

func TestNetnsDefaultRoute(t *testing.T) {
	inNetns(t, func(ip func(string)) {
		ip("link add nic0 type veth peer name far0")
		ip("link set nic0 up")
		ip("link set far0 up")
		ip("addr add 10.0.0.1/24 dev nic0")
		ip("link add br0 type bridge")
		ip("route add 10.5.0.0/16 via 10.0.0.9")
		if _, err := Attach("br0", "nic0", Options{DryRun: true}); err != nil {
			t.Errorf("with another route: %v", err)
		}
		ip("route add default via 10.0.0.9")
		_, err := Attach("br0", "nic0", Options{})
		if !errors.Is(err, ErrDefaultRoute) || !strings.Contains(err.Error(), "ip route replace default") {
			t.Errorf("%v", err)
		}
		if all, _ := Show("br0"); len(all[0].Ports) != 0 {
			t.Errorf("it was attached: %+v", all)
		}
		if _, err := Attach("br0", "nic0", Options{Force: true}); err != nil {
			t.Errorf("forced: %v", err)
		}
	})
}

// A default route over several interfaces is one of each of them, of either family.
func TestNetnsSharedDefaultRoute(t *testing.T) {
	inNetns(t, func(ip func(string)) {
		ip("link add br0 type bridge")
		for i, nic := range []string{"nic0", "nic1", "nic2"} {
			ip("link add " + nic + " type veth peer name far" + nic)
			ip("link set " + nic + " up")
			ip("link set far" + nic + " up")
			ip(fmt.Sprintf("addr add 10.0.%d.1/24 dev %s", i, nic))
			ip(fmt.Sprintf("addr add fd00:%d::1/64 dev %s nodad", i, nic))
		}
		ip("route add default nexthop via 10.0.0.9 dev nic0 nexthop via 10.0.1.9 dev nic1")
		for nic, want := range map[string]error{"nic0": ErrDefaultRoute, "nic1": ErrDefaultRoute, "nic2": nil} {
			if _, err := Attach("br0", nic, Options{DryRun: true}); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", nic, err, want)
			}
		}
		ip("-6 route add default via fd00:2::9 dev nic2")
		if _, err := Attach("br0", "nic2", Options{DryRun: true}); !errors.Is(err, ErrDefaultRoute) {
			t.Errorf("IPv6: %v", err)
		}
	})
}
