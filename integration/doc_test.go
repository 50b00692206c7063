package integration

import (
	"strings"
	"testing"
)

// TestPackageComments: every package says what it is, in words.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t, "linux") {
		if len(p.GoFiles) == 0 {
			continue // tests only
		}
		switch {
		case len(strings.Fields(p.Doc)) < 5:
			t.Errorf("%s: package comment %q", p.ImportPath, p.Doc)
		}
	}
}
