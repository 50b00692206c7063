//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// insideEnv says that the test runs in a network namespace of its own.
const insideEnv = "SOFTRNIC_TEST_INSIDE"

// needRoot ends a test that cannot run here; with CI=true that is a failure.
func needRoot(t *testing.T) {
	t.Helper()
	what := ""
	if os.Geteuid() != 0 {
		what = "root"
	} else if _, err := os.Stat("/dev/net/tun"); err != nil {
		what = "/dev/net/tun (modprobe tun)"
	}
	switch {
	case what == "":
	case os.Getenv("CI") == "true":
		t.Fatalf("CI=true and missing: %s", what)
	default:
		t.Skipf("missing: %s", what)
	}
}

// TestNetnsScript runs the scripts of testdata/netns: commands that need real TAPs,
// in a network namespace of the test's own.
func TestNetnsScript(t *testing.T) {
	needRoot(t)
	if os.Getenv(insideEnv) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestNetnsScript$", "-test.v", "-test.timeout=100s")
		cmd.Env = append(os.Environ(), insideEnv+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("SKIP")) {
			t.Fatalf("%v\n%s", err, out)
		}
		t.Logf("%s", out)
		return
	}
	// A /sys that shows this namespace, here alone.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/netns",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exit":  cmdExit,
			"json":  cmdJSON,
			"await": cmdAwait,
		},
		Deadline: time.Now().Add(90 * time.Second),
	})
}

// cmdAwait waits until a file has a text: await FILE TEXT.
func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await FILE TEXT")
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		b, _ := os.ReadFile(ts.MkAbs(args[0]))
		switch {
		case strings.Contains(string(b), args[1]):
			return
		case time.Now().After(end):
			ts.Fatalf("%q does not come to %s: %q", args[1], args[0], b)
		}
	}
}

// self is this test binary under the command's name, as a user would start it.
func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "softrnic")
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// links are the names of all network interfaces here.
func links(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob("/sys/class/net/*")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

// running returns the processes of a program.
func running(program string) (pids []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, n := range names {
		if to, err := os.Readlink(n); err == nil && strings.HasPrefix(to, program) {
			pids = append(pids, filepath.Base(filepath.Dir(n)))
		}
	}
	return pids
}

// gone wants nothing of a demo to be left.
func gone(t *testing.T, program, before string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left := running(program)
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("processes are left: %v", left)
		}
	}
	if now := links(t); now != before {
		t.Errorf("interfaces before: %s\nand after: %s", before, now)
	}
}

// TestNetnsDemo runs the main job on TAPs, within the time promised.
func TestNetnsDemo(t *testing.T) {
	needRoot(t)
	program, before := self(t), links(t)
	begin := time.Now()
	out, err := exec.Command(program, "demo", "-o", "json").Output()
	took := time.Since(begin)
	if err != nil {
		t.Fatalf("%v: %s", err, stderrOf(err))
	}
	checkDemo(t, out, "tap", 256)
	if took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	t.Logf("%v: %s", took.Round(time.Millisecond), out)
	gone(t, program, before)
	out, err = exec.Command(program, "demo", "--mib", "8", "--mtu", "9000", "--no-crc").Output()
	if err != nil || !strings.Contains(string(out), "verified: every octet") || !strings.Contains(string(out), "MTU 9000, CRC32c off") {
		t.Errorf("%v: %s%s", err, out, stderrOf(err))
	}
	gone(t, program, before)
}

func stderrOf(err error) string {
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		return string(ee.Stderr)
	}
	return ""
}

// TestNetnsDemoEnds ends the demo early, by ^C (all processes of the terminal's
// group), by a signal to it alone, and by the death of one of its RNICs: it fails
// in a line, and leaves nothing.
func TestNetnsDemoEnds(t *testing.T) {
	needRoot(t)
	program, before := self(t), links(t)
	for name, c := range map[string]struct {
		end  func(pid int) error
		want string
	}{
		"^C":      {func(pid int) error { return syscall.Kill(-pid, syscall.SIGINT) }, "interrupted"},
		"SIGTERM": {func(pid int) error { return syscall.Kill(pid, syscall.SIGTERM) }, "interrupted"},
		"SIGKILL": {func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }, ""},
		"RNIC": {func(pid int) error {
			pids := running(program)
			var last int
			fmt.Sscan(pids[len(pids)-1], &last)
			return syscall.Kill(last, syscall.SIGKILL)
		}, "softrnic: "},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, "demo", "--mib", "2048")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			cmd.WaitDelay = 10 * time.Second
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for len(running(program)) < 4 { // itself, the lab, two RNICs
				if ctx.Err() != nil {
					t.Fatalf("it does not start: %s", errs.String())
				}
				time.Sleep(5 * time.Millisecond)
			}
			time.Sleep(300 * time.Millisecond)
			if err := c.end(cmd.Process.Pid); err != nil {
				t.Error(err)
			}
			begin := time.Now()
			err := cmd.Wait()
			if took := time.Since(begin); took > 20*time.Second { // what an RNIC that is left has begun, it may finish first
				t.Errorf("it took %v to end", took)
			}
			if code := cmd.ProcessState.ExitCode(); name != "SIGKILL" && code != 1 || err == nil {
				t.Errorf("%v, exit code %d", err, code)
			}
			if !strings.Contains(errs.String(), c.want) || strings.Contains(errs.String(), "goroutine ") || out.Len() > 0 {
				t.Errorf("stdout %q, stderr %q", out.String(), errs.String())
			}
			t.Logf("stderr: %s", errs.String())
			gone(t, program, before)
		})
	}
}

// TestNetnsDemoUnprivileged runs it as nobody: on TAPs where the kernel lets nobody
// make namespaces and open /dev/net/tun, else in memory, and it says so.
func TestNetnsDemoUnprivileged(t *testing.T) {
	needRoot(t)
	program := self(t)
	for dir := filepath.Dir(program); len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // nobody must find it
			t.Fatal(err)
		}
	}
	run := func(t *testing.T, mode os.FileMode) (path string) {
		var out, errs bytes.Buffer
		withTUN(t, mode, func() error {
			cmd := exec.Command(program, "demo", "-o", "json", "--mib", "16")
			cmd.Dir = "/"
			const nobody = 65534
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			cmd.Stdout, cmd.Stderr = &out, &errs
			return cmd.Run()
		})
		var r demoResult
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatalf("%v: %s %s", err, out.String(), errs.String())
		}
		checkDemo(t, out.Bytes(), r.Path, 16)
		if said := strings.Contains(errs.String(), "in memory"); said != (r.Path == "memory") {
			t.Errorf("path %s; stderr: %s", r.Path, errs.String())
		}
		return r.Path
	}
	t.Run("a TUN device for root only", func(t *testing.T) {
		if path := run(t, 0o600); path != "memory" {
			t.Errorf("path %s", path)
		}
	})
	t.Run("a TUN device for all", func(t *testing.T) {
		// Some kernels let only root make user namespaces; then it is memory again.
		out, err := os.ReadFile("/proc/sys/kernel/unprivileged_userns_clone")
		want := "tap"
		if err == nil && strings.TrimSpace(string(out)) == "0" {
			want = "memory"
		}
		if path := run(t, 0o666); path != want {
			t.Errorf("path %s, want %s", path, want)
		}
	})
}

// withTUN runs f where /dev/net/tun has this mode, in a mount namespace of its own.
func withTUN(t *testing.T, mode os.FileMode, f func() error) {
	t.Helper()
	dir := t.TempDir()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		tun := filepath.Join(dir, "tun")
		err := unix.Unshare(unix.CLONE_NEWNS)
		for _, step := range []func() error{
			func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
			func() error { return unix.Mount("tun", dir, "tmpfs", 0, "mode=0755") },
			func() error { return unix.Mknod(tun, unix.S_IFCHR, int(unix.Mkdev(10, 200))) },
			func() error { return os.Chmod(tun, mode) },
			func() error { return unix.Mount(tun, "/dev/net/tun", "", unix.MS_BIND, "") },
			f,
		} {
			if err == nil {
				err = step()
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
