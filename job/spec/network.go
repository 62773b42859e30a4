package spec

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"zeroth/config"
	"zeroth/config/tree"
	"zeroth/data"
	"zeroth/internal/input"
	"zeroth/job/hf"
	"zeroth/nn"
	"zeroth/optim"
	"zeroth/shard"
)

// Own holds the parts that the program that runs a job provides, where the job file says program. All ranks of a
// process share it, so its modules must be stateless.
type Own struct {
	Model            *nn.Model    // with model.family program, else nil
	Data, Validation data.Samples // with data.program, else nil; Validation may be nil
	Rule             optim.Rule   // with optimizer.type program, else nil
}

// With returns the job with the parts that the program provides, after the checks that need them. It
// returns an error unless they are the parts that the job file names.
func (c *Job) With(own Own) (*Job, error) {
	if own.Model == nil && own.Data == nil && own.Validation == nil && own.Rule == nil && c.Lacks() == nil {
		return c, nil
	}
	if string(c.YAML()) != c.loaded {
		return nil, input.BadInput(errors.New("the job was changed after it was loaded; pass settings to Load instead, such as train.steps=100"))
	}
	x := c.Copy()
	x.Own = own
	r := &resolver{Reader: config.Reopen(&x.Config, x.Document, x.on), Job: x}
	r.named()
	r.provided()
	if own.Model != nil {
		r.resolveNetwork()
	}
	r.resolvePipeline()
	r.resolveTraining()
	r.resolveWeights()
	r.resolveGroups()
	r.Unfit("checkpoint")
	r.checkCounts()
	r.checkOwnData()
	return r.done()
}

// Fresh returns the job for a run that has no checkpoint to resume from yet: with the job's own model.
func (c *Job) Fresh() (*Job, error) {
	if !c.awaits {
		return c, nil
	}
	env := c.env
	env.Resumes = false
	return c.again(c.Root.Clone(), env).after(c)
}

// again resolves the job's file with other nodes.
func (c *Job) again(root *tree.Node, env Environment) *resolver {
	r := newResolver(c.File, root)
	r.Job.Own, r.Job.env = c.Own, env
	r.Read()
	r.resolve()
	return r
}

// after returns the resolved job, with what c got since.
func (r *resolver) after(c *Job) (*Job, error) {
	next, err := r.done()
	if err != nil {
		return nil, err
	}
	next.resumes, next.found, next.Checkpoint.Dir, next.Data.Date = c.resumes, c.found, c.Checkpoint.Dir, c.Data.Date
	return next, nil
}

// Lacks returns an error for a job that a program has to complete, see With.
func (c *Job) Lacks() error {
	r := &resolver{Reader: &config.Reader{Document: c.Document, Bad: map[string]bool{}}, Job: c}
	if r.named(); len(r.Problems) > 0 {
		return r.Problems
	}
	return nil
}

// named reports parts that the job file names and the program does not provide.
func (r *resolver) named() {
	c := r.Job
	missing := func(key, option, other string, is bool) {
		if is {
			r.Wrong(c.Position(key), key, "only the Go program that provides job.Options."+option+" can run or plan this job", "want that program, or "+other)
		}
	}
	missing("data.program", "Data", "data.text, data.tokens or data.documents", c.Data.Program && c.Own.Data == nil)
	missing("model.family", "Model", "another family", c.unprovided())
	missing("optimizer.type", "Rule", "another rule", c.Optimizer.Type == config.Program && c.Own.Rule == nil)
}

// provided reports parts that the program provides and the job file does not name.
func (r *resolver) provided() {
	c := r.Job
	unnamed := func(key, option, want string, is bool) {
		if is {
			r.Wrong(c.Position(key), key, "job.Options."+option+" is set, but the job file does not declare it", "want "+want)
		}
	}
	unnamed("data.program", "Data", "data: {program: true}", !c.Data.Program && (c.Own.Data != nil || c.Own.Validation != nil))
	unnamed("model.family", "Model", "model: {family: program}", c.Model.Family != config.Program && c.Own.Model != nil)
	unnamed("optimizer.type", "Rule", "optimizer: {type: program}", c.Optimizer.Type != config.Program && c.Own.Rule != nil)
}

// checkOwnData reports fields that a micro-batch or the network cannot have.
func (r *resolver) checkOwnData() {
	c := r.Job
	if c.Own.Data == nil {
		return
	}
	fields := c.Own.Data.Fields()
	err := data.CheckFields(fields)
	switch {
	case err != nil:
	case c.Own.Model == nil && !slices.Equal(fields, data.TokenFields(c.Model.Context, false)):
		err = fmt.Errorf("samples have the fields %v, but the model reads tokens: want data.TokenFields(%d, false)", fields, c.Model.Context)
	case c.Train.Epochs > 0 && c.Own.Data.Len() == 0:
		err = errors.New("the samples have no end, so there are no epochs; want train.steps")
	default:
		for _, f := range fields {
			if n := float64(c.Train.MicroBatch) * float64(f.Len); n > math.MaxInt32 {
				err = fmt.Errorf("field %s has %.3g numbers in a micro-batch, more than %d; want a smaller train.micro_batch", f.Name, n, math.MaxInt32)
			}
		}
	}
	if err != nil {
		r.Wrong(c.Position("data.program"), "data.program", err.Error(), "")
	}
}

// unprovided reports whether the program has not provided the job's network yet.
func (c *Job) unprovided() bool { return c.Model.Family == config.Program && c.Own.Model == nil }

// unknown reports whether the job's network is not known yet: the program has not provided it, or the checkpoint
// to resume from has it.
func (c *Job) unknown() bool { return c.unprovided() || c.awaits }

// validates reports whether there is data to evaluate on, as far as it is known.
func (c *Job) validates() bool {
	if c.Data.Program {
		return c.Own.Data == nil || c.Own.Validation != nil
	}
	return c.Data.Validation > 0
}

// mostMetrics bounds a program's metrics; package watch shows no more.
const mostMetrics = 32

// isMetric reports whether a program's metric can have a name. Others have meanings of their own in
// metrics.jsonl or in job files.
func isMetric(name string) bool {
	return len(name) <= config.LongestMetric && config.MetricName.MatchString(name) && !slices.Contains([]string{"step", "loss", "val_loss", "memory", "start", "end", "null"}, name)
}

// measured returns the metrics of the job's evaluations, as far as they are known.
func (c *Job) measured() []string {
	names := []string{"val_loss"}
	if m := c.Own.Model; m != nil {
		names = append(names, m.Metrics...)
	}
	return names
}

// measures reports whether the job's evaluations have a metric, as far as it is known.
func (c *Job) measures(name string) bool {
	return slices.Contains(c.measured(), name) || c.unprovided() && isMetric(name)
}

// resolveOwn takes the shape from the program's network, and rejects keys that do not apply to it.
func (r *resolver) resolveOwn() {
	c, own, m := r.Job, r.Job.Own.Model, &r.Job.Model
	for key, is := range map[string]bool{"parallel.tensor": c.Parallel.Tensor > 1, "parallel.context": c.Parallel.Context > 1, "train.mlp_chunk": c.Train.MLPChunk > 0, "train.lora.rank": c.Train.LoRA.Rank > 0, "train.lora.from": c.Train.LoRA.From != "", "sample.tokens": c.Sample.Tokens > 0} {
		if is {
			r.Refuse(map[string]string{
				"parallel.tensor": "a program's matrices cannot be divided", "parallel.context": "a program's samples cannot be divided", "train.mlp_chunk": "a program's network may have no MLP",
				"train.lora.rank": "a program's network has no adapters", "train.lora.from": "a program's network has no adapters", "sample.tokens": "sampling needs a model with a config.json, which a program's network does not have",
			}[key], "want it left out", key)
		}
	}
	if own == nil {
		return
	}
	m.Width, m.Vocab, m.Heads, m.Llama.Head, m.Layers = own.Width, max(1, own.Vocab), max(1, own.Heads), max(1, own.Head), max(1, len(own.Modules)-2)
	if r.Has("model.context") && m.Context > own.Context {
		r.Refuse(fmt.Sprintf("sequences of %d positions, but the program's network supports at most %d", m.Context, own.Context), fmt.Sprintf("want a context of at most %d", own.Context), "model.context")
	}
	if !r.Has("model.context") {
		m.Context = own.Context
	}
	if own.Uses == nil {
		c.Own.Model = own.OneUnitEach()
	}
	if err := unusable(c.Own.Model); err != nil {
		r.Refuse("job.Options.Model: "+err.Error(), "", "model.family")
	}
}

// unusable returns an error for a network that cannot be trained.
func unusable(m *nn.Model) error {
	switch {
	case m.Width < 1 || m.Context < 1:
		return fmt.Errorf("a width of %d and a context of %d; want at least 1", m.Width, m.Context)
	case len(m.Modules) < 2 || len(m.Uses) != len(m.Modules):
		return fmt.Errorf("%d modules, and Uses has %d items; want at least 2 modules, and an item of Uses for each, or no Uses", len(m.Modules), len(m.Uses))
	}
	if n := len(m.Metrics); n > mostMetrics {
		return fmt.Errorf("%d metrics; want at most %d", n, mostMetrics)
	}
	for i, name := range m.Metrics {
		if !isMetric(name) || slices.Contains(m.Metrics[:i], name) {
			return fmt.Errorf("%.80q cannot be the name of a metric; want another, of at most %d lower-case letters, digits and _", name, config.LongestMetric)
		}
	}
	return m.CheckUnits()
}

// Network returns the model that the job trains.
func Network(c *Job) *nn.Model { return Part(c, nn.Cut{}, nn.Cut{}) }

// Part returns a rank's part of Network: of its matrices, and of its experts.
func Part(c *Job, matrices, experts nn.Cut) *nn.Model {
	if c.built == nil {
		return part(c, matrices, experts)
	}
	key := [3]any{matrices, experts, c.Model.Context}
	f, _ := c.built.LoadOrStore(key, sync.OnceValue(func() *nn.Model { return part(c, matrices, experts) }))
	return f.(func() *nn.Model)()
}

func part(c *Job, matrices, experts nn.Cut) *nn.Model {
	m := c.Own.Model
	if m == nil {
		whole := c.Model
		whole.Shape.Cut, whole.Experts.Own = matrices, experts
		m = whole.Network(c.Train.LoRA.LoRA)
	}
	if Tunes(c) {
		m = m.Frozen(frozen(c))
		if Coded(c) {
			m = m.Coded(codeOf(c))
		}
	}
	if c.Optimizer.Type == "muon" {
		m = ruled(c.Optimizer.Groups, m)
	}
	return m
}

// Fields returns the fields of a sample.
func Fields(c *Job) []data.Field {
	if c.Own.Data != nil {
		return c.Own.Data.Fields()
	}
	return data.TokenFields(c.Model.Context, c.Data.Pack)
}

// Parameters returns the parameters of the job's network, in the order of its units.
func Parameters(c *Job) []shard.Param { return hf.Parameters(Network(c)) }
