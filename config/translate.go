package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// theirs is what a key of another program's configuration is in a job: a key, or nothing.
type theirs struct {
	key   string            // in a job; "" for none
	words map[string]string // values and what they are here; with words, other values are refused
	auto  string            // what the Hugging Face Trainer makes of "auto" by default; "" leaves the key out
	same  []string          // without key: values that change nothing here; none: any value
	note  string            // without key: why there is nothing to set, or why other values are refused
}

// dialect is the configuration of another program.
type dialect struct {
	name    string // for people
	keys    map[string]theirs
	presets []preset
	is      func(root *node) bool
	after   func(t *translation) // what follows from several keys
}

// dialects returns the configurations of other programs that are accepted as jobs.
func dialects() []dialect { return []dialect{deepSpeed, arguments, accelerate} }

// translation is a configuration on its way to a job.
type translation struct {
	from       dialect
	root       *node
	job        *node
	problems   Problems
	dropped    []string // keys without a meaning here, and why, for people
	guessed    []string // keys of the job with defaults of the Trainer
	differs    []preset // that a user may not expect
	everywhere bool     // weight decay applies to biases and norms, too
}

// translated returns the job of a file that is the configuration of another program, with the
// positions of that file; nil for any other file.
func translated(root *node) *translation {
	if slices.ContainsFunc(root.pairs, func(p *pair) bool { return slices.Contains(ownSections, p.key) }) {
		return nil
	}
	for _, d := range dialects() {
		if !d.is(root) {
			continue
		}
		t := &translation{from: d, root: root, job: &node{at: root.at, kind: mapping}}
		t.job.from = t
		t.keys("", root)
		d.after(t)
		return t
	}
	return nil
}

// keys translates the keys of a mapping.
func (t *translation) keys(in string, n *node) {
	for _, p := range n.pairs {
		key := join(in, p.key)
		entry, ok := t.from.keys[key]
		switch {
		case (ok || t.section(key)) && p.value.off(3):
		case p.value.kind == mapping && t.section(key):
			t.keys(key, p.value)
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
func (n *node) off(depth int) bool {
	if p := n.find("enabled"); p != nil {
		return strings.EqualFold(p.value.text, "false")
	}
	return depth > 0 && len(n.pairs) > 0 && !slices.ContainsFunc(n.pairs, func(p *pair) bool { return !p.value.off(depth - 1) })
}

// section reports whether there are keys of the dialect below a key.
func (t *translation) section(key string) bool {
	for k := range t.from.keys {
		if strings.HasPrefix(k, key+".") {
			return true
		}
	}
	return false
}

func (t *translation) unknown(in string, p *pair) {
	var names []string
	for k := range t.from.keys {
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
	if near := Nearest(p.key, names); near != "" {
		advice = "did you mean " + near + "?"
	}
	t.wrong(p.at, join(in, p.key), "unknown key of "+t.from.name, advice)
}

func (t *translation) wrong(at position, key, wrong, right string) {
	t.problems = append(t.problems, newProblem(at, key, wrong, right))
}

// one translates a key with a value.
func (t *translation) one(key string, e theirs, p *pair) {
	v := p.value
	text := v.text
	switch {
	case v.kind == nothing || v.kind != scalar && len(v.pairs)+len(v.items) == 0:
	case e.key == "" && (len(e.same) == 0 || v.kind == scalar && slices.ContainsFunc(e.same, func(s string) bool { return sameValue(s, text) })):
		t.dropped = append(t.dropped, fmt.Sprintf("%s: %s", key, cmp.Or(e.note, "nothing to set: "+v.String()+" is the only choice")))
	case e.key == "":
		t.wrong(v.at, key, v.String()+" is not supported", cmp.Or(e.note, "want "+strings.Join(e.same, " or ")))
	case v.kind == scalar && text == "auto":
		if e.auto != "" {
			t.set(e.key, e.auto, v.at)
			t.guessed = append(t.guessed, e.key)
		}
	case e.words != nil:
		to, ok := e.words[text]
		if !ok {
			to, ok = e.words[strings.ToLower(text)]
		}
		if !ok {
			t.wrong(v.at, key, v.String()+" is not supported", "want "+strings.Join(slices.Sorted(maps.Keys(e.words)), ", "))
		} else if to != "" {
			t.set(e.key, to, v.at)
		}
	case v.kind == mapping || slices.ContainsFunc(v.items, func(n *node) bool { return n.kind != scalar }):
		t.wrong(v.at, key, v.String()+" is not supported", "want a plain value")
	default:
		put(t.job, e.key, v)
	}
}

// sameValue compares values of YAML: numbers by their value.
func sameValue(a, b string) bool {
	x, wrong := strconv.ParseFloat(a, 64)
	y, bad := strconv.ParseFloat(b, 64)
	return a == b || wrong == nil && bad == nil && x == y
}

// set gives a key of the job a value that is written here, in YAML. What the file says is put as it is.
func (t *translation) set(key, value string, at position) {
	n, problems := parse([]byte(value), position{})
	if n == nil || len(problems) > 0 {
		panic(fmt.Sprintf("config: %s of %s is no YAML", value, key))
	}
	n.moveTo(at)
	put(t.job, key, n)
}

// remove removes a key, which need not be there.
func (n *node) remove(key string) {
	section, name := split(key)
	if in := n.lookup(section); in != nil {
		in.pairs = slices.DeleteFunc(in.pairs, func(p *pair) bool { return p.key == name })
	}
}

// has returns the value of a key of the job, or nil.
func (t *translation) has(key string) *node { return t.job.lookup(key) }

// their returns the value of a key of the other program's configuration, nothing if it lacks the key.
func (t *translation) their(key string) *node {
	if n := t.root.lookup(key); n != nil {
		return n
	}
	return &node{at: t.root.at}
}

// equivalentOf returns the job's key for a key of another program, such as train.batch for
// train_batch_size, or "".
func equivalentOf(key string) string {
	_, last := split(key)
	for _, d := range dialects() {
		for _, name := range []string{key, last} {
			if e := d.keys[name]; e.key != "" {
				return fmt.Sprintf("%s of %s is %s here: write %s", name, d.name, e.key, nest(e.key))
			}
		}
	}
	return ""
}

// withoutComments blanks out the comments of JavaScript in a text that looks like JSON, and leaves all
// else where it is.
func withoutComments(raw []byte) []byte {
	if i := strings.IndexFunc(string(raw), func(r rune) bool { return !strings.ContainsRune(" \t\r\n", r) }); i < 0 || raw[i] != '{' && raw[i] != '/' {
		return raw
	}
	out := slices.Clone(raw)
	in := byte(0) // a string, by its quote, or a comment: '/' to the end of the line, '*'
	for i := 0; i < len(out); i++ {
		c, next := out[i], byte(0)
		if i+1 < len(out) {
			next = out[i+1]
		}
		switch {
		case in == '"':
			if c == '\\' {
				i++
			} else if c == '"' {
				in = 0
			}
			continue
		case in == 0 && c == '"':
			in = '"'
			continue
		case in == 0 && c == '/' && (next == '/' || next == '*') && (i == 0 || strings.IndexByte(" \t\r\n,{}[]\"", out[i-1]) >= 0): // not s3://
			in = next
			out[i], out[i+1] = ' ', ' '
			i++
			continue
		case in == '/' && c == '\n':
			in = 0
		case in == '*' && c == '*' && next == '/':
			out[i], out[i+1], in = ' ', ' ', 0
			i++
			continue
		}
		if (in == '/' || in == '*') && c != '\n' {
			out[i] = ' '
		}
	}
	return out
}

// Translate returns the job of another program's configuration as a commented job file, or ok false if
// the file is none.
func Translate(file string) (text string, ok bool, err error) {
	raw, err := readJob(file)
	if err != nil {
		return "", false, fatal(position{file: file}, "the file cannot be read: "+err.Error(), "")
	}
	top, problems := parse(withoutComments(raw), position{file: file})
	if problems.Fatal() || top == nil || top.kind != mapping {
		return "", false, problems
	}
	t := translated(top)
	if t == nil {
		return "", false, nil
	}
	if problems = append(problems, t.problems...); len(problems) > 0 {
		problems.Sort()
		return "", true, problems
	}
	t.job.finish()
	if t.job.lookup("data.documents") == nil {
		t.set("data.documents", `["YOUR-DATA.jsonl"]`, top.at)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# From %s, a configuration of %s.\n", fileName(file), t.from.name)
	for _, note := range append(t.dropped, t.notes(t.job)...) {
		fmt.Fprintf(&b, "# %s\n", note)
	}
	writeNode(&b, t.job, 0)
	return b.String(), true, nil
}

// writeNode writes a mapping as YAML.
func writeNode(b *strings.Builder, n *node, depth int) {
	for _, p := range n.pairs {
		fmt.Fprintf(b, "%s%s:", strings.Repeat("  ", depth), p.key)
		if p.value.kind == mapping {
			b.WriteByte('\n')
			writeNode(b, p.value, depth+1)
			continue
		}
		fmt.Fprintf(b, " %s\n", inline(p.value))
	}
}

// inline formats a value in one line.
func inline(n *node) string {
	switch n.kind {
	case list:
		var items []string
		for _, item := range n.items {
			items = append(items, inline(item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case mapping:
		var items []string
		for _, p := range n.pairs {
			items = append(items, p.key+": "+inline(p.value))
		}
		return "{" + strings.Join(items, ", ") + "}"
	case nothing:
		return ""
	}
	if n.quoted {
		return Quote(n.text)
	}
	return n.text
}
