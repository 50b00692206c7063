package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	// Scripts run this binary under the command's name.
	testscript.Main(m, map[string]func(){"softrnic": main})
}

// TestScript runs the scripts of testdata/script: what a user types, what comes out,
// and the exit code.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			pcaps, err := filepath.Abs("testdata/pcaps")
			e.Setenv("PCAPS", pcaps)
			return err
		},
		Condition: func(c string) (bool, error) {
			if c == "tun" {
				_, err := os.Stat("/dev/net/tun")
				return err == nil && os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", c)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exit": cmdExit,
			"json": cmdJSON,
			"same": cmdSame,
		},
		ContinueOnError: true,
		Deadline:        time.Now().Add(90 * time.Second),
	})
}

// cmdExit runs a command and checks its exit code: exit 2 softrnic ... For what is
// wrong usage, all of stderr must be one line, and stdout empty.
func cmdExit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exit CODE COMMAND...")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if err != nil {
		ee, ok := err.(*exec.ExitError)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = ee.ExitCode()
	}
	if fmt.Sprint(code) != args[0] {
		ts.Fatalf("exit code %d, want %s; stderr: %s", code, args[0], ts.ReadFile("stderr"))
	}
	if code == 2 {
		if s := ts.ReadFile("stderr"); strings.Count(s, "\n") != 1 || !strings.HasPrefix(s, "softrnic: ") {
			ts.Fatalf("wrong usage must be one line on stderr, is %q", s)
		}
		if s := ts.ReadFile("stdout"); s != "" {
			ts.Fatalf("wrong usage must print nothing on stdout, printed %q", s)
		}
	}
}

// cmdJSON wants each line of a file to be an object with the fields named, of which
// some have a value: json stdout kind=mpa-request src.
func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: json FILE FIELD[=VALUE]...")
	}
	for _, line := range strings.Split(strings.TrimSpace(ts.ReadFile(args[0])), "\n") {
		var m map[string]any
		d := json.NewDecoder(strings.NewReader(line))
		d.UseNumber()
		if err := d.Decode(&m); err != nil {
			ts.Fatalf("%q: %v", line, err)
		}
		for _, want := range args[1:] {
			k, v, valued := strings.Cut(want, "=")
			got, ok := m[k]
			if !ok || valued && fmt.Sprint(got) != v {
				ts.Fatalf("%s: %s is %v, want %s", line, k, got, want)
			}
		}
	}
}

// cmdSame wants two files to have the same lines, in any order.
func cmdSame(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: same FILE FILE")
	}
	if a, b := ts.ReadFile(args[0]), ts.ReadFile(args[1]); a != b {
		ts.Fatalf("%s and %s differ:\n%s\n%s", args[0], args[1], a, b)
	}
}
