package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"zeroth/checkpoint/safetensors"
	"zeroth/config"
	"zeroth/data"
	"zeroth/device"
	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/internal/input/hub"
	"zeroth/internal/machine"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/report"
	"zeroth/job/spec"
)

// fitContext sets the length of sequences in a job that leaves it to the longest document. Planning
// needs the length, so it opens the data and returns the set. It returns other jobs unchanged,
// without a set.
func fitContext(ctx context.Context, c *spec.Job, in inputs, obs report.Observers) (*spec.Job, *data.Set, error) {
	if !spec.FollowsData(c) {
		return c, nil, nil
	}
	set, err := openData(ctx, c, in, obs)
	if err != nil {
		return nil, nil, problemsOf(c.Blame(err), err)
	}
	next, err := c.WithContext(set.Context)
	if err != nil {
		_ = set.Close() // only read from
		return nil, nil, err
	}
	return next, set, nil
}

// fitContext sets the run's length of sequences and its data.
func (r *run) fitContext(ctx context.Context) (err error) {
	c, set, err := fitContext(ctx, r.c, inputs{}, r.observers)
	if err == nil {
		r.c, r.set = c, set
	}
	return err
}

// shareModel gives all processes the commits that process 0 has found for models on the Hub.
func (r *run) shareModel(ctx context.Context) error {
	from, vocab := r.given.Model.From, r.given.Data.Vocab
	shared, err := r.World.Share(ctx, from+"\n"+vocab)
	if err != nil || r.self.Process == 0 {
		return err
	}
	from, vocab, _ = strings.Cut(shared, "\n")
	r.given, err = r.given.AtCommitsOf(from, vocab)
	return err
}

// fetchWeights downloads the weights of a model on the Hub, if the run reads them: a checkpoint has
// all of them, but frozen ones are compared.
func (r *run) fetchWeights(ctx context.Context) error {
	from := r.c.Model.From
	if r.start.from != nil {
		from = r.start.base
	}
	if !hub.Is(from) || r.start.from != nil && !spec.Tunes(r.c) {
		return nil
	}
	_, err := hub.Fetch(ctx, from, hub.Weights, r.observers.Note)
	if input.IsInput(err) {
		return config.Problems{spec.ProblemOf(r.c, "model.from", err.Error(), "")}
	}
	return err
}

// openInputs opens the data, unless it is open, and, unless a checkpoint has them, the initial
// parameters.
func (r *run) openInputs(ctx context.Context) error {
	needs := forecast.Times(r.plan.Memory(), int64(r.job.At.HostRanks))
	set, weights, err := openInputs(r.job, ctx, inputs{needs: needs, goesOn: r.start.from != nil, set: r.set}, r.observers)
	if err == nil {
		r.set, r.start.weights = set, weights
	}
	return err
}

// inputs describes which inputs of a job are opened.
type inputs struct {
	needs  int64     // bytes of the ranks of this machine
	goesOn bool      // from a checkpoint, which has the parameters
	set    *data.Set // if it is open already, else nil

	evaluates, whole bool // see data.Source
}

// openInputs opens the data and, unless the run continues from a checkpoint, the initial
// parameters. All problems are reported at once.
func openInputs(j *setup.Job, ctx context.Context, in inputs, obs report.Observers) (set *data.Set, w *hf.Weights, err error) {
	c := j.Job
	var problems config.Problems
	if set = in.set; set == nil {
		set, err = openData(ctx, c, in, obs)
		problems = c.Blame(err)
	}
	w = &hf.Weights{}
	var wrong error
	if !in.goesOn {
		w, wrong = openWeights(ctx, j)
	}
	if ctx.Err() != nil { // not a mistake in the job
		problems, err, wrong = nil, context.Cause(ctx), nil
	}
	if wrong != nil {
		problems = append(problems, spec.ProblemOf(c, "model.from", wrong.Error(), ""))
	}
	if err = problemsOf(problems, err); err == nil {
		return set, w, nil
	}
	if set != nil && in.set == nil {
		_ = set.Close() // only read from
	}
	w.Close()
	return nil, nil, err
}

// problemsOf returns the problems, or else the error.
func problemsOf(problems config.Problems, err error) error {
	if len(problems) == 0 {
		return err
	}
	problems.Sort()
	return problems
}

// openData opens a job's data. in.needs is the memory that the ranks of this machine need.
func openData(ctx context.Context, c *spec.Job, in inputs, obs report.Observers) (*data.Set, error) {
	s := spec.Source(c)
	s.Evaluate, s.Whole = in.evaluates, in.whole
	s.Progress = reading(obs)
	if free := machine.Machine().Free; free > 0 { // the ranks need their part of it
		s.Memory = max(1, free-in.needs)
	}
	return data.Open(ctx, s)
}

// openWeights opens the initial parameters and reads the files that are carried with them.
func openWeights(ctx context.Context, j *setup.Job) (*hf.Weights, error) {
	c := j.Job
	w := &hf.Weights{Seed: c.Train.Seed}
	if folder := c.Train.LoRA.From; folder != "" {
		a, err := hf.OpenAdapter(folder, c.Model)
		if err == nil {
			w.Adapter = a
			_, err = a.Check(ctx)
		}
		if err != nil {
			return w, err
		}
	}
	if c.Model.From == "" {
		return w, nil
	}
	folder := hub.Folder(c.Model.From)
	from, err := hf.OpenModel(folder, c.Model)
	if err == nil {
		j.Carried.Notes = slices.Concat(j.Carried.Notes, from.Note(), rounded(c, from))
	}
	w.From = from
	if err == nil {
		err = from.Merge(ctx, c.Merged, c.Model)
	}
	return w, errors.Join(err, j.Carried.ReadFiles(folder))
}

// rounded returns notices about frozen parameters that are stored with more digits than the
// job computes with.
func rounded(c *spec.Job, from *hf.ModelTensors) []string {
	if !spec.Tunes(c) || c.Precision == device.F32 {
		return nil
	}
	for _, p := range spec.Parameters(c) {
		t, ok := from.Tensor(from.Names[p.Name])
		if p.Frozen && ok && t.DType == safetensors.F32 {
			return []string{fmt.Sprintf("frozen parameters are stored in %v: the float32 ones of %s are rounded, also in exports; precision: fp32 avoids this", c.Precision, c.Model.From)}
		}
	}
	return nil
}

// reading returns a function that reports progress of reading the data if it takes long.
func reading(obs report.Observers) func(done, total int64) {
	next := time.Now().Add(2 * time.Second)
	return func(done, total int64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(2 * time.Second)
			obs.Note(fmt.Sprintf("reading data: %d of %d MB", done/1e6, total/1e6))
		}
	}
}
