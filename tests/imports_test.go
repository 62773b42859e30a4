package tests

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// levels is the table of DESIGN.md: a package imports only lower levels. A
// folder that is not named has the row of the nearest folder above it.
var levels = map[string]int{
	"device": 0, "shard": 0, "input": 0,
	"device/cpu/kernel": 1,
	"device/cpu":        2, "device/dry": 2, "device/cuda": 2, "checkpoint": 2, "data": 2,
	"nn": 3, "collective": 3, "optim": 3, "offload": 3,
	"fsdp":  4,
	"zero":  5,
	"job":   6,
	"cmd":   7,
	"tests": 8,
	"docs":  8,
}

// foreign is what else must not enter a room.
var foreign = map[string][]string{
	"shard": {"errors", "os", "sync", "unsafe"},
	"nn":    {"os"},
	"optim": {"os"},
	"fsdp":  {"os"},
	"zero":  {"encoding/json", "flag", "github.com/spf13/pflag"},
	"job":   {"os/signal", "flag", "github.com/spf13/pflag", "github.com/spf13/cobra"},
}

// empty are names that say nothing about what is inside.
var empty = []string{"util", "utils", "common", "helper", "helpers", "types", "misc"}

const module = "zeroth/"

// row is the table's entry a folder belongs to; "" if there is none.
func row(folder string) string {
	for folder != "." && folder != "" {
		if _, ok := levels[folder]; ok {
			return folder
		}
		folder = path.Dir(folder)
	}
	return ""
}

// violations are the breaches of the table by one file: its folder, whether it
// is a test, the paths it imports.
func violations(folder string, test bool, imports []string) []string {
	in := row(folder)
	if in == "" {
		return []string{fmt.Sprintf("%s has no row in the table of levels", folder)}
	}
	var out []string
	if slices.Contains(empty, path.Base(folder)) {
		out = append(out, fmt.Sprintf("%s: a name that says nothing", folder))
	}
	if test {
		return out // tests may compare with anything
	}
	for _, imported := range imports {
		if slices.Contains(foreign[in], imported) {
			out = append(out, fmt.Sprintf("%s imports %s, which is not its business", folder, imported))
		}
		name, ours := strings.CutPrefix(imported, module)
		to := row(name)
		if !ours || to == in {
			continue
		}
		if to == "" || levels[to] >= levels[in] {
			out = append(out, fmt.Sprintf("%s (level %d) imports %s (level %d)", folder, levels[in], name, levels[to]))
		}
	}
	return out
}

// TestImports reads every Go file of the tree, whatever its build tags.
func TestImports(t *testing.T) {
	root := ".."
	files := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != root && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "runs") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		files++
		folder, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		imports, exits, err := read(src)
		if err != nil {
			return err
		}
		test := strings.HasSuffix(name, "_test.go")
		for _, v := range violations(filepath.ToSlash(folder), test, imports) {
			t.Errorf("%s: %s", name, v)
		}
		if exits && !test && !strings.HasPrefix(filepath.ToSlash(folder), "cmd/") && !generator(src) {
			t.Errorf("%s: only cmd ends the process: return an error", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 20 {
		t.Errorf("only %d Go files were found", files)
	}
}

// generator tells whether a file is a program of its own.
func generator(src []byte) bool { return strings.Contains(string(src), "\npackage main\n") }

// read is a file's imports, and whether it ends the process.
func read(src []byte) (imports []string, exits bool, err error) {
	f, err := parser.ParseFile(token.NewFileSet(), "", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, false, err
	}
	for _, i := range f.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return nil, false, err
		}
		imports = append(imports, p)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && (x.Name == "os" && s.Sel.Name == "Exit" || x.Name == "log" && strings.HasPrefix(s.Sel.Name, "Fatal")) {
			exits = true
		}
		return true
	})
	return imports, exits, nil
}

// The test above would say nothing of a tree in order if it could not speak.
func TestImportsAreJudged(t *testing.T) {
	for _, c := range []struct {
		folder  string
		imports []string
		want    []string
	}{
		{"nn", []string{"fmt", "zeroth/device", "zeroth/shard"}, nil},
		{"nn", []string{"zeroth/collective"}, []string{"nn (level 3) imports collective (level 3)"}},
		{"device/cpu", []string{"zeroth/device", "zeroth/device/cpu/kernel"}, nil},
		{"device/cpu/kernel/gen", []string{"zeroth/device/cpu"}, []string{"device/cpu/kernel/gen (level 1) imports device/cpu (level 2)"}},
		{"device", []string{"zeroth/device/cpu"}, []string{"device (level 0) imports device/cpu (level 2)"}},
		{"zero", []string{"zeroth/job", "flag"}, []string{"zero (level 5) imports job (level 6)", "zero imports flag, which is not its business"}},
		{"cmd/zeroth", []string{"zeroth/job", "os/signal"}, nil},
		{"job", []string{"zeroth/zero", "os/signal"}, []string{"job imports os/signal, which is not its business"}},
		{"shard", []string{"sync"}, []string{"shard imports sync, which is not its business"}},
		{"fsdp", []string{"zeroth/stray"}, []string{"fsdp (level 4) imports stray (level 0)"}},
		{"stray", nil, []string{"stray has no row in the table of levels"}},
		{"nn/helpers", nil, []string{"nn/helpers: a name that says nothing"}},
	} {
		got := violations(c.folder, false, c.imports)
		slices.Sort(got)
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s importing %v (-want +got):\n%s", c.folder, c.imports, d)
		}
	}
	if got := violations("shard", true, []string{"os", "zeroth/job"}); got != nil {
		t.Errorf("a test file: %v", got)
	}
	imports, exits, err := read([]byte("package x\nimport (\"os\"; j \"zeroth/job\")\nfunc f() { os.Exit(j.X) }\n"))
	if err != nil || !exits || !slices.Equal(imports, []string{"os", "zeroth/job"}) {
		t.Errorf("read: %v %v %v", imports, exits, err)
	}
}
