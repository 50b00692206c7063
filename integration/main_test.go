package integration

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// seedFlag fixes the faults of the tests that draw them: what a failing run
// printed reproduces it.
var seedFlag = flag.Uint64("seed", 0, "seed of faults and sizes; 0 draws one")

// children are the roles in which a test starts this binary again, so that two
// RNICs live in two processes. They are named by the first argument after
// childArg.
var children = map[string]func(args []string) error{}

const childArg = "softrnic-test-child"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == childArg {
		run, ok := children[os.Args[2]]
		if !ok {
			fmt.Fprintf(os.Stderr, "no such role: %q\n", os.Args[2])
			os.Exit(2)
		}
		if err := run(os.Args[3:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[2], err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	code := m.Run()
	if bin.dir != "" {
		os.RemoveAll(bin.dir)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left at the end of the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// seed returns the seed of this test, and prints it.
func seed(t testing.TB) uint64 {
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d (repeat with: go test ./integration -run '^%s$' -seed %d)", s, strings.SplitN(t.Name(), "/", 2)[0], s)
	return s
}

// missing ends a test that cannot run here: what says what it lacks, and how to
// get it. With CI=true that is a failure, so that CI never passes by skipping.
func missing(t testing.TB, what string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("CI=true and missing: "+what, args...)
	}
	t.Skipf("missing: "+what, args...)
}

// leakCheck fails t where a goroutine that t started is still there when it ends.
func leakCheck(t testing.TB) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if !t.Failed() {
			if err := goleak.Find(before); err != nil {
				t.Error(err)
			}
		}
	})
}

// repoRoot is the folder of go.mod; tests run in integration below it.
func repoRoot(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatalf("not run from the source tree: %v", err)
	}
	return dir
}

// goTool runs the go command in the module and returns what it printed.
func goTool(t testing.TB, env []string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = repoRoot(t)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return out
}

var bin struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// softrnicBinary returns the path of the command: that of SOFTRNIC where it is
// set, else one built for this run.
func softrnicBinary(t testing.TB) string {
	t.Helper()
	bin.once.Do(func() {
		if p := os.Getenv("SOFTRNIC"); p != "" {
			bin.path = p
			return
		}
		if bin.dir, bin.err = os.MkdirTemp("", "softrnic-integration-"); bin.err != nil {
			return
		}
		bin.path = filepath.Join(bin.dir, "softrnic")
		goTool(t, []string{"CGO_ENABLED=0"}, "build", "-o", bin.path, "./cmd/softrnic")
	})
	if bin.err != nil {
		t.Fatal(bin.err)
	}
	return bin.path
}
