package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"zeroth/collective"
	"zeroth/data"
	"zeroth/optim"
	"zeroth/zero"
)

// Train runs a job and writes its run folder: job.yaml, metrics.jsonl,
// loss.svg, and the final parameters in model/. When ctx is cancelled all
// ranks stop after the step they are in, what there is is written, and the
// error is ctx's cause.
func Train(ctx context.Context, c *Config, out string, obs Observer) error {
	set, err := data.Open(c.source(obs))
	if err != nil {
		return BadInput(err)
	}
	defer set.Close()
	weights, err := c.openWeights()
	if err != nil {
		return err
	}
	defer weights.close()
	ranks, err := c.Open(nil)
	if err != nil {
		return err
	}
	defer closeAll(ranks)
	rec, err := c.record(out, obs)
	if err != nil {
		return err
	}
	rec.Start(c.header(set, out, ranks))
	stopped, err := c.train(ctx, ranks, set, weights, rec)
	if err == nil {
		err = c.export(ranks, filepath.Join(out, modelFolder))
	}
	if err := errors.Join(err, rec.close()); err != nil {
		return err
	}
	if !stopped {
		rec.sum.Sample, err = c.sample(ctx, out)
	}
	rec.sum.Stopped, rec.sum.MemoryPerRank = stopped, peak(ranks)
	rec.Done(rec.sum)
	if stopped {
		return context.Cause(ctx)
	}
	return err
}

// train sets the initial parameters and runs the loop on every rank.
func (c *Config) train(ctx context.Context, ranks []*Rank, set *data.Set, w *weights, rec *recorder) (stopped bool, err error) {
	err = Together(ranks, func(r *Rank) error {
		if err := r.Trainer.Fill(zero.Master, w.fill); err != nil {
			return err
		}
		s, err := c.newLoop(r, set, rec).run(ctx)
		if r.Rank == 0 {
			stopped = s
		}
		return err
	})
	return stopped, err
}

// Together runs f on every rank at once and returns the error that explains
// those of the others.
func Together(ranks []*Rank, f func(*Rank) error) error {
	errs := make([]error, len(ranks))
	var wg sync.WaitGroup
	for i, r := range ranks {
		wg.Go(func() {
			if errs[i] = f(r); errs[i] != nil {
				_ = r.Groups.Close() // so that no other rank waits for this one; errs[i] is the error to report
			}
		})
	}
	wg.Wait()
	return slices.MinFunc(errs, func(a, b error) int { return cmp.Compare(effect(a), effect(b)) })
}

// effect is how far an error is from its cause: a rank's own failure, the
// deadline that a rank did not keep, the loss of a peer, a closed group.
func effect(err error) int {
	var late collective.ErrLate
	var lost collective.ErrPeerLost
	switch {
	case err == nil:
		return 4
	case !errors.Is(err, collective.ErrClosed):
		return 0
	case errors.As(err, &late):
		return 1
	case errors.As(err, &lost):
		return 2
	}
	return 3
}

// peak is the most bytes any rank has held at once.
func peak(ranks []*Rank) (most int64) {
	for _, r := range ranks {
		most = max(most, r.Device.Usage().Peak.Total())
	}
	return most
}

func closeAll(ranks []*Rank) {
	for _, r := range ranks {
		r.Close()
	}
}

// loop is one rank's training loop.
type loop struct {
	c        *Config
	rank     *Rank
	set      *data.Set
	rec      *recorder // rank 0 reports
	share    data.Share
	schedule optim.Schedule
	fill     zero.Batches // reads this rank's samples of step at
	validate zero.Batches
	at       int // steps done
}

func (c *Config) newLoop(r *Rank, set *data.Set, rec *recorder) *loop {
	l := &loop{c: c, rank: r, set: set, rec: rec, schedule: c.schedule(),
		share: data.Share{Ranks: c.Parallel.Ranks, Accumulate: c.Train.Accumulate, MicroBatch: c.Train.MicroBatch}}
	l.fill = func(micro int, input, target []int32) error {
		set.Train.Batch(input, target, l.share.First(int64(l.at), micro, r.Rank))
		return nil
	}
	l.validate = l.validation
	return l
}

// run is the loop: it trains until the last step, or until all ranks agree to
// stop because ctx was cancelled.
func (l *loop) run(ctx context.Context) (stopped bool, err error) {
	t, last := l.rank.Trainer, time.Now()
	for l.at < l.c.Train.Steps {
		t.WantStop = ctx.Err() != nil
		lr := l.schedule.At(t.Updates)
		stats, err := t.Step(l.fill, lr)
		if err != nil {
			return false, err
		}
		l.at++
		now := time.Now()
		if err := l.report(stats, lr, now.Sub(last)); err != nil {
			return false, err
		}
		last = now
		if stats.Stop {
			return l.at < l.c.Train.Steps, nil
		}
		if l.evaluates() {
			if err := l.evaluate(); err != nil {
				return false, err
			}
			last = time.Now()
		}
	}
	return false, nil
}

func (l *loop) report(s zero.Stats, lr float64, took time.Duration) error {
	if l.rank.Rank != 0 {
		return nil
	}
	tokens := l.c.TokensPerStep()
	return l.rec.step(Step{
		Step: l.at, Loss: s.Loss, LR: lr, GradNorm: s.GradNorm, Tokens: int64(l.at) * int64(tokens),
		TokensPerSecond: float64(tokens) / took.Seconds(), StepSeconds: took.Seconds(), Skipped: l.rank.Trainer.Skipped,
	})
}

// evaluates says whether validation is due: every EvalEvery steps and after
// the last.
func (l *loop) evaluates() bool {
	e := l.c.Train.EvalEvery
	return l.set.Validation != nil && e > 0 && (l.at%e == 0 || l.at == l.c.Train.Steps)
}

func (l *loop) evaluate() error {
	mean, err := l.rank.Trainer.Eval(l.c.Train.EvalBatches, l.validate)
	if err != nil || l.rank.Rank != 0 {
		return err
	}
	return l.rec.eval(Eval{Step: l.at, ValLoss: mean})
}

// validation reads this rank's samples of a validation batch. The samples of an
// evaluation are spread evenly over the validation windows and always the same.
func (l *loop) validation(micro int, input, target []int32) error {
	v, T := l.set.Validation, l.c.Model.Context
	all := l.share.Global() / int64(l.share.Accumulate) * int64(l.c.Train.EvalBatches)
	first := l.share.First(0, micro, l.rank.Rank)
	for i := range int64(l.share.MicroBatch) {
		lo, hi := int(i)*T, int(i+1)*T
		v.Batch(input[lo:hi], target[lo:hi], (first+i)*v.Windows()/all%v.Windows())
	}
	return nil
}

// source is where the job's data comes from.
func (c *Config) source(obs Observer) data.Source {
	return data.Source{
		Text: c.Data.Text, Tokens: c.Data.Tokens, Tokenizer: c.tokenizer(), Validation: c.Data.Validation,
		Context: c.Model.Context, Batch: c.Train.Batch, Vocab: c.Model.Vocab, Seed: c.Train.Seed,
		Progress: reading(obs),
	}
}

// tokenizer is the name data.NewTokenizer knows the job's by.
func (c *Config) tokenizer() string {
	if c.Data.Vocab != "" {
		return c.Data.Vocab
	}
	return c.Data.Tokenizer
}

// reading tells the observer now and then how far reading the data is, if it
// takes long enough to wonder.
func reading(obs Observer) func(done, total int64) {
	next := time.Now().Add(2 * time.Second)
	return func(done, total int64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(2 * time.Second)
			obs.Note(fmt.Sprintf("reading data: %d of %d MB", done/1e6, total/1e6))
		}
	}
}

func (c *Config) header(set *data.Set, out string, ranks []*Rank) Header {
	n := 0
	for _, u := range ranks[0].Trainer.Units() {
		n += u.Layout.Numel()
	}
	mesh := c.Mesh()
	return Header{
		Model: fmt.Sprintf("GPT-2 %s", compact(float64(n))), Parameters: int64(n),
		Ranks: c.Parallel.Ranks, Shard: mesh.Shard, Replicate: mesh.Replicate, Stage: c.Zero.Stage,
		Precision: c.Precision.String(), GlobalBatch: c.Train.Batch, TokensPerStep: c.TokensPerStep(), Steps: c.Train.Steps,
		DataTokens: set.Train.Windows() * int64(c.Model.Context), Out: out, MemoryPerRank: peak(ranks),
	}
}

// recorder passes a run's progress on to the observer, writes it to the run
// folder and sums it up. Rank 0 alone uses it.
type recorder struct {
	Observers
	out     string
	metrics *Metrics
	sum     Summary
}

func (c *Config) record(out string, obs Observer) (*recorder, error) {
	if err := os.MkdirAll(out, 0o777); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	if err := os.WriteFile(filepath.Join(out, "job.yaml"), c.YAML(), 0o666); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	m, err := OpenMetrics(filepath.Join(out, "metrics.jsonl"))
	if err != nil {
		return nil, err
	}
	return &recorder{Observers{m, obs}, out, m, Summary{ValLoss: math.NaN(), Out: out}}, nil
}

func (r *recorder) step(s Step) error {
	r.sum.Steps, r.sum.Loss, r.sum.Tokens = s.Step, s.Loss, s.Tokens
	r.sum.Seconds += s.StepSeconds
	r.Step(s)
	return r.metrics.Err()
}

func (r *recorder) eval(e Eval) error {
	r.sum.ValLoss = e.ValLoss
	r.Eval(e)
	return r.metrics.Err()
}

// close ends the metrics and draws them.
func (r *recorder) close() error {
	if err := r.metrics.Close(); err != nil {
		return err
	}
	steps, evals, err := ReadMetrics(filepath.Join(r.out, "metrics.jsonl"))
	if err != nil || len(steps) == 0 {
		return err
	}
	return WriteLossSVG(filepath.Join(r.out, "loss.svg"), steps, evals)
}
