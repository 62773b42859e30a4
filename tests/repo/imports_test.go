package repo

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

// table is the import table of DESIGN.md from the ground up, with a row for every package. A
// package may import packages of lower lines, and packages of its own line that an arrow points
// to.
var table = [][]string{
	{"internal/input", "internal/input/jsonread", "internal/parallel", "internal/input/s3 → internal/input internal/parallel", "internal/input/s3/s3test", "device", "shard", "pipe", "data → shard data/chat data/parquet data/tokenizer internal/input internal/input/jsonread internal/input/s3 internal/parallel", "data/chat → internal/input internal/input/jsonread", "data/parquet → internal/input internal/input/jsonread", "data/tokenizer → internal/input internal/input/jsonread", "device/cuda/driver", "internal/machine → device/cuda/driver", "internal/launch → internal/input internal/show", "internal/show", "internal/launch/launchtest → tests/nightly", "job/jobtest", "tests/nightly", "tests/generated", "tests/messages"},
	{"device/cuda → device/cpu/kernel device/cuda/kernel", "device/cuda/kernel", "device/cuda/fake",
		"device/cpu → device/cpu/kernel", "device/dry", "device/cpu/kernel", "device/cpu/kernel/gen", "checkpoint → checkpoint/safetensors checkpoint/store checkpoint/vfs", "checkpoint/store → checkpoint/vfs",
		"checkpoint/safetensors → checkpoint/vfs", "checkpoint/checkpointtest → checkpoint", "checkpoint/safetensors/safetensorstest → checkpoint/safetensors", "checkpoint/torchfile → checkpoint/safetensors checkpoint/vfs", "checkpoint/vfs", "checkpoint/vfs/vfstest → checkpoint/vfs", "internal/input/hub", "internal/input/hub/hubtest"},
	{"nn", "collective", "collective/collectivetest → collective", "collective/flight → collective", "collective/member", "collective/socket → collective", "collective/mpi → collective", "collective/rendezvous → collective", "optim", "offload"},
	{"fsdp", "checkpoint/foreign"},
	{"zero"},
	{"job/hf", "config → config/tree config/words job/hf", "config/tree", "config/words", "config/dialect → config config/tree config/words job/hf", "job/spec → config config/dialect config/tree config/words job/hf"},
	{"internal/world → internal/setup", "internal/setup → job/shadow", "job/shadow", "job/state → internal/setup", "job/trace → internal/setup", "job/spec/spectest → internal/setup", "zero/zerotest → internal/setup"},
	{"forecast", "job/report", "job/watch → job/report"},
	{"job/generate", "job → job/generate", "job/bench → job"},
	{"cmd/zeroth", "cmd/program"},
	{"tests", "tests/campaign", "tests/cluster", "tests/gpu", "tests/gpu/carry", "tests/repo", "tests/interop/parquet", "docs/schedule", "docs/pipeline", "docs/survive"},
}

// place is a package's position in the table.
type place struct {
	line   int
	arrows []string // packages of the same line that it may import
}

var places = readTable(table)

func readTable(table [][]string) map[string]place {
	all := map[string]place{}
	for line, rows := range table {
		for _, row := range rows {
			name, to, _ := strings.Cut(row, " → ")
			all[name] = place{line, strings.Fields(to)}
		}
	}
	return all
}

// foreign lists what else may not be imported by a package or those below its folder.
var foreign = map[string][]string{
	"shard": {"errors", "os", "sync", "unsafe"},
	"nn":    {"os"},
	"optim": {"os"},
	"fsdp":  {"os"},
	"zero":  {"encoding/json", "flag", "github.com/spf13/pflag"},
	"job":   {"os/signal", "flag", "github.com/spf13/pflag", "github.com/spf13/cobra"},

	"forecast": {"os/signal", "flag", "github.com/spf13/pflag", "github.com/spf13/cobra"},
}

// forTests are packages that only tests import, and each other.
var forTests = []string{"tests/nightly", "tests/generated", "tests/messages", "checkpoint/vfs/vfstest", "checkpoint/checkpointtest", "checkpoint/safetensors/safetensorstest", "internal/input/hub/hubtest", "internal/input/s3/s3test", "job/jobtest", "internal/launch/launchtest", "job/spec/spectest", "zero/zerotest", "collective/collectivetest", "device/cuda/fake"}

// empty lists package names that say nothing about the contents.
var empty = []string{"util", "utils", "common", "helper", "helpers", "types", "misc"}

const module = "zeroth/"

// strange reports whether a package, or one above it, may not use an import.
func strange(folder, imported string) bool {
	for ; folder != "."; folder = path.Dir(folder) {
		if slices.Contains(foreign[folder], imported) {
			return true
		}
	}
	return false
}

// violations returns the violations of the table by one file, given its folder, whether it is a
// test, and its imports.
func violations(folder string, test bool, imports []string) []string {
	in, ok := places[folder]
	if !ok {
		return []string{fmt.Sprintf("%s has no row in the table", folder)}
	}
	var out []string
	if slices.Contains(empty, path.Base(folder)) {
		out = append(out, fmt.Sprintf("%s: a name that says nothing", folder))
	}
	if test {
		return out // tests may use anything as an oracle
	}
	for _, imported := range imports {
		if strange(folder, imported) {
			out = append(out, fmt.Sprintf("%s imports %s, which is not its business", folder, imported))
		}
		name, ours := strings.CutPrefix(imported, module)
		if !ours {
			continue
		}
		to, ok := places[name]
		switch {
		case !ok:
			out = append(out, fmt.Sprintf("%s imports %s, which has no row in the table", folder, name))
		case to.line > in.line:
			out = append(out, fmt.Sprintf("%s (line %d) imports %s (line %d)", folder, in.line, name, to.line))
		case to.line == in.line && !slices.Contains(in.arrows, name):
			out = append(out, fmt.Sprintf("%s imports %s of its own line, and no arrow is drawn", folder, name))
		}
		if slices.Contains(forTests, name) && !slices.Contains(forTests, folder) {
			out = append(out, fmt.Sprintf("%s imports %s, which is for tests", folder, name))
		}
	}
	return out
}

// TestImports checks every Go file of the tree, whatever its build tags.
func TestImports(t *testing.T) {
	root := filepath.Join("..", "..")
	files, used := 0, map[string]bool{} // packages seen, and arrows as "from to"
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
		used[filepath.ToSlash(folder)] = true
		for _, imported := range imports {
			if !test {
				used[filepath.ToSlash(folder)+" "+strings.TrimPrefix(imported, module)] = true
			}
		}
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
	for name, p := range places {
		if !used[name] {
			t.Errorf("the table has a row for %s, which is no package", name)
		}
		for _, to := range p.arrows {
			if !used[name+" "+to] {
				t.Errorf("the table has an arrow from %s to %s, and there is no such import", name, to)
			}
		}
	}
}

// generator reports whether a file is a standalone program.
func generator(src []byte) bool { return strings.Contains(string(src), "\npackage main\n") }

// read returns a file's imports and whether it ends the process.
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

// TestImportsViolationsAreFound checks that violations finds violations.
func TestImportsViolationsAreFound(t *testing.T) {
	for _, c := range []struct {
		folder  string
		imports []string
		want    []string
	}{
		{"nn", []string{"fmt", "zeroth/device", "zeroth/shard"}, nil},
		{"nn", []string{"zeroth/collective"}, []string{"nn imports collective of its own line, and no arrow is drawn"}},
		{"config", []string{"zeroth/job/hf"}, nil},
		{"job/hf", []string{"zeroth/config"}, []string{"job/hf imports config of its own line, and no arrow is drawn"}},
		{"device", []string{"zeroth/device/cpu"}, []string{"device (line 0) imports device/cpu (line 1)"}},
		{"device/cpu/inner", nil, []string{"device/cpu/inner has no row in the table"}},
		{"zero", []string{"zeroth/job", "flag"}, []string{"zero (line 4) imports job (line 8)", "zero imports flag, which is not its business"}},
		{"cmd/zeroth", []string{"zeroth/job", "os/signal"}, nil},
		{"job/report", []string{"zeroth/zero", "os/signal"}, []string{"job/report imports os/signal, which is not its business"}},
		{"shard", []string{"sync"}, []string{"shard imports sync, which is not its business"}},
		{"fsdp", []string{"zeroth/stray"}, []string{"fsdp imports stray, which has no row in the table"}},
		{"forecast", []string{"zeroth/job/jobtest"}, []string{"forecast imports job/jobtest, which is for tests"}},
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
