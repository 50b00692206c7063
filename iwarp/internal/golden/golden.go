// Package golden loads the frames of iwarp/testdata/frames: one FPDU or startup
// frame each, as hex; what follows a # is a comment, and the first line tells
// the frame's origin. They come from figures of the RFCs, from layouts checked
// with an independent CRC32c, and from captures of Linux siw.
//
// FPDUs at the top have no markers and a good CRC; startup frames are there too,
// and begin with "MPA". Under nocrc are frames of connections without CRC, under
// markers FPDUs with their markers, under pad FPDUs whose PAD is not zero.
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

// Frame returns the octets of the frame called name, "nocrc/siw-send-16" say.
func Frame(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir(), name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		digits.WriteString(strings.TrimSpace(line))
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}

// Names returns the names of all frames that begin with prefix, "nocrc/" say: ""
// those at the top.
func Names(t testing.TB, prefix string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir(), prefix+"*.hex"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden frames %s*: %v", prefix, err)
	}
	for i := range files {
		name, err := filepath.Rel(dir(), files[i])
		if err != nil {
			t.Fatal(err)
		}
		files[i] = filepath.ToSlash(strings.TrimSuffix(name, ".hex"))
	}
	return files
}
