package job

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"zeroth/data"
	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/generate"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/zero"
)

// Evaluation contains the loss of a model on a job's data.
type Evaluation struct {
	Loss    float64   // mean over all tokens (of a program's data, positions) that have a target, nats
	Metrics []float64 // of the program's network: means, like Loss
	Tokens  int64     // that have a target
	Seconds float64
}

// Perplexity returns e to the power of the loss.
func (e Evaluation) Perplexity() float64 { return math.Exp(e.Loss) }

// Evaluating says what is evaluated, and how.
type Evaluating struct {
	All    bool // all data, not only the validation data
	Stride int  // tokens between the beginnings of windows, see data.Sliding; 0 means that windows do not overlap

	Model *generate.Source // the checkpoint that model.from is the folder of, or the parameters of a program's network; else nil or not Apart: the folder has the parameters
}

// Evaluate computes the loss of the model in model.from on the job's validation data or, where it has
// none, on all of its data. It writes nothing. notify receives notices and occasional progress.
func Evaluate(ctx context.Context, c *spec.Job, o Evaluating, notify func(string)) (e Evaluation, err error) {
	of := o.Model
	if c.Model.From == "" && !of.Apart() {
		return e, input.BadInput(errors.New("there is no model to evaluate: model.from is missing"))
	}
	observer := report.Observers{notes(notify)}
	c = c.Copy()
	in := inputs{evaluates: true, whole: o.Stride > 0, goesOn: of.Apart()}
	change := func(c *spec.Job) {
		c.Train.Batch = 1 // no step needs a batch of samples
		if o.All {
			c.Data.Validation = 0
		}
		c.Data.Pack = c.Data.Pack && o.Stride == 0
	}
	change(c)
	c, in.set, err = fitContext(ctx, c, in, observer)
	if err != nil {
		return e, err
	}
	change(c)
	if o.Stride > c.Model.Context {
		err = input.BadInput(fmt.Errorf("--stride %d; want at most model.context, %d", o.Stride, c.Model.Context))
	}
	if in.set != nil {
		defer in.set.Close() // only read from
	}
	if err != nil {
		return e, err
	}
	c.Train.Batch = c.Train.MicroBatch * c.Train.Accumulate * c.Parallel.DataRanks()
	j := setup.Planned(c)
	j.World = setup.Alone{} // nothing is added up that NCCL would be asked for
	if err := setup.Ready(j); err != nil {
		return e, err
	}
	plan, err := forecast.Affordable(j)
	if err != nil {
		return e, err
	}
	in.needs = forecast.Times(plan.Memory(), int64(c.Parallel.Ranks))
	set, weights, err := openInputs(j, ctx, in, observer)
	if err != nil {
		return e, err
	}
	defer set.Close() // only read from
	if in.goesOn {
		weights, err = of.Weights(c.Model)
	}
	if err != nil {
		return e, err
	}
	defer weights.Close()
	for _, note := range slices.Concat(c.Notes, j.Carried.Notes, set.Notes) {
		notify(note)
	}
	if _, err := weights.Check(ctx, c.Model); err != nil {
		return e, err
	}
	if set.Validation == nil && !o.All {
		notify("there is no validation data: evaluating on all of the data")
	}
	parts := partsOf(set, o)
	if slices.ContainsFunc(parts, func(w windows) bool { return w.Windows() == 0 }) {
		return e, input.BadInput(errors.New("the program's samples have no end (Len is 0); want a number of samples to evaluate on"))
	}
	ranks, err := setup.Open(j)
	if err != nil {
		return e, err
	}
	defer setup.CloseAll(ranks)
	err = setup.Together(ranks, func(r *setup.Rank) error {
		if err := r.Trainer.Fill(zero.Master, until(ctx, weights.Fill)); err != nil {
			return err
		}
		began := time.Now()
		all, err := evaluateAll(ctx, r, newEvalSamples(c, r.Rank, 0, parts...), notify)
		if r.Rank == 0 {
			e = all
			e.Seconds = time.Since(began).Seconds()
		}
		return err
	})
	if err == nil && (math.IsNaN(e.Loss) || math.IsInf(e.Loss, 0)) {
		err = fmt.Errorf("the loss is %v: %w", e.Loss, errNoLoss)
	}
	return e, err
}

// errNoLoss says that no target has a finite loss.
var errNoLoss = errors.New("the model's parameters are unusable")

// notes is an observer of notes and warnings.
type notes func(line string)

func (notes) Step(report.Step) {}

func (n notes) Event(e report.Event) {
	switch line := e.(type) {
	case report.Note:
		n(string(line))
	case report.Warning:
		n(string(line))
	}
}

// partsOf returns the parts of the data to evaluate.
func partsOf(set *data.Set, o Evaluating) (parts []windows) {
	for _, s := range []*data.Split{set.Train, set.Validation} {
		switch {
		case s == nil || s == set.Train && set.Validation != nil && !o.All:
		case o.Stride > 0:
			parts = append(parts, s.Slide(o.Stride))
		default:
			parts = append(parts, s)
		}
	}
	return parts
}

// atOnce is the number of micro-batches after which ranks exchange their losses.
const atOnce = 64

// evaluateAll returns the mean loss and metrics over all targets, and their number. Rank 0 reports progress.
func evaluateAll(ctx context.Context, r *setup.Rank, samples *evalSamples, notify func(string)) (e Evaluation, err error) {
	all, next := samples.micros(), time.Now().Add(2*time.Second)
	for done := int64(0); done < all; done += atOnce {
		if ctx.Err() != nil {
			return e, context.Cause(ctx)
		}
		n := min(atOnce, all-done)
		w, targets := samples.work(done, n)
		stats, err := r.Trainer.Eval(int(n), w)
		if err != nil {
			return e, err
		}
		e.add(stats, targets)
		if now := time.Now(); r.Rank == 0 && now.After(next) {
			next = now.Add(2 * time.Second)
			notify(fmt.Sprintf("evaluating: %.0f %%, loss so far %.4f", 100*float64(done+n)/float64(all), e.Loss/float64(e.Tokens)))
		}
	}
	for i := range e.Metrics {
		e.Metrics[i] /= float64(e.Tokens)
	}
	e.Loss /= float64(e.Tokens)
	return e, nil
}

// add adds the means over more targets to sums over others.
func (e *Evaluation) add(s zero.Stats, targets int64) {
	if e.Metrics == nil {
		e.Metrics = make([]float64, len(s.Metrics))
	}
	for i, x := range s.Metrics {
		e.Metrics[i] += x * float64(targets)
	}
	e.Loss, e.Tokens = e.Loss+s.Loss*float64(targets), e.Tokens+targets
}
