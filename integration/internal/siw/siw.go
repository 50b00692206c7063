// Package siw boots a Linux guest with the kernel's siw in QEMU, by means of the
// siw kit (a folder of scripts, with a README of its own), and runs commands in
// it. Guest and bridge live in a network namespace that only they use.
package siw

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Addresses in the namespace of a guest.
const (
	GuestAddr = "10.77.0.2" // the guest's siw
	OurAddr   = "10.77.0.3" // free, for an RNIC of ours
	PrefixLen = "/24"
	OurTAP    = "tap2" // pre-made, on the guest's bridge
)

// Find returns the folder of the kit: peer in $SHARED, or in ../shared beside the
// source tree at root.
func Find(root string) (string, error) {
	shared := os.Getenv("SHARED")
	if shared == "" {
		shared = filepath.Join(root, "..", "shared")
	}
	dir := filepath.Join(shared, "peer")
	if _, err := os.Stat(filepath.Join(dir, "run.sh")); err != nil {
		return "", fmt.Errorf("the siw kit: %w (SHARED names the folder that holds peer/)", err)
	}
	return dir, nil
}

// Guest is a booted guest. Exec may be called from several goroutines at once.
type Guest struct {
	kit   string
	ns    string
	state string
	env   []string
	own   bool // state is ours to remove
}

const name = "peer"

// Boot boots a guest from the image that the kit's build.sh made, and returns
// when its siw0 is active: 4 to 30 s. The state lies in $SIWPEER_RUN, or in a
// folder of its own.
func Boot(kit string) (*Guest, error) {
	g := &Guest{kit: kit, ns: "srsiw" + strconv.Itoa(os.Getpid()), state: os.Getenv("SIWPEER_RUN")}
	if g.state == "" {
		var err error
		if g.state, err = os.MkdirTemp("", "siw-"); err != nil {
			return nil, err
		}
		g.own = true
	}
	g.env = append(os.Environ(), "SIWPEER_RUN="+g.state)
	// What a script outside needs to clean up after us, should we be killed.
	if err := os.WriteFile(filepath.Join(g.state, "netns"), []byte(g.ns), 0o644); err != nil {
		return nil, err
	}
	for _, step := range [][]string{
		{"net.sh", "up", g.ns},
		{"run.sh", "-n", name, "-t", "tap1", "-i", GuestAddr + PrefixLen, "-N", g.ns},
	} {
		if out, err := g.script(step...).CombinedOutput(); err != nil {
			g.Close()
			return nil, fmt.Errorf("%s: %w\n%s", strings.Join(step, " "), err, out)
		}
	}
	return g, nil
}

func (g *Guest) script(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(g.kit, args[0]), args[1:]...)
	cmd.Env = g.env
	return cmd
}

// Exec runs a shell command in the guest and returns its output, stdout and
// stderr together. An error holds the exit code: 143 where the time was up.
func (g *Guest) Exec(timeout time.Duration, command string) (string, error) {
	out, err := g.script("exec.sh", "-t", strconv.Itoa(int(timeout.Seconds())), name, command).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("in the guest: %s: %w\n%s", command, err, out)
	}
	return string(out), err
}

// Command returns a command of this machine that will run in the namespace of
// the guest's bridge.
func (g *Guest) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", g.ns}, args...)...)
	// A program that is told to stop cleans up; one that does not is killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Log returns the end of the guest's console.
func (g *Guest) Log() string {
	b, _ := os.ReadFile(filepath.Join(g.state, name, "serial.log"))
	if i := len(b) - 4096; i > 0 {
		b = b[i:]
	}
	return string(bytes.TrimSpace(b))
}

// Close ends the guest and removes its namespace.
func (g *Guest) Close() error {
	_, err := g.script("stop.sh", name).CombinedOutput()
	_, err2 := g.script("net.sh", "down", g.ns).CombinedOutput()
	if g.own {
		os.RemoveAll(g.state)
	}
	return errors.Join(err, err2)
}
