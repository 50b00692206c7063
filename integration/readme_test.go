package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeCompiles compiles the Go code of README.md.
func TestReadmeCompiles(t *testing.T) {
	root := repoRoot(t)
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(text, -1)
	if len(blocks) == 0 {
		t.Fatal("README.md has no Go code")
	}
	dir := t.TempDir()
	var src strings.Builder
	src.WriteString("package readme\n\nimport (\n")
	for _, p := range []string{"context", "encoding/binary", "fmt", module, module + "/verbs", "net/netip"} {
		src.WriteString("\t\"" + p + "\"\n")
	}
	src.WriteString(")\n\n")
	for _, b := range blocks {
		src.Write(b[1])
	}
	file := filepath.Join(dir, "readme.go")
	if err := os.WriteFile(file, []byte(src.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	// The package is nowhere but in an overlay.
	overlay, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(root, "integration", "readme", "readme.go"): file}})
	if err != nil {
		t.Fatal(err)
	}
	over := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(over, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-overlay", over, "./integration/readme")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	fmtd := exec.Command("gofmt", "-l", file)
	if out, err := fmtd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("README.md's code is not gofmt'ed: %v %s", err, out)
	}
}
