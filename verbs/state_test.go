package verbs

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/transitions.golden")

// A changed transition is a visible line of the diff.
func TestTransitions(t *testing.T) {
	var b strings.Builder
	for s := Idle; s <= Error; s++ {
		for e := established; e <= abort; e++ {
			to := "cannot happen"
			if n, ok := transitions[step{s, e}]; ok {
				to = n.String()
			}
			fmt.Fprintf(&b, "%-10v %-14v %s\n", s, e, to)
		}
	}
	const file = "testdata/transitions.golden"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the transitions differ from %s; got\n%s", file, b.String())
	}
}
