package job

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/config"
	"zeroth/data"
	"zeroth/job/report"
	"zeroth/job/setup"
	"zeroth/job/sim"
	"zeroth/job/state"
	"zeroth/job/watch"
	"zeroth/optim"
	"zeroth/zero"
)

// loop is one rank's training loop.
type loop struct {
	c        *config.Config
	rank     *setup.Rank
	saver    *state.Saver // nil for a job that makes no checkpoints
	set      *data.Set
	rec      *recorder // rank 0 reports
	chosen   *chosen
	share    data.Share
	reader   int // this rank's index in share
	schedule optim.Schedule
	fill     zero.Batches // reads this rank's samples of the next step
	validate zero.Batches
	at       int         // steps done
	samples  int64       // of the training order, read so far
	tokens   int64       // trained on so far, without padding
	read     int64       // of them, in the last step
	owed     bool        // an evaluation at step at, left out or interrupted because the run was asked to stop
	looked   bool        // at validation data, since the last step
	early    state.Early // of the evaluations; without a step while there is none
	model    []byte      // its config.json
	base     string      // digest of the parameters that training began with; empty if they were fresh
	failed   error       // of the last save, if the job stops for it
	kept     int         // the step last saved in checkpoint.dir; -1 if there is none, or that save failed
	metrics  map[string]float64
	slow     report.Stragglers
	where    func(rank int) string // " (host)" of a rank, or nothing
	trace    *sim.Trace            // may be nil
	sample   *sim.Sample           // of some steps; nil: none is measured
	sampling bool                  // the step that follows is
	asks     *asks                 // of clients
	watch    *watch.State          // nil: nobody watches
	tracing  int                   // steps of a trace that are not done
	traced   *sim.Sample           // a trace under way; may be nil
	host     string                // of this rank; empty if there are no other processes
	data     time.Duration         // in which the step has read its samples
	timeline *Observation          // may be nil
}

// newLoop returns the loop of one of a run's ranks.
func newLoop(of *run, r *setup.Rank) *loop {
	c, set, b := of.c, of.set, of.start
	l := &loop{c: c, model: of.job.ModelJSON(), rank: r, saver: of.savers[r.LocalIndex], set: set, rec: of.rec, chosen: of.chosen, schedule: setup.Schedule(c), at: b.Step, samples: b.Samples, tokens: b.Tokens, base: b.Base, kept: -1,
		trace: of.Trace, timeline: of.Timeline, owed: of.rec.owed || b.Owed, where: of.where, asks: &of.asks, watch: of.watch,
		share:   data.Share{Ranks: config.Mesh(c).DataRanks(), Accumulate: c.Train.Accumulate, MicroBatch: c.Train.MicroBatch},
		metrics: map[string]float64{}}
	l.reader = config.Mesh(c).DataRank(r.Rank)
	if !of.self.Alone() {
		l.host = of.self.Hosts[r.Rank]
	}
	l.fill = func(micro int, into []data.Values) error {
		begin := time.Now()
		defer func() { l.data += time.Since(begin) }()
		return set.Train.Batch(into, l.samples+l.share.First(0, micro, l.reader))
	}
	if of.Trace == nil && c.Report.Every > 0 && c.Report.Every <= c.Train.Steps {
		l.sample = sim.NewSample(r)
	}
	l.validate = l.validation
	l.early = earlyOf(c, b.Early)
	if b.from != nil && vfs.Parent(b.from.Path) == vfs.Join(c.Checkpoint.Dir) {
		l.kept = b.Step
	}
	return l
}

// run trains until the last step, or until all ranks agree to stop because ctx was cancelled:
// after a step, or within an evaluation. One that is due then or incomplete is left to the next
// start, because there may be little time to save.
func (l *loop) run(ctx context.Context) (stopped bool, err error) {
	t, last := l.rank.Trainer, time.Now()
	t.WantStop = func() bool { return ctx.Err() != nil || l.failed != nil }
	if l.owed && l.evaluates() {
		if stopped, err = l.evaluate(); err != nil {
			return false, err
		}
	}
	for l.at < l.c.Train.Steps && !stopped && !l.stale() {
		t.WantSave = l.rank.Rank == 0 && l.asks.save.Swap(false)
		t.WantTrace = l.wantTrace()
		lr := l.schedule.At(t.Updates)
		l.timeline.begin(l)
		l.beginSample()
		l.data = 0
		if t.Counted = l.set.Train.Learned(l.samples, l.share.Global()); t.Counted == 0 {
			return false, common{fmt.Errorf("step %d: samples %d to %d of the training order have no position with a loss", l.at+1, l.samples, l.samples+l.share.Global()-1)}
		}
		t.Lengths = l.lengths
		l.rank.Recorder.BeginStep(l.at + 1)
		stats, err := t.Step(l.fill, lr)
		if err != nil {
			return false, err
		}
		t.Pace = l.rank.Recorder.EndStep()
		if err := l.chosen.record(l.rank); err != nil {
			return false, err
		}
		l.advance()
		l.timeline.end(l)
		l.looked = false
		now := time.Now()
		l.trace.Step(l.rank, l.at, last, now)
		l.trace.Wait(l.rank, t.Waited[0], t.Waited[1])
		parts, err := l.endSample(stats.Trace)
		if err != nil {
			return false, err
		}
		if err := l.report(stats, lr, now.Sub(last), parts); err != nil {
			return false, err
		}
		last = now
		stopped = stats.Stop && l.at < l.c.Train.Steps
		if l.owed = l.evaluates(); l.owed && !stopped {
			if stopped, err = l.evaluate(); err != nil {
				return false, err
			}
			last = time.Now()
		}
		if k := l.c.Checkpoint.Every; k > 0 && l.at%k == 0 || stats.Save && l.saver != nil {
			err = l.checkpoint()
		} else {
			l.hearSave(false)
		}
		if err != nil {
			return false, err
		}
	}
	if l.stale() && l.rank.Rank == 0 {
		l.rec.Note(endedEarly(l.early))
	}
	if err := l.settled(); err != nil { // now all ranks know of the last save how it ended
		return false, err
	}
	if l.c.Checkpoint.SaveOnExit && l.kept != l.at {
		if err := l.checkpoint(); err != nil {
			return false, err
		}
	}
	return stopped, l.settled()
}

// stale reports whether the run ends before its last step because evaluations do not improve.
// All ranks see the same evaluations.
func (l *loop) stale() bool { return l.at < l.c.Train.Steps && isStale(l.c, &l.early) }

// earlyOf returns the evaluations so far for the job's early stop. Those by another metric do not
// count.
func earlyOf(c *config.Config, was *state.Early) state.Early {
	s := c.Train.EarlyStop
	e := state.Early{Metric: s.Metric, Max: s.Mode == "max"}
	if e.Metric == "val_loss" {
		e.Metric = ""
	}
	if was != nil && was.Metric == e.Metric && was.Max == e.Max {
		return *was
	}
	return e
}

// isStale reports whether the job's patience with evaluations that do not improve is used up.
func isStale(c *config.Config, e *state.Early) bool {
	patience := c.Train.EarlyStop.Patience
	return patience > 0 && earlyOf(c, e).Stale >= patience
}

// endedEarly returns a line about an early stop.
func endedEarly(e state.Early) string {
	return fmt.Sprintf("stopped early: the last %d evaluations did not improve on step %d, with a validation %s of %.4f", e.Stale, e.Step, cmp.Or(e.Metric, "loss"), e.Best)
}

func (l *loop) advance() {
	l.read = int64(l.set.Train.Positions(l.samples, l.share.Global()))
	l.at++
	l.samples += l.share.Global()
	l.tokens += l.read
}

func (l *loop) report(s zero.Stats, lr float64, took time.Duration, parts sim.Exposure) error {
	l.metrics["loss"] = s.Loss
	own := l.named(s.Metrics)
	if l.rank.Rank != 0 {
		return nil
	}
	behind := report.BehindOf(l.rank.Trainer.Paces)
	if line := l.slow.Add(behind); line != "" {
		l.rec.Warn(line + l.where(behind.Rank))
	}
	ranks, waits := report.Spreads(l.rank.Trainer.Paces)
	return l.rec.step(report.Step{
		Time: report.Now(), DataSeconds: l.data.Seconds(), Parts: parts, RankSeconds: ranks, RankWaits: waits,
		Waited: behind.Waited.Seconds(), Slowest: behind.Rank, Behind: behind.Part(), Step: l.at, Loss: s.Loss, LR: lr, GradNorm: s.GradNorm, Tokens: l.tokens,
		TokensPerSecond: float64(l.read) / took.Seconds(), StepSeconds: took.Seconds(), Skipped: l.rank.Trainer.Skipped, Metrics: own,
	})
}

// named returns means of the network's metrics by name.
func (l *loop) named(means []float64) map[string]float64 {
	if len(means) == 0 {
		return nil
	}
	own := map[string]float64{}
	for i, name := range config.Network(l.c).Metrics {
		own[name] = means[i]
	}
	return own
}

// evaluates reports whether an evaluation is due: every EvalEvery steps and after the last.
func (l *loop) evaluates() bool {
	e := l.c.Train.EvalEvery
	return l.set.Validation != nil && e > 0 && (l.at%e == 0 || l.at == l.c.Train.Steps)
}

// evaluate computes the validation loss, unless ranks agree to stop. One that is not finite is
// reported and left out of the checkpoint's metrics; training continues until its own loss is not
// finite.
func (l *loop) evaluate() (stopped bool, err error) {
	l.looked = true
	t, micro := l.rank.Trainer, int64(l.share.Ranks*l.share.MicroBatch) // samples of a micro-batch on all ranks
	t.Counted, t.Lengths, t.Live = l.validated(), l.validationLengths, l.live
	stats, err := t.Eval(int((l.evaluated()+micro-1)/micro), l.validate)
	t.Live = nil
	if l.owed = err != nil || stats.Stop; l.owed {
		return stats.Stop, err
	}
	mean := stats.Loss
	finite := !math.IsNaN(mean) && !math.IsInf(mean, 0)
	if delete(l.metrics, "val_loss"); finite {
		l.metrics["val_loss"] = mean
	}
	own := l.named(stats.Metrics)
	if l.c.Train.EarlyStop.Patience > 0 {
		x := mean
		if name := l.early.Metric; name != "" {
			x = own[name]
		}
		l.early.Add(l.at, x)
	}
	if l.rank.Rank != 0 {
		return false, nil
	}
	if !finite {
		l.rec.Warn(fmt.Sprintf("the validation loss after step %d is %v: training has diverged; lower optimizer.lr, set train.clip, or go back to an earlier checkpoint", l.at, mean))
	}
	return false, l.rec.eval(report.Eval{Step: l.at, ValLoss: mean, Metrics: own})
}

// checkpoint starts a save, once the previous one has ended.
func (l *loop) checkpoint() error {
	if err := l.settled(); err != nil {
		return err
	}
	t := l.rank.Trainer
	var early *state.Early
	if l.early.Step > 0 {
		now := l.early
		early = &now
	}
	err := l.saver.Save(state.Progress{
		Step: l.at, Updates: t.Updates, Skipped: t.Skipped, Samples: l.samples, Tokens: l.tokens, Scale: t.Scale, Early: early, Owed: l.owed,
		Seed: l.c.Train.Seed, Data: l.set.Fingerprint, Context: l.c.Model.Context, Config: string(l.c.YAML()),
		Model: l.model, Base: l.base, Version: state.Version(),
	}, maps.Clone(l.metrics))
	if err != nil {
		return err
	}
	l.kept = l.at
	if l.c.Checkpoint.Async {
		return nil
	}
	l.hearSave(true)
	return l.failed
}

// hearSave records how the save in flight ended, if it has or if wait is set. Ranks that do
// not wait learn of a failure at different steps; it stays in failed until all have agreed to
// stop after the same step.
func (l *loop) hearSave(wait bool) {
	if l.saver == nil || l.failed != nil {
		return
	}
	end := l.saver.End(wait)
	if end == nil {
		return
	}
	end.Err = diskFull(l.c, end.Err)
	if l.rank.Rank == 0 {
		l.rec.saved(*end)
		l.watch.Saved(end.Step, end.Took.Seconds(), end.Err)
	}
	if end.Err == nil {
		return
	}
	l.kept = -1
	if l.c.Checkpoint.OnError != "stop" {
		return
	}
	if l.failed = fmt.Errorf("checkpoint of step %d: %w", end.Step, end.Err); !causedByPeers(end.Err) {
		l.failed = common{l.failed}
	}
}

// common is an error that every rank finds by itself, at the same step.
type common struct{ error }

func (c common) Unwrap() error { return c.error }

// Common marks the error for World.Fail: other processes need not be interrupted.
func (common) Common() {}

// settled waits for the save in flight and the retention after it.
func (l *loop) settled() error {
	if l.saver == nil {
		return nil
	}
	if l.hearSave(true); l.failed != nil {
		return l.failed
	}
	err := l.saver.Tidy()
	for _, x := range l.saver.Stays() {
		l.rec.Note("old checkpoint " + x.String())
	}
	if err != nil && l.c.Checkpoint.OnError != "stop" {
		l.rec.Warn(fmt.Sprintf("old checkpoints were not deleted: %v", err))
		return nil
	}
	return err
}

// evaluated returns the number of samples of an evaluation, at most all, which does not depend on
// the number of ranks.
func (l *loop) evaluated() int64 {
	n := l.share.Global() * int64(l.c.Train.EvalBatches)
	if all := l.set.Validation.Windows(); all > 0 {
		n = min(n, all)
	}
	return n
}

// live returns how many samples of this rank's micro-batch belong to an evaluation. Those after
// its last one fill the micro-batch.
func (l *loop) live(micro int) int {
	left := l.evaluated() - l.share.First(0, micro, l.reader)
	return int(min(max(0, left), int64(l.share.MicroBatch)))
}

// window returns the validation window of sample i of every evaluation; after the last sample, that
// of the last. The samples are different ones, spread evenly over all windows.
func (l *loop) window(i int64) int64 {
	if i = min(i, l.evaluated()-1); l.set.Validation.Windows() == 0 {
		return i // there is no end
	}
	hi, lo := bits.Mul64(uint64(i), uint64(l.set.Validation.Windows()))
	w, _ := bits.Div64(hi, lo, uint64(l.evaluated()))
	return int64(w)
}

// validated returns the number of targets with a loss in an evaluation.
func (l *loop) validated() (sum int) {
	for i := range l.evaluated() {
		sum += l.set.Validation.Learned(l.window(i), 1)
	}
	return sum
}

// eachSample calls read with the fields of each sample of a micro-batch.
func eachSample(into []data.Values, fields []data.Field, samples int, read func(i int, one []data.Values) error) error {
	one := make([]data.Values, len(into))
	for i := range samples {
		for k, f := range fields {
			one[k] = into[k].Slice(i*f.Len, (i+1)*f.Len)
		}
		if err := read(i, one); err != nil {
			return err
		}
	}
	return nil
}

// lengths returns the lengths of this rank's samples in a micro-batch of the next step. An observed
// step computes all positions, as planned.
func (l *loop) lengths(micro int) (positions, tokens int) {
	positions, tokens = l.set.Train.Lengths(l.samples+l.share.First(0, micro, l.reader), int64(l.share.MicroBatch))
	if l.timeline != nil {
		positions = l.c.Model.Context
	}
	return positions, tokens
}

// validationLengths returns the lengths of the samples in a micro-batch of an evaluation.
func (l *loop) validationLengths(micro int) (positions, tokens int) {
	first := l.share.First(0, micro, l.reader)
	for i := range int64(l.share.MicroBatch) {
		p, n := l.set.Validation.Lengths(l.window(first+i), 1)
		positions, tokens = max(positions, p), max(tokens, n)
	}
	return positions, tokens
}

// validation reads this rank's samples of a micro-batch of an evaluation.
func (l *loop) validation(micro int, into []data.Values) error {
	first := l.share.First(0, micro, l.reader)
	return eachSample(into, config.Fields(l.c), l.share.MicroBatch, func(i int, one []data.Values) error {
		return l.set.Validation.Batch(one, l.window(first+int64(i)))
	})
}
