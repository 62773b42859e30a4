package config

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/data"
	"zeroth/job/show"
)

// reader fills a Config from the nodes of a job file.
type reader struct {
	file     string
	root     *node
	Config   *Config
	fields   []field
	given    map[string]*node // keys with valid values
	bad      map[string]bool  // keys with a problem already reported
	draft    bool             // the job is planned, not run
	problems Problems
	failed   error    // why a model could not be downloaded, if that is no mistake in the job
	was      *Before  // the checkpoint that the job resumes from; nil if none
	differs  []string // differences between the job's model and the checkpoint's

	tokenizer data.Tokenizer // nil until resolved
}

// newReader returns a reader for the parsed nodes of a job file. The file name is used in
// problems.
func newReader(file string, root *node) *reader {
	c := &Config{file: file, root: root, positions: map[string]position{"": {file: file}}}
	return &reader{file: file, root: root, Config: c, fields: c.fields(), given: map[string]*node{}, bad: map[string]bool{}}
}

// read sets every given key and every default that is a plain value, and reports invalid keys and
// values.
func (r *reader) read() {
	r.sections("", r.root)
	for _, f := range r.fields {
		if n := r.lookup(f.key); n != nil && n.kind != nothing {
			r.set(f, n)
		} else {
			r.initial(f)
		}
	}
}

func (r *reader) set(f field, n *node) {
	if v, ok := f.value.(records); ok {
		if problems := v.read(f.key, n); len(problems) > 0 {
			r.bad[f.key] = true
			r.problems = append(r.problems, problems...)
			return
		}
	}
	wrong := f.value.set(n)
	if wrong != "" {
		at := n.at
		if v, ok := f.value.(interface{ culprit(*node) position }); ok {
			at = v.culprit(n)
		}
		r.wrong(at, f.key, wrong, "want "+f.value.want()+f.example())
		r.initial(f) // later checks need a usable value
		return
	}
	r.given[f.key] = n
	r.Config.positions[f.key] = n.at
	for i, item := range n.items {
		at := fmt.Sprintf("%s[%d]", f.key, i)
		r.Config.positions[at] = item.at
		for _, p := range item.pairs {
			r.Config.positions[join(at, p.key)] = p.value.at
		}
	}
}

// example returns the default as an example of a valid number.
func (f field) example() string {
	switch f.value.(type) {
	case perhaps, some:
		return ", such as " + f.sample()
	case count, real, reals:
		first, _, _ := strings.Cut(f.initial+f.rule, ";")
		first, _, _ = strings.Cut(first, ", or")
		if _, wrong := number(&node{kind: scalar, text: first}); wrong == "" || strings.HasPrefix(first, "[") {
			return ", such as " + first
		}
	}
	return ""
}

// initial sets the field's default unless it depends on the resolution of other keys.
func (r *reader) initial(f field) {
	rule := r.Config.Optimizer.Type
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
	n, problems := parse([]byte(text), position{})
	if len(problems) > 0 || f.value.set(n) != "" {
		panic(fmt.Sprintf("config: the default %s of %s is refused", text, f.key))
	}
}

// lookup returns the node of a key, nil if the file lacks it.
func (r *reader) lookup(key string) *node { return r.root.lookup(key) }

// lookup returns the value of a key of the job, or nil.
func (n *node) lookup(key string) *node {
	in := n
	for head, rest, deeper := strings.Cut(key, "."); ; head, rest, deeper = strings.Cut(rest, ".") {
		p := in.find(head)
		switch {
		case p == nil || deeper && p.value.kind != mapping:
			return nil
		case !deeper:
			return p.value
		}
		in = p.value
	}
}

// sections reports unknown keys and sections that are not mappings, in a section ("" is the whole
// file) and its subsections.
func (r *reader) sections(in string, n *node) {
	names := r.names(in)
	for _, p := range n.pairs {
		key := join(in, p.key)
		keys := r.names(key)
		if len(keys) > 0 {
			r.Config.positions[key] = p.at
		}
		switch {
		case !slices.Contains(names, p.key):
			r.unknown(in, p)
		case len(keys) == 0 || p.value.kind == nothing:
		case p.value.kind != mapping:
			r.bad[key] = true
			r.wrong(p.value.at, key, p.value.String()+" is not a mapping", "want "+nest(join(key, keys[0])))
		default:
			r.sections(key, p.value)
		}
	}
}

func join(section, name string) string {
	if section == "" {
		return name
	}
	return section + "." + name
}

// nest returns a key in one line of YAML: zero: {stage: ...}.
func nest(key string) string {
	parts := strings.Split(key, ".")
	return strings.Join(parts, ": {") + ": ..." + strings.Repeat("}", len(parts)-1)
}

// names returns the keys and sections within a section; "" is the whole file.
func (r *reader) names(in string) []string {
	var names []string
	for _, f := range r.fields {
		rest := f.key
		if in != "" {
			var within bool
			if rest, within = strings.CutPrefix(f.key, in+"."); !within {
				continue
			}
		}
		name, _, _ := strings.Cut(rest, ".")
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func (r *reader) unknown(section string, p *pair) {
	key := join(section, p.key)
	names := r.names(section)
	advice := "want one of " + strings.Join(names, ", ")
	near := Nearest(p.key, names)
	if near != "" {
		advice = "did you mean " + near + "?"
	}
	// With only one wrong letter it is a typo, not a key of another section.
	if slip := near != "" && distance(strings.ToLower(p.key), near) == 1; !slip {
		if elsewhere := r.elsewhere(section, p.key); len(elsewhere) > 0 {
			advice = "did you mean " + show.Either(elsewhere) + "?"
		}
	}
	if hint := equivalentOf(key); hint != "" && strings.Contains(p.key, "_") {
		advice = hint
	}
	if slices.ContainsFunc(r.fields, func(f field) bool { return f.key == key }) {
		advice = "write it as " + nest(key)
	}
	r.wrong(p.at, key, "unknown key", advice)
}

// elsewhere returns the least nested keys with this name in other sections. Without any, it
// returns the nested sections with this name.
func (r *reader) elsewhere(section, name string) (keys []string) {
	switch name {
	case "dtype": // data.dtype is the type of token ids
		return []string{"precision"}
	case "path": // zero.offload.path is not what was meant
		return nil
	}
	var sections []string
	for _, f := range r.fields {
		in, last := split(f.key)
		if last == name && in != section {
			keys = append(keys, f.key)
		}
		if within, last := split(in); last == name && in != "" && within != section && !slices.Contains(sections, in) {
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

func (r *reader) wrong(at position, key, wrong, right string) {
	r.bad[key] = true
	r.problems = append(r.problems, newProblem(at, key, wrong, right))
}

// spoilt reports whether a key or one of its sections has a problem of its own.
func (r *reader) spoilt(key string) bool {
	for ; key != ""; key, _ = split(key) {
		if r.bad[key] {
			return true
		}
	}
	return false
}

// refuse reports a bad combination at the first of its given keys. It does nothing if one of the
// keys has a problem of its own.
func (r *reader) refuse(wrong, right string, keys ...string) {
	if slices.ContainsFunc(keys, r.spoilt) {
		return
	}
	at, key := position{file: r.file}, keys[0]
	for _, k := range keys {
		if n := r.given[k]; n != nil {
			at, key = n.at, k
			break
		}
	}
	r.wrong(at, key, wrong, right)
}

func (r *reader) has(key string) bool { return r.given[key] != nil }
