package job

import (
	"fmt"
	"maps"
	"time"

	"zeroth/job/state"
)

// saves are a rank's checkpoints.
type saves struct {
	saver  *state.Saver // nil: the job makes none
	model  []byte       // config.json of the model
	base   string       // digest of the parameters that training began with; empty if they were fresh
	failed error        // of the last save, if the job stops for it: it stays until all ranks have agreed to stop
	kept   int          // the step last saved in checkpoint.dir; -1 if there is none, or that save failed
	last   time.Time    // when training began, or the last save
}

// wantSave reports whether all ranks are to save after the next step: a client has asked for it, or
// checkpoint.every is a time that has passed.
func (l *loop) wantSave() bool {
	interval := l.c.Checkpoint.Interval
	return l.asks.save.Swap(false) || interval > 0 && time.Since(l.last) >= interval
}

// save starts a checkpoint if one is due, or wanted by a rank, or if the evaluation of this step is the best.
// Otherwise it records how the save in flight has ended.
func (l *loop) save() error {
	k := l.c.Checkpoint.Every
	if l.owes(saving, func() bool { return k > 0 && l.at%k == 0 || l.wants && l.saver != nil || l.unsaved }) {
		return l.checkpoint()
	}
	l.hearSave(false)
	return nil
}

// finishSaves saves the last step if the job asks for it. Afterwards all ranks know how the last
// save ended.
func (l *loop) finishSaves() error {
	if err := l.settled(); err != nil {
		return err
	}
	if l.owes(saveLast, func() bool { return l.c.Checkpoint.SaveOnExit && l.kept != l.at }) {
		if err := l.checkpoint(); err != nil {
			return err
		}
	}
	if err := l.settled(); err != nil {
		return err
	}
	l.duty = allDuties
	return nil
}

// checkpoint starts a save, once the previous one has ended.
func (l *loop) checkpoint() error {
	if err := l.settled(); err != nil {
		return err
	}
	p := l.progress()
	p.Seed, p.Data, p.Context, p.Config = l.c.Train.Seed, l.set.Fingerprint, l.c.Model.Context, string(l.c.YAML())
	p.Model, p.Base, p.Version = l.model, l.base, state.Version()
	if err := l.saver.Save(p, maps.Clone(l.metrics)); err != nil {
		return err
	}
	l.kept, l.last, l.unsaved = l.at, time.Now(), false
	if l.c.Checkpoint.Async {
		return nil
	}
	l.hearSave(true)
	return l.failed
}

// progress returns how far training has come.
func (l *loop) progress() state.Progress {
	t := l.rank.Trainer
	var early *state.Early
	if l.early.Step > 0 {
		now := l.early
		early = &now
	}
	return state.Progress{Step: l.at, Updates: t.Updates, Skipped: t.Skipped, Samples: l.samples, Tokens: l.tokens, Scale: t.Scale, Early: early, Owed: l.owed}
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
