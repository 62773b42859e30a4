package job

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"zeroth/checkpoint"
	"zeroth/config"
	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/input/hub"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/job/state"
	"zeroth/zero"
)

// resumed is an open checkpoint and its progress.
type resumed struct {
	*checkpoint.Checkpoint
	state.Progress
}

// find opens the checkpoint to resume from: "latest", "best", a step, or a folder. It returns nil for
// "latest" if there is none yet.
func find(c *spec.Job, which string) (*resumed, error) {
	path, err := state.Resolve(c.Checkpoint.Dir, which)
	if errors.Is(err, checkpoint.ErrNone) && which == "latest" {
		return nil, nil
	}
	if err != nil {
		if state.IsForeign(which) {
			err = fmt.Errorf("a checkpoint of another program; 'zeroth ckpt import %s --to FOLDER' makes one to resume from", which)
		} else if e, wrong := state.FindCheckpoint(which); wrong == nil && e.Path != which {
			err = fmt.Errorf("a folder with checkpoints; name one of them, such as the newest, %s", e.Path)
		}
		return nil, input.BadInput(fmt.Errorf("--resume %s: %w", which, err))
	}
	ck, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	r := &resumed{Checkpoint: ck}
	if r.Progress, err = state.ReadProgress(ck); err == nil {
		if err = r.GoesOnFrom(ck); err != nil {
			err = fmt.Errorf("%s: state.json: %w", path, err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, ck.Close())
	}
	return r, nil
}

// beginning is the state that a run starts from: initial parameters, or a checkpoint.
type beginning struct {
	weights *hf.Weights
	from    *resumed // nil without a checkpoint
	state.Progress
	base string    // model.from, if the job that goes on says it; empty without a checkpoint
	was  *spec.Job // the job that made the checkpoint, as far as it is known; else nil
	news []string  // what is other than in the checkpoint, or as there though the job does not say it
}

func (b *beginning) close() {
	if b.from != nil {
		_ = b.from.Close() // only read from
	}
}

// set loads a rank's part of the state, unless ctx ends.
func (b *beginning) set(ctx context.Context, t *zero.Trainer, ranks int) error {
	if b.from == nil {
		return t.Fill(zero.Master, until(ctx, b.weights.Fill))
	}
	b.advance(t)
	err := restore(ctx, b.from, t, max(1, runtime.GOMAXPROCS(0)/ranks))
	if damage := (*checkpoint.Damage)(nil); errors.As(err, &damage) {
		return input.BadInput(fmt.Errorf("--resume: %w; %s", err, checkpoint.Alternative(b.from.Path)))
	}
	return err
}

// advance sets a trainer's counters.
func (b *beginning) advance(t *zero.Trainer) {
	t.Steps, t.Updates, t.Skipped, t.Samples = b.Step, b.Updates, b.Skipped, b.Samples
	if t.Scale.Dynamic && b.Scale.Dynamic {
		t.Scale = b.Scale
	}
}

// until returns fill, which fails once ctx has ended.
func until(ctx context.Context, fill func(zero.Part, []float32) error) func(zero.Part, []float32) error {
	return func(p zero.Part, dst []float32) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fill(p, dst)
	}
}

// restore sets a rank's state from a checkpoint of any number of ranks and
// stage. A checkpoint without optimizer state, an imported model, leaves it
// zero.
//
// The ranks of a process read at once, each with its part of the processors.
func restore(ctx context.Context, r *resumed, t *zero.Trainer, workers int) error {
	kinds := t.Kinds()
	if !r.Trained() {
		kinds = []string{zero.Master}
	}
	return read(ctx, r.Checkpoint, t, kinds, workers)
}

// read sets some kinds of a rank's state from a checkpoint.
func read(ctx context.Context, ck *checkpoint.Checkpoint, t *zero.Trainer, kinds []string, workers int) error {
	return t.FillAll(kinds, func(want []zero.Want) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		reqs := make([]checkpoint.RequestF32, len(want))
		for i, w := range want {
			reqs[i] = checkpoint.RequestF32{Name: w.Param.Name, Kind: w.Kind, Cut: w.Param.Cut, Range: w.At, Into: w.Into}
		}
		return ck.ReadAllF32(reqs, workers)
	})
}

// startOf returns the job as it continues from the checkpoint that which names, or as it is if
// which is empty.
func startOf(c *spec.Job, which string) (*spec.Job, *beginning, error) {
	b := &beginning{}
	if which == "" {
		return c, b, nil
	}
	r, err := find(c, which)
	if err != nil {
		return nil, nil, err
	}
	if r == nil {
		c, err = c.Fresh()
		return c, b, err
	}
	b.from, b.Progress, b.base = r, r.Progress, c.Model.From
	b.was = spec.SettingsOf(r.Config)
	next, news, err := continued(c, r, b.was)
	if err != nil {
		b.close()
		return nil, nil, input.BadInput(fmt.Errorf("--resume %s: %s does not fit the job:\n%w", which, r.Path, err))
	}
	b.news = news
	return next, b, nil
}

// assume completes the position of a run that another program began: what it read of its data, in
// the samples of the job, of which an epoch has sequences. It returns a line about it, or "".
func (b *beginning) assume(c *spec.Job, sequences int64) string {
	if b.Data != "" || !b.Trained() {
		return ""
	}
	why := "as its checkpoint says"
	if b.Samples == int64(b.Step) { // unknown
		why = fmt.Sprintf("assuming steps of %d, the job's train.batch, since its checkpoint does not say", c.Train.Batch)
		n := float64(b.Step) * float64(c.Train.Batch)
		if b.Epoch > 0 && sequences > 0 {
			why = fmt.Sprintf("assuming that its %.4g epochs were over this data, of %d samples", b.Epoch, sequences)
			n = math.Round(b.Epoch * float64(sequences))
		}
		b.Samples = max(b.Samples, int64(min(n, state.MaxPosition)))
	}
	b.Tokens = max(b.Samples, int64(min(float64(b.Samples)*float64(max(1, c.Model.Context)), state.MaxPosition)))
	return fmt.Sprintf("after %d steps of %s, the data goes on behind %d samples, %s; the learning rate goes on at step %d of the job's schedule; the order of the data and the dropout masks are the job's",
		b.Step, checkpoint.Plain(b.Origin), b.Samples, why, b.Updates)
}

// continued returns the job for a run that continues from a checkpoint. Keys that the job leaves
// out have the checkpoint's values. A changed key is an error if the state would mean something else,
// and a notice otherwise.
func continued(c *spec.Job, r *resumed, was *spec.Job) (next *spec.Job, news []string, err error) {
	model, err := state.ModelOf(r.Checkpoint, r.Progress)
	if err != nil {
		return nil, nil, err
	}
	next, differs, problems := c.Continued(spec.Before{Job: was, Partial: r.Data == "", Model: model, Context: r.Progress.Context, Unpadded: r.Legacy(), File: filepath.Join(r.Path, "state.json")})
	var errs []error
	for _, p := range problems {
		errs = append(errs, fmt.Errorf("  %w", p))
	}
	if errs = append(errs, unlike(next, differs, r, was)...); len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}
	return next, whatIsNew(c, next, was, r.Progress), nil
}

// unlike returns errors for changed keys that would give the state another meaning.
func unlike(c *spec.Job, differs []string, r *resumed, was *spec.Job) (errs []error) {
	for _, d := range differs {
		errs = append(errs, fmt.Errorf("  %s", d))
	}
	const again = "the data would be in another order; start a new run from it with `zeroth ckpt export` and model.from"
	if r.Data != "" && r.Seed != c.Train.Seed {
		errs = append(errs, fmt.Errorf("  it was trained with train.seed %d, but the job has %d; %s", r.Seed, c.Train.Seed, again))
	}
	if r.Data == "" || was == nil {
		return errs
	}
	const other = "that would be another model; start a new run from it with `zeroth ckpt export` and model.from"
	held := func(c *spec.Job) bool { return len(c.Data.Held) > 0 }
	before, now := was.Display(), c.Display()
	for _, x := range []struct {
		key   string
		other bool
		why   string
	}{
		{"data.validation", was.Data.Validation != c.Data.Validation, again},
		{"data.validation_documents", held(was) != held(c), again},
		{"data.pack", was.Data.Pack != c.Data.Pack, again},
		{"train.lora.rslora", was.Train.LoRA.Stabilized != c.Train.LoRA.Stabilized, other},
		{"model.weights", was.Weights != c.Weights, other},
		{"train.lora.alpha_pattern", before("train.lora.alpha_pattern") != now("train.lora.alpha_pattern"), other},
		{"train.lora.alpha", was.Train.LoRA.Alpha > 0 && was.Train.LoRA.Alpha != c.Train.LoRA.Alpha, other},
	} {
		if x.other {
			errs = append(errs, fmt.Errorf("  it was trained with %s %s, but the job has %s; %s", x.key, before(x.key), now(x.key), x.why))
		}
	}
	return errs
}

// whatIsNew returns notices about keys that changed since the checkpoint, and about those
// that were taken from it.
func whatIsNew(c *spec.Job, next, was *spec.Job, p state.Progress) (lines []string) {
	if p.Trained() && p.Data == "" && !c.Sets("optimizer.lr") && (was == nil || !was.Sets("optimizer.lr")) {
		lines = append(lines, fmt.Sprintf("the checkpoint of %s has no learning rate, or several: training goes on with the default, optimizer.lr %s; 'zeroth ckpt inspect' shows its parameter groups",
			checkpoint.Plain(p.Origin), next.Display()("optimizer.lr")))
	}
	if was == nil || !p.Trained() {
		return lines
	}
	var kept, changed []string
	wasShown, isShown, given := was.Display(), next.Display(), c.Display()
	for _, key := range config.Lasting() {
		switch before, now := wasShown(key), isShown(key); {
		case p.Data == "" && !was.Sets(key): // of a checkpoint of another program, which says little
		case now != before:
			changed = append(changed, fmt.Sprintf("%s %s → %s", key, before, now))
		case now != given(key):
			kept = append(kept, key+" "+now)
		}
	}
	if len(kept) > 0 {
		lines = append(lines, "taken from the checkpoint, because the job omits them: "+strings.Join(kept, ", "))
	}
	if len(changed) > 0 {
		lines = append(lines, "changed since the checkpoint: "+strings.Join(changed, ", "))
	}
	if line := newEvaluation(was, next, p); line != "" {
		lines = append(lines, line)
	}
	if p.Data == "" {
		return lines
	}
	if line := newRate(was, next, p); line != "" && was.Train.Steps > 0 && next.Train.Steps > 0 {
		lines = append(lines, line) // else it is known when the data is open
	}
	return lines
}

// newEvaluation returns a line if evaluations are over other sequences than those
// before, though the jobs agree: train.eval_batches counted the micro-batches of a rank.
func newEvaluation(was, next *spec.Job, p state.Progress) string {
	a, b := was.Train.EvalBatches*was.Train.MicroBatch*was.Parallel.Ranks, next.Train.EvalBatches*next.Train.Batch
	if a == b || next.Train.EvalEvery == 0 || !p.Legacy() {
		return ""
	}
	return fmt.Sprintf("evaluations now use %d sequences (train.eval_batches × batch); up to step %d they used %d", b, p.Step, a)
}

// newRate returns a notice about the learning rate of the next step if the schedule or the
// number of steps changed, or "".
func newRate(was, next *spec.Job, p state.Progress) string {
	a, b := setup.Schedule(was), setup.Schedule(next)
	if a == b {
		return ""
	}
	return fmt.Sprintf("learning rate of step %d: %.3g → %.3g", p.Step+1, a.At(p.Updates), b.At(p.Updates))
}

// goesOn returns an error if a job with this data cannot continue from a checkpoint. r may be
// nil.
func goesOn(c *spec.Job, r *resumed, which, data string) error {
	if r == nil {
		return nil
	}
	if err := fits(c, r, data); err != nil {
		return input.BadInput(fmt.Errorf("--resume %s: %s does not fit the job:\n%w", which, r.Path, err))
	}
	return nil
}

// sameBase returns an error if the folder of the frozen model has other parameters than the
// checkpoint: the run would continue with the checkpoint's.
func sameBase(ctx context.Context, c *spec.Job, b *beginning, which string) error {
	if b.base == "" || b.Base == "" || !spec.Tunes(c) {
		return nil
	}
	wrong := func(err error) error {
		if input.IsInput(err) {
			return config.Problems{spec.ProblemOf(c, "model.from", err.Error(), "")}
		}
		return err
	}
	from, err := hf.OpenModel(hub.Folder(b.base), c.Model)
	if err != nil {
		return wrong(err)
	}
	defer from.Close() // only read from
	if err := from.Merge(ctx, c.Merged, c.Model); err != nil {
		return wrong(err)
	}
	now, err := from.Check(ctx, c.Model)
	if err == nil && now != b.Base {
		err = input.BadInput(fmt.Errorf("--resume %s: %s has another base model: its frozen parameters have digest %.12q, but those of %s have %.12q; name the original folder, or none, since the checkpoint contains them, or start a new run",
			which, b.from.Path, b.Base, b.base, now))
	}
	return wrong(err)
}

// fits returns an error that lists which tensors and data keep a job from continuing from a
// checkpoint.
func fits(c *spec.Job, r *resumed, data string) error {
	var errs []error
	want, atOnce := map[string]bool{}, false
	for _, t := range state.Tensors(c) {
		want[t.Name] = true
		have, ok := r.Tensor(t.Name, t.Kind)
		switch {
		case !ok && slices.Contains(device.Codes[:], t.Kind):
			errs = append(errs, fmt.Errorf("  %s is not coded in it: export it and start from it with model.from, or set model.weights to full", t.Name))
		case !ok && t.Kind != zero.Master && !r.Trained(): // an imported model: optimizer state starts at zero
		case !ok && t.Kind == zero.Previous:
			atOnce = true
		case !ok && t.Kind != zero.Master:
			errs = append(errs, fmt.Errorf("  %s has no %s, which optimizer %s needs: resume with the optimizer it was trained with, or export it and start from it with model.from", t.Name, t.Kind, c.Optimizer.Type))
		case !ok:
			errs = append(errs, fmt.Errorf("  %s is not in it: resume with the model it was trained with", t.Name))
		case !slices.Equal(have.Shape, t.Shape):
			errs = append(errs, fmt.Errorf("  %s has shape %v in it, %v in the job", t.Name, have.Shape, t.Shape))
		}
	}
	if atOnce {
		errs = append(errs, errors.New("  it was trained without delayed updates: resume without train.delayed_update, or export it and start from it with model.from"))
	}
	for _, t := range r.Tensors {
		if !want[t.Name] && t.Kind != checkpoint.Attached {
			errs = append(errs, fmt.Errorf("  it contains %s, which the job's model does not have", show.Printable(t.Name)))
		}
	}
	switch {
	case r.Data == "": // trained by no run of ours
	case r.Data != data:
		errs = append(errs, fmt.Errorf("  it was trained on other data (fingerprint %.12q, now %.12q): the order of the data would change; start a new run from it with `zeroth ckpt export` and model.from", r.Data, data))
	case r.Progress.Context != c.Model.Context: // of a checkpoint that does not say its model
		errs = append(errs, fmt.Errorf("  it was trained on %d tokens per sample, but the job has %d", r.Progress.Context, c.Model.Context))
	}
	if len(errs) > 5 {
		errs = append(errs[:5], fmt.Errorf("  and %d more", len(errs)-5))
	}
	return errors.Join(errs...)
}
