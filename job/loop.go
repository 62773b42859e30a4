package job

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"zeroth/data"
	"zeroth/optim"
	"zeroth/zero"
)

// Train runs a job and writes its run folder: job.yaml, metrics.jsonl,
// loss.svg, the final parameters in model/, and checkpoints if the job asks
// for them. When ctx is cancelled all ranks stop after the step they are in,
// what there is is written, and the error is ctx's cause.
func Train(ctx context.Context, c *Config, out string, obs Observer) error {
	return Resume(ctx, c, out, "", obs)
}

// Resume is Train that goes on from a checkpoint: "latest", which where there
// is none yet begins at step 0 and says so, a step, or a checkpoint's folder.
// The run folder may be that of the run which made it: then metrics.jsonl goes
// on after the checkpoint's step.
func Resume(ctx context.Context, c *Config, out, which string, obs Observer) error {
	return ResumeWith(ctx, c, out, which, obs, Seams{})
}

// ResumeWith is Resume with what a test puts between the job and the world.
func ResumeWith(ctx context.Context, c *Config, out, which string, obs Observer, s Seams) error {
	file := c.YAML() // as it can be run again, in another folder
	here := *c
	if c = &here; c.Checkpoint.Dir == "" {
		c.Checkpoint.Dir = filepath.Join(out, checkpointFolder)
	}
	set, weights, err := c.openInputs(ctx, obs)
	if err != nil {
		return err
	}
	defer set.Close()
	defer weights.close()
	start, err := c.start(which, set, weights, obs)
	if err != nil {
		return err
	}
	defer start.close()
	if err := c.inherit(start); err != nil {
		return err
	}
	if err := c.carryTokenizer(set, start); err != nil {
		return err
	}
	if start.from == nil {
		if err := weights.check(ctx, c); err != nil {
			return err
		}
	}
	seen := observationOf(ctx)
	s.dress = seen.dress
	ranks, err := c.OpenWith(s)
	if err != nil {
		return err
	}
	defer closeAll(ranks)
	if err := c.room(ranks[0], obs); err != nil {
		return err
	}
	rec, err := record(out, file, which == "", start.Step, obs)
	if err != nil {
		return err
	}
	rec.account = func(step int) (*Account, error) { return c.account(step, ranks) }
	rec.Start(c.header(set, out, ranks))
	for _, note := range slices.Concat(c.notes, c.carried.notes, set.Notes) {
		rec.Note(note)
	}
	for _, r := range ranks {
		for _, file := range r.Trainer.Reclaimed() {
			rec.Note("removed what a dead run has left: " + file)
		}
	}
	trace := traceOf(ctx)
	if trace != nil {
		p, err := c.Plan(Machine{})
		if err != nil {
			return err
		}
		trace.attach(ranks, p)
	}
	stopped, err := c.train(ctx, ranks, set, start, rec)
	trace.detach(ranks)
	if err != nil && !slices.ContainsFunc(ranks, func(r *Rank) bool { return r.lost.Load() }) {
		finishSaves(ranks, func(end saved) { rec.Note(end.String()) })
	}
	if err == nil {
		err = seen.compare(c)
	}
	if err == nil {
		err = c.export(ranks, filepath.Join(out, modelFolder))
	}
	if err == nil {
		rec.sum.Memory, err = rec.memory(rec.sum.Steps)
	}
	if err := cmp.Or(err, rec.close()); err != nil {
		return err
	}
	if !stopped {
		rec.sum.Sample, err = c.sample(ctx, out, rec.Note)
	}
	rec.sum.Stopped, rec.sum.MemoryPerRank, rec.sum.Trace = stopped, peak(ranks), trace.exposure()
	rec.Done(rec.sum)
	if stopped {
		return context.Cause(ctx)
	}
	return err
}

// openInputs opens what the job reads. What is wrong with any of it is a
// Problems.
func (c *Config) openInputs(ctx context.Context, obs Observer) (*data.Set, *weights, error) {
	s := c.source()
	s.Progress, s.Memory = reading(obs), machineMemory()
	set, err := data.Open(ctx, s)
	problems := c.blame(err)
	w, wrong := c.openWeights()
	if wrong != nil {
		problems = append(problems, problem(c.place("model.from"), "model.from", wrong.Error(), ""))
	}
	if len(problems) > 0 {
		problems.sort()
		err = problems
	}
	if err == nil {
		return set, w, nil
	}
	if set != nil {
		_ = set.Close() // only read from
	}
	w.close()
	return nil, nil, err
}

// beginning is what a run starts from: initial parameters, or a checkpoint.
type beginning struct {
	weights *weights
	from    *resumed // nil without a checkpoint
	progress
}

func (c *Config) start(which string, set *data.Set, w *weights, obs Observer) (*beginning, error) {
	b := &beginning{weights: w}
	if which == "" {
		return b, nil
	}
	r, err := c.find(which, set.Fingerprint)
	if err != nil {
		return nil, err
	}
	if r == nil {
		obs.Note(fmt.Sprintf("no checkpoint in %s yet: starting at step 0", c.Checkpoint.Dir))
		return b, nil
	}
	obs.Note(fmt.Sprintf("resuming from %s, step %d", r.Path, r.progress.Step))
	b.from, b.progress = r, r.progress
	return b, nil
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

func (b *beginning) close() {
	if b.from != nil {
		_ = b.from.Close() // only read from
	}
}

// train sets the initial state and runs the loop on every rank.
func (c *Config) train(ctx context.Context, ranks []*Rank, set *data.Set, b *beginning, rec *recorder) (stopped bool, err error) {
	err = Together(ranks, func(r *Rank) error {
		if err := b.set(r.Trainer, len(ranks)); err != nil {
			return err
		}
		s, err := c.newLoop(r, set, b, rec).run(ctx)
		if r.Rank == 0 {
			stopped = s
		}
		return err
	})
	return stopped, err
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
	fill     zero.Batches // reads this rank's samples of the next step
	validate zero.Batches
	at       int   // steps done
	samples  int64 // of the training order, read so far
	tokens   int64 // trained on so far
	kept     int   // the step last saved in checkpoint.dir; -1 if there is none
	metrics  map[string]float64
}

func (c *Config) newLoop(r *Rank, set *data.Set, b *beginning, rec *recorder) *loop {
	l := &loop{c: c, rank: r, set: set, rec: rec, schedule: c.schedule(), at: b.Step, samples: b.Samples, tokens: b.Tokens, kept: -1,
		share:   data.Share{Ranks: c.Parallel.Ranks, Accumulate: c.Train.Accumulate, MicroBatch: c.Train.MicroBatch},
		metrics: map[string]float64{}}
	l.fill = func(micro int, input, target []int32) error {
		set.Train.Batch(input, target, l.samples+l.share.First(0, micro, r.Rank))
		return nil
	}
	l.validate = l.validation
	if b.from != nil && filepath.Dir(b.from.Path) == filepath.Clean(c.Checkpoint.Dir) {
		l.kept = b.Step
	}
	return l
}

// run is the loop: it trains until the last step, or until all ranks agree to
// stop because ctx was cancelled.
func (l *loop) run(ctx context.Context) (stopped bool, err error) {
	t, last := l.rank.Trainer, time.Now()
	for l.at < l.c.Train.Steps && !stopped {
		t.WantStop = ctx.Err() != nil
		lr := l.schedule.At(t.Updates)
		seen := observationOf(ctx)
		seen.begin(l)
		stats, err := t.Step(l.fill, lr)
		if err != nil {
			return false, err
		}
		l.advance()
		seen.end(l)
		now := time.Now()
		traceOf(ctx).step(l.rank.Rank, l.at, last, now)
		if err := l.report(stats, lr, now.Sub(last)); err != nil {
			return false, err
		}
		last = now
		stopped = stats.Stop && l.at < l.c.Train.Steps
		if l.evaluates() && !stopped {
			if err := l.evaluate(); err != nil {
				return false, err
			}
			last = time.Now()
		}
		if k := l.c.Checkpoint.Every; k > 0 && l.at%k == 0 {
			err = l.checkpoint()
		} else {
			err = l.saved(false)
		}
		if err != nil {
			return false, err
		}
	}
	if l.c.Checkpoint.SaveOnExit && l.kept != l.at {
		if err := l.checkpoint(); err != nil {
			return false, err
		}
	}
	return stopped, l.settled()
}

func (l *loop) advance() {
	l.at++
	l.samples += l.share.Global()
	l.tokens += int64(l.c.TokensPerStep())
}

func (l *loop) report(s zero.Stats, lr float64, took time.Duration) error {
	l.metrics["loss"] = s.Loss
	if l.rank.Rank != 0 {
		return nil
	}
	return l.rec.step(Step{
		Step: l.at, Loss: s.Loss, LR: lr, GradNorm: s.GradNorm, Tokens: l.tokens,
		TokensPerSecond: float64(l.c.TokensPerStep()) / took.Seconds(), StepSeconds: took.Seconds(), Skipped: l.rank.Trainer.Skipped,
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
	l.metrics["val_loss"] = mean
	if err != nil || l.rank.Rank != 0 {
		return err
	}
	return l.rec.eval(Eval{Step: l.at, ValLoss: mean})
}

// checkpoint begins to save the state, once the save before has ended.
func (l *loop) checkpoint() error {
	if err := l.settled(); err != nil {
		return err
	}
	t := l.rank.Trainer
	err := l.rank.saver.save(progress{
		Step: l.at, Updates: t.Updates, Skipped: t.Skipped, Samples: l.samples, Tokens: l.tokens, Scale: t.Scale,
		Seed: l.c.Train.Seed, Data: l.set.Fingerprint, Context: l.c.Model.Context, Config: string(l.c.YAML()),
		Model: l.c.modelJSON(), Version: Version(),
	}, maps.Clone(l.metrics))
	if err != nil {
		return err
	}
	l.kept = l.at
	return l.saved(!l.c.Checkpoint.Async)
}

// saved hears how the save in flight ended, if it has or if wait is set, and
// tells; a save that failed is an error if the job says so.
func (l *loop) saved(wait bool) error {
	if l.rank.saver == nil {
		return nil
	}
	end := l.rank.saver.end(wait)
	if end == nil {
		return nil
	}
	if l.rank.Rank == 0 {
		l.rec.Note(end.String())
	}
	if end.err != nil && l.c.Checkpoint.OnError == "stop" {
		return fmt.Errorf("checkpoint of step %d: %w", end.step, end.err)
	}
	return nil
}

// settled waits until a save in flight has ended, and the retention after it.
func (l *loop) settled() error {
	if l.rank.saver == nil {
		return nil
	}
	if err := l.saved(true); err != nil {
		return err
	}
	err := l.rank.saver.tidy()
	if err != nil && l.c.Checkpoint.OnError != "stop" {
		l.rec.Note(fmt.Sprintf("old checkpoints stay: %v", err))
		return nil
	}
	return err
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
func (c *Config) source() data.Source {
	return data.Source{
		Text: c.Data.Text, Tokens: c.Data.Tokens, DType: c.Data.DType, Tokenizer: c.tokenizer(), Validation: c.Data.Validation,
		Context: c.Model.Context, Batch: c.Train.Batch, Vocab: c.Model.Vocab, Seed: c.Train.Seed,
	}
}

// tokenizer is the name data.NewTokenizer knows the job's by, empty for none.
func (c *Config) tokenizer() string {
	switch {
	case c.Data.Tokenizer == "gpt2" && c.Data.Vocab != "":
		return c.Data.Vocab
	case c.Data.Tokenizer == "none":
		return ""
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
	mesh, host := c.Mesh(), int64(0)
	if h := ranks[0].Host; h != nil {
		host = h.Usage().Peak.Total()
	}
	return Header{
		Model: fmt.Sprintf("%s %s", c.Model.network().Name, compact(float64(n))), Parameters: int64(n),
		Ranks: c.Parallel.Ranks, Shard: mesh.Shard, Replicate: mesh.Replicate, Stage: c.Zero.Stage,
		Precision: c.Precision.String(), GlobalBatch: c.Train.Batch, TokensPerStep: c.TokensPerStep(), Steps: c.Train.Steps,
		DataTokens: set.Train.Windows() * int64(c.Model.Context), Out: out, MemoryPerRank: peak(ranks),
		HostPerRank: host, DiskPerRank: ranks[0].Trainer.DiskBytes(), Offload: c.Zero.Offload.String(),
	}
}

// recorder passes a run's progress on to the observer, writes it to the run
// folder and sums it up. Rank 0 alone uses it.
type recorder struct {
	Observers
	out     string
	metrics *Metrics
	sum     Summary
	account func(step int) (*Account, error)
}

// record opens the run folder's files; of the metrics of an earlier run it
// keeps those up to the step this one begins at.
func record(out string, job []byte, fresh bool, step int, obs Observer) (*recorder, error) {
	if err := os.MkdirAll(out, 0o777); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	if err := writeJob(filepath.Join(out, "job.yaml"), job, fresh); err != nil {
		return nil, fmt.Errorf("run folder: %w", err)
	}
	path := filepath.Join(out, "metrics.jsonl")
	if err := TrimMetrics(path, step); err != nil {
		return nil, err
	}
	m, err := OpenMetrics(path)
	if err != nil {
		return nil, err
	}
	return &recorder{Observers: Observers{m, obs}, out: out, metrics: m, sum: Summary{ValLoss: math.NaN(), Out: out}}, nil
}

// writeJob writes the effective configuration. In a fresh run it must not be
// there: of two that start in one folder at once, one fails.
func writeJob(path string, content []byte, fresh bool) error {
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if fresh {
		flags |= os.O_EXCL
	}
	f, err := os.OpenFile(path, flags, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return cmp.Or(err, f.Close())
}

// memory writes down what the ranks hold beside what was planned: after the
// first step, and at the end.
func (r *recorder) memory(step int) (*Account, error) {
	a, err := r.account(step)
	if err != nil {
		return nil, err
	}
	r.metrics.Memory(a)
	return a, r.metrics.Err()
}

func (r *recorder) step(s Step) error {
	if r.sum.Steps == 0 {
		if _, err := r.memory(s.Step); err != nil {
			return err
		}
	}
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
		return err // there is no room for a drawing either
	}
	steps, evals, err := ReadMetrics(filepath.Join(r.out, "metrics.jsonl"))
	if err != nil || len(steps) == 0 {
		return err
	}
	return WriteLossSVG(filepath.Join(r.out, "loss.svg"), steps, evals)
}
