package job

import (
	"encoding/json"
	"errors"
	"fmt"

	"zeroth/checkpoint"
	"zeroth/optim"
	"zeroth/zero"
)

// progress is what a run needs to go on, beside its tensors: state.json of a
// checkpoint.
type progress struct {
	Step    int             `json:"step"`    // steps done
	Updates int             `json:"updates"` // of them, those that were not skipped
	Skipped int             `json:"skipped"`
	Samples int64           `json:"samples"` // of the training order, read so far
	Tokens  int64           `json:"tokens"`
	Scale   optim.LossScale `json:"loss_scale"`
	Seed    uint64          `json:"seed"`
	Data    string          `json:"data"`            // fingerprint; empty in an imported model
	Context int             `json:"context"`         // tokens of a sample
	Config  string          `json:"config"`          // the job, in YAML
	Model   json.RawMessage `json:"model,omitempty"` // config.json
	Version string          `json:"version"`         // of the program
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

// resumed is a checkpoint that fits a job, and what the job goes on from.
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
	if r.progress, err = readProgress(ck); err != nil {
		return nil, errors.Join(err, ck.Close())
	}
	return r, nil
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

// fits lists what keeps a job from going on from a checkpoint.
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
		case fmt.Sprint(have.Shape) != fmt.Sprint(t.Shape):
			errs = append(errs, fmt.Errorf("  %s has shape %v in it, %v in the job", t.Name, have.Shape, t.Shape))
		}
	}
	for _, t := range r.Tensors {
		if !want[t.Name] {
			errs = append(errs, fmt.Errorf("  %s is in it and not in the job's model", t.Name))
		}
	}
	const again = "the order of the data would not go on: start a new run from it with `zeroth ckpt export` and model.from"
	switch {
	case !r.trained():
	case r.Data != data:
		errs = append(errs, fmt.Errorf("  it was trained on other data (fingerprint %.12s, now %.12s); %s", r.Data, data, again))
	case r.Seed != c.Train.Seed:
		errs = append(errs, fmt.Errorf("  it was trained with train.seed %d, the job says %d; %s", r.Seed, c.Train.Seed, again))
	case r.Context != c.Model.Context:
		errs = append(errs, fmt.Errorf("  it was trained on %d tokens a sample, the job says %d; %s", r.Context, c.Model.Context, again))
	}
	if len(errs) > 5 {
		errs = append(errs[:5], fmt.Errorf("  and %d more", len(errs)-5))
	}
	return errors.Join(errs...)
}
