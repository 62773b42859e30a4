package job

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"zeroth/checkpoint"
	"zeroth/zero"
)

// resumed is a checkpoint, and what a run goes on from.
type resumed struct {
	*checkpoint.Checkpoint
	progress
}

// find opens the checkpoint a user asks to resume from: "latest", a step, or a
// folder. It is nil, without an error, for "latest" where there is none yet.
func (c *Config) find(which string) (*resumed, error) {
	path, err := checkpoint.Resolve(c.Checkpoint.Dir, which)
	if errors.Is(err, checkpoint.ErrNone) && which == "latest" {
		return nil, nil
	}
	if err != nil {
		return nil, BadInput(fmt.Errorf("--resume %s: %w", which, err))
	}
	ck, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	r := &resumed{Checkpoint: ck}
	if r.progress, err = readProgress(ck); err == nil {
		if err = r.goesOnFrom(ck); err != nil {
			err = fmt.Errorf("%s: state.json: %w", path, err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, ck.Close())
	}
	return r, nil
}

// beginning is what a run starts from: initial parameters, or a checkpoint.
type beginning struct {
	weights *weights
	from    *resumed // nil without a checkpoint
	progress
	news []string // what is other than in the checkpoint, or as there though the job does not say it
}

func (b *beginning) close() {
	if b.from != nil {
		_ = b.from.Close() // only read from
	}
}

// set gives a rank its part of the state.
func (b *beginning) set(t *zero.Trainer, ranks int) error {
	if b.from == nil {
		return t.Fill(zero.Master, b.weights.fill)
	}
	t.Steps, t.Updates, t.Skipped = b.Step, b.Updates, b.Skipped
	if t.Scale.Dynamic && b.Scale.Dynamic {
		t.Scale = b.Scale
	}
	return restore(b.from, t, max(1, runtime.GOMAXPROCS(0)/ranks))
}

// restore sets a rank's state from a checkpoint of any number of ranks and
// stage. A checkpoint without optimizer state, an imported model, leaves it
// zero.
//
// The ranks of a process read at once, each with its part of the processors.
func restore(r *resumed, t *zero.Trainer, workers int) error {
	kinds := t.Kinds()
	if !r.trained() {
		kinds = []string{zero.Master}
	}
	return t.FillAll(kinds, func(want []zero.Want) error {
		reqs := make([]checkpoint.RequestF32, len(want))
		for i, w := range want {
			reqs[i] = checkpoint.RequestF32{Name: w.Param.Name, Kind: w.Kind, Range: w.At, Into: w.Into}
		}
		return r.ReadAllF32(reqs, workers)
	})
}

// begin is the job as it starts from what a user asks for, which is nothing if
// it is empty.
func (c *Config) begin(which string) (*Config, *beginning, error) {
	b := &beginning{}
	if which == "" {
		return c, b, nil
	}
	r, err := c.find(which)
	if err != nil || r == nil {
		return c, b, err
	}
	b.from, b.progress = r, r.progress
	next, news, err := c.goingOn(r)
	if err != nil {
		b.close()
		return nil, nil, BadInput(fmt.Errorf("--resume %s: %s does not fit the job:\n%w", which, r.Path, err))
	}
	b.news = news
	return next, b, nil
}

// goingOn is the job as it goes on from a checkpoint: what it does not say comes
// from there. What it says other than the checkpoint is an error where the state
// would mean something else, and news where it may change.
func (c *Config) goingOn(r *resumed) (next *Config, news []string, err error) {
	model, err := modelOf(r.Checkpoint, r.progress)
	if err != nil {
		return nil, nil, err
	}
	was := settingsOf(r.Config)
	next, problems := c.continued(was, model, r.progress.Context, filepath.Join(r.Path, "state.json"))
	var errs []error
	for _, p := range problems {
		errs = append(errs, fmt.Errorf("  %w", p))
	}
	if errs = append(errs, next.unlike(r, was)...); len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	return next, c.news(next, was, r.progress), nil
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

// unlike are the differences with which the state would mean something else.
func (c *Config) unlike(r *resumed, was *Config) (errs []error) {
	for _, d := range c.otherModel {
		errs = append(errs, fmt.Errorf("  %s", d))
	}
	const again = "the order of the data would not go on: start a new run from it with `zeroth ckpt export` and model.from"
	if r.trained() && r.Seed != c.Train.Seed {
		errs = append(errs, fmt.Errorf("  it was trained with train.seed %d, the job says %d; %s", r.Seed, c.Train.Seed, again))
	}
	if r.trained() && was != nil && was.Data.Validation != c.Data.Validation {
		errs = append(errs, fmt.Errorf("  it was trained with data.validation %s, the job says %s; %s", was.text("data.validation"), c.text("data.validation"), again))
	}
	return errs
}

// news says in lines what of that is other than before, and what is as before
// though the job does not say it.
func (c *Config) news(next, was *Config, p progress) (lines []string) {
	if was == nil || !p.trained() {
		return nil
	}
	var kept, changed []string
	for _, key := range lasting {
		switch before, now := was.text(key), next.text(key); {
		case now != before:
			changed = append(changed, fmt.Sprintf("%s %s, was %s", key, now, before))
		case now != c.text(key):
			kept = append(kept, key+" "+now)
		}
	}
	if len(kept) > 0 {
		lines = append(lines, "as in the checkpoint, for the job does not say: "+strings.Join(kept, ", "))
	}
	if len(changed) > 0 {
		lines = append(lines, "other than in the checkpoint: "+strings.Join(changed, ", "))
	}
	if a, b := was.schedule(), next.schedule(); a != b {
		lines = append(lines, fmt.Sprintf("learning rate of step %d: %.3g, was %.3g", p.Step+1, b.At(p.Updates), a.At(p.Updates)))
	}
	return lines
}

// goesOn refuses a checkpoint that a job with this data cannot go on from; nil
// fits any.
func (c *Config) goesOn(r *resumed, which, data string) error {
	if r == nil {
		return nil
	}
	if err := c.fits(r, data); err != nil {
		return BadInput(fmt.Errorf("--resume %s: %s does not fit the job:\n%w", which, r.Path, err))
	}
	return nil
}

// fits lists what of tensors and data keeps a job from going on from a
// checkpoint.
func (c *Config) fits(r *resumed, data string) error {
	var errs []error
	want := map[string]bool{}
	kinds := append([]string{zero.Master}, c.Optimizer.rule().States()...)
	for _, t := range c.tensors(kinds) {
		want[t.Name] = true
		have, ok := r.Tensor(t.Name, t.Kind)
		switch {
		case !ok && t.Kind != zero.Master && !r.trained(): // an imported model: optimizer state starts at zero
		case !ok && t.Kind != zero.Master:
			errs = append(errs, fmt.Errorf("  %s has no %s, which optimizer %s needs: resume with the optimizer it was trained with, or export it and start from it with model.from", t.Name, t.Kind, c.Optimizer.Type))
		case !ok:
			errs = append(errs, fmt.Errorf("  %s is not in it: resume with the model it was trained with", t.Name))
		case !slices.Equal(have.Shape, t.Shape):
			errs = append(errs, fmt.Errorf("  %s has shape %v in it, %v in the job", t.Name, have.Shape, t.Shape))
		}
	}
	for _, t := range r.Tensors {
		if !want[t.Name] && t.Kind != checkpoint.Attached {
			errs = append(errs, fmt.Errorf("  %s is in it and not in the job's model", printable(t.Name)))
		}
	}
	switch {
	case !r.trained():
	case r.Data != data:
		errs = append(errs, fmt.Errorf("  it was trained on other data (fingerprint %.12q, now %.12q): the order of the data would not go on; start a new run from it with `zeroth ckpt export` and model.from", r.Data, data))
	case r.progress.Context != c.Model.Context: // of a checkpoint that does not say its model
		errs = append(errs, fmt.Errorf("  it was trained on %d tokens a sample, the job says %d", r.progress.Context, c.Model.Context))
	}
	if len(errs) > 5 {
		errs = append(errs[:5], fmt.Errorf("  and %d more", len(errs)-5))
	}
	return errors.Join(errs...)
}
