package job

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"zeroth/checkpoint/vfs"
	"zeroth/data"
	"zeroth/internal/setup"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/state"
	"zeroth/job/trace"
	"zeroth/optim"
	"zeroth/zero"
)

// loop is one rank's training loop. It belongs to the rank's goroutine.
type loop struct {
	c        *spec.Job
	rank     *setup.Rank
	set      *data.Set
	rec      *recorder // rank 0 reports
	chosen   *chosen
	schedule optim.Schedule
	share    data.Share
	reader   int                // this rank's index in share
	metrics  map[string]float64 // the last ones, for checkpoints
	stop     func() bool        // asks all ranks to stop

	newcomers func() bool // whether others wait to be taken in

	duties
	counts
	evals
	saves
	probes
}

// counts are how far training has come.
type counts struct {
	at      int       // steps done
	samples int64     // of the training order, read so far
	tokens  int64     // trained on so far, without padding
	read    int64     // of them, in the last step
	since   time.Time // when the last step, or an evaluation after it, has ended
}

// duties is the work that follows a step, in order. After a loss, ranks repeat the duties that some have not done.
type duties struct {
	duty     int         // how many are done
	due      [4]bool     // those to be done, before each is begun
	wants    bool        // a rank has asked all to save
	stopped  bool        // ranks have agreed to stop
	joins    bool        // ranks have agreed to take in others, or to leave out a slow replica
	before   state.Early // the evaluations before those of this step
	reported report.Step // the last
	verdict  string      // of a step to be finished, see zero.Trainer.Finish; empty: none
}

// The duties.
const (
	updating = iota
	evaluating
	saving
	saveLast  = setup.BetweenSteps // after training
	allDuties = saveLast + 1
)

// owes reports whether a duty is to be done. If it is, the caller counts it when it is done.
func (l *loop) owes(duty int, due func() bool) bool {
	if l.duty > duty {
		return false
	}
	if l.duty == duty {
		l.due[duty] = l.due[duty] || due()
	}
	return l.due[duty]
}

// evals are the evaluations on validation data.
type evals struct {
	validation *evalSamples // nil: there is no validation data
	early      state.Early  // of the evaluations so far; without a step while there is none
	unsaved    bool         // step at has the best evaluation so far, and the job's final model is the best
	owed       bool         // one is due at step at: it was left out, or interrupted because the run was asked to stop
	looked     bool         // since the last step
}

// newLoop returns the loop of one of a run's ranks.
func newLoop(of *run, r *setup.Rank) *loop {
	c, set, b := of.c, of.set, of.start
	l := &loop{
		c: c, rank: r, set: set, rec: of.rec, chosen: of.chosen, schedule: setup.Schedule(c), metrics: map[string]float64{},
		share:     spec.Share(c),
		reader:    spec.Mesh(c).DataRank(r.Rank),
		duties:    duties{duty: saveLast},
		counts:    counts{at: b.Step, samples: b.Samples, tokens: b.Tokens},
		evals:     evals{early: earlyOf(c, b.Early), owed: of.rec.owed || b.Owed},
		saves:     saves{saver: of.savers[r.LocalIndex], model: of.job.ModelJSON(), base: b.Base, kept: -1},
		newcomers: of.newcomers,
		probes:    probes{trace: of.Trace, timeline: of.Timeline, where: of.where, asks: &of.asks, watch: of.watch},
	}
	if set.Validation != nil {
		l.validation = newEvalSamples(c, r.Rank, l.share.Global()*int64(c.Train.EvalBatches), set.Validation)
	}
	if !of.self.Alone() {
		l.host = of.self.Hosts[r.Rank]
	}
	l.watchSlow(of)
	if of.Trace == nil && c.Report.Every > 0 && c.Report.Every <= c.Train.Steps {
		l.sample = trace.NewSample(r, trace.Short)
	}
	if b.from != nil && vfs.Parent(b.from.Path) == vfs.Join(c.Checkpoint.Dir) {
		l.kept = b.Step
	}
	return l
}

// run trains until the last step, or until all ranks agree to stop because ctx was cancelled:
// after a step, or within an evaluation. One that is due then or incomplete is left to the next
// start, because there may be little time to save.
func (l *loop) run(ctx context.Context) (stopped bool, err error) {
	l.stop = func() bool { return ctx.Err() != nil || l.failed != nil }
	l.since = time.Now()
	if l.last.IsZero() {
		l.last = l.since
	}
	if l.owed && l.duty == saveLast && l.evaluates() {
		if stopped, err = l.evaluate(); err != nil {
			return false, err
		}
		if l.unsaved { // the checkpoint that the run began with does not have this evaluation
			if err := l.checkpoint(); err != nil {
				return false, err
			}
		}
	}
	l.stopped = l.stopped || stopped
	for {
		if err := l.follow(); err != nil {
			return false, err
		}
		if l.at >= l.c.Train.Steps || l.stopped || l.stale() {
			break
		}
		if l.joins {
			return false, l.pauses()
		}
		lr := l.schedule.At(l.rank.Trainer.Updates)
		s, err := l.train(lr)
		if err != nil {
			return false, err
		}
		if err := l.report(s, lr); err != nil {
			return false, err
		}
		l.duties = duties{wants: s.Save, joins: s.Join || l.why != "", stopped: s.Stop && l.at < l.c.Train.Steps, before: l.early, reported: l.reported}
	}
	if l.stale() && l.rank.Rank == 0 {
		l.rec.Note(endedEarly(l.c, l.early))
	}
	return l.stopped, l.finishSaves()
}

// follow does what follows a step.
func (l *loop) follow() (err error) {
	if l.duty == updating {
		if err := l.complete(); err != nil {
			return err
		}
		l.timeline.end(l)
		l.duty = evaluating
	}
	if l.duty == evaluating {
		if l.owed = l.evaluates(); l.owed && !l.stopped {
			l.early = l.before
			if l.stopped, err = l.evaluate(); err != nil {
				return err
			}
		}
		l.duty = saving
	}
	if l.duty == saving {
		if err := l.save(); err != nil {
			return err
		}
		l.duty = saveLast
	}
	return nil
}

// complete completes an update in which ranks exchange matrices, as a part of the last step.
func (l *loop) complete() error {
	if !l.rank.Trainer.Repeats() {
		return nil
	}
	l.rank.Recorder.BeginStep(l.at)
	err := l.rank.Trainer.Complete()
	p := l.rank.Recorder.EndStep()
	l.pace.Waited, l.pace.Took = l.pace.Waited+p.Waited, l.pace.Took+p.Took
	return err
}

// train does a step.
func (l *loop) train(lr float64) (zero.Stats, error) {
	global := l.share.Global()
	w := zero.Work{
		Fill: l.fill, Lengths: l.lengths, Counted: l.set.Train.Learned(l.samples, global), LR: lr,
		Stop: l.stop, Save: l.rank.Rank == 0 && l.wantSave(), Join: l.rank.LocalIndex == 0 && l.newcomers(), Trace: l.wantTrace(), Pace: l.pace,
	}
	if w.Counted == 0 {
		return zero.Stats{}, common{fmt.Errorf("step %d: samples %d to %d of the training order have no position with a loss", l.at+1, l.samples, l.samples+global-1)}
	}
	l.timeline.begin(l)
	l.beginSample()
	l.data = 0
	l.rank.Recorder.BeginStep(l.at + 1)
	var s zero.Stats
	var err error
	if l.verdict != "" {
		s, err = l.rank.Trainer.Finish(lr, l.verdict)
	} else {
		s, err = l.rank.Trainer.Step(w)
	}
	if err != nil {
		return s, err
	}
	l.pace = l.rank.Recorder.EndStep()
	l.advance()
	l.looked = false
	return s, l.chosen.record(l.rank)
}

// advance counts a step.
func (l *loop) advance() {
	l.read = int64(l.set.Train.Positions(l.samples, l.share.Global()))
	l.at++
	l.samples += l.share.Global()
	l.tokens += l.read
}

// fill reads this rank's samples of a micro-batch of the next step.
func (l *loop) fill(micro int, into []data.Values) error {
	begin := time.Now()
	defer func() { l.data += time.Since(begin) }()
	return l.set.Train.Batch(into, l.samples+l.share.First(0, micro, l.reader))
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

// stale reports whether the run ends before its last step because evaluations do not improve.
// All ranks see the same evaluations.
func (l *loop) stale() bool { return l.at < l.c.Train.Steps && isStale(l.c, &l.early) }

// earlyOf returns the evaluations so far for the job's early stop. Those by another metric do not
// count.
func earlyOf(c *spec.Job, was *state.Early) state.Early {
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
func isStale(c *spec.Job, e *state.Early) bool {
	patience := c.Train.EarlyStop.Patience
	return patience > 0 && earlyOf(c, e).Stale >= patience
}

// endedEarly returns a line about an early stop.
func endedEarly(c *spec.Job, e state.Early) string {
	by := ""
	if delta := c.Train.EarlyStop.MinDelta; delta > 0 {
		by = fmt.Sprintf(" by more than %g", delta)
	}
	return fmt.Sprintf("stopped early: the last %d evaluations did not improve%s; the best is step %d, with a %s", e.Stale, by, e.Step, e.Describe())
}

// report reports a step.
func (l *loop) report(s zero.Stats, lr float64) error {
	now := time.Now()
	took := now.Sub(l.since)
	l.trace.Step(l.rank, l.at, l.since, now)
	l.trace.Wait(l.rank, l.rank.Trainer.Waited[0], l.rank.Trainer.Waited[1])
	l.since = now
	parts, err := l.endSample(s.Trace)
	if err != nil {
		return err
	}
	l.metrics["loss"] = s.Loss
	own := balanceOf(l.named(s.Metrics), s.Balanced)
	if l.rank.Rank != 0 && !l.c.Faults.Survive {
		return nil
	}
	behind := l.behind()
	ranks, waits := report.Spreads(l.rank.Trainer.Paces)
	l.reported = report.Step{
		Time: report.Now(), DataSeconds: l.data.Seconds(), Parts: parts, RankSeconds: ranks, RankWaits: waits,
		Waited: behind.Waited.Seconds(), Slowest: behind.Rank, Behind: behind.Part(), Step: l.at, Loss: s.Loss, LR: lr, GradNorm: s.GradNorm, Tokens: l.tokens,
		TokensPerSecond: float64(l.read) / took.Seconds(), StepSeconds: took.Seconds(), Skipped: l.rank.Trainer.Skipped, Metrics: own,
	}
	l.why = l.leaves(behind)
	if l.rank.Rank != 0 {
		return nil
	}
	if line := l.slow.Add(behind); l.why != "" {
		l.rec.Warn(l.why + "; going on without it")
	} else if line != "" {
		l.rec.Warn(line + l.where(behind.Rank))
	}
	return l.rec.step(l.reported)
}

// named returns means of the network's metrics by name.
func (l *loop) named(means []float64) map[string]float64 {
	if len(means) == 0 {
		return nil
	}
	own := map[string]float64{}
	for i, name := range spec.Network(l.c).Metrics {
		own[name] = means[i]
	}
	return own
}

// balanceOf adds metrics of routers, if there is a balancing loss.
func balanceOf(own map[string]float64, of zero.Balanced) map[string]float64 {
	if of.Share == nil {
		return own
	}
	if own == nil {
		own = map[string]float64{}
	}
	own["router_aux"], own["router_largest_share"] = of.Loss, slices.Max(of.Share)
	for layer, h := range of.Entropy {
		if of.Share[layer] > 0 {
			own[fmt.Sprintf("router_layer_entropy_%d", layer)] = h
		}
	}
	return own
}

// evaluates reports whether an evaluation is due: every EvalEvery steps and after the last.
func (l *loop) evaluates() bool {
	e := l.c.Train.EvalEvery
	return l.validation != nil && e > 0 && (l.at%e == 0 || l.at == l.c.Train.Steps)
}

// rate compares an evaluation with those before, if the job does.
func (l *loop) rate(loss float64, own map[string]float64) {
	t := l.c.Train
	if t.EarlyStop.Patience == 0 && !t.Best() {
		return
	}
	if name := l.early.Metric; name != "" {
		loss = own[name]
	}
	l.unsaved = l.early.Add(l.at, loss, t.EarlyStop.MinDelta) && t.Best()
}

// evaluate computes the validation loss, unless ranks agree to stop. One that is not finite is
// reported and left out of the checkpoint's metrics; training continues until its own loss is not
// finite.
func (l *loop) evaluate() (stopped bool, err error) {
	l.looked = true
	n := l.validation.micros()
	w, _ := l.validation.work(0, n)
	w.Stop = l.stop
	stats, err := l.rank.Trainer.Eval(int(n), w)
	l.since = time.Now()
	if l.owed = err != nil || stats.Stop; l.owed {
		return stats.Stop, err
	}
	mean := stats.Loss
	finite := !math.IsNaN(mean) && !math.IsInf(mean, 0)
	if delete(l.metrics, "val_loss"); finite {
		l.metrics["val_loss"] = mean
	}
	own := l.named(stats.Metrics)
	l.rate(mean, own)
	if l.rank.Rank != 0 {
		return false, nil
	}
	if !finite {
		l.rec.Warn(fmt.Sprintf("the validation loss after step %d is %v: training has diverged; lower optimizer.lr, set train.clip, or go back to an earlier checkpoint", l.at, mean))
	}
	return false, l.rec.eval(report.Eval{Step: l.at, ValLoss: mean, Metrics: own})
}
