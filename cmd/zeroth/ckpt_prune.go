package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"zeroth/checkpoint"
	"zeroth/config"
	"zeroth/internal/input"
	"zeroth/internal/show"
	"zeroth/job/state"
)

// pruning holds the flags of ckpt prune.
type pruning struct {
	keep        checkpoint.Keep
	ignore, dry bool
	json        bool
}

func (a *app) ckptPrune() *cobra.Command {
	var keep string
	var p pruning
	cmd := a.onFolders(1, "prune DIR --keep RULES", "Delete the checkpoints that no rule keeps", func(_ *cobra.Command, args []string) (err error) {
		if p.keep, err = config.ParseKeep(keep); err != nil {
			return input.BadInput(fmt.Errorf("--keep: %w", err))
		}
		return a.prune(args[0], p)
	})
	cmd.Long = `Delete the checkpoints in a folder that no rule keeps, and the leftovers of
interrupted saves, after listing them. The rules are those of checkpoint.keep in a job
file: the number of newest checkpoints, or {last: 3, every_steps: 1000, best: val_loss}.
A checkpoint stays if any rule keeps it. The rules every_steps and best of the run's own
job.yaml also apply, unless --ignore-job-rules is given. The newest checkpoint always
stays, and so do damaged ones, for you to inspect. Nothing is deleted while a run uses
the folder.

A base folder, with the frozen parameters of several checkpoints, is deleted with the
last of them.

Only files of checkpoints are deleted, and no links are followed. A folder that is a
symbolic link or contains other files is reported and stays; the exit code is then 1.`
	cmd.Example = "  zeroth ckpt prune run1 --keep 3 --dry-run\n  zeroth ckpt prune run1 --keep '{last: 2, every_steps: 1000, best: val_loss}'"
	cmd.Flags().StringVar(&keep, "keep", "", "`rules`, as in checkpoint.keep: a number of checkpoints, or a mapping")
	cmd.Flags().BoolVar(&p.ignore, "ignore-job-rules", false, "also delete checkpoints that only the rules of the run's job.yaml keep")
	cmd.Flags().BoolVar(&p.dry, "dry-run", false, "only print what would be deleted")
	jsonFlag(cmd, &p.json)
	must(cmd.MarkFlagRequired("keep"))
	must(cmd.RegisterFlagCompletionFunc("keep", cobra.NoFileCompletions))
	return cmd
}

// pruned is the JSON of prune. It names checkpoints, base folders that no checkpoint needs any
// more, and leftovers of interrupted saves. Protected, Left and Damaged are subsets of Kept.
type pruned struct {
	Folder    string            `json:"folder"`
	DryRun    bool              `json:"dry_run"` // Deleted would be deleted
	Deleted   []string          `json:"deleted"`
	Kept      []string          `json:"kept"`
	Protected []checkpoint.Left `json:"protected"` // kept only by rules of the run's job
	Left      []checkpoint.Left `json:"left"`      // kept by no rule, but not safe to delete
	Damaged   []checkpoint.Left `json:"damaged"`   // too damaged for rules to apply
	Freed     int64             `json:"freed_bytes"`
}

func (a *app) prune(dir string, p pruning) error {
	if _, ok := checkpoint.Stat(dir); ok {
		return input.BadInput(fmt.Errorf("%s is a single checkpoint; want a folder of checkpoints or a run folder", dir))
	}
	root, err := state.FindCheckpoints(dir)
	if err != nil {
		return err
	}
	rules := []checkpoint.Keep{p.keep}
	var file string
	if !p.ignore {
		more, in, err := state.KeepRules(dir, root)
		if err != nil {
			return input.BadInput(fmt.Errorf("the rules of the run's job cannot be read: %w; correct the file, or use --ignore-job-rules", err))
		}
		rules, file = append(rules, more...), in
	}
	if p.dry {
		return a.pruneBy(nil, root, rules, file, p.json)
	}
	h, err := checkpoint.HoldFolder(nil, root)
	if err != nil {
		return fmt.Errorf("prune %s: %w", root, err)
	}
	err = a.pruneBy(h, root, rules, file, p.json)
	return cmp.Or(h.Close(), err) // in object storage, Close deletes
}

// pruneBy prints which checkpoints no rule keeps and, with a hold, deletes them. Rules after
// the first come from the job in file.
func (a *app) pruneBy(h *checkpoint.Hold, root string, rules []checkpoint.Keep, file string, asJSON bool) error {
	list, err := checkpoint.List(root)
	if err != nil {
		return err
	}
	plan, err := checkpoint.Prunable(root, rules...)
	if err != nil {
		return err
	}
	x := pruned{Folder: root, DryRun: h == nil, Protected: protected(list, rules, file)}
	if !asJSON {
		a.printPlan(x, plan)
	}
	gone := plan
	if h != nil {
		if gone, err = h.Prune(rules...); err != nil {
			err = fmt.Errorf("%w (after deleting %d)", err, len(gone.Deleted))
		}
	}
	x.fill(list, gone)
	stays := slices.ContainsFunc(plan.Deleted, func(name string) bool { return !slices.Contains(gone.Deleted, name) })
	if stays && err == nil && !asJSON {
		a.printChange(plan, gone)
	}
	switch {
	case asJSON:
		err = cmp.Or(err, a.writeJSON(x))
	case err == nil:
		deleted, kept := "deleted", "kept"
		if x.DryRun {
			deleted, kept = "would delete", "would keep"
		}
		a.say("%s: %s %d (%s), %s %d\n", x.Folder, deleted, len(x.Deleted), show.BriefSize(x.Freed), kept, len(x.Kept))
	}
	if err == nil && (stays || len(x.Left) > 0) {
		return errFound
	}
	return err
}

// printChange prints the checkpoints that were listed for deletion and stay after all,
// because one of them could not be read any longer.
func (a *app) printChange(plan, gone checkpoint.Pruned) {
	known := slices.Concat(plan.Left, plan.Damaged)
	for _, l := range slices.Concat(gone.Left, gone.Damaged) {
		if !slices.Contains(known, l) {
			a.say("%v\n", l)
		}
	}
	for _, name := range plan.Deleted {
		if !slices.Contains(gone.Deleted, name) {
			a.say("%s was not deleted\n", name)
		}
	}
}

// fill records which checkpoints of a list were deleted and which were kept.
func (x *pruned) fill(list []checkpoint.Entry, gone checkpoint.Pruned) {
	x.Deleted, x.Kept = append([]string{}, gone.Deleted...), []string{}
	x.Left, x.Damaged = append([]checkpoint.Left{}, gone.Left...), append([]checkpoint.Left{}, gone.Damaged...)
	bases := map[string]int64{} // bytes, by name
	for _, e := range list {
		if name := filepath.Base(e.Path); slices.Contains(gone.Deleted, name) {
			x.Freed += e.Bytes
			if slices.Contains(gone.Deleted, e.Base) {
				bases[e.Base] = e.BaseBytes
			}
		} else {
			x.Kept = append(x.Kept, name)
		}
	}
	for _, n := range bases {
		x.Freed += n
	}
}

// protected returns the checkpoints that the first rule drops and a later one, from the job
// in file, keeps.
func protected(list []checkpoint.Entry, rules []checkpoint.Keep, file string) []checkpoint.Left {
	all := []checkpoint.Left{}
	for _, e := range rules[0].Drop(list) {
		for _, k := range rules[1:] {
			is := func(x checkpoint.Entry) bool { return x.Path == e.Path }
			if slices.ContainsFunc(k.Drop(list), is) {
				continue
			}
			rule := fmt.Sprintf("every_steps: %d", k.Every)
			if k.Best != "" {
				rule = "best: " + k.Best
			}
			all = append(all, checkpoint.Left{Name: filepath.Base(e.Path), Why: fmt.Sprintf("%s protects it (checkpoint.keep in %s; --ignore-job-rules deletes it)", rule, checkpoint.Plain(file))})
			break
		}
	}
	return all
}

// printPlan prints the checkpoints to delete, and those that stay although --keep does not keep them.
func (a *app) printPlan(x pruned, plan checkpoint.Pruned) {
	verb := "deleting"
	if x.DryRun {
		verb = "would delete"
	}
	for _, name := range plan.Deleted {
		a.say("%s %s\n", verb, name)
	}
	for _, l := range slices.Concat(x.Protected, plan.Left, plan.Damaged) {
		a.say("%v\n", l)
	}
}
