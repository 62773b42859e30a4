package state

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"zeroth/checkpoint"
	"zeroth/checkpoint/store"
	"zeroth/checkpoint/vfs"
	"zeroth/internal/input"
	"zeroth/internal/input/s3"
	"zeroth/internal/show"
	"zeroth/job/hf"
	"zeroth/job/spec"
)

// FindCheckpoints returns the folder of checkpoints that a path means: that folder itself, or
// the run folder that contains it.
func FindCheckpoints(path string) (string, error) {
	path = s3.Clean(path)
	st, err := store.Files{}.Stat(path)
	if err != nil {
		return "", input.BadInput(fmt.Errorf("%s cannot be read: %w", path, input.Cause(err)))
	}
	if st.Kind != vfs.Dir {
		return "", input.BadInput(fmt.Errorf("%s is a file; want a folder of checkpoints or a run folder", path))
	}
	list, err := checkpoint.List(path)
	if err != nil {
		return "", err
	}
	if len(list) > 0 {
		return path, nil
	}
	job, _ := spec.CheckpointingOf(filepath.Join(path, "job.yaml")) // most folders have none
	if s3.Is(job.Dir) {
		return s3.Clean(job.Dir), nil
	}
	for _, dir := range []string{vfs.Join(path, CheckpointFolder), job.Dir} {
		if _, err := (store.Files{}).Stat(dir); dir != "" && err == nil {
			return dir, nil
		}
	}
	if theirs := foreignIn(path); len(theirs) > 0 {
		return "", input.BadInput(fmt.Errorf("%s has checkpoints of another program and no file latest that names one; want one of %s", path, strings.Join(theirs, ", ")))
	}
	return "", input.BadInput(fmt.Errorf("%s has no checkpoints; want a checkpoint's folder, a folder of checkpoints, or a run folder with some (checkpoint.every)", path))
}

// KeepRules returns the rules every_steps and best, and the best step, of the job whose run has its
// checkpoints in root, which path led to, and the job's file. Both are empty without a
// job.yaml in path or in the folder above root.
func KeepRules(path, root string) (rules []checkpoint.Keep, file string, err error) {
	if !s3.Is(root) {
		if root, err = filepath.Abs(root); err != nil {
			return nil, "", err
		}
	}
	for _, run := range []string{path, vfs.Parent(root)} {
		file := filepath.Join(run, "job.yaml")
		if !input.Exists(file) {
			continue
		}
		job, err := spec.CheckpointingOf(file)
		if err != nil {
			return nil, file, err
		}
		if !SameFolder(root, cmp.Or(job.Dir, filepath.Join(run, CheckpointFolder))) {
			continue
		}
		for _, k := range []checkpoint.Keep{{Every: job.Keep.Every}, {Best: job.Keep.Best}} {
			if k != (checkpoint.Keep{}) {
				rules = append(rules, k)
			}
		}
		if list, err := checkpoint.List(root); err == nil {
			if step := bestStep(complete(list)); step > 0 {
				rules = append(rules, checkpoint.Keep{Step: step})
			}
		}
		return rules, file, nil
	}
	return nil, "", nil
}

// SameFolder reports whether two names are those of one folder.
func SameFolder(a, b string) bool {
	if s3.Is(a) || s3.Is(b) {
		return s3.Clean(a) == s3.Clean(b)
	}
	x, err := os.Stat(a)
	y, wrong := os.Stat(b)
	return err == nil && wrong == nil && os.SameFile(x, y)
}

// CheckpointFolder is the default folder of checkpoints in a run folder.
const CheckpointFolder = "ckpt"

// Holds describes what a folder of a run contains: its name and, for checkpoints, the newest
// step. It returns "" if nothing in it is complete.
func Holds(folder string) string {
	name := filepath.Base(folder)
	if list, err := checkpoint.List(folder); err == nil {
		if e, ok := checkpoint.Newest(list); ok {
			return fmt.Sprintf("%s (up to step %d)", name, e.Step)
		}
	}
	if m, err := OpenModelFolder(folder); err == nil {
		_ = m.Close() // only read from
		return name
	}
	return ""
}

// FindCheckpoint returns the checkpoint that a path means: its own folder, or the newest
// commit of a folder of checkpoints or a run folder, which may be damaged.
func FindCheckpoint(path string) (checkpoint.Entry, error) {
	if e, ok := checkpoint.Stat(path); ok {
		if e.Status > checkpoint.Damaged {
			return e, input.BadInput(fmt.Errorf("%s: %s", path, e.Why))
		}
		return e, nil
	}
	root, err := FindCheckpoints(path)
	if err != nil {
		return checkpoint.Entry{}, err
	}
	list, err := checkpoint.List(root)
	if err != nil {
		return checkpoint.Entry{}, err
	}
	e, ok := checkpoint.Newest(list)
	if !ok {
		return e, input.BadInput(fmt.Errorf("%s has no committed checkpoint", root))
	}
	return e, nil
}

// At returns the checkpoint of a step, "latest" or "best" that a folder of checkpoints or a run folder has;
// without a step, the path itself.
func At(path, step string) (string, error) {
	if step == "" {
		return path, nil
	}
	if e, ok := checkpoint.Stat(path); ok {
		return "", input.BadInput(fmt.Errorf("--step %s: %s is the checkpoint of step %d; want a run folder or a folder of checkpoints", step, path, e.Step))
	}
	root, err := FindCheckpoints(path)
	if err != nil {
		return "", err
	}
	if _, err := strconv.ParseInt(step, 10, 64); err != nil && step != "latest" && step != "best" {
		return "", input.BadInput(fmt.Errorf("--step %s; want latest, best or a number", step))
	}
	if path, err = Resolve(root, step); err != nil {
		err = input.BadInput(fmt.Errorf("--step %s: %w", step, err))
	}
	return path, err
}

// Final is like At, but without a step it chooses the best checkpoint if it is the run's result.
func Final(path, step string) (string, error) {
	if _, one := checkpoint.Stat(path); one || step != "" {
		return At(path, step)
	}
	if root, err := FindCheckpoints(path); err == nil {
		if list, err := checkpoint.List(root); err == nil && endsWithBest(list) {
			if e, ok := Best(list); ok {
				return e.Path, nil
			}
		}
	}
	return path, nil
}

// OpenCheckpoint opens the checkpoint that FindCheckpoint returns. The error for a damaged one
// names an older one to use instead.
func OpenCheckpoint(path string) (*checkpoint.Checkpoint, error) {
	e, err := FindCheckpoint(path)
	if err != nil {
		return nil, err
	}
	if e.Path == path {
		return checkpoint.Open(path)
	}
	return checkpoint.Find(vfs.Parent(e.Path), "latest")
}

// Resolve is like checkpoint.Resolve, and also finds "best", the checkpoint of the best evaluation.
func Resolve(root, which string) (string, error) {
	if which != "best" {
		return checkpoint.Resolve(root, which)
	}
	list, err := checkpoint.List(root)
	if err != nil {
		return "", err
	}
	e, ok := Best(list)
	if !ok {
		return "", fmt.Errorf("%s: %w with a validation loss; want latest or a step", root, checkpoint.ErrNone)
	}
	return e.Path, nil
}

// Best returns the checkpoint of a list with the best evaluation: the one that the newest names, or else the one
// with the lowest validation loss.
func Best(list []checkpoint.Entry) (best checkpoint.Entry, ok bool) {
	whole := complete(list)
	if step := bestStep(whole); step > 0 {
		for _, e := range whole {
			if e.Step == step {
				best, ok = e, true // the newest commit is the last
			}
		}
	}
	if i := checkpoint.Lowest(whole, "val_loss"); !ok && i >= 0 {
		return whole[i], true
	}
	return best, ok
}

func complete(list []checkpoint.Entry) []checkpoint.Entry {
	return slices.DeleteFunc(slices.Clone(list), func(e checkpoint.Entry) bool { return e.Status != checkpoint.Complete })
}

// bestStep returns the step of the best evaluation according to the newest of some complete checkpoints, 0
// if it does not say.
func bestStep(whole []checkpoint.Entry) int64 {
	if p := newestProgress(whole); p.Early != nil {
		return int64(p.Early.Step)
	}
	return 0
}

// endsWithBest reports whether the best checkpoint is the result of the job that wrote the newest one of a list, which is intact.
func endsWithBest(list []checkpoint.Entry) bool {
	e, ok := checkpoint.Newest(list)
	if !ok || e.Status != checkpoint.Complete {
		return false
	}
	c := spec.SettingsOf(newestProgress(list).Config)
	return c != nil && c.Train.Best()
}

// newestProgress returns the progress of the newest checkpoint, or nothing if it cannot be read.
func newestProgress(list []checkpoint.Entry) (p Progress) {
	newest, ok := checkpoint.Newest(list)
	if !ok {
		return p
	}
	ck, err := checkpoint.Open(newest.Path)
	if err != nil {
		return p
	}
	defer ck.Close() // only read from
	p, _ = ReadProgress(ck)
	return p
}

// Fact is a word about a checkpoint and its value.
type Fact [2]string

// Facts returns the facts of a checkpoint's state.json that 'ckpt inspect' shows.
func Facts(ck *checkpoint.Checkpoint) ([]Fact, error) {
	p, err := ReadProgress(ck)
	if err != nil {
		return nil, err
	}
	var base []Fact
	if p.Base != "" {
		base = []Fact{{"base", "digest " + checkpoint.Plain(p.Base[:min(12, len(p.Base))])}}
	}
	if !p.Trained() {
		return append([]Fact{{"trained", "none: an imported model"}, {"written by", checkpoint.Plain(p.Version)}}, base...), nil
	}
	if p.Origin != "" {
		return []Fact{{"trained", fmt.Sprintf("%s steps by %s, %d skipped", show.Grouped(int64(p.Step)), checkpoint.Plain(p.Origin), p.Skipped)}, {"written by", checkpoint.Plain(p.Version)}}, nil
	}
	c := spec.SettingsOf(p.Config)
	if c != nil && base != nil && c.Model.From != "" {
		base[0][1] += ", of " + checkpoint.Plain(c.Model.From)
	}
	facts := []Fact{
		{"trained", fmt.Sprintf("%s steps, %s tokens, %d skipped", show.Grouped(int64(p.Step)), show.Grouped(p.Tokens), p.Skipped)},
		{"data", fmt.Sprintf("fingerprint %s, seed %d, %s samples read", checkpoint.Plain(p.Data[:min(12, len(p.Data))]), p.Seed, show.Grouped(p.Samples))},
		{"written by", checkpoint.Plain(p.Version)},
	}
	facts = append(facts, base...)
	if c != nil && hf.Adapted(ck) {
		l, stabilized := c.Train.LoRA, ""
		if l.Stabilized {
			stabilized = " (rsLoRA)"
		}
		say := fmt.Sprintf("rank %d, alpha %v%s, on %s", l.Rank, l.Alpha, stabilized, strings.Join(l.Targets, ", "))
		if len(l.Ranks)+len(l.Alphas) > 0 {
			say += ", other ranks and alphas of some layers"
		}
		if len(l.Saved) > 0 {
			say += ", and all of " + strings.Join(l.Saved, ", ")
		}
		facts = append(facts, Fact{"adapters", checkpoint.Plain(say)})
	}
	if err := p.GoesOnFrom(ck); err != nil {
		facts = append(facts, Fact{"no resume", "state.json: " + checkpoint.Plain(err.Error())})
	}
	return facts, nil
}
