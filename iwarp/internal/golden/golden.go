// Package golden loads the frames of iwarp/testdata/frames: one FPDU or startup
// frame each, as hex, with its origin in a comment on the first line. They come
// from figures of the RFCs, from layouts checked with an independent CRC32c, and
// from captures of Linux siw.
package golden

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func dir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "testdata", "frames")
}

// Frame returns the octets of the frame called name.
func Frame(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir(), name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			digits.WriteString(strings.TrimSpace(line))
		}
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

// Names returns the names of all frames that begin with prefix.
func Names(t testing.TB, prefix string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir(), prefix+"*.hex"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden frames %s*: %v", prefix, err)
	}
	for i := range files {
		files[i] = strings.TrimSuffix(filepath.Base(files[i]), ".hex")
	}
	return files
}
