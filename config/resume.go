package config

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"zeroth/input/hub"
	"zeroth/job/hf"
)

// modelKey returns the key of a model property named by hf.Model.Differ, or the name itself if no
// key sets it.
func modelKey(name string) string {
	if key := "model." + name; slices.Contains(Shape(), key) {
		return key
	}
	return name
}

// resumeModel replaces the model by the checkpoint's, and records in differs what the job sets
// differently.
func (r *reader) resumeModel() {
	c, was, trained := r.Config, r.was.Model, r.was.Context
	m, from := &c.Model, c.Model.From != ""
	if from {
		r.modelFrom()
	}
	if r.was.Unpadded {
		m.Padded, m.Pad = was.Padded, was.Pad
	}
	differs := func(name string, is, job any) {
		at := c.Position("model.from")
		if !from {
			at = c.Position(name)
		}
		r.differs = append(r.differs, fmt.Sprintf("%s is %v in it, %v in the job (%v)", name, is, job, at))
	}
	was.Differ(*m, func(name string, is, job any) {
		if key := modelKey(name); from || r.has(key) {
			differs(key, is, job)
		}
	})
	next := *was
	if next.From = m.From; !from && r.was.Job != nil {
		next.From = r.was.Job.Model.From
	}
	switch longest := was.Context; {
	case r.has("model.context") && trained > 0 && m.Context != trained, r.has("model.context") && m.Context > longest:
		differs("model.context", cmp.Or(trained, longest), m.Context)
	case r.has("model.context"):
		next.Context = m.Context
	case trained > 0:
		next.Context = trained
	}
	if next.Context < was.Context {
		next.Longest = was.Context
	}
	if m.BOS != "" || m.EOS != "" {
		next.BOS, next.EOS = m.BOS, m.EOS
	}
	*m = next
	if next.From != "" && !from { // the checkpoint now sets these keys
		for _, key := range Shape() {
			delete(r.given, key)
		}
	}
}

// Lasting returns the keys that a resumed run inherits unless the job sets them: keys that change
// results, except the model's, and keys that control saving and deleting.
func Lasting() []string { return keysOf(func(f field) bool { return f.lasts }) }

// Before describes the training that a run resumes.
type Before struct {
	Job      *Config   // the job that wrote the checkpoint; nil if unknown
	Partial  bool      // Job is what is known of another program's: only the keys that it sets
	Model    *hf.Model // the checkpoint's; nil if unknown
	Context  int       // tokens of a sample; 0 in an imported model
	Unpadded bool      // the padding token's embedding was trained
	File     string    // source of this information, for messages
}

// Continued returns the job for a run that resumes from b, and the differences between c's model
// and the checkpoint's. Keys that c omits are taken from the checkpoint's job.
func (c *Config) Continued(b Before) (next *Config, differs []string, wrong Problems) {
	was := b.Job
	root := c.root.clone()
	for _, key := range c.inherited(was, b.Partial) {
		n, _ := parse([]byte(was.Text(key)), position{})
		n.moveTo(position{file: b.File})
		put(root, key, n)
	}
	r := newReader(c.file, root)
	r.Config.own, r.Config.env = c.own, c.env
	r.Config.env.Resumes = false
	if b.Model != nil {
		r.was = &b
	}
	r.Config.resumes = b.Context > 0
	r.read()
	r.resolve()
	r.problems.Sort()
	return r.Config, r.differs, r.problems
}

// SettingsOf returns the inheritable settings of a checkpoint's job in YAML, and the origin of its
// model. It ignores other errors in it, and returns nil if it is not a mapping.
func SettingsOf(job string) *Config {
	old, _ := parse([]byte(visible(job)), position{}) // older versions did not escape invisible characters
	root := &node{kind: mapping}
	if old != nil && old.kind == mapping {
		in := &reader{root: old}
		for _, key := range append([]string{"train.micro_batch", "train.accumulate", "train.eval_batches", "parallel.ranks", "data.documents", "data.validation_documents"}, Lasting()...) {
			if n := in.lookup(key); n != nil {
				put(root, key, n)
			}
		}
		for _, x := range [][2]string{{"model.family", program}, {"data.program", "true"}} { // then other keys are not used
			if n := in.lookup(x[0]); n != nil && n.text == x[1] {
				put(root, x[0], n)
			}
		}
		r := newReader("", root)
		r.Config.env.Fetch = func(name string, _ hub.Files) (string, error) { return name, nil }
		r.read()
		r.resolve()
		if r.bad["train.lora.alpha"] {
			r.Config.Train.LoRA.Alpha = 0 // a checkpoint without alpha did not scale its adapters
		}
		if n := in.lookup("model.from"); n != nil && n.kind == scalar {
			r.Config.Model.From = n.text
		}
		return r.Config
	}
	return nil
}

// HasKey reports whether a job in YAML sets a key.
func HasKey(job, key string) bool {
	root, _ := parse([]byte(job), position{})
	return root != nil && root.kind == mapping && (&reader{root: root}).lookup(key) != nil
}

// inherited returns the keys to take from the checkpoint's job.
func (c *Config) inherited(was *Config, partial bool) (keys []string) {
	if was == nil {
		return nil
	}
	for _, f := range c.fields() {
		key := f.key
		if !f.lasts {
			continue
		}
		isSet := c.setsKey(key) || key == "train.batch" && c.setsKey("train.micro_batch") && c.setsKey("train.accumulate")
		followsChange := slices.ContainsFunc(f.follows, func(of string) bool { return c.setsKey(of) && c.Text(of) != was.Text(of) })
		known := key == "train.batch" || was.written(was.field(key))
		if partial {
			known = was.setsKey(key)
		}
		if !isSet && !followsChange && known {
			keys = append(keys, key)
		}
	}
	return keys
}

// Sets reports whether the job sets a key itself.
func (c *Config) Sets(key string) bool { return c.setsKey(key) }

func (c *Config) setsKey(key string) bool {
	_, ok := c.positions[key]
	return ok
}

// DisplayValue returns a key's value for display, "none" if the job does not use it.
func (c *Config) DisplayValue(key string) string {
	if f := c.field(key); key != "train.batch" && !c.written(f) {
		return "none"
	}
	return c.Text(key)
}

// Text returns a key's value in job file syntax.
func (c *Config) Text(key string) string { return c.field(key).value.yaml() }

// Shared yields the keys that all processes of a job have to agree on, with their values in job file
// syntax.
func (c *Config) Shared() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, f := range c.fields() {
			if !f.own && !yield(f.key, f.value.yaml()) {
				return
			}
		}
	}
}

// field returns the field of a key.
func (c *Config) field(key string) field {
	fields := c.fields()
	return fields[slices.IndexFunc(fields, func(f field) bool { return f.key == key })]
}
