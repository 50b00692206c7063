package integration

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// dataPath are the packages through which payload moves. Every octet of it is
// copied once on the way out and once on the way in, by mem's move, which counts
// it: so nothing else here may copy.
var dataPath = []string{"tap", "netstack", "iwarp/llp", "iwarp/mpa", "iwarp/ddp", "iwarp/rdmap", "iwarp/mem", "verbs"}

// aside are folders below those whose code is no part of the path.
var aside = []string{
	"tap/bridge",        // netlink
	"tap/taptest",       // Ethernet in memory: its copies are the wire
	"iwarp/llp/llptest", // a TCP connection in memory: its copies are the wire
	"verbs/verbstest",   // sets two devices up for tests
}

// copiers are functions of the standard library, and methods and functions of
// gVisor's buffers, that move octets. A method is matched by its name alone.
var (
	copierFuncs = map[string][]string{
		"bytes":   {"Clone", "Join", "Repeat", "Buffer", "NewBuffer", "NewReader", "NewBufferString"},
		"slices":  {"Clone", "Concat", "Insert", "Replace", "Grow", "AppendSeq", "Collect", "Repeat"},
		"io":      {"ReadFull", "ReadAtLeast", "ReadAll", "Copy", "CopyN", "CopyBuffer", "WriteString"},
		"bufio":   {"NewReader", "NewWriter", "NewReadWriter", "NewReaderSize", "NewWriterSize"},
		"binary":  {"Read", "Write", "Append", "Encode", "Decode"},
		"reflect": {"Copy", "AppendSlice"},
		"buffer":  {"NewViewWithData", "MakeWithData", "NewWithData"},
		"unsafe":  {"Slice", "String", "StringData", "SliceData", "Pointer", "Add"},
	}
	copierMethods = []string{"ToSlice", "Flatten", "CopyIn", "CopyOut", "ReadAt", "WriteAt", "WriteFromReader",
		"WriteFromReaderAndLimitedReader", "ReadToWriter", "AppendOwned", "PullUp", "Linearize"}
)

// allowed are the functions in which a find is right as it is: "file function",
// and why. An entry that nothing matches any more is an error too.
var allowed = map[string]string{
	"iwarp/mem/copy.go move":          "the one copy function of the data path",
	"iwarp/mem/region.go Region.Load": "the application's own look at its memory, beside the path",

	"tap/pcap.go tee.note":           "a capture, where one was asked for",
	"tap/ioctl_linux.go isHeld":      "the name in a request to the kernel",
	"tap/queue_linux.go queue.read":  "addresses for readv: the kernel fills the memory",
	"tap/queue_linux.go queue.write": "addresses for writev: the kernel reads the memory",
	"tap/queue_linux.go queue.join":  "frames of more pieces than writev takes: netstack makes none (maxBufs)",

	"netstack/config.go Config.settled": "configuration",
	"netstack/cut.go buildHeader":       "headers of a frame that TCP's super-packet is cut into",
	"netstack/link.go putString":        "addresses in ARP and NDP",
	"netstack/stack.go Stack.Addrs":     "configuration",
	"netstack/stack.go Stack.MAC":       "configuration",
	"netstack/tx.go link.frame":         "slices, not their octets",

	"iwarp/mpa/batch.go batch.Read":       "DDP and RDMAP headers; payload goes by Gather",
	"iwarp/mpa/fpdu.go AppendFPDU":        "for tools and tests; a Conn does not call it",
	"iwarp/mpa/negotiate.go octets.Read":  "MPA startup",
	"iwarp/mpa/negotiate.go startup.read": "MPA startup",
	"iwarp/mpa/startup.go Frame.Append":   "MPA startup",

	"iwarp/ddp/receive.go receiver.remember": "the header of a segment, for a Terminate",
	"iwarp/ddp/send.go sender.header":        "RDMAP's header",

	"iwarp/rdmap/stream.go Stream.quote":      "the headers that a Terminate quotes",
	"iwarp/rdmap/stream.go Stream.terminated": "the peer's Terminate",
	"iwarp/rdmap/terminate.go Term.Append":    "the headers that a Terminate quotes",

	"verbs/sendq.go stash": "inline data, whose memory is free after the post",
}

// found is one construct that moves octets.
type found struct {
	pos  token.Position
	key  string // file and function
	what string
}

// findCopies parses one file and returns what in it copies octets.
func findCopies(name string, src any) ([]found, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	imported := map[string]string{} // local name: last element of the path
	for _, imp := range file.Imports {
		path := strings.Trim(imp.Path.Value, `"`)
		last := path[strings.LastIndexByte(path, '/')+1:]
		local := last
		if imp.Name != nil {
			local = imp.Name.Name
		}
		imported[local] = last
	}
	var out []found
	for _, decl := range file.Decls {
		owner := "(package)"
		if f, ok := decl.(*ast.FuncDecl); ok {
			owner = f.Name.Name
			if f.Recv != nil && len(f.Recv.List) == 1 {
				owner = typeName(f.Recv.List[0].Type) + "." + owner
			}
		}
		add := func(n ast.Node, what string) {
			out = append(out, found{fset.Position(n.Pos()), name + " " + owner, what})
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				switch f := n.Fun.(type) {
				case *ast.Ident:
					switch {
					case f.Name == "copy":
						add(n, "copy")
					case f.Name == "append" && n.Ellipsis.IsValid():
						add(n, "append...")
					}
				case *ast.ArrayType: // []byte(s), but []byte(nil) is empty
					if arg, ok := n.Args[0].(*ast.Ident); ok && arg.Name == "nil" {
						return true
					}
					if id, ok := f.Elt.(*ast.Ident); ok && (id.Name == "byte" || id.Name == "uint8") && f.Len == nil {
						add(n, "[]byte()")
					}
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok {
					if pkg, ok := imported[x.Name]; ok {
						if slices.Contains(copierFuncs[pkg], n.Sel.Name) {
							add(n, pkg+"."+n.Sel.Name)
						}
						return true
					}
				}
				if slices.Contains(copierMethods, n.Sel.Name) {
					add(n, "."+n.Sel.Name)
				}
			case *ast.RangeStmt:
				if moves(n.Body, rangeValue(n)) {
					add(n, "loop")
				}
			case *ast.ForStmt:
				if moves(n.Body, "") {
					add(n, "loop")
				}
			}
			return true
		})
	}
	return out, nil
}

// typeName is the name of a receiver's type.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// rangeValue is the name of a range statement's value, or "".
func rangeValue(r *ast.RangeStmt) string {
	if id, ok := r.Value.(*ast.Ident); ok && id.Name != "_" {
		return id.Name
	}
	return ""
}

// moves says whether a loop's body copies element by element: a[i] = b[j], or
// a[i] = v with v the range's value.
func moves(body *ast.BlockStmt, value string) bool {
	yes := false
	ast.Inspect(body, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if !ok || a.Tok != token.ASSIGN {
			return true
		}
		for i := range min(len(a.Lhs), len(a.Rhs)) {
			if _, ok := a.Lhs[i].(*ast.IndexExpr); !ok {
				continue
			}
			switch r := a.Rhs[i].(type) {
			case *ast.IndexExpr:
				yes = true
			case *ast.Ident:
				yes = yes || value != "" && r.Name == value
			}
		}
		return true
	})
	return yes
}

// TestOneCopy: outside mem's move, nothing on the data path copies octets.
func TestOneCopy(t *testing.T) {
	root := repoRoot(t)
	unused := map[string]bool{}
	for k := range allowed {
		unused[k] = true
	}
	files := 0
	for _, dir := range dataPath {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, _ := filepath.Rel(root, path)
			rel = filepath.ToSlash(rel)
			switch {
			case d.IsDir() && slices.Contains(aside, rel), d.IsDir() && d.Name() == "testdata":
				return fs.SkipDir
			case d.IsDir(), !strings.HasSuffix(rel, ".go"), strings.HasSuffix(rel, "_test.go"):
				return nil
			}
			files++
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			all, err := findCopies(rel, src)
			if err != nil {
				return err
			}
			for _, f := range all {
				if _, ok := allowed[f.key]; ok {
					delete(unused, f.key)
					continue
				}
				t.Errorf("%s:%d: %s moves octets outside mem's one copy function; if it is no payload, add %q to allowed with the reason",
					rel, f.pos.Line, f.what, f.key)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	for k := range unused {
		t.Errorf("allowed names %q, and there is no such thing (any more)", k)
	}
	if files < 20 {
		t.Errorf("looked at %d files only", files)
	}
}

// TestOneCopyFinds shows that each forbidden form is found.
func TestOneCopyFinds(t *testing.T) {
	for _, c := range []struct{ what, imports, body string }{
		{"copy", "", "copy(a, b)"},
		{"append...", "", "a = append(a[:0], b...)"},
		{"[]byte()", "", "a = []byte(s)"},
		{"bytes.Clone", `import "bytes"`, "a = bytes.Clone(b)"},
		{"bytes.Buffer", `import "bytes"`, "var w bytes.Buffer; w.Write(b)"},
		{"slices.Clone", `import "slices"`, "a = slices.Clone(b)"},
		{"slices.Concat", `import sl "slices"`, "a = sl.Concat(a, b)"},
		{"io.ReadFull", `import "io"`, "io.ReadFull(nil, a)"},
		{"unsafe.Slice", `import "unsafe"`, "a = unsafe.Slice(&b[0], 4)"},
		{"loop", "", "for i := range a { a[i] = b[i] }"},
		{"loop", "", "for i, c := range b { a[i] = c }"},
		{"loop", "", "for i := 0; i < 4; i++ { if i > 2 { a[i] = b[i] } }"},
		{".ToSlice", "", "a = v.ToSlice()"},
	} {
		src := fmt.Sprintf("package p\n%s\nfunc f(a, b []byte, s string, v V) { %s }\n", c.imports, c.body)
		got, err := findCopies("p.go", src)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0].key != "p.go f" || got[0].what != c.what {
			t.Errorf("%s: found %v", c.body, got)
		}
	}
	for _, body := range []string{"a = b[1:2]", "a[0] = 1", "for i := range a { a[i] = 0 }", "q = append(q, a)", "a = []byte(nil)"} {
		got, err := findCopies("p.go", "package p\nfunc f(a, b []byte, q [][]byte) { "+body+" }\n")
		if err != nil || len(got) != 0 {
			t.Errorf("%s: found %v, %v", body, got, err)
		}
	}
}
