package job

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"zeroth/config"
	"zeroth/data"
	"zeroth/input"
	"zeroth/job/fit"
	"zeroth/job/report"
	"zeroth/job/setup"
	"zeroth/zero"
)

// Evaluation contains the loss of a model on a job's data.
type Evaluation struct {
	Loss    float64 // mean over all tokens that have a target, nats
	Tokens  int64   // that have one
	Seconds float64
}

// Perplexity returns e to the power of the loss.
func (e Evaluation) Perplexity() float64 { return math.Exp(e.Loss) }

// Evaluating says what is evaluated, and how.
type Evaluating struct {
	All    bool // all data, not only the validation data
	Stride int  // tokens between the beginnings of windows, see data.Sliding; 0 means that windows do not overlap
}

// Evaluate computes the loss of the model in model.from on the job's validation data or, where it has
// none, on all of its data. It writes nothing. notify receives notices and occasional progress.
func Evaluate(ctx context.Context, c *config.Config, o Evaluating, notify func(string)) (e Evaluation, err error) {
	if c.Model.From == "" {
		return e, input.BadInput(errors.New("there is no model to evaluate: model.from is missing"))
	}
	observer := noteObserver{notify: notify}
	c = c.Copy()
	in := inputs{evaluates: true, whole: o.Stride > 0}
	change := func(c *config.Config) {
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
	j := setup.Planned(c)
	j.World = setup.Alone{} // nothing is added up that NCCL would be asked for
	if err := setup.Ready(j); err != nil {
		return e, err
	}
	plan, err := fit.Affordable(j)
	if err != nil {
		return e, err
	}
	in.needs = fit.Product(plan.Memory(), int64(c.Parallel.Ranks))
	set, weights, err := openInputs(j, ctx, in, observer)
	if err != nil {
		return e, err
	}
	defer set.Close() // only read from
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
	x := &evaluation{c: c, notify: notify, parts: evaluated(set, o), share: data.Share{Ranks: config.Mesh(c).DataRanks(), Accumulate: 1, MicroBatch: c.Train.MicroBatch}}
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
		loss, err := x.run(ctx, r)
		if r.Rank == 0 {
			e.Loss, e.Seconds = loss, time.Since(began).Seconds()
		}
		return err
	})
	e.Tokens = x.learned(0, x.windows())
	if err == nil && (math.IsNaN(e.Loss) || math.IsInf(e.Loss, 0)) {
		err = fmt.Errorf("the loss is %v: the model's parameters are unusable", e.Loss)
	}
	return e, err
}

// noteObserver is an observer that only receives notes.
type noteObserver struct {
	report.Observers
	notify func(string)
}

func (t noteObserver) Note(line string) { t.notify(line) }
func (t noteObserver) Warn(line string) { t.notify(line) }

// evaluated returns the parts of the data to evaluate.
func evaluated(set *data.Set, o Evaluating) (parts []windows) {
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

// windows are a part of the data: a data.Split or a data.Sliding.
type windows interface {
	Windows() int64
	Learned(first, n int64) int
	Lengths(first, n int64) (positions, tokens int)
	Batch(into []data.Values, first int64) error
}

// evaluation reads windows of the data in order, divided among ranks.
type evaluation struct {
	c      *config.Config
	notify func(string)
	parts  []windows
	share  data.Share
}

func (x *evaluation) windows() (n int64) {
	for _, p := range x.parts {
		n += p.Windows()
	}
	return n
}

// batches returns the number of micro-batches of every rank. The last ones are padded with
// samples without loss.
func (x *evaluation) batches() int64 { return (x.windows() + x.share.Global() - 1) / x.share.Global() }

// atOnce is the number of micro-batches after which ranks exchange their losses.
const atOnce = 64

func (x *evaluation) run(ctx context.Context, r *setup.Rank) (float64, error) {
	var sum, counted float64
	all, next := x.batches(), time.Now().Add(2*time.Second)
	for done := int64(0); done < all; done += atOnce {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		n := min(atOnce, all-done)
		count := x.learned(done*x.share.Global(), n*x.share.Global())
		first := func(micro int) int64 {
			return x.share.First(done+int64(micro), 0, config.Mesh(x.c).DataRank(r.Rank))
		}
		r.Trainer.Counted = int(count)
		r.Trainer.Lengths = func(micro int) (positions, tokens int) { return x.lengths(first(micro)) }
		stats, err := r.Trainer.Eval(int(n), func(micro int, into []data.Values) error {
			return x.read(first(micro), into)
		})
		if err != nil {
			return 0, err
		}
		sum, counted = sum+stats.Loss*float64(count), counted+float64(count)
		if now := time.Now(); r.Rank == 0 && now.After(next) {
			next = now.Add(2 * time.Second)
			x.notify(fmt.Sprintf("evaluating: %.0f %%, loss so far %.4f", 100*float64(done+n)/float64(all), sum/counted))
		}
	}
	return sum / counted, nil
}

// learned returns the number of tokens with a target in n windows, starting at first.
func (x *evaluation) learned(first, n int64) (sum int64) {
	for _, p := range x.parts {
		of := min(max(0, p.Windows()-first), n)
		if of > 0 {
			sum += int64(p.Learned(first, of))
		}
		first, n = max(0, first-p.Windows()), n-of
	}
	return sum
}

// part returns the part of the data that has window number at, and its number there; no part
// behind the last.
func (x *evaluation) part(at int64) (windows, int64) {
	for _, p := range x.parts {
		if at < p.Windows() {
			return p, at
		}
		at -= p.Windows()
	}
	return nil, 0
}

// lengths returns the lengths of the windows from number first on, at least 1.
func (x *evaluation) lengths(first int64) (positions, tokens int) {
	positions, tokens = 1, 1
	for i := range x.share.MicroBatch {
		if of, at := x.part(first + int64(i)); of != nil {
			p, n := of.Lengths(at, 1)
			positions, tokens = max(positions, p), max(tokens, n)
		}
	}
	return positions, tokens
}

// read reads windows starting at first, and pads after the last one.
func (x *evaluation) read(first int64, into []data.Values) error {
	return eachSample(into, config.Fields(x.c), x.share.MicroBatch, func(i int, one []data.Values) error {
		of, at := x.part(first + int64(i))
		if of == nil {
			input, target, start := data.TokensOf(one)
			data.Pad(input, target, start, 0)
			return nil
		}
		return of.Batch(one, at)
	})
}
