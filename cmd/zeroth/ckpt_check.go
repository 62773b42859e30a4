package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"zeroth/checkpoint"
	"zeroth/internal/show"
	"zeroth/job/state"
)

func (a *app) ckptVerify() *cobra.Command {
	var asJSON bool
	cmd := a.onFolders(1, "verify DIR", "Read every byte of a checkpoint and report damage", func(cmd *cobra.Command, args []string) error {
		return a.verify(cmd, args[0], asJSON)
	})
	cmd.Long = `Read every byte of a checkpoint and compare it with its checksums. Each bad block is
reported with its file and offset, its tensor and the range of lost elements.
The exit code is 1 if there is damage, or if the newest checkpoint of a folder cannot
be determined because of a damaged COMMIT or MANIFEST.json.`
	cmd.Example = "  zeroth ckpt verify run1\n  zeroth ckpt verify run1/ckpt/step-00001000 --json"
	jsonFlag(cmd, &asJSON)
	return cmd
}

// The JSON of verify.
type verification struct {
	Path   string               `json:"path"`
	Whole  bool                 `json:"whole"`
	Damage []*checkpoint.Damage `json:"damage"`
}

func (a *app) verify(cmd *cobra.Command, dir string, asJSON bool) error {
	path, bad, speed, err := a.verified(cmd, dir)
	if err != nil {
		return err
	}
	if asJSON {
		err = a.writeJSON(verification{path, len(bad) == 0, append([]*checkpoint.Damage{}, bad...)}) // [] in JSON, not null
	} else {
		a.printDamage(path, bad, speed)
	}
	return cmp.Or(err, found(len(bad) == 0))
}

// verified verifies the checkpoint that dir means and returns the damage found, including damage
// that shows only when all checkpoints of the folder are compared. If the checkpoint is deleted
// meanwhile, for example by a run that keeps only the newest, it starts again with the new newest
// one.
func (a *app) verified(cmd *cobra.Command, dir string) (path string, found []*checkpoint.Damage, speed string, err error) {
	for {
		e, err := state.FindCheckpoint(dir)
		if err != nil {
			return "", nil, "", err
		}
		speed, err = a.long(cmd, "verify", e.Bytes+e.BaseBytes, func(ctx context.Context, done func(int64)) error {
			found, err = checkpoint.Verify(ctx, e.Path, checkpoint.Walk{Progress: done})
			return err
		})
		switch stopped := errors.Is(err, errStopped); {
		case e.Status == checkpoint.Damaged && len(found) == 0 && !stopped:
			found = []*checkpoint.Damage{{File: filepath.Base(e.Path), Why: e.Why}}
			return e.Path, found, speed, nil
		case errors.Is(err, checkpoint.ErrGone) && e.Path != dir:
			continue
		}
		return e.Path, found, speed, err
	}
}

func (a *app) printDamage(path string, found []*checkpoint.Damage, speed string) {
	for _, d := range found {
		a.say("%v\n", d)
	}
	if len(found) > 0 {
		a.say("%s: damaged in %s (%s)\n", path, count(len(found), "place"), speed)
		return
	}
	a.say("%s: verified, no damage (%s)\n", path, speed)
}

func (a *app) ckptDiff() *cobra.Command {
	var asJSON, all bool
	cmd := a.onFolders(2, "diff A B", "Compare two checkpoints tensor by tensor", func(cmd *cobra.Command, args []string) error {
		return a.diff(cmd, args, all, asJSON)
	})
	cmd.Long = `Compare two checkpoints tensor by tensor, to the bit, whatever ranks wrote them: how
many elements differ, the largest absolute difference, the largest relative to the
larger element, and tensors that only one contains. The exit code is 1 if they differ.`
	cmd.Example = "  zeroth ckpt diff run1/ckpt/step-00000100 run2/ckpt/step-00000100\n  zeroth ckpt diff run1 run2 --json"
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&all, "all", false, "also list the tensors that are equal (--json always does)")
	return cmd
}

func (a *app) diff(cmd *cobra.Command, dirs []string, all, asJSON bool) error {
	x, err := state.OpenCheckpoint(dirs[0])
	if err != nil {
		return err
	}
	defer x.Close()
	y, err := state.OpenCheckpoint(dirs[1])
	if err != nil {
		return err
	}
	defer y.Close()
	var ds []checkpoint.Difference
	speed, err := a.long(cmd, "diff", sharedBytes(x, y), func(ctx context.Context, done func(int64)) error {
		ds, err = checkpoint.Diff(ctx, x, y, checkpoint.Walk{Progress: done})
		return err
	})
	if err != nil {
		return err
	}
	differ := slices.ContainsFunc(ds, func(d checkpoint.Difference) bool { return d.What != checkpoint.Equal })
	if asJSON {
		err = a.writeJSON(ds)
	} else {
		a.printDifferences(x, y, ds, all, speed)
	}
	return cmp.Or(err, found(!differ))
}

// sharedBytes returns the total size of the tensors that both checkpoints have.
func sharedBytes(x, y *checkpoint.Checkpoint) (n int64) {
	for _, t := range x.Tensors {
		if u, ok := y.Tensor(t.Name, t.Kind); ok && u.DType == t.DType && slices.Equal(u.Shape, t.Shape) {
			n += 2 * t.Bytes()
		}
	}
	return n
}

func (a *app) printDifferences(x, y *checkpoint.Checkpoint, ds []checkpoint.Difference, all bool, speed string) {
	t := &show.Columns{Align: "lllrrr"}
	t.Add("tensor", "kind", "", "elements", "max |a-b|", "max relative")
	equal := 0
	for _, d := range ds {
		if d.What == checkpoint.Equal {
			equal++
		}
		switch {
		case d.What == checkpoint.Differs:
			t.Add(checkpoint.Plain(d.Name), fmt.Sprint(d.Kind), fmt.Sprint(d.What), fmt.Sprint(d.Elements), fmt.Sprintf("%.3g", d.MaxAbs), fmt.Sprintf("%.3g", d.MaxRel))
		case d.What == checkpoint.Shape:
			u, _ := x.Tensor(d.Name, d.Kind)
			v, _ := y.Tensor(d.Name, d.Kind)
			t.Add(checkpoint.Plain(d.Name), fmt.Sprint(d.Kind), fmt.Sprintf("%s%v in A, %s%v in B", u.DType, u.Shape, v.DType, v.Shape))
		case all || d.What != checkpoint.Equal:
			t.Add(checkpoint.Plain(d.Name), fmt.Sprint(d.Kind), fmt.Sprint(d.What))
		}
	}
	if t.Rows() > 1 {
		_ = a.print(t) // a.out remembers its first error
		fmt.Fprintln(a.out)
	}
	a.say("A: %s, step %d\nB: %s, step %d\n%d tensors: %d equal, %d differ (%s)\n", x.Path, x.Step, y.Path, y.Step, len(ds), equal, len(ds)-equal, speed)
}
