package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"zeroth/checkpoint"
	"zeroth/input"
	"zeroth/job/config"
	"zeroth/job/show"
	"zeroth/job/state"
)

func (a *app) ckptPrune() *cobra.Command {
	var keep string
	var dry, asJSON bool
	cmd := a.onFolders(1, "prune DIR --keep RULES", "Delete the checkpoints that no rule keeps", func(_ *cobra.Command, args []string) error {
		k, err := config.ParseKeep(keep)
		if err != nil {
			return input.BadInput(fmt.Errorf("--keep: %w", err))
		}
		return a.prune(args[0], k, dry, asJSON)
	})
	cmd.Long = `Delete the checkpoints of a folder that no rule keeps, and what saves cut short
have left. The rules are those of checkpoint.keep in a job file: the newest so
many, or {last: 3, every_steps: 1000, best: val_loss}, of which any keeps. The
newest always stays, and so do damaged ones, for you to look at. While a run has
the folder nothing is deleted.

Only files of checkpoints are deleted and no link is followed: a folder that is a
symbolic link or has anything else in it stays, and is named; the exit code is
then 1.`
	cmd.Example = "  zeroth ckpt prune run1 --keep 3 --dry-run\n  zeroth ckpt prune run1 --keep '{last: 2, every_steps: 1000, best: val_loss}'"
	cmd.Flags().StringVar(&keep, "keep", "", "`rules`: a number of checkpoints, or a mapping")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be deleted")
	jsonFlag(cmd, &asJSON)
	must(cmd.MarkFlagRequired("keep"))
	must(cmd.RegisterFlagCompletionFunc("keep", cobra.NoFileCompletions))
	return cmd
}

// pruned is what prune has for programs: names of checkpoints and of what saves
// cut short have left.
type pruned struct {
	Folder  string            `json:"folder"`
	DryRun  bool              `json:"dry_run"` // then deleted is what would be
	Deleted []string          `json:"deleted"`
	Kept    []string          `json:"kept"`
	Left    []checkpoint.Left `json:"left"`    // of those kept, what the rules do not keep
	Damaged []checkpoint.Left `json:"damaged"` // of those kept, what no rule can tell of
	Freed   int64             `json:"freed_bytes"`
}

func (a *app) prune(dir string, k checkpoint.Keep, dry, asJSON bool) error {
	if _, ok := checkpoint.Stat(dir); ok {
		return input.BadInput(fmt.Errorf("%s is one checkpoint; want the folder it is in, or the run's", dir))
	}
	root, err := state.FindCheckpoints(dir)
	if err != nil {
		return err
	}
	list, err := checkpoint.List(root)
	if err != nil {
		return err
	}
	prune := checkpoint.Prune
	if dry {
		prune = checkpoint.Prunable
	}
	gone, err := prune(root, k)
	if err != nil {
		err = fmt.Errorf("%w (deleted before: %d)", err, len(gone.Deleted))
	}
	x := pruned{Folder: root, DryRun: dry, Deleted: append([]string{}, gone.Deleted...), Kept: []string{}, Left: append([]checkpoint.Left{}, gone.Left...), Damaged: append([]checkpoint.Left{}, gone.Damaged...)}
	for _, e := range list {
		if name := filepath.Base(e.Path); slices.Contains(gone.Deleted, name) {
			x.Freed += e.Bytes
		} else {
			x.Kept = append(x.Kept, name)
		}
	}
	if asJSON {
		err = cmp.Or(err, a.writeJSON(x)) // without err all that was to go is gone, but for what is left
	} else {
		a.tellPruned(x, err)
	}
	if err == nil && len(x.Left) > 0 {
		return errFound
	}
	return err
}

func (a *app) tellPruned(x pruned, err error) {
	verb := "deleted"
	if x.DryRun {
		verb = "would delete"
	}
	for _, name := range x.Deleted {
		fmt.Fprintf(a.out, "%s %s\n", verb, name)
	}
	for _, l := range slices.Concat(x.Left, x.Damaged) {
		fmt.Fprintln(a.out, l)
	}
	if err == nil {
		fmt.Fprintf(a.out, "%d of %d stay in %s; %s freed\n", len(x.Kept), len(x.Kept)+len(x.Deleted), x.Folder, show.BriefSize(x.Freed))
	}
}
