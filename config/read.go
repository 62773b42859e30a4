package config

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/config/tree"
	"zeroth/config/words"
	"zeroth/internal/show"
)

// Document is a parsed job file, merged with the sets.
type Document struct {
	File      string
	Root      *tree.Node               // read-only
	positions map[string]tree.Position // of the given keys: "zero", "zero.stage", "data.text[2]"; "" is the file itself
}

// Position returns where a key was given: "data.text", or "data.text[2]" for its third item. For a
// missing key it returns the beginning of the key's section or of the file.
func (d *Document) Position(key string) tree.Position {
	for key != "" {
		if at, ok := d.positions[key]; ok {
			return at
		}
		key = key[:max(0, strings.LastIndexAny(key, ".["))]
	}
	return d.positions[""]
}

// Sets reports whether the job sets a key itself.
func (d *Document) Sets(key string) bool {
	_, ok := d.positions[key]
	return ok
}

// Forget makes the document one that does not set the keys.
func (d *Document) Forget(keys ...string) {
	for _, key := range keys {
		delete(d.positions, key)
	}
}

// Reader fills a Config from a document.
type Reader struct {
	*Document
	config   *Config
	On       string                // the device of the ranks, once it is known
	rows     []field               // of config
	Given    map[string]*tree.Node // keys with valid values
	Bad      map[string]bool       // keys with a problem already reported
	Problems tree.Problems
}

// NewReader returns a reader of a file's nodes. Problems name the file.
func NewReader(c *Config, file string, root *tree.Node) *Reader {
	d := &Document{File: file, Root: root, positions: map[string]tree.Position{"": {File: file}}}
	return &Reader{Document: d, config: c, rows: c.fields(""), Given: map[string]*tree.Node{}, Bad: map[string]bool{}}
}

// Reopen returns a reader of a document that was read into c without a problem.
func Reopen(c *Config, d *Document, on string) *Reader {
	r := &Reader{Document: d, config: c, On: on, rows: c.fields(on), Given: map[string]*tree.Node{}, Bad: map[string]bool{}}
	for _, f := range r.rows {
		if d.Sets(f.key) {
			r.Given[f.key] = d.Root.Lookup(f.key)
		}
	}
	return r
}

// Read sets every given key and every default that is a plain value, and reports invalid keys and
// values.
func (r *Reader) Read() {
	r.sections("", r.Root)
	for _, f := range r.rows {
		if n := r.Root.Lookup(f.key); n != nil && n.Kind != tree.Nothing {
			r.set(f, n)
		} else {
			r.initial(f)
		}
	}
}

func (r *Reader) set(f field, n *tree.Node) {
	if f.value.read != nil {
		if problems := f.value.read(f.key, n); len(problems) > 0 {
			r.Bad[f.key] = true
			r.Problems = append(r.Problems, problems...)
			return
		}
	} else if wrong := f.value.set(n); wrong != "" {
		at := n.At
		if f.value.blame != nil {
			at = f.value.blame(n)
		}
		r.Wrong(at, f.key, wrong, "want "+f.value.want+f.example())
		r.initial(f) // later checks need a usable value
		return
	}
	r.Given[f.key] = n
	r.positions[f.key] = n.At
	for i, item := range n.Items {
		at := fmt.Sprintf("%s[%d]", f.key, i)
		r.positions[at] = item.At
		for _, p := range item.Pairs {
			r.positions[tree.Join(at, p.Key)] = p.Value.At
		}
	}
}

// example returns the default as an example of a valid number.
func (f field) example() string {
	switch v := f.value; {
	case v.like:
		return ", such as " + f.sample()
	case v.items != nil:
		return ", such as [" + example(v.items) + "]"
	case v.number:
		first, _, _ := strings.Cut(f.initial+f.rule, ";")
		first, _, _ = strings.Cut(first, ", or")
		if _, wrong := tree.Number(&tree.Node{Kind: tree.Scalar, Text: first}); wrong == "" || strings.HasPrefix(first, "[") {
			return ", such as " + first
		}
	}
	return ""
}

// initial sets the field's default unless it depends on the resolution of other keys.
func (r *Reader) initial(f field) {
	rule := r.config.Optimizer.Type
	if f.types != nil && !slices.Contains(f.types, rule) {
		return
	}
	if f.then != nil {
		f.then()
	}
	text, other, _ := strings.Cut(f.initial, "; ")
	if own, ok := strings.CutPrefix(other, rule+" "); ok { // as in "1e-8; muon 1e-7"
		text = own
	}
	if text == "" {
		return
	}
	n, problems := tree.Parse([]byte(text), tree.Position{})
	if len(problems) > 0 || f.value.set(n) != "" {
		panic(fmt.Sprintf("config: the default %s of %s is refused", text, f.key))
	}
}

// sections reports unknown keys and sections that are not mappings, in a section ("" is the whole
// file) and its subsections.
func (r *Reader) sections(in string, n *tree.Node) {
	names := r.names(in)
	for _, p := range n.Pairs {
		key := tree.Join(in, p.Key)
		keys := r.names(key)
		if len(keys) > 0 {
			r.positions[key] = p.At
		}
		switch {
		case !slices.Contains(names, p.Key):
			r.unknown(in, p)
		case len(keys) == 0 || p.Value.Kind == tree.Nothing:
		case p.Value.Kind != tree.Mapping:
			r.Bad[key] = true
			r.Wrong(p.Value.At, key, p.Value.String()+" is not a mapping", "want "+words.Nest(tree.Join(key, keys[0])))
		default:
			r.sections(key, p.Value)
		}
	}
}

// names returns the keys and sections within a section; "" is the whole file.
func (r *Reader) names(in string) (names []string) {
	for _, f := range r.rows {
		if name, ok := tree.Within(in, f.key); ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func (r *Reader) unknown(section string, p *tree.Pair) {
	key := tree.Join(section, p.Key)
	names := r.names(section)
	advice := "want one of " + strings.Join(names, ", ")
	near, hint := words.Nearest(p.Key, names), words.Hint(key)
	if near != "" {
		advice = "did you mean " + near + "?"
	}
	// With only one wrong letter it is a typo, not a key of another section.
	elsewhere := r.elsewhere(section, p.Key)
	if slip := near != "" && words.Distance(strings.ToLower(p.Key), near) == 1; !slip && len(elsewhere) > 0 {
		advice = "did you mean " + show.Either(elsewhere) + "?"
	}
	theirs := strings.Contains(p.Key, "_") || near == "" && len(elsewhere) == 0
	if is := "is " + tree.Join(section, near) + " here"; hint != "" && theirs && !strings.Contains(hint, is) {
		advice = hint
	}
	if slices.ContainsFunc(r.rows, func(f field) bool { return f.key == key }) {
		advice = "write it as " + words.Nest(key)
	}
	r.Wrong(p.At, key, "unknown key", advice)
}

// elsewhere returns the least nested keys with this name in other sections. Without any, it
// returns the nested sections with this name.
func (r *Reader) elsewhere(section, name string) (keys []string) {
	switch name {
	case "dtype": // data.dtype is the type of token ids
		return []string{"precision"}
	case "path": // zero.offload.path is not what was meant
		return nil
	}
	var sections []string
	for _, f := range r.rows {
		in, last := tree.Split(f.key)
		if last == name && in != section {
			keys = append(keys, f.key)
		}
		if within, last := tree.Split(in); last == name && in != "" && within != section && !slices.Contains(sections, in) {
			sections = append(sections, in)
		}
	}
	if len(keys) == 0 {
		return sections
	}
	depth := func(key string) int { return strings.Count(key, ".") }
	least := depth(slices.MinFunc(keys, func(a, b string) int { return depth(a) - depth(b) }))
	return slices.DeleteFunc(keys, func(key string) bool { return depth(key) > least })
}

// Wrong reports a problem of a key.
func (r *Reader) Wrong(at tree.Position, key, wrong, right string) {
	r.Bad[key] = true
	r.Problems = append(r.Problems, tree.NewProblem(at, key, wrong, right))
}

// Spoilt reports whether a key or one of its sections has a problem of its own.
func (r *Reader) Spoilt(key string) bool {
	for ; key != ""; key, _ = tree.Split(key) {
		if r.Bad[key] {
			return true
		}
	}
	return false
}

// Refuse reports a bad combination at the first of its given keys. It does nothing if one of the
// keys has a problem of its own.
func (r *Reader) Refuse(wrong, right string, keys ...string) {
	if slices.ContainsFunc(keys, r.Spoilt) {
		return
	}
	at, key := tree.Position{File: r.File}, keys[0]
	for _, k := range keys {
		if n := r.Given[k]; n != nil {
			at, key = n.At, k
			break
		}
	}
	r.Wrong(at, key, wrong, right)
}

// Has reports whether the file gives a key a valid value.
func (r *Reader) Has(key string) bool { return r.Given[key] != nil }

// idle returns why the job does not use the key, "" if it does, and the key that decides it. An
// unused key is rejected if given, and not written.
func (c *Config) idle(f field) (why, because string) {
	if f.shape && c.Model.From != "" {
		return "model.from brings its own config.json", "model.from"
	}
	if f.shape && c.Model.Family == Program && f.key != "model.family" {
		return "the program's network has its own shape", "model.family"
	}
	for _, o := range f.only {
		if !o.met {
			return o.why, o.because
		}
	}
	if rule := c.Optimizer.Type; f.types != nil && !slices.Contains(f.types, rule) {
		return rule + " has no " + strings.TrimPrefix(f.key, "optimizer."), "optimizer.type"
	}
	return "", ""
}

// Unfit rejects the conflicts of a section's keys.
func (r *Reader) Unfit(section string) {
	for _, f := range r.config.section(section, r.On) {
		if f.not.is {
			r.Refuse(f.not.wrong, f.not.right, append([]string{f.key}, f.not.with...)...)
		}
	}
}

// Unused rejects given keys that the job does not use.
func (r *Reader) Unused() {
	for _, f := range r.config.fields(r.On) { // whose conditions depend on the present settings
		if why, because := r.config.idle(f); why != "" && r.Has(f.key) && (r.Has(because) || !r.Bad[because]) {
			advice := fmt.Sprintf("remove it (--set %s=null removes it)", f.key)
			if i := slices.IndexFunc(f.only, func(o only) bool { return o.why == why && o.when != "" }); i >= 0 {
				advice += ", or use it " + f.only[i].when
			}
			r.Wrong(r.Given[f.key].At, f.key, "not used: "+why, advice)
		}
	}
}
