package job

import (
	"cmp"
	"fmt"

	"zeroth/checkpoint"
)

// modelParts are what a model is, by the key of a job file that says it, or in
// words where none does: only a folder's config.json says it then.
var modelParts = []struct {
	name string
	of   func(Model) any
}{
	{"model.family", func(m Model) any { return m.Family }},
	{"model.layers", func(m Model) any { return m.Layers }},
	{"model.heads", func(m Model) any { return m.Heads }},
	{"model.kv_heads", func(m Model) any { return m.KVHeads }},
	{"model.width", func(m Model) any { return m.Width }},
	{"model.ffn", func(m Model) any { return m.FFN }},
	{"model.vocab", func(m Model) any { return m.Vocab }},
	{"model.rope_theta", func(m Model) any { return m.Theta }},
	{"model.tied", func(m Model) any { return m.Tied }},
	{"the epsilon of norms", func(m Model) any { return m.NormEps }},
	{"the scaling of rotary positions", func(m Model) any { return m.Scaling }},
	{"biases of queries, keys and values", func(m Model) any { return m.Bias }},
	{"whether a padding token is not trained", func(m Model) any { return m.Padded }},
	{"the padding token", func(m Model) any { return m.Pad }},
}

// wasModel is the model that a checkpoint is of.
type wasModel struct {
	Model
	from    string // model.from of the job that made it
	trained int    // tokens of the samples it was trained on; 0: it was imported
}

// modelOf is the model that a checkpoint says it is of, which its tensors are;
// nil if it does not say.
func modelOf(ck *checkpoint.Checkpoint, p progress) (*Model, error) {
	if len(p.Model) == 0 {
		return nil, nil
	}
	m, err := describes(p.Model, ck)
	if err != nil {
		return nil, fmt.Errorf("%s: state.json's model is not that of its parameters: %w", ck.Path, err)
	}
	return &m, nil
}

// resumeModel makes the model that of the checkpoint, and keeps in otherModel
// what the job says of it that differs.
func (r *reader) resumeModel() {
	c, was := r.config, r.was
	m, from := &c.Model, c.Model.From != ""
	if from {
		r.modelFrom()
	}
	differs := func(name string, is, job any) {
		at := c.place("model.from")
		if !from {
			at = c.place(name)
		}
		c.otherModel = append(c.otherModel, fmt.Sprintf("%s is %v in it, %v in the job (%v)", name, is, job, at))
	}
	for _, part := range modelParts {
		is, job := part.of(was.Model), part.of(*m)
		if (from || r.has(part.name)) && is != job {
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
		for _, part := range modelParts {
			delete(r.given, part.name)
		}
	}
}
