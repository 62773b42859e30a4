package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"zeroth/checkpoint"
	"zeroth/job"
)

func (a *app) ckptPrune() *cobra.Command {
	var keep string
	var dry, asJSON bool
	cmd := a.onFolders(1, "prune DIR --keep RULES", "Delete the checkpoints that no rule keeps", func(_ *cobra.Command, args []string) error {
		k, err := job.ParseKeep(keep)
		if err != nil {
			return job.BadInput(fmt.Errorf("--keep: %w", err))
		}
		return a.prune(args[0], k, dry, asJSON)
	})
	cmd.Long = `Delete the checkpoints of a folder that no rule keeps, and what saves cut short
have left. The rules are those of checkpoint.keep in a job file: the newest so
many, or {last: 3, every_steps: 1000, best: val_loss}, of which any keeps. The
newest always stays, and so do damaged ones, for you to look at. While a save is
in progress nothing is deleted.`
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
	Folder  string   `json:"folder"`
	DryRun  bool     `json:"dry_run"` // then deleted is what would be
	Deleted []string `json:"deleted"`
	Kept    []string `json:"kept"`
	Freed   int64    `json:"freed_bytes"`
}

func (a *app) prune(dir string, k checkpoint.Keep, dry, asJSON bool) error {
	if _, ok := checkpoint.Stat(dir); ok {
		return job.BadInput(fmt.Errorf("%s is one checkpoint; want the folder it is in, or the run's", dir))
	}
	root, err := job.FindCheckpoints(dir)
	if err != nil {
		return err
	}
	list, err := checkpoint.List(root)
	if err != nil {
		return err
	}
	size := map[string]int64{}
	for _, e := range list {
		size[filepath.Base(e.Path)] = e.Bytes
	}
	verb, gone := "would delete", []string{}
	if dry {
		for _, e := range k.Drop(list) {
			gone = append(gone, filepath.Base(e.Path))
		}
		for _, e := range list {
			if e.Status > checkpoint.Damaged {
				gone = append(gone, filepath.Base(e.Path))
			}
		}
	} else {
		verb = "deleted"
		if gone, err = checkpoint.Prune(root, k); err != nil {
			err = fmt.Errorf("%w (deleted before: %d)", err, len(gone))
		}
	}
	var freed int64
	for _, name := range gone {
		freed += size[name]
	}
	if asJSON {
		x := pruned{Folder: root, DryRun: dry, Deleted: append([]string{}, gone...), Kept: []string{}, Freed: freed}
		for _, e := range list {
			if name := filepath.Base(e.Path); !slices.Contains(gone, name) {
				x.Kept = append(x.Kept, name)
			}
		}
		return cmp.Or(err, a.writeJSON(x)) // without err all that was to go is gone
	}
	for _, name := range gone {
		fmt.Fprintf(a.out, "%s %s\n", verb, name)
	}
	if err == nil {
		fmt.Fprintf(a.out, "%d of %d stay in %s; %s freed\n", len(list)-len(gone), len(list), root, job.DecimalSize(freed))
	}
	return err
}
