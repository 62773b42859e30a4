package repo

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"zeroth/config"
	"zeroth/config/words"
	"zeroth/device"
	"zeroth/device/cpu"
	"zeroth/forecast"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/tests/generated"
	"zeroth/tests/nightly"
)

// TestReadmeGeneratedParts checks that the parts of pages between <!-- name --> and <!--
// end name --> equal the program's output. go test ./tests ./tests/repo -run Readme -update rewrites them.
func TestReadmeGeneratedParts(t *testing.T) {
	nightly.Long(t)
	if cpu.Separate {
		t.Skip("pages are about memory that the host may address")
	}
	t.Setenv("GOROOT", goSource(t))
	for page, parts := range map[string]map[string]string{
		"../../README.md": {
			"quickstart-size": quickstartSize(t),
			"job":             "```yaml\n" + uncommented(t, "../../examples/quickstart.yaml") + "```\n",
			"memory":          memoryTable(t),
		},
		"../../docs/memory.md": {
			"levels": levelsTable(t),
			"plan":   "```text\n" + planReport(t) + "```\n",
		},
		"../../docs/design.md": {
			"loops": "```go\n" + source(t, "../../fsdp/fsdp.go", "Forward", "Backward") + "```\n",
		},
		"../../docs/reference.md": {
			"keys": keyTables(), "commands": commandReference(t), "limits": limitTables(t), "machine": machineTable(t), "words": wordsTable(),
		},
	} {
		generated.Compare(t, page, parts)
	}
}

// keyTables returns tables of all keys of a job file, one per section.
func keyTables() string {
	var b strings.Builder
	cell := strings.NewReplacer("|", "\\|", "*", "\\*", "<", "&lt;", "${", "$\\{").Replace
	row := func(name string, k config.Key) {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, cell(k.Value), cell(k.Default), cell(k.Meaning))
	}
	last := ""
	for _, name := range config.Keys() {
		section, _, _ := strings.Cut(name, ".")
		if section != last {
			fmt.Fprintf(&b, "\n### %s\n\n| key | value | default | meaning |\n|---|---|---|---|\n", section)
		}
		last = section
		k, _ := config.Explain(name)
		row(name, k)
		for _, of := range k.Keys {
			row(name+"[]."+of.Name, of)
		}
	}
	return b.String()
}

// wordsTable returns a table of our keys and those of other programs.
func wordsTable() string {
	columns := []string{"DeepSpeed", "Accelerate", "TrainingArguments, TRL, PEFT", "Axolotl", "LLaMA-Factory", "torchtitan"}
	var b strings.Builder
	fmt.Fprintf(&b, "| zeroth | %s |\n|---%s|\n", strings.Join(columns, " | "), strings.Repeat("|---", len(columns)))
	for _, key := range config.Keys() {
		row, some := "| `"+key+"`", false
		for _, programs := range columns {
			var theirs []string
			for _, w := range words.All() {
				if w.Ours == key && slices.Contains(strings.Split(programs, ", "), w.Program) && !strings.Contains(w.Key, ".fsdp_") {
					theirs = append(theirs, "`"+w.Key+"`")
				}
			}
			row += " | " + strings.Join(theirs, ", ")
			some = some || theirs != nil
		}
		if some {
			b.WriteString(row + " |\n")
		}
	}
	return b.String()
}

// limitTables returns tables of the limits of all inputs.
func limitTables(t *testing.T) string {
	t.Helper()
	c, err := spec.Draft("", nil)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	row := func(cells ...any) { fmt.Fprintf(&b, "| %v | %v |\n", cells...) }
	file, hardware, fit := constants(t, "../../config/tree/scan.go"), constants(t, "../../forecast/hardware.go"), constants(t, "../../forecast/fit.go")
	for _, cells := range [][2]any{
		{"input", "at most"},
		{"---", "---"},
		{"job file, value of a `--set`", file["JobBytes"] + " bytes"},
		{"words and signs in it", file["jobTokens"]},
		{"keys in it", file["JobKeys"]},
		{"nesting of its lists and mappings", file["JobDepth"]},
		{"anchors and aliases in it", file["JobNames"]},
		{"documents in it, of which only one may have content", file["JobDocs"]},
		{"groups of parameters", constants(t, "../../config/optimizer.go")["MostGroups"]},
		{"pattern of a group", constants(t, "../../config/values.go")["longestPattern"] + " bytes"},
		{"time spans", config.Longest},
		{"sizes in memory", fmt.Sprintf("%d bytes", int64(config.MostMemory))},
		{"problems reported at once", config.ProblemsShown},
		{"file that describes a machine", hardware["hardwareBytes"] + " bytes"},
		{"its links", hardware["hardwareLinks"]},
		{"its rates, from 1 a second", hardware["mostRate"]},
		{"its delays", hardware["mostDelay"] + " seconds"},
		{"tasks in simulated steps", spec.MostTasks},
		{"simulated seconds of these steps", constants(t, "../../forecast/simulate.go")["mostSeconds"]},
		{"layers of a model for `fit`", fit["fitLayers"]},
	} {
		row(cells[:]...)
	}
	b.WriteString("\n| key | whole numbers |\n| --- | --- |\n")
	for _, name := range config.Keys() {
		k, _ := config.Explain(name)
		if span, ok := strings.CutPrefix(k.Value, "a whole number from "); ok {
			row("`"+name+"`", span)
		}
	}
	b.WriteString("\n| of a job | at most |\n| --- | --- |\n")
	for _, m := range spec.Magnitudes(c) {
		about := fmt.Sprintf("%.3g", m.Limit)
		if m.Limit < 1e12 {
			about = fmt.Sprintf("%.0f", m.Limit)
		}
		row(m.What, about)
	}
	return b.String()
}

// constants returns the values of the numeric constants that a file declares individually.
func constants(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			values[v.Names[0].Name] = evaluate(v.Values[0]).String()
		}
		return true
	})
	return values
}

// evaluate returns the value of an expression of numbers. go/types could, but takes seconds to build.
func evaluate(x ast.Expr) constant.Value {
	switch x := x.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(x.Value, x.Kind, 0)
	case *ast.BinaryExpr:
		a, b := evaluate(x.X), evaluate(x.Y)
		if n, ok := constant.Uint64Val(b); ok && x.Op == token.SHL {
			return constant.Shift(a, x.Op, uint(n))
		}
		return constant.BinaryOp(a, x.Op, b)
	}
	return constant.MakeUnknown()
}

// machineTable returns a table of the fields of machine files, from the structs that describe them.
func machineTable(t *testing.T) string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "../../forecast/hardware.go", nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	b, prefix := "| field | is |\n|---|---|\n", map[string]string{"Hardware": "", "Link": "links[]."}
	ast.Inspect(f, func(n ast.Node) bool {
		x, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		for _, field := range x.Type.(*ast.StructType).Fields.List {
			name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json"), ",")
			b += fmt.Sprintf("| `%s%s` | %s |\n", prefix[x.Name.Name], name, strings.TrimSpace(field.Comment.Text()))
		}
		return false
	})
	return b
}

// uncommented returns a file without its leading comment.
func uncommented(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for strings.HasPrefix(text, "#") || strings.HasPrefix(text, "\n") {
		_, text, _ = strings.Cut(text, "\n")
	}
	return text
}

// planReport returns the plan shown on the page, without the estimates at its end. It is for GPUs, since
// the work space of the CPU's kernels depends on the machine.
func planReport(t *testing.T) string {
	c, err := spec.Load("../../examples/recompute.yaml", []string{"parallel.ranks=4", "parallel.shard=null", "device=cpu"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := forecast.NewPlan(c, forecast.Machine{GPU: true})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := p.Print(&text); err != nil {
		t.Fatal(err)
	}
	shown, _, _ := strings.Cut(text.String(), "outside ")
	return shown
}

// quickstart returns the job of the README's first command.
func quickstart(t *testing.T, sets ...string) *spec.Job {
	t.Helper()
	c, err := spec.Load("../../examples/quickstart.yaml", sets)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// quickstartSize returns the number of the model's parameters, for example 9.8M.
func quickstartSize(t *testing.T) string {
	t.Helper()
	p, err := forecast.NewPlan(quickstart(t), forecast.Machine{GPU: true})
	if err != nil {
		t.Fatal(err)
	}
	_, size, _ := strings.Cut(p.Model, " ")
	return size
}

// source returns the source of functions of a file.
func source(t *testing.T, file string, names ...string) string {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && slices.Contains(names, fn.Name.Name) {
			texts = append(texts, string(src[set.Position(fn.Pos()).Offset:set.Position(fn.End()).Offset])+"\n")
		}
	}
	if len(texts) != len(names) {
		t.Fatalf("%s has %d of the functions %v", file, len(texts), names)
	}
	return strings.Join(texts, "\n")
}

// planned returns what a rank allocates, without the kernels' work space, which depends on the
// machine.
func planned(t *testing.T, sets ...string) device.Bytes {
	t.Helper()
	plan, err := setup.DryRun(setup.Planned(quickstart(t, sets...)))
	if err != nil {
		t.Fatal(err)
	}
	plan.Device[device.Workspace] = 0
	return plan.Device
}

func mebi(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }

// memoryTable returns a table of MiB per rank by stage and number of ranks.
func memoryTable(t *testing.T) string {
	var b strings.Builder
	fmt.Fprintln(&b, "| stage | 1 rank | 2 ranks | 4 ranks | 8 ranks |\n|---|---:|---:|---:|---:|")
	for stage := range 4 {
		fmt.Fprintf(&b, "| %d |", stage)
		for _, ranks := range []int{1, 2, 4, 8} {
			u := planned(t, fmt.Sprintf("zero.stage=%d", stage), fmt.Sprintf("parallel.ranks=%d", ranks))
			fmt.Fprintf(&b, " %s |", mebi(u.Total()))
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

var (
	mentioned = regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z]\w+`)
	linked    = regexp.MustCompile(`\]\(([^)#:]+)\)`)
)

// TestReadmeNamesExist checks that tests and files named by pages exist.
func TestReadmeNamesExist(t *testing.T) {
	functions := declared(t)
	names, text := pages(t)
	for _, page := range names {
		for _, name := range mentioned.FindAllString(text[page], -1) {
			if !functions[name] {
				t.Errorf("%s names %s, which no test file has", page, name)
			}
		}
		for _, m := range linked.FindAllStringSubmatch(text[page], -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
}

// TestReadmeLinksAllPages checks that README.md leads to every page except the records in
// docs/lab.
func TestReadmeLinksAllPages(t *testing.T) {
	names, text := pages(t)
	for _, page := range names[1:] {
		if strings.HasPrefix(page, "../../docs/lab/") {
			continue
		}
		if !strings.Contains(text["../../README.md"], "("+strings.TrimPrefix(page, "../../")+")") {
			t.Errorf("README.md has no link to %s", page)
		}
	}
}

// declared returns the test functions of the tree.
func declared(t *testing.T) map[string]bool {
	t.Helper()
	names, function := map[string]bool{}, regexp.MustCompile(`(?m)^func (\w+)\(`)
	err := filepath.WalkDir(filepath.Join("..", ".."), func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		src, err := os.ReadFile(name)
		for _, m := range function.FindAllSubmatch(src, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil || len(names) < 100 {
		t.Fatalf("%d tests, %v", len(names), err)
	}
	return names
}

// TestReadmeExamplesSayTheirSize checks the parameter counts stated in examples.
func TestReadmeExamplesSayTheirSize(t *testing.T) {
	size, said := regexp.MustCompile(`(\d[\d.]* ?[kMG]) parameters`), 0
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := size.FindStringSubmatch(string(raw))
		if m == nil {
			continue
		}
		said++
		c, err := spec.Load(file, nil)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := forecast.NewPlan(c, forecast.Machine{GPU: true}); err != nil || !strings.HasSuffix(p.Model, " "+m[1]) {
			t.Errorf("%s says %s, the plan %+v (%v)", file, m[0], p.Model, err)
		}
	}
	if said < 2 {
		t.Errorf("only %d examples say how large they are", said)
	}
}
