package spec

import (
	"cmp"
	"fmt"
	"slices"

	"zeroth/config"
	"zeroth/config/tree"
	"zeroth/internal/input/hub"
	"zeroth/job/hf"
)

// modelKey returns the key of a model property named by hf.Model.Differ, or the name itself if no
// key sets it.
func modelKey(name string) string {
	if key := "model." + name; slices.Contains(config.Shape(), key) {
		return key
	}
	return name
}

// resumeModel replaces the model by the checkpoint's, and records in differs what the job sets
// differently.
func (r *resolver) resumeModel() {
	c, was, trained := r.Job, r.was.Model, r.was.Context
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
		if key := modelKey(name); from || r.Has(key) {
			differs(key, is, job)
		}
	})
	next := *was
	if next.From = m.From; !from && r.was.Job != nil {
		next.From = r.was.Job.Model.From
	}
	switch longest := was.Context; {
	case r.Has("model.context") && trained > 0 && m.Context != trained, r.Has("model.context") && m.Context > longest:
		differs("model.context", cmp.Or(trained, longest), m.Context)
	case r.Has("model.context"):
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
		for _, key := range config.Shape() {
			delete(r.Given, key)
		}
	}
}

// Before describes the training that a run resumes.
type Before struct {
	Job      *Job      // the job that wrote the checkpoint; nil if unknown
	Partial  bool      // the checkpoint is another program's: Job has only the keys that it sets
	Model    *hf.Model // the checkpoint's; nil if unknown
	Context  int       // tokens of a sample; 0 in an imported model
	Unpadded bool      // the padding token's embedding was trained
	File     string    // source of this information, for messages
}

// Continued returns the job for a run that resumes from b, and the differences between c's model
// and the checkpoint's. Keys that c omits are taken from the checkpoint's job.
func (c *Job) Continued(b Before) (next *Job, differs []string, wrong tree.Problems) {
	was := b.Job
	root := c.Root.Clone()
	for _, key := range c.inherited(was, b.Partial) {
		n, _ := tree.Parse([]byte(was.Text(key)), tree.Position{})
		n.MoveTo(tree.Position{File: b.File})
		tree.Put(root, key, n)
	}
	r := newResolver(c.File, root)
	r.Job.Own, r.Job.env = c.Own, c.env
	r.Job.env.Resumes = false
	if b.Model != nil {
		r.was = &b
	}
	r.Job.resumes = b.Context > 0
	r.Read()
	r.resolve()
	r.Problems.Sort()
	return r.Job, r.differs, r.Problems
}

// SettingsOf returns the inheritable settings of a checkpoint's job in YAML, and the origin of its
// model. It ignores other errors in it, and returns nil if it is not a mapping.
func SettingsOf(job string) *Job {
	old, _ := tree.Parse([]byte(tree.Visible(job)), tree.Position{}) // older versions did not escape invisible characters
	root := &tree.Node{Kind: tree.Mapping}
	if old != nil && old.Kind == tree.Mapping {
		for _, key := range append([]string{"train.micro_batch", "train.accumulate", "train.eval_batches", "parallel.ranks", "data.documents", "data.validation_documents"}, config.Lasting()...) {
			if n := old.Lookup(key); n != nil {
				tree.Put(root, key, n)
			}
		}
		for _, x := range [][2]string{{"model.family", config.Program}, {"data.program", "true"}} { // then other keys are not used
			if n := old.Lookup(x[0]); n != nil && n.Text == x[1] {
				tree.Put(root, x[0], n)
			}
		}
		r := newResolver("", root)
		r.Job.env.Fetch = func(name string, _ hub.Files) (string, error) { return name, nil }
		r.Read()
		r.resolve()
		if r.Bad["train.lora.alpha"] {
			r.Job.Train.LoRA.Alpha = 0 // a checkpoint without alpha did not scale its adapters
		}
		if n := old.Lookup("model.from"); n != nil && n.Kind == tree.Scalar {
			r.Job.Model.From = n.Text
		}
		return r.Job
	}
	return nil
}

// HasKey reports whether a job in YAML sets a key.
func HasKey(job, key string) bool {
	root, _ := tree.Parse([]byte(job), tree.Position{})
	return root != nil && root.Kind == tree.Mapping && root.Lookup(key) != nil
}

// inherited returns the keys to take from the checkpoint's job.
func (c *Job) inherited(was *Job, partial bool) (keys []string) {
	if was == nil {
		return nil
	}
	written := was.Written(was.on)
	for _, key := range config.Lasting() {
		isSet := c.Sets(key) || key == "train.batch" && c.Sets("train.micro_batch") && c.Sets("train.accumulate")
		followsChange := slices.ContainsFunc(config.Follows(key), func(of string) bool { return c.Sets(of) && c.Text(of) != was.Text(of) })
		_, known := written[key]
		known = known || key == "train.batch"
		if partial {
			known = was.Sets(key)
		}
		if !isSet && !followsChange && known {
			keys = append(keys, key)
		}
	}
	return keys
}

// Display returns a function of a key's value for display, "none" if the job does not use it.
func (c *Job) Display() func(key string) string {
	all := c.Written(c.on)
	all["train.batch"] = c.Text("train.batch")
	return func(key string) string { return cmp.Or(all[key], "none") }
}
