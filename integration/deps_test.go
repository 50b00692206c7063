package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/softrnic/softrnic"

// chain is the drawing of ARCHITECTURE.md as a table: for each package, the
// packages of this module that its non-test files may import. Below a package,
// its own internal folder is its own affair.
//
//	tap ← netstack → llp ← mpa ← ddp ← rdmap ← verbs ← softrnic (root) ← cmd
//
// Two leaves are shared: mem by mpa, ddp, rdmap and verbs; and llp, the waist
// (interfaces of standard types), by those through which the connection that
// startup runs over is handed down.
var chain = map[string][]string{
	"tap":                   {},
	"tap/bridge":            {"tap"},
	"tap/taptest":           {"tap"},
	"netstack":              {"tap", "iwarp/llp"},
	"iwarp":                 {},
	"iwarp/llp":             {},
	"iwarp/llp/llptest":     {"iwarp/llp"},
	"iwarp/mem":             {},
	"iwarp/mpa":             {"iwarp/llp", "iwarp/mem"},
	"iwarp/ddp":             {"iwarp/mpa", "iwarp/mem", "iwarp/llp"},
	"iwarp/rdmap":           {"iwarp/ddp", "iwarp/mem", "iwarp/llp"},
	"iwarp/internal/golden": {},
	"verbs":                 {"iwarp/rdmap", "iwarp/mem", "iwarp/llp"},
	"verbs/verbstest":       {"verbs", "iwarp/llp", "iwarp/llp/llptest"},
	"":                      {"tap", "netstack", "verbs"},
	"internal/race":         {}, // for tests
	"integration":           {},
	"integration/bench":     nil, // any
	"cmd/softrnic":          nil, // any: it names both sides, and decodes what every layer wrote
	"integration/internal":  nil,
	"cmd/softrnic/internal": nil,
}

// foreign is where each module that is not ours may be imported, by path prefix.
// What is not listed may be imported nowhere.
var foreign = map[string][]string{
	"gvisor.dev/gvisor":                       {"netstack"},
	"github.com/songgao/water":                {"tap"},
	"golang.org/x/sys":                        {"tap", "netstack", "cmd", "integration"},
	"github.com/vishvananda/netlink":          {"tap/bridge", "cmd", "integration"},
	"github.com/vishvananda/netns":            {"tap/bridge", "cmd", "integration"},
	"github.com/spf13/cobra":                  {"cmd"},
	"github.com/spf13/pflag":                  {"cmd"},
	"github.com/schollz/progressbar":          {"cmd"},
	"github.com/HdrHistogram/hdrhistogram-go": {"cmd", "integration"},
	"golang.org/x/term":                       {"cmd"},
	"golang.org/x/sync":                       {"cmd", "integration"},
}

// testOnly are modules that tests may import anywhere, and nothing else may.
var testOnly = []string{
	"github.com/google/go-cmp",
	"github.com/gopacket/gopacket",
	"github.com/rogpeppe/go-internal",
	"go.uber.org/goleak",
	"pgregory.net/rapid",
	"golang.org/x/sys",
}

type listed struct {
	ImportPath   string
	Doc          string
	Dir          string
	Standard     bool
	Module       *struct{ Path string }
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
	GoFiles      []string
}

// packages lists every package of the module as goos sees it.
func packages(t *testing.T, goos string) []listed {
	out := goTool(t, []string{"GOOS=" + goos, "CGO_ENABLED=0"}, "list", "-deps=false", "-json", "./...")
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// within says whether path is folder or below it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

// rule returns what the package at path may import of this module; any where
// that is free. A package below an internal folder is its parent's.
func rule(path string) (allowed []string, any, known bool) {
	owner, _, inner := strings.Cut(path, "/internal/")
	for {
		if a, ok := chain[path]; ok {
			return a, a == nil, true
		}
		i := strings.LastIndexByte(path, '/')
		if i < 0 || !inner {
			break
		}
		path = path[:i]
	}
	if inner {
		a, ok := chain[owner]
		return a, ok && a == nil, ok
	}
	return nil, false, false
}

// mayImport says why a package must not import another, or "".
func mayImport(from, imp string, test bool) string {
	if imp == module || strings.HasPrefix(imp, module+"/") {
		to := strings.TrimPrefix(strings.TrimPrefix(imp, module), "/")
		if test {
			return "" // tests may stand on any package of ours; what is foreign stays fenced
		}
		allowed, any, known := rule(from)
		switch {
		case !known:
			return "the package is not in the chain: add it to the table, and to ARCHITECTURE.md"
		case any || slices.Contains(allowed, to):
			return ""
		case within(to, from+"/internal"):
			return ""
		}
		if owner, _, inner := strings.Cut(to, "/internal/"); inner && within(from, owner) {
			return ""
		}
		return "the chain allows it only " + strings.Join(allowed, ", ")
	}
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		return "" // standard library
	}
	if test {
		for _, m := range testOnly {
			if within(imp, m) {
				return ""
			}
		}
	}
	for m, where := range foreign {
		if within(imp, m) || strings.HasPrefix(imp, m+"/") {
			for _, w := range where {
				if within(from, w) {
					return ""
				}
			}
			return "only under " + strings.Join(where, ", ")
		}
	}
	if test {
		return "no such module is on the list of foreign or test modules"
	}
	return "no such module is on the list of foreign modules"
}

// TestChain compares the imports of every package with the drawing.
func TestChain(t *testing.T) {
	for _, goos := range []string{"linux", "darwin"} {
		for _, p := range packages(t, goos) {
			from := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
			for _, imp := range p.Imports {
				if why := mayImport(from, imp, false); why != "" {
					t.Errorf("%s: %q imports %q: %s", goos, from, imp, why)
				}
			}
			for _, imp := range append(slices.Clone(p.TestImports), p.XTestImports...) {
				if why := mayImport(from, imp, true); why != "" {
					t.Errorf("%s: tests of %q import %q: %s", goos, from, imp, why)
				}
			}
			// Nothing that programs link for the protocol alone brings a TCP stack along.
			if within(from, "iwarp") || within(from, "verbs") || within(from, "tap") {
				for _, d := range p.Deps {
					if strings.HasPrefix(d, "gvisor.dev/") {
						t.Errorf("%s: %q depends on %q", goos, from, d)
						break
					}
				}
			}
		}
	}
}

// TestChainFinds shows that the comparison can fail.
func TestChainFinds(t *testing.T) {
	for _, c := range []struct {
		from, imp string
		test      bool
	}{
		{"iwarp/mpa", module + "/iwarp/ddp", false},
		{"iwarp/rdmap", module + "/iwarp/mpa", false},
		{"iwarp/llp", module + "/iwarp/mem", false},
		{"verbs", module + "/netstack", false},
		{"verbs", "gvisor.dev/gvisor/pkg/tcpip", false},
		{"verbs", "gvisor.dev/gvisor/pkg/tcpip", true},
		{"netstack", "github.com/songgao/water", false},
		{"tap", "github.com/vishvananda/netlink", false},
		{"tap", "example.org/other", true},
		{"verbs", "github.com/google/go-cmp/cmp", false},
		{"unheard/of", module + "/tap", false},
	} {
		if mayImport(c.from, c.imp, c.test) == "" {
			t.Errorf("%q may import %q (test: %v)", c.from, c.imp, c.test)
		}
	}
	for _, c := range []struct{ from, imp string }{
		{"netstack", "gvisor.dev/gvisor/pkg/tcpip/stack"},
		{"verbs/internal/ring", "sync"},
		{"verbs", module + "/verbs/internal/ring"},
		{"tap/bridge", "github.com/vishvananda/netlink"},
		{"cmd/softrnic", module + "/iwarp/mpa"},
	} {
		if why := mayImport(c.from, c.imp, false); why != "" {
			t.Errorf("%q may not import %q: %s", c.from, c.imp, why)
		}
	}
}
