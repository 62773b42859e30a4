package dialect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"zeroth/config/tree"
	"zeroth/config/words"
)

// dialect is the configuration of another program.
type dialect struct {
	Name    string // in the table of words
	presets []preset
	is      func(root *tree.Node) bool
	after   func(t *Translation) // what follows from several keys
}

// keys returns what the program's keys are in a job.
func (d dialect) keys() map[string]words.Word { return words.Of(d.Name) }

// Dialects returns the configurations of other programs that are accepted as jobs.
func Dialects() []dialect { return []dialect{deepSpeed, arguments, accelerate} }

// Translation is a configuration on its way to a job.
type Translation struct {
	from       dialect
	root       *tree.Node
	Job        *tree.Node
	Problems   tree.Problems
	dropped    []string // keys without a meaning here, and why, for people
	autos      []string // keys of the job with the value "auto"
	guessed    []string // keys of the job with defaults of the Trainer
	differs    []preset // that a user may not expect
	everywhere bool     // weight decay applies to biases and norms, too
}

// Translated returns the job of a file that is the configuration of another program, with the
// positions of that file; nil for any other file.
func Translated(root *tree.Node) *Translation {
	if slices.ContainsFunc(root.Pairs, func(p *tree.Pair) bool { return slices.Contains(ownSections, p.Key) }) {
		return nil
	}
	for _, d := range Dialects() {
		if !d.is(root) {
			continue
		}
		t := &Translation{from: d, root: root, Job: &tree.Node{At: root.At, Kind: tree.Mapping}}
		t.keys("", root)
		for _, key := range t.autos {
			t.byTrainer(key)
		}
		d.after(t)
		return t
	}
	return nil
}

// keys translates the keys of a mapping.
func (t *Translation) keys(in string, n *tree.Node) {
	for _, p := range n.Pairs {
		key := tree.Join(in, p.Key)
		entry, ok := t.from.keys()[key]
		switch {
		case (ok || t.section(key)) && off(p.Value, 3):
		case p.Value.Kind == tree.Mapping && t.section(key):
			t.keys(key, p.Value)
		case !ok:
			t.unknown(in, p)
		default:
			t.one(key, entry, p)
		}
	}
}

// ownSections are the sections of a job that no configuration of another program has.
var ownSections = []string{"data", "model", "train", "parallel", "zero", "schedule", "sample"}

// off reports whether a section is switched off by enabled: false, in itself or in all of its sections, down
// to a depth.
func off(n *tree.Node, depth int) bool {
	if p := n.Find("enabled"); p != nil {
		return strings.EqualFold(p.Value.Text, "false")
	}
	return depth > 0 && len(n.Pairs) > 0 && !slices.ContainsFunc(n.Pairs, func(p *tree.Pair) bool { return !off(p.Value, depth-1) })
}

// section reports whether there are keys of the dialect below a key.
func (t *Translation) section(key string) bool {
	for k := range t.from.keys() {
		if strings.HasPrefix(k, key+".") {
			return true
		}
	}
	return false
}

func (t *Translation) unknown(in string, p *tree.Pair) {
	var names []string
	for k := range t.from.keys() {
		rest := k
		if in != "" {
			var ok bool
			if rest, ok = strings.CutPrefix(k, in+"."); !ok {
				continue
			}
		}
		name, _, _ := strings.Cut(rest, ".")
		names = append(names, name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	advice := "remove it"
	if near := words.Nearest(p.Key, names); near != "" {
		advice = "did you mean " + near + "?"
	}
	t.wrong(p.At, tree.Join(in, p.Key), "unknown key of "+t.from.Name, advice)
}

func (t *Translation) wrong(at tree.Position, key, wrong, right string) {
	t.Problems = append(t.Problems, tree.NewProblem(at, key, wrong, right))
}

// one translates a key with a value.
func (t *Translation) one(key string, e words.Word, p *tree.Pair) {
	v := p.Value
	text := v.Text
	switch {
	case v.Kind == tree.Nothing || v.Kind != tree.Scalar && len(v.Pairs)+len(v.Items) == 0:
	case e.Ours == "" && e.Only == nil:
		if e.Note != "" && !strings.EqualFold(text, "false") {
			t.dropped = append(t.dropped, key+": "+e.Note)
		}
	case e.Ours == "" && v.Kind == tree.Scalar && slices.ContainsFunc(e.Only, func(s string) bool { return sameValue(s, text) }):
	case e.Ours == "":
		t.wrong(v.At, key, v.String()+" is not supported", cmp.Or(e.Note, "want "+strings.Join(e.Only, " or ")))
	case e.Ours == "zero.recompute" && v.Kind == tree.Mapping: // DeepSpeed's section of what its script switches on
		if slices.ContainsFunc(v.Pairs, func(p *tree.Pair) bool { return !slices.Contains([]string{"", "false", "0"}, p.Value.Text) }) {
			t.set(e.Ours, "block", v.At)
		}
	case v.Kind == tree.Scalar && text == "auto":
		t.autos = append(t.autos, e.Ours)
	case e.Values != nil:
		to, ok := e.Values[text]
		if !ok {
			to, ok = e.Values[strings.ToLower(text)]
		}
		if !ok {
			t.wrong(v.At, key, v.String()+" is not supported", "want "+strings.Join(slices.Sorted(maps.Keys(e.Values)), ", "))
		} else if to != "" {
			t.set(e.Ours, to, v.At)
		}
	case v.Kind == tree.Mapping || slices.ContainsFunc(v.Items, func(n *tree.Node) bool { return n.Kind != tree.Scalar }):
		t.wrong(v.At, key, v.String()+" is not supported", "want a plain value")
	default:
		tree.Put(t.Job, e.Ours, v)
	}
}

// sameValue compares values of YAML: numbers by their value.
func sameValue(a, b string) bool {
	x, wrong := strconv.ParseFloat(a, 64)
	y, bad := strconv.ParseFloat(b, 64)
	return strings.EqualFold(a, b) || wrong == nil && bad == nil && x == y
}

// set gives a key of the job a value that is written here, in YAML. What the file says is put as it is.
func (t *Translation) set(key, value string, at tree.Position) {
	n, problems := tree.Parse([]byte(value), tree.Position{})
	if n == nil || len(problems) > 0 {
		panic(fmt.Sprintf("config: %s of %s is no YAML", value, key))
	}
	n.MoveTo(at)
	tree.Put(t.Job, key, n)
}

// has returns the value of a key of the job, or nil.
func (t *Translation) has(key string) *tree.Node { return t.Job.Lookup(key) }

// their returns the value of a key of the other program's configuration, nothing if it lacks the key.
func (t *Translation) their(key string) *tree.Node {
	if n := t.root.Lookup(key); n != nil {
		return n
	}
	return &tree.Node{At: t.root.At}
}

// Translate returns the job of another program's configuration as a commented job file, or ok false if
// the file is none.
func Translate(file string) (text string, ok bool, err error) {
	raw, err := tree.ReadJob(file)
	if err != nil {
		return "", false, tree.Fatal(tree.Position{File: file}, "the file cannot be read: "+err.Error(), "")
	}
	top, problems := tree.Parse(tree.WithoutComments(raw), tree.Position{File: file})
	if problems.Fatal() || top == nil || top.Kind != tree.Mapping {
		return "", false, problems
	}
	t := Translated(top)
	if t == nil {
		return "", false, nil
	}
	if problems = append(problems, t.Problems...); len(problems) > 0 {
		problems.Sort()
		return "", true, problems
	}
	t.Finish(t.Job)
	if t.Job.Lookup("data.documents") == nil {
		t.set("data.documents", `["YOUR-DATA.jsonl"]`, top.At)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# From %s, a configuration of %s.\n", tree.FileName(file), t.from.Name)
	for _, note := range append(t.dropped, t.Notes(t.Job)...) {
		fmt.Fprintf(&b, "# %s\n", note)
	}
	writeNode(&b, t.Job, 0)
	return b.String(), true, nil
}

// writeNode writes a mapping as YAML.
func writeNode(b *strings.Builder, n *tree.Node, depth int) {
	for _, p := range n.Pairs {
		fmt.Fprintf(b, "%s%s:", strings.Repeat("  ", depth), p.Key)
		if p.Value.Kind == tree.Mapping {
			b.WriteByte('\n')
			writeNode(b, p.Value, depth+1)
			continue
		}
		fmt.Fprintf(b, " %s\n", inline(p.Value))
	}
}

// inline formats a value in one line.
func inline(n *tree.Node) string {
	switch n.Kind {
	case tree.List:
		var items []string
		for _, item := range n.Items {
			items = append(items, inline(item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case tree.Mapping:
		var items []string
		for _, p := range n.Pairs {
			items = append(items, p.Key+": "+inline(p.Value))
		}
		return "{" + strings.Join(items, ", ") + "}"
	case tree.Nothing:
		return ""
	}
	if n.Quoted {
		return tree.Quote(n.Text)
	}
	return n.Text
}
