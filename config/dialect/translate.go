package dialect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"zeroth/config"
	"zeroth/config/tree"
	"zeroth/config/words"
	"zeroth/internal/input"
	"zeroth/job/hf"
)

// dialect is the configuration of another program.
type dialect struct {
	Name    string // in the table of words
	presets []preset
	reads   bool // the program reads a configuration of DeepSpeed
	is      func(root *tree.Node) bool
	after   func(t *Translation) // what follows from several keys
}

// Dialects returns the configurations of other programs that are accepted as jobs.
func Dialects() []dialect {
	return []dialect{deepSpeed, axolotl, llamaFactory, arguments, accelerate}
}

// Translation is a configuration on its way to a job.
type Translation struct {
	from       dialect
	words      map[string]words.Word // of that program
	root       *tree.Node
	args       *Translation // of a DeepSpeed configuration: the Trainer's arguments that use it; nil: unknown
	Job        *tree.Node
	Problems   tree.Problems
	given      map[string]bool // keys of the job that the file itself sets
	dropped    []words.Word    // keys without a meaning here, with the reason
	autos      []string        // keys of the job with the value "auto"
	guessed    []string        // keys of the job with defaults of the Trainer
	differs    []preset        // that a user may not expect
	everywhere bool            // weight decay applies to biases and norms, too
}

// Name returns the name of the program.
func (t *Translation) Name() string { return t.from.Name }

// of returns the dialect of a file, nil if it is no configuration of another program.
func of(root *tree.Node) *dialect {
	if slices.ContainsFunc(root.Pairs, func(p *tree.Pair) bool { return slices.Contains(ownSections, p.Key) }) {
		return nil
	}
	for _, d := range Dialects() {
		if d.is(root) {
			return &d
		}
	}
	return nil
}

// Translated returns the job of a file that is the configuration of another program, with the
// positions of that file; nil for any other file. A configuration of DeepSpeed that it names is followed.
func Translated(root *tree.Node) *Translation {
	d := of(root)
	if d == nil {
		return nil
	}
	t := d.translate(root, nil)
	if more := t.their("deepspeed"); d.reads && more.Kind == tree.Mapping {
		t.join(more)
	} else if d.reads && more.Text != "" {
		if with, problems := read(more.Text); len(problems) > 0 {
			t.wrong(more.At, "deepspeed", problems[0].Wrong, "want the path of DeepSpeed's configuration")
		} else {
			t.join(with)
		}
	}
	return t
}

// read returns the mapping in a file.
func read(file string) (*tree.Node, tree.Problems) {
	at := tree.Position{File: file}
	raw, err := tree.ReadJob(file)
	if err != nil {
		return nil, tree.Fatal(at, "the file cannot be read: "+input.Cause(err).Error(), "")
	}
	top, problems := tree.Parse(tree.WithoutComments(raw), at)
	if len(problems) == 0 && (top == nil || top.Kind != tree.Mapping) {
		problems = tree.Fatal(at, "this is not a mapping of keys", "want a configuration in JSON or YAML")
	}
	return top, problems
}

// translate returns the job of a file's keys. Those of DeepSpeed may complete the arguments of the Trainer.
func (d dialect) translate(root *tree.Node, args *Translation) *Translation {
	t := &Translation{from: d, words: words.Of(d.Name), root: root, args: args, given: map[string]bool{}}
	t.Job = &tree.Node{At: root.At, Kind: tree.Mapping}
	t.keys("", root)
	for _, key := range config.Keys() {
		t.given[key] = t.has(key) != nil
	}
	for _, key := range t.autos {
		t.byTrainer(key)
	}
	if from := t.has("model.from"); from != nil && hf.Address(from.Text) != "" {
		t.set("model.from", hf.Address(from.Text), from.At)
	}
	d.after(t)
	return t
}

// join completes the arguments of the Trainer by DeepSpeed's configuration, in which "auto" is the arguments' value.
// It refuses values that contradict each other, as transformers does.
func (t *Translation) join(root *tree.Node) {
	d := deepSpeed.translate(root, t)
	decides := func(key string) bool { // also about keys that the file lacks
		section, _ := tree.Split(key)
		return key == "zero.stage" || section == "zero.offload" || section == "schedule" && !lacksTheir("scheduler.type")(d) ||
			strings.HasPrefix(key, "optimizer.") && !lacksTheir("optimizer.type")(d)
	}
	for _, key := range config.Keys() {
		theirs, ours := d.has(key), t.has(key)
		switch {
		case slices.Contains(d.autos, key):
		case theirs == nil && decides(key):
			t.Job.Remove(key)
		case theirs == nil || !d.given[key] && !decides(key):
		case d.given[key] && t.given[key] && !sameValue(inline(theirs), inline(ours)):
			d.wrong(theirs.At, key, fmt.Sprintf("%s, but %s has %s at %s", inline(theirs), t.from.Name, inline(ours), ours.At),
				`want "auto", or the same value in both`)
		default:
			tree.Put(t.Job, key, theirs)
		}
	}
	t.Problems, t.dropped, t.everywhere = append(t.Problems, d.Problems...), append(t.dropped, d.dropped...), d.everywhere
	t.differs = slices.DeleteFunc(t.differs, func(p preset) bool { return decides(p.key) })
	t.differs = append(t.differs, slices.DeleteFunc(d.differs, func(p preset) bool { return !decides(p.key) })...)
}

// keys translates the keys of a mapping.
func (t *Translation) keys(in string, n *tree.Node) {
	for _, p := range n.Pairs {
		key := tree.Join(in, p.Key)
		entry, ok := t.words[key]
		switch {
		case (ok || t.section(key)) && off(p.Value, 3):
		case p.Value.Kind == tree.Mapping && t.section(key):
			t.keys(key, p.Value)
		case !ok && p.Value.Kind == tree.Nothing:
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
	for k := range t.words {
		if strings.HasPrefix(k, key+".") {
			return true
		}
	}
	return false
}

// hasAny recognizes a configuration by any of some keys.
func hasAny(keys ...string) func(root *tree.Node) bool {
	return func(root *tree.Node) bool {
		return slices.ContainsFunc(keys, func(key string) bool { return root.Find(key) != nil })
	}
}

func (t *Translation) unknown(in string, p *tree.Pair) {
	var names []string
	for k := range t.words {
		if name, ok := tree.Within(in, k); ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
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
		if e.Note != "" && !strings.EqualFold(text, "false") && !strings.HasSuffix(e.Note, "determines it") {
			t.dropped = append(t.dropped, e)
		}
	case e.Ours == "" && allows(e.Only, v):
	case e.Ours == "":
		want := strings.ReplaceAll("want "+strings.Join(e.Only, " or "), "want none", "remove it")
		t.wrong(v.At, key, v.String()+" is not supported", cmp.Or(e.Note, want))
	case e.Ours == "zero.recompute" && v.Kind == tree.Mapping: // DeepSpeed's section of what its script switches on
		if slices.ContainsFunc(v.Pairs, func(p *tree.Pair) bool { return !slices.Contains([]string{"", "false", "0"}, p.Value.Text) }) {
			t.set(e.Ours, "block", v.At)
		}
	case v.Kind == tree.Scalar && text == "auto" && e.Values[text] == "":
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
	case strings.HasSuffix(e.Ours, "documents") && v.Kind == tree.List:
		tree.Put(t.Job, e.Ours, v)
	case v.Kind == tree.Mapping || slices.ContainsFunc(v.Items, func(n *tree.Node) bool { return n.Kind != tree.Scalar }):
		t.wrong(v.At, key, v.String()+" is not supported", "want a plain value")
	default:
		tree.Put(t.Job, e.Ours, v)
	}
}

// allows reports whether a value, or every item of a list, is one of some.
func allows(some []string, v *tree.Node) bool {
	if v.Kind == tree.List {
		return !slices.ContainsFunc(v.Items, func(n *tree.Node) bool { return !allows(some, n) })
	}
	return v.Kind == tree.Scalar && slices.ContainsFunc(some, func(s string) bool { return sameValue(s, v.Text) })
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
// a file is none. Of two files, one is the DeepSpeed configuration that the other's program reads.
func Translate(files ...string) (text string, ok bool, err error) {
	var roots []*tree.Node
	for _, file := range files {
		root, problems := read(file)
		if len(problems) > 0 {
			return "", false, problems
		}
		if of(root) == nil {
			return "", false, nil
		}
		roots = append(roots, root)
	}
	if len(roots) > 1 && of(roots[0]).Name == "DeepSpeed" {
		slices.Reverse(roots)
	}
	t := Translated(roots[0])
	if len(roots) == 2 && t.from.reads && of(roots[1]).Name == "DeepSpeed" && t.their("deepspeed").Kind == tree.Nothing {
		t.join(roots[1])
	} else if len(roots) > 1 {
		return "", true, tree.Fatal(roots[1].At, "these files are not read together",
			"want one file, or DeepSpeed's with TrainingArguments, Axolotl's or LLaMA-Factory's")
	}
	if len(t.Problems) > 0 {
		t.Problems.Sort()
		return "", true, t.Problems
	}
	t.Finish(t.Job)
	for key, value := range map[string]string{"model.from": "YOUR-MODEL", "data.documents": `["YOUR-DATA.jsonl"]`} {
		if t.has(key) == nil {
			t.set(key, value, roots[0].At)
		}
	}
	return t.write(), true, nil
}

// write returns the job with comments.
func (t *Translation) write() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# From %s, a configuration of %s.\n", tree.FileName(t.root.At.File), t.from.Name)
	b.WriteString("# Replace what is marked YOUR: a model is a folder with config.json, or hf://org/name.\n")
	var reasons []string
	keys := map[string][]string{}
	for _, w := range t.dropped {
		if keys[w.Note] == nil {
			reasons = append(reasons, w.Note)
		}
		keys[w.Note] = append(keys[w.Note], w.Key)
	}
	for _, reason := range reasons {
		fmt.Fprintf(&b, "# %s: %s\n", strings.Join(keys[reason], ", "), reason)
	}
	for _, note := range t.Notes(t.Job) {
		fmt.Fprintf(&b, "# %s\n", note)
	}
	order := func(p *tree.Pair) int {
		return slices.IndexFunc(config.Keys(), func(key string) bool { return key == p.Key || strings.HasPrefix(key, p.Key+".") })
	}
	slices.SortStableFunc(t.Job.Pairs, func(a, b *tree.Pair) int { return order(a) - order(b) })
	writeNode(&b, t.Job, 0)
	return b.String()
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
