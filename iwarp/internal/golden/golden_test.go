package golden

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Every frame tells where it comes from, and is one.
func TestFrames(t *testing.T) {
	origin := regexp.MustCompile(`^# (RFC \d+ figure|Built from the layouts of RFC|Captured from )`)
	names := append(append(Names(t, ""), Names(t, "nocrc/")...), Names(t, "markers/")...)
	names = append(names, Names(t, "pad/")...)
	for _, name := range names {
		f, err := os.Open(filepath.Join(dir(), filepath.FromSlash(name)+".hex"))
		if err != nil {
			t.Fatal(err)
		}
		first, _ := bufio.NewReader(f).ReadString('\n')
		f.Close()
		if !origin.MatchString(first) {
			t.Errorf("%s: the first line, %q, tells no origin", name, first)
		}
		b := Frame(t, name)
		if n := len(b); n < 8 || !bytes.HasPrefix(b, []byte("MPA")) && n%4 != 0 {
			t.Errorf("%s: %d octets", name, n)
		}
	}
	if len(names) < 30 {
		t.Errorf("%d frames only", len(names))
	}
}
