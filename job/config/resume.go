package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"zeroth/job/hf"
)

// ModelParts are what a model is, by the key of a job file that says it, or in
// words where none does: only a folder's config.json says it then.
var ModelParts = []struct {
	name string
	of   func(hf.Model) any
}{
	{"model.family", func(m hf.Model) any { return m.Family }},
	{"model.layers", func(m hf.Model) any { return m.Layers }},
	{"model.heads", func(m hf.Model) any { return m.Heads }},
	{"model.kv_heads", func(m hf.Model) any { return m.KVHeads }},
	{"model.width", func(m hf.Model) any { return m.Width }},
	{"model.ffn", func(m hf.Model) any { return m.FFN }},
	{"model.vocab", func(m hf.Model) any { return m.Vocab }},
	{"model.rope_theta", func(m hf.Model) any { return m.Theta }},
	{"model.tied", func(m hf.Model) any { return m.Tied }},
	{"the epsilon of norms", func(m hf.Model) any { return m.NormEps }},
	{"the scaling of rotary positions", func(m hf.Model) any { return m.Scaling }},
	{"how many elements of a head turn", func(m hf.Model) any { return m.Turned }},
	{"biases of queries, keys and values", func(m hf.Model) any { return m.Bias }},
	{"whether a padding token is not trained", func(m hf.Model) any { return m.Padded }},
	{"the padding token", func(m hf.Model) any { return m.Pad }},
	{"model_type", func(m hf.Model) any { return m.Type }},
	{"the width of a head", func(m hf.Model) any { return m.HeadWidth }},
	{"the width of the hidden layer", func(m hf.Model) any { return m.Inner }},
	{"the activation", func(m hf.Model) any { return m.Act }},
	{"whether the output layer is a matrix of its own", func(m hf.Model) any { return m.Untied }},
	{"biases of what attention and MLP put out", func(m hf.Model) any { return [2]bool{m.BiasOut, m.BiasMLP} }},
	{"the norms of queries and keys", func(m hf.Model) any { return m.HeadNorm }},
	{"where norms are", func(m hf.Model) any { return m.Norms }},
	{"whether weights are fused", func(m hf.Model) any { return m.Fused }},
	{"what its layers are", func(m hf.Model) any { return m.Layout }},
	{"the window of attention", func(m hf.Model) any { return m.Window }},
	{"rope_theta of layers with a window", func(m hf.Model) any { return m.LocalTheta }},
	{"whether scores are divided by the number of the layer", func(m hf.Model) any { return m.ByLayer }},
	{"the scale of scores", func(m hf.Model) any { return m.Scale }},
	{"the caps of scores and logits", func(m hf.Model) any { return [2]float64{m.CapScores, m.CapLogits} }},
	{"whether norms add 1 to their weights", func(m hf.Model) any { return m.Gemma }},
}

// wasModel is the model that a checkpoint is of.
type wasModel struct {
	hf.Model
	from    string // model.from of the job that made it
	trained int    // tokens of the samples it was trained on; 0: it was imported
}

// resumeModel makes the model that of the checkpoint, and keeps in otherModel
// what the job says of it that differs.
func (r *reader) resumeModel() {
	c, was := r.Config, r.was
	m, from := &c.Model, c.Model.From != ""
	if from {
		r.modelFrom()
	}
	differs := func(name string, is, job any) {
		at := c.Place("model.from")
		if !from {
			at = c.Place(name)
		}
		c.OtherModel = append(c.OtherModel, fmt.Sprintf("%s is %v in it, %v in the job (%v)", name, is, job, at))
	}
	for _, part := range ModelParts {
		is, job := part.of(was.Model), part.of(*m)
		if (from || r.has(part.name)) && !reflect.DeepEqual(is, job) {
			differs(part.name, is, job)
		}
	}
	next := was.Model
	next.From = cmp.Or(m.From, was.from)
	switch longest := was.Context; {
	case r.has("model.context") && was.trained > 0 && m.Context != was.trained, r.has("model.context") && m.Context > longest:
		differs("model.context", cmp.Or(was.trained, longest), m.Context)
	case r.has("model.context"):
		next.Context = m.Context
	case was.trained > 0:
		next.Context = was.trained
	}
	if next.Context < was.Context {
		next.Longest = was.Context
	}
	if m.BOS != "" || m.EOS != "" {
		next.BOS, next.EOS = m.BOS, m.EOS
	}
	*m = next
	if next.From != "" && !from { // what was said is as in the checkpoint, which says it otherwise
		for _, part := range ModelParts {
			delete(r.given, part.name)
		}
	}
}

// Lasting are the keys that stay as they were in a run that goes on, unless the
// job says them: those that change what it computes, beside the model's, and
// those that say what is saved and what may be deleted.
var Lasting = []string{
	"model.dropout", "model.attention_dropout", "data.tokenizer", "data.vocab", "data.format", "data.pack", "data.validation", "train.steps", "train.epochs", "train.batch", "train.clip", "train.seed", "train.freeze", "train.lora.rank", "train.lora.alpha", "train.lora.targets", "train.early_stop.metric", "train.early_stop.patience", "precision",
	"optimizer.type", "optimizer.lr", "optimizer.betas", "optimizer.eps", "optimizer.weight_decay", "optimizer.momentum", "optimizer.groups",
	"optimizer.nesterov", "optimizer.ns_steps", "optimizer.adjust_lr_fn", "optimizer.adamw.lr", "optimizer.adamw.betas", "optimizer.adamw.eps", "optimizer.adamw.weight_decay",
	"schedule.type", "schedule.warmup", "schedule.min_lr", "schedule.decay",
	"checkpoint.every", "checkpoint.save_on_exit", "checkpoint.keep",
}

// follows are keys whose default follows from others: where the job says one of
// those, and other than the checkpoint, the default does.
var follows = map[string][]string{
	"optimizer.betas": {"optimizer.type"}, "optimizer.eps": {"optimizer.type"}, "optimizer.momentum": {"optimizer.type"},
	"optimizer.nesterov": {"optimizer.type"}, "optimizer.ns_steps": {"optimizer.type"}, "optimizer.adjust_lr_fn": {"optimizer.type"},
	"optimizer.adamw.lr": {"optimizer.type", "optimizer.adjust_lr_fn", "optimizer.lr"}, "optimizer.adamw.betas": {"optimizer.type"}, "optimizer.adamw.eps": {"optimizer.type"},
	"optimizer.adamw.weight_decay": {"optimizer.type", "optimizer.weight_decay"},
	"train.steps":                  {"train.epochs"}, "train.epochs": {"train.steps"}, "schedule.decay": {"train.steps", "train.epochs", "schedule.type"},
	"schedule.min_lr": {"optimizer.lr", "schedule.type"}, "checkpoint.save_on_exit": {"checkpoint.every"},
}

// Continued is the job as it goes on from a checkpoint: what it does not say is
// as in was, the job that made it, nil if that is not known, or as model, which it
// is of, nil alike. Trained is the tokens of a sample of it, at the file that says
// all that.
func (c *Config) Continued(was *Config, model *hf.Model, trained int, at string) (*Config, Problems) {
	root := c.root.clone()
	for _, key := range c.inherited(was) {
		n, _ := parse([]byte(was.Text(key)), place{})
		n.moveTo(place{file: at})
		put(root, key, n)
	}
	r := newReader(c.file, root)
	r.Config.network, r.Config.world = c.network, c.world
	r.processes, r.each = c.world[0], c.world[1]
	if model != nil {
		r.was = &wasModel{Model: *model, trained: trained}
		if was != nil {
			r.was.from = was.Model.From
		}
	}
	r.read()
	r.resolve()
	r.problems.Sort()
	return r.Config, r.problems
}

// SettingsOf is what lasts of a job that a checkpoint has in YAML, and where its
// model came from. What else is wrong with it does not matter.
func SettingsOf(job string) *Config {
	old, _ := parse([]byte(job), place{})
	root := &node{kind: mapping}
	if old != nil && old.kind == mapping {
		in := &reader{root: old}
		for _, key := range append([]string{"train.micro_batch", "train.accumulate", "parallel.ranks", "data.documents"}, Lasting...) {
			if n := in.lookup(key); n != nil {
				put(root, key, n)
			}
		}
		r := newReader("", root)
		r.read()
		r.resolve()
		if n := in.lookup("model.from"); n != nil && n.kind == scalar {
			r.Config.Model.From = n.text
		}
		return r.Config
	}
	return nil
}

// inherited are the keys that come from the checkpoint's job.
func (c *Config) inherited(was *Config) (keys []string) {
	if was == nil {
		return nil
	}
	for _, key := range Lasting {
		said := c.says(key) || key == "train.batch" && c.says("train.micro_batch") && c.says("train.accumulate")
		parted := slices.ContainsFunc(follows[key], func(of string) bool { return c.says(of) && c.Text(of) != was.Text(of) })
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
