package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"zeroth/checkpoint/safetensors"
	"zeroth/data"
	"zeroth/device"
	"zeroth/job/config"
	"zeroth/job/fit"
	"zeroth/job/hf"
	"zeroth/job/machine"
	"zeroth/job/report"
	"zeroth/job/setup"
)

// openInputs opens the data and, unless a checkpoint has them, the initial parameters.
func (r *run) openInputs(ctx context.Context) error {
	needs := fit.Product(r.plan.Memory(), int64(r.job.At.HostRanks))
	set, weights, err := openInputs(r.job, ctx, needs, r.start.from != nil, r.Observer)
	if err == nil {
		r.set, r.start.weights = set, weights
	}
	return err
}

// openInputs opens the data and, unless the run continues from a checkpoint, the initial
// parameters. Ranks of this machine need so many bytes of memory beside the data. All problems
// are reported at once.
func openInputs(j *setup.Job, ctx context.Context, needs int64, goesOn bool, obs report.Observer) (*data.Set, *hf.Weights, error) {
	c := j.Config
	s := config.Source(c)
	s.Progress = reading(obs)
	if free := machine.Machine().Free; free > 0 { // the ranks need their part of it
		s.Memory = max(1, free-needs)
	}
	set, err := data.Open(ctx, s)
	problems := c.Blame(err)
	w, wrong := &hf.Weights{}, error(nil)
	if !goesOn {
		w, wrong = openWeights(j)
	}
	if wrong != nil {
		problems = append(problems, config.ProblemOf(c, "model.from", wrong.Error(), ""))
	}
	if len(problems) > 0 {
		problems.Sort()
		err = problems
	}
	if err == nil {
		return set, w, nil
	}
	if set != nil {
		_ = set.Close() // only read from
	}
	w.Close()
	return nil, nil, err
}

// openWeights opens the initial parameters and reads the files that are carried with them.
func openWeights(j *setup.Job) (*hf.Weights, error) {
	c := j.Config
	w := &hf.Weights{Seed: c.Train.Seed}
	if c.Model.From == "" {
		return w, nil
	}
	from, err := hf.OpenModel(c.Model.From, c.Model)
	if err == nil {
		j.Carried.Notes = slices.Concat(j.Carried.Notes, from.Note(), rounded(c, from))
	}
	w.From = from
	return w, errors.Join(err, j.Carried.ReadFiles(c.Model.From))
}

// rounded returns notices about frozen parameters that are stored with more digits than the
// job computes with.
func rounded(c *config.Config, from *hf.ModelTensors) []string {
	if !config.Tunes(c) || c.Precision == device.F32 {
		return nil
	}
	for _, p := range config.Parameters(c) {
		t, ok := from.Tensor(from.Names[p.Name])
		if p.Frozen && ok && t.DType == safetensors.F32 {
			return []string{fmt.Sprintf("frozen parameters are kept in %v: those of %s are float32 and are rounded, in what is exported, too; precision: fp32 keeps them", c.Precision, c.Model.From)}
		}
	}
	return nil
}

// reading returns a function that reports progress of reading the data if it takes long.
func reading(obs report.Observer) func(done, total int64) {
	next := time.Now().Add(2 * time.Second)
	return func(done, total int64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(2 * time.Second)
			obs.Note(fmt.Sprintf("reading data: %d of %d MB", done/1e6, total/1e6))
		}
	}
}
