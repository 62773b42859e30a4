package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zeroth/collective"
	"zeroth/internal/launch"
	"zeroth/internal/setup"
	"zeroth/internal/world"
	"zeroth/job/report"
	"zeroth/job/state"
	"zeroth/shard"
)

// A run that survives losses goes on in the same processes: its ranks stop, agree with the others on
// who is left and how many steps are done (setup.Survivor), and get other groups and shares of the
// samples. Their state stays where it is.

// survives reports whether the run may go on after an error of its ranks.
func (r *run) survives(err error) bool {
	return r.c.Faults.Survive && err != nil && causedByPeers(err) && !anyLost(r.ranks) &&
		!errors.As(err, new(collective.ErrLate)) && !errors.As(err, new(collective.ErrDiverged))
}

// depart waits until all processes have done all steps. After that, losses end the run.
func (r *run) depart(ctx context.Context) error {
	if !r.c.Faults.Survive {
		return nil
	}
	err := r.World.Agree(ctx, nil)
	if w, ok := r.World.(interface{ Depart() }); ok && err == nil {
		w.Depart()
	}
	return err
}

// standing returns how far the ranks of this process have come. Others may still have to finish the
// last step.
func standing(loops []*loop) (s setup.Standing) {
	for _, l := range loops {
		switch {
		case l.at > s.Steps || s.Verdict == "":
			s = setup.Standing{Steps: l.at, Duty: l.duty, Verdict: l.rank.Trainer.Verdict()}
		case l.at == s.Steps:
			s.Duty = min(s.Duty, l.duty)
		}
	}
	for _, l := range loops {
		if l.at < s.Steps {
			s.Duty = 0
		}
	}
	return s
}

// goOn agrees with the processes that are left, or come back, and prepares this one's ranks to train with them.
func (r *run) goOn(ctx context.Context, loops []*loop) error {
	begin, filled, stop := time.Now(), false, ctx
	if !r.late { // one that is asked to stop finishes a change like the others, and stops with them after the next step
		ctx = context.WithoutCancel(ctx)
	}
	var news report.Change
	var pids []int
	for {
		change, err := r.regroup(ctx, loops, filled)
		if change == nil {
			return err
		}
		news.Lost, news.Joined = append(news.Lost, change.Lost...), append(news.Joined, change.Joined...)
		pids = append(pids, change.Pids...)
		if err == nil && r.self.Process == 0 && !r.leads {
			r.leads = true
			err = r.takeOver(ctx, change.Steps, pids, loops[0].reported)
		}
		switch {
		case r.survives(err):
			filled = false
			continue
		case err != nil:
			return err
		case change.Guests:
			if filled, err = r.fill(ctx, loops); err != nil && !causedByPeers(err) {
				return err
			}
			continue
		}
		if err = r.storeGoesOn(ctx, stop, loops, pids); err != nil && causedByPeers(err) {
			filled = false
			continue
		}
		if err != nil {
			return err
		}
		for _, l := range loops {
			news.Slow = l.why != ""
			l.goOn(r, change)
		}
		if r.self.Process != 0 {
			return nil
		}
		news.Step, news.Time, news.Epoch, news.Replicas, news.Seconds = change.Steps, report.Now(), change.Epoch, change.Replicas, time.Since(begin).Seconds()
		return r.rec.changed(news)
	}
}

// regroup agrees with the other processes, and connects this one's ranks as agreed. An error with a change may be caused by
// another loss. filled says that this process has joined.
func (r *run) regroup(ctx context.Context, loops []*loop, filled bool) (*setup.Change, error) {
	w, ok := r.World.(setup.Survivor)
	if !ok {
		return nil, errors.New("all ranks are in this process")
	}
	if err := setup.Part(r.ranks); err != nil {
		return nil, err
	}
	for _, rank := range r.ranks { // what Regroup would forget
		if err := rank.DiskFailed(); err != nil && !r.survives(err) {
			return nil, fmt.Errorf("rank %d: %w", rank.Rank, err)
		}
	}
	r.flights.stop()
	s := standing(loops)
	s.Filled, s.Recorded = filled, r.newestEpoch
	change, err := w.Survive(ctx, s)
	if err != nil {
		r.flights = r.recordFlights(r.ranks)
		return nil, err
	}
	r.self = w.Self()
	for _, s := range r.savers {
		if s != nil {
			s.Abandon()
		}
	}
	if err = setup.Regroup(r.job, r.ranks, change); err == nil {
		err = r.regroupSavers()
	}
	r.flights = r.recordFlights(r.ranks)
	r.flights.begun.Store(true)
	return change, err
}

// newestEpoch returns the epoch of the last change that the run folder records.
func (r *run) newestEpoch() (int, error) {
	l, err := report.ReadLog(filepath.Join(r.Out, "metrics.jsonl"))
	if err != nil {
		return 0, err
	}
	if c := l.Changed(); c != nil {
		return c.Epoch, nil
	}
	return 0, nil
}

// errPaused is the error of ranks that have stopped between two steps, to take in others or go on without a slow replica.
var errPaused = fmt.Errorf("processes come back: %w", collective.ErrClosed)

// newcomers reports whether processes wait to be taken in, which this process would lead.
func (r *run) newcomers() bool {
	w, ok := r.World.(setup.Survivor)
	return ok && r.c.Faults.Join && w.Wanted()
}

// pauses stops a rank between two steps, as all do. What it saves is complete then.
func (l *loop) pauses() error {
	if err := l.settled(); err != nil {
		return err
	}
	_ = l.rank.Trainer.Meet() // all stop here, also those that have lost others meanwhile
	if l.out {
		return Slow{l.why}
	}
	return errPaused
}

// Slow is the error of a process whose replica is so slow that the others go on without it.
type Slow struct{ Why string }

func (s Slow) Error() string { return s.Why + "; the others go on without it" }

// watchSlow starts to look for slow replicas, among those that train now. One with more micro-batches than others may
// take longer.
func (l *loop) watchSlow(of *run) {
	s := l.share
	uneven := float64(s.Micro(0)) / float64(s.Micro(s.Replicas*s.Ranks-1))
	l.slow, l.leaving = report.Stragglers{Factor: report.Straggles * uneven}, report.Stragglers{Factor: (1 + l.c.Faults.LeaveBehind) * uneven}
	l.together, l.why, l.out = of.lostWith(s.Replicas), "", false
}

// lostWith returns for each rank the replicas that would be lost with it, nil if that would end the run.
func (r *run) lostWith(replicas int) [][]int {
	if !r.c.Faults.Survive || r.self.Alone() {
		return nil
	}
	m, per := setup.MeshOf(r.c, replicas), len(r.ranks)
	units := world.UnitsOf(m, per)
	of := make([][]int, len(units)) // by unit
	for i := range replicas {
		unit := units[i*m.World()/m.Size(shard.Pipeline, shard.Replicate)/per]
		of[unit] = append(of[unit], i)
	}
	all := make([][]int, m.World())
	for rank := range all {
		all[rank] = of[units[rank/per]]
	}
	return all
}

// behind returns the slowest rank of the step before the last, and its replica.
func (l *loop) behind() report.Behind {
	b := report.BehindOf(l.rank.Trainer.Paces)
	if l.together != nil {
		b.Who = "replica " + strings.Trim(strings.ReplaceAll(fmt.Sprint(l.together[b.Rank]), " ", ","), "[]")
	}
	return b
}

// leaves returns why the others go on without a slow replica after this step, as all ranks decide, or "". Steps beside which
// a checkpoint is written do not count.
func (l *loop) leaves(b report.Behind) string {
	f, all := l.c.Faults, l.share.Replicas
	if f.LeaveBehind == 0 || l.together == nil || l.at-l.kept <= 2 {
		return ""
	}
	its := l.together[b.Rank]
	line, stay := l.leaving.Add(b), all-len(its)
	if line == "" || stay < f.MinReplicas || 2*stay <= all {
		return ""
	}
	l.out = slices.Equal(its, l.together[l.rank.Rank])
	return line + l.where(b.Rank)
}

// handed is what a rank that joins gets in addition to its trainer's state.
type handed struct {
	Progress state.Progress     `json:"progress"`
	Metrics  map[string]float64 `json:"metrics"`
	Kept     int                `json:"kept"`
	Unsaved  bool               `json:"unsaved"`
	Folder   string             `json:"folder"` // base folder of checkpoints
}

// hands returns what this rank would give to one that joins.
func (l *loop) hands() (text string, err error) {
	h := handed{Progress: l.progress(), Metrics: l.metrics, Kept: l.kept, Unsaved: l.unsaved}
	if l.saver != nil {
		h.Folder = l.saver.Base()
	}
	body, err := json.Marshal(h)
	return string(body), err
}

// fill gives this rank's state to the ranks that join, or gets theirs. It reports whether this process has joined.
func (r *run) fill(ctx context.Context, loops []*loop) (filled bool, err error) {
	mine := ""
	if r.self.Process == 0 {
		if mine, err = loops[0].hands(); err != nil {
			return false, err
		}
	}
	text, err := r.World.Share(ctx, mine)
	if err == nil {
		err = setup.TogetherUntil(r.self.Ended, r.ranks, func(rank *setup.Rank) error { return rank.Trainer.HandOver(r.late) })
	}
	if err != nil || !r.late {
		return false, err
	}
	var h handed
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return false, err
	}
	p, b := h.Progress, r.start
	b.Step, b.Updates, b.Skipped, b.Samples, b.Tokens, b.Scale, b.Early, b.Owed = p.Step, p.Updates, p.Skipped, p.Samples, p.Tokens, p.Scale, p.Early, p.Owed
	r.late, r.rec.owed, r.steps = false, false, p.Step
	r.asks.at.Store(int64(p.Step))
	for i, rank := range r.ranks {
		b.advance(rank.Trainer)
		l := newLoop(r, rank)
		l.metrics, l.kept, l.unsaved = maps.Clone(h.Metrics), h.Kept, h.Unsaved
		if l.saver != nil {
			l.saver.UseBase(h.Folder)
		}
		loops[i] = l
	}
	return true, nil
}

// endedBy returns the error of a run whose ranks have failed in a step, and that cannot go on.
func (r *run) endedBy(ctx context.Context, err, wrong error, step int) error {
	switch {
	case r.late && ctx.Err() != nil:
		return r.stoppedAt(context.Cause(ctx))
	case r.late: // it has not trained, so err says nothing
		return wrong
	case errors.As(wrong, new(setup.Left)):
		return fmt.Errorf("step %d: %w", step, wrong) // ranks may have heard of the loss from others, and name those
	case wrong == collective.ErrClosed:
		return err
	}
	return fmt.Errorf("%w; %w", err, wrong)
}

func (r *run) regroupSavers() error {
	if r.savers[0] == nil {
		return nil
	}
	for i, g := range r.job.Connection.Saves() {
		if err := r.savers[i].Regroup(g); err != nil {
			return err
		}
	}
	return nil
}

// goOn prepares a rank's loop to go on after a change.
func (l *loop) goOn(of *run, c *setup.Change) {
	m := setup.MeshOf(l.c, c.Replicas)
	l.rec, l.watch = of.rec, of.watch
	l.share.Replicas, l.reader = c.Replicas, m.DataRank(l.rank.Rank)
	if v := l.validation; v != nil {
		v.share.Ranks, v.share.Batch, v.reader = m.DataRanks(), v.share.MicroBatch*m.DataRanks(), l.reader
	}
	if causedByPeers(l.failed) {
		l.failed = nil
	}
	l.host, l.pace = of.self.Hosts[l.rank.Rank], collective.Pace{} // others have none
	l.watchSlow(of)
	if l.verdict = ""; c.Steps > l.at {
		l.verdict = c.Verdict
		return
	}
	l.duty, l.joins = min(l.duty, c.Duty), false
}

// takeOver makes this process, which is now the first one, write the run folder.
// step is the last one done, and last the last that this process has passed, which the one before it may not have written.
// pids are those of lost processes on this host.
func (r *run) takeOver(ctx context.Context, step int, pids []int, last report.Step) (err error) {
	err = withoutLost(pids, func() (err error) {
		r.folders, err = lockFolders(r.c, r.Out, false, r.job.Files())
		return err
	})
	if err != nil {
		return fmt.Errorf("taking over the run folder: %w", err)
	}
	r.job.Hold = r.folders.hold
	r.observers.Event(report.Lead{})
	if err := r.publish(ctx); err != nil {
		r.observers.Warn(err.Error())
	}
	if r.rec, err = r.record(step, false); err != nil {
		return err
	}
	r.rec.stepped = true
	if last.Step > 0 { // else the next step is this start's first
		r.rec.sum.Loss, r.rec.sum.Tokens = last.Loss, last.Tokens
	}
	if n := len(r.rec.log.Evals); n > 0 {
		r.rec.sum.ValLoss = r.rec.log.Evals[n-1].ValLoss
	}
	h := header(r.job, r.set, r.Out, r.ranks)
	r.rec.sum.Unit = h.Unit
	r.observers.Event(h)
	if r.rec.knows < last.Step && last.Step <= step {
		r.rec.Step(last)
	}
	s := r.begins(h)
	s.Step = step
	if err := r.rec.begin(s); err != nil {
		return err
	}
	r.watch.Begin(s, string(r.file), setup.Saves(r.c))
	return nil
}

// withoutLost calls f until no process holds the lock that it needs. One that fails by itself releases its locks when it ends, as
// the system does for a killed one; pids are those of lost ones.
func withoutLost(pids []int, f func() error) (err error) {
	for try := range 30 {
		var held inUse
		if err = f(); err == nil || !errors.As(err, &held) {
			break
		}
		if host, wrong := os.Hostname(); wrong == nil && held.Host == host && slices.Contains(pids, held.PID) {
			bury(held.PID, try >= 25)
		}
		time.Sleep(time.Duration(try) * 10 * time.Millisecond)
	}
	return err
}

// bury kills a lost process that holds the lock of the run folder and is stopped, or at last any. It must be
// another process of this program.
func bury(pid int, last bool) {
	exe, err := os.Executable()
	its, wrong := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || wrong != nil || its != exe || pid == os.Getpid() {
		return
	}
	if state, _ := launch.StateOf(pid); !last && state != 'T' {
		return
	}
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill() // it may have ended
	}
}

// changed records a change of the replicas.
func (r *recorder) changed(c report.Change) error {
	r.Event(c)
	r.Warn(c.String())
	return r.wrote()
}
