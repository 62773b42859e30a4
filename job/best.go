package job

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"zeroth/checkpoint"
	"zeroth/checkpoint/vfs"
	"zeroth/internal/setup"
	"zeroth/job/state"
	"zeroth/zero"
)

// useBest replaces the parameters of the ranks by those of the best evaluation, if they are the result of
// the job and another step was the last. The loop has saved them.
func (r *run) useBest(ctx context.Context) error {
	best := r.best
	if r.NoModel || !r.c.Train.Best() || best.Step == 0 {
		return nil
	}
	value := best.Describe()
	switch {
	case r.stopped: // there may be little time, and the run goes on
		r.rec.sum.Model = fmt.Sprintf("model/ has step %d, the last; the best so far is step %d, with a %s (--step best)", r.steps, best.Step, value)
		return nil
	case best.Step == r.steps:
		r.rec.sum.Model = fmt.Sprintf("model/ has step %d, the last and the best, with a %s", r.steps, value)
		return nil
	}
	if !r.self.Alone() { // hosts read what others have saved
		if err := r.flushStore(ctx); err != nil {
			return err
		}
	}
	found := ""
	if r.self.Process == 0 {
		found = r.findBest()
	}
	found, err := r.World.Share(ctx, found)
	if err != nil {
		return err
	}
	if found == "" {
		r.rec.sum.Model = fmt.Sprintf("model/ has step %d, the last, because no checkpoint has the best, step %d", r.steps, best.Step)
		r.rec.Warn(fmt.Sprintf("the checkpoint of step %d, the best, is missing or damaged: the final model is that of step %d, the last", best.Step, r.steps))
		return nil
	}
	if err := r.readBest(ctx, found); err != nil {
		r.World.Fail(err) // tells the others why
		return fmt.Errorf("final parameters, of step %d, the best: %w", best.Step, err)
	}
	r.rec.sum.Model = fmt.Sprintf("model/ has step %d, the best, with a %s", best.Step, value)
	return nil
}

// bestFolders returns the folders that the best checkpoint may be in: the run's, and that of the
// checkpoint it began with.
func (r *run) bestFolders() []string {
	folders := []string{r.c.Checkpoint.Dir}
	if from := r.start.from; from != nil {
		folders = append(folders, vfs.Parent(from.Path))
	}
	return folders
}

// findBest returns the index of a folder and the name of the best checkpoint in it, "" if it cannot be read.
func (r *run) findBest() string {
	for i, dir := range r.bestFolders() {
		path, err := checkpoint.Resolve(dir, fmt.Sprint(r.best.Step))
		if err != nil {
			continue
		}
		ck, err := checkpoint.Open(path)
		if err != nil {
			continue
		}
		p, err := state.ReadProgress(ck)
		_ = ck.Close() // only read from
		if e := p.Early; err == nil && e != nil && e.Step == r.best.Step && e.Best == r.best.Best {
			return fmt.Sprintf("%d %s", i, filepath.Base(path))
		}
	}
	return ""
}

// readBest reads the trained parameters of a checkpoint that findBest has found.
func (r *run) readBest(ctx context.Context, found string) error {
	i, name, _ := strings.Cut(found, " ")
	ck, err := checkpoint.Open(vfs.Join(r.bestFolders()[strings.Index("01", i)], name))
	if err != nil {
		return err
	}
	defer ck.Close() // only read from
	workers := max(1, runtime.GOMAXPROCS(0)/len(r.ranks))
	return setup.TogetherUntil(r.self.Ended, r.ranks, func(rank *setup.Rank) error {
		return read(ctx, ck, rank.Trainer, []string{zero.Master}, workers)
	})
}
