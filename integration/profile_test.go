//go:build !race

package integration

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestCopiesInProfile cross-checks the counter of copied octets: in a CPU profile of
// a transfer, memmove is called by mem's one copy function, and by the wire in
// memory that stands for the kernel; by hardly anything else. (Not under the race
// detector, whose own work a profile shows.)
func TestCopiesInProfile(t *testing.T) {
	a, b := rig{mtu: 1500}.pipe(t)
	const total, chunk = 64 << 20, 1 << 20
	src, dst := a.region(t, total), b.region(t, total)
	fill(src.Bytes(), 1)
	var ms []message
	for off := 0; off < total; off += chunk {
		ms = append(ms, message{off, chunk})
	}
	file := filepath.Join(t.TempDir(), "cpu.pprof")
	callers := map[string]float64{}
	// The profiler takes a hundred samples a second of each busy CPU; memmove has but a part of them.
	for length := 2 * time.Second; length <= 16*time.Second; length *= 2 {
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			t.Fatalf("%v (is another profile being taken?)", err)
		}
		for end := time.Now().Add(length); time.Now().Before(end); {
			runBatch(t, "write", a, b, src, dst, ms, time.Minute)
			runBatch(t, "send", a, b, src, dst, ms, time.Minute)
			runBatch(t, "read", a, b, src, dst, ms, time.Minute)
		}
		pprof.StopCPUProfile()
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		callers = memmoveCallers(t, file)
		if callers["mem"] >= 200 {
			break
		}
	}
	t.Logf("milliseconds in memmove, by caller: %v", callers)
	if callers["mem"] < 100 {
		t.Fatalf("%v ms of the profile are in mem's copy function: too few to tell", callers["mem"])
	}
	other := 0.0
	for name, ms := range callers {
		if name != "mem" && name != "wire" {
			other += ms
		}
	}
	if other > 0.1*callers["mem"] {
		t.Errorf("%v ms in memmove called by others than mem's copy function (%v ms)", other, callers["mem"])
	}
}

var callerLine = regexp.MustCompile(`^\s*([0-9.]+)ms\s+[0-9.]+%\s*\|\s+(\S+)`)

// memmoveCallers returns the milliseconds that each caller of memmove spent in it:
// "mem" and "wire" stand for the two expected ones.
func memmoveCallers(t *testing.T, profile string) map[string]float64 {
	t.Helper()
	out, err := exec.Command("go", "tool", "pprof", "-peek", `^runtime\.memmove$`, "-unit", "ms", profile).CombinedOutput()
	if err != nil {
		t.Fatalf("go tool pprof: %v\n%s", err, out)
	}
	callers := map[string]float64{}
	for _, line := range bytes.Split(out, []byte("\n")) {
		if strings.HasSuffix(string(line), "| runtime.memmove") {
			break // what follows is called by it
		}
		m := callerLine.FindSubmatch(line)
		if m == nil {
			continue
		}
		ms, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		name := string(m[2])
		switch {
		case strings.Contains(name, "/iwarp/mem.move"):
			name = "mem"
		case strings.Contains(name, "/tap/taptest."):
			name = "wire"
		}
		callers[name] += ms
	}
	return callers
}
