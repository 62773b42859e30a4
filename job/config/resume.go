package config

import (
	"cmp"
	"fmt"
	"slices"

	"zeroth/job/hf"
)

// modelKey returns the key of a part of a model that hf.Model.Differ names, or the name if
// no key says it.
func modelKey(says string) string {
	if key := "model." + says; slices.Contains(Shape(), key) {
		return key
	}
	return says
}

// resumeModel makes the model that of the checkpoint, and keeps in differs
// what the job says of it that does.
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
		at := c.Place("model.from")
		if !from {
			at = c.Place(name)
		}
		r.differs = append(r.differs, fmt.Sprintf("%s is %v in it, %v in the job (%v)", name, is, job, at))
	}
	was.Differ(*m, func(says string, is, job any) {
		if key := modelKey(says); from || r.has(key) {
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
	if next.From != "" && !from { // what was said is as in the checkpoint, which says it otherwise
		for _, key := range Shape() {
			delete(r.given, key)
		}
	}
}

// Lasting are the keys that stay as they were in a run that goes on, unless the
// job says them: those that change what it computes, beside the model's, and
// those that say what is saved and what may be deleted.
func Lasting() []string { return keysOf(func(f field) bool { return f.lasts }) }

// Before is what is known of the training that a run continues.
type Before struct {
	Job      *Config   // the job that wrote the checkpoint; nil if unknown
	Model    *hf.Model // the checkpoint's; nil if unknown
	Context  int       // tokens of a sample; 0 in an imported model
	Unpadded bool      // it trained the embedding of the model's padding token
	File     string    // where all this was read, for messages
}

// Continued returns the job of a run that continues b, and how what c says of the model
// differs from the checkpoint's. Keys that c leaves out come from there.
func (c *Config) Continued(b Before) (next *Config, differs []string, wrong Problems) {
	was := b.Job
	root := c.root.clone()
	for _, key := range c.inherited(was) {
		n, _ := parse([]byte(was.Text(key)), place{})
		n.moveTo(place{file: b.File})
		put(root, key, n)
	}
	r := newReader(c.file, root)
	r.Config.network, r.Config.here = c.network, c.here
	if b.Model != nil {
		r.was = &b
	}
	r.Config.resumes = b.Context > 0
	r.read()
	r.resolve()
	r.problems.Sort()
	return r.Config, r.differs, r.problems
}

// SettingsOf is what lasts of a job that a checkpoint has in YAML, and where its
// model came from. What else is wrong with it does not matter.
func SettingsOf(job string) *Config {
	old, _ := parse([]byte(visible(job)), place{}) // older programs wrote what is invisible as it is
	root := &node{kind: mapping}
	if old != nil && old.kind == mapping {
		in := &reader{root: old}
		for _, key := range append([]string{"train.micro_batch", "train.accumulate", "train.eval_batches", "parallel.ranks", "data.documents", "data.validation_documents"}, Lasting()...) {
			if n := in.lookup(key); n != nil {
				put(root, key, n)
			}
		}
		r := newReader("", root)
		r.read()
		r.resolve()
		if r.bad["train.lora.alpha"] {
			r.Config.Train.LoRA.Alpha = 0 // adapters are not multiplied by what their checkpoint does not say
		}
		if n := in.lookup("model.from"); n != nil && n.kind == scalar {
			r.Config.Model.From = n.text
		}
		return r.Config
	}
	return nil
}

// HasKey reports whether a job in YAML gives a value for a key.
func HasKey(job, key string) bool {
	root, _ := parse([]byte(job), place{})
	return root != nil && root.kind == mapping && (&reader{root: root}).lookup(key) != nil
}

// inherited are the keys that come from the checkpoint's job.
func (c *Config) inherited(was *Config) (keys []string) {
	if was == nil {
		return nil
	}
	for _, f := range c.fields() {
		key := f.key
		if !f.lasts {
			continue
		}
		said := c.says(key) || key == "train.batch" && c.says("train.micro_batch") && c.says("train.accumulate")
		parted := slices.ContainsFunc(f.follows, func(of string) bool { return c.says(of) && c.Text(of) != was.Text(of) })
		if !said && !parted && (key == "train.batch" || was.written(was.field(key))) {
			keys = append(keys, key)
		}
	}
	return keys
}

// says tells whether the job says a key itself.
func (c *Config) says(key string) bool {
	_, ok := c.places[key]
	return ok
}

// Told is a key's value for people: none where the job has none.
func (c *Config) Told(key string) string {
	if f := c.field(key); key != "train.batch" && !c.written(f) {
		return "none"
	}
	return c.Text(key)
}

// Text is a key's value as a job file has it.
func (c *Config) Text(key string) string { return c.field(key).value.yaml() }

// field is that of a key.
func (c *Config) field(key string) field {
	fields := c.fields()
	return fields[slices.IndexFunc(fields, func(f field) bool { return f.key == key })]
}
