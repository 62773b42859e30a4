package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"zeroth/checkpoint"
	"zeroth/checkpoint/vfs"
	"zeroth/config"
	"zeroth/internal/input"
	"zeroth/internal/show"
	"zeroth/job"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/state"
	"zeroth/job/watch"
)

// mostListed is how many run folders are listed.
const mostListed = 10_000

func (a *app) runs() *cobra.Command {
	return &cobra.Command{
		Use:   "runs [DIR]",
		Short: "List the runs in a folder and their state",
		Long: `List the run folders in a folder (default runs): model, mesh, stage, steps, loss,
speed (the median of the last thousand or so steps), MFU and state. A run that "ended
without a record" was killed, or its disk was full.`,
		Example: "  zeroth runs\n  zeroth runs /data/runs",
		Args:    arguments(0, 1),
		RunE: a.do(func(_ *cobra.Command, args []string) error {
			dir := append(args, "runs")[0]
			entries, err := os.ReadDir(dir)
			if err != nil {
				return input.BadInput(fmt.Errorf("%w; want a folder with run folders in it", err))
			}
			t := &show.Columns{Align: "llllrrrrl"}
			t.Add("run", "model", "mesh", "stage", "steps", "loss", "tokens/s", "MFU", "state")
			n := 0
			for _, e := range entries {
				folder := filepath.Join(dir, e.Name())
				l, err := report.ReadRecent(filepath.Join(folder, "metrics.jsonl"))
				if err != nil {
					continue
				}
				if n++; n > mostListed {
					return input.BadInput(fmt.Errorf("%s has more than %d runs; want a folder with fewer", dir, mostListed))
				}
				t.Add(append([]string{show.Printable(e.Name())}, listed(folder, l)...)...)
			}
			if n == 0 {
				return input.BadInput(fmt.Errorf("%s: no folder in it has a metrics.jsonl; want a folder with run folders in it", dir))
			}
			return show.Print(a.out, t.Within(show.Width(a.out)))
		}),
	}
}

// listed returns the row of a run.
func listed(folder string, l *report.Log) []string {
	s := report.Start{Model: "-", Mesh: "-"}
	if n := len(l.Starts); n > 0 {
		s = l.Starts[n-1]
	}
	stage := "-"
	if s.Mesh != "-" {
		stage = fmt.Sprint(s.Stage)
	}
	row := []string{show.Printable(s.Model), show.Printable(s.Mesh), stage}
	last, loss, speed, mfu := 0, "-", "-", "-"
	if n := len(l.Steps); n > 0 {
		x := l.Steps[n-1]
		last, loss, speed = x.Step, fmt.Sprintf("%.4f", x.Loss), show.Compact(report.MedianSpeed(l.Steps))
		if x.MFU > 0 {
			mfu = fmt.Sprintf("%.1f %%", 100*x.MFU)
		}
	}
	state := stateOf(folder, l)
	if c := l.Changed(); c != nil {
		state = fmt.Sprintf("%s; %s since step %d", state, c.Left(), c.Step)
	}
	return append(row, fmt.Sprintf("%d/%d", last, max(last, s.Steps)), loss, speed, mfu, show.Printable(state))
}

// stateOf describes whether a run is running, or how it ended.
func stateOf(folder string, l *report.Log) string {
	if held := (*vfs.Locked)(nil); errors.As(job.Held(folder), &held) {
		return "running"
	}
	switch {
	case l.End == nil && len(l.Starts) == 0:
		return "unknown (made by an earlier version)"
	case l.End == nil:
		return "ended without a record (killed, or a full disk)"
	case l.End.Why != "":
		why, _, _ := strings.Cut(l.End.Why, "\n")
		return show.Cut(l.End.State+": "+why, 80)
	}
	return l.End.State
}

func (a *app) compare() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "compare RUN RUN",
		Short: "Compare two runs: keys that differ, and losses side by side",
		Long: `Compare two runs: the keys of their job files that differ, and their losses side
by side, at up to 20 common steps. --out draws both, like 'zeroth plot'.`,
		Example: "  zeroth compare runs/a runs/b --out both.svg",
		Args:    arguments(2, 2),
		RunE: a.do(func(_ *cobra.Command, args []string) error {
			if out != "" && filepath.Ext(out) != ".svg" {
				return input.BadInput(fmt.Errorf("--out %s: want a file that ends in .svg", out))
			}
			keys, err := differing(args)
			if err != nil {
				return err
			}
			runs, err := a.metricsOf(args)
			if err != nil {
				return err
			}
			width := show.Width(a.out)
			if err := show.Print(a.out, keys.Within(width)+"\n"+sideBySide(runs).Within(width)); err != nil || out == "" {
				return err
			}
			return writeFile(out, func(w io.Writer) error { return report.WriteRunsSVG(w, runs) })
		}),
	}
	cmd.Flags().StringVar(&out, "out", "", "draw both runs to a `file` ending in .svg")
	return cmd
}

// differing returns a table of the keys in which the jobs of two runs differ.
func differing(folders []string) (*show.Columns, error) {
	var jobs []*spec.Job
	var errs []error
	for _, folder := range folders {
		c, err := spec.Draft(filepath.Join(folder, "job.yaml"), nil)
		jobs, errs = append(jobs, c), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, input.BadInput(fmt.Errorf("%w; want two run folders", err))
	}
	t := &show.Columns{Align: "lll"}
	t.Add("key", show.Printable(folders[0]), show.Printable(folders[1]))
	n := 0
	for _, key := range config.Keys() {
		if x, y := jobs[0].Text(key), jobs[1].Text(key); x != y {
			n++
			t.Add(key, show.Cut(show.Printable(x), 60), show.Cut(show.Printable(y), 60))
		}
	}
	if n == 0 {
		t.Add("(none differs)", "", "")
	}
	return t, nil
}

// sideBySide returns a table of the losses of two runs.
func sideBySide(runs []report.Run) *show.Columns {
	t := &show.Columns{Align: "rrrr"}
	t.Add("step", "loss of "+show.Printable(runs[0].Name), "loss of "+show.Printable(runs[1].Name), "difference")
	at := map[int]float64{}
	for _, s := range runs[1].Steps {
		at[s.Step] = s.Loss
	}
	both := slices.DeleteFunc(slices.Clone(runs[0].Steps), func(s report.Step) bool { _, ok := at[s.Step]; return !ok })
	add := func(name string, x, y float64) {
		t.Add(name, fmt.Sprintf("%.4f", x), fmt.Sprintf("%.4f", y), fmt.Sprintf("%+.4f", y-x))
	}
	every := max(1, (len(both)+18)/19)
	for i, s := range both {
		if i%every == 0 || i == len(both)-1 {
			add(show.Grouped(int64(s.Step)), s.Loss, at[s.Step])
		}
	}
	if x, y := runs[0].Evals, runs[1].Evals; len(x) > 0 && len(y) > 0 {
		add("last validation", x[len(x)-1].ValLoss, y[len(y)-1].ValLoss)
	}
	return t
}

func (a *app) report() *cobra.Command {
	return &cobra.Command{
		Use:   "report RUN",
		Short: "Write the page of a run as one HTML file",
		Long: `Write the page of a run, with its losses, speeds, memory and job, to standard output:
one HTML file that needs no network. A run with report.listen serves the same page
while it trains.`,
		Example: "  zeroth report runs/a >a.html",
		Args:    arguments(1, 1),
		RunE: a.do(func(_ *cobra.Command, args []string) error {
			l, err := report.ReadLog(filepath.Join(args[0], "metrics.jsonl"))
			if err == nil && len(l.Steps) == 0 {
				err = cmp.Or(l.Damage, fmt.Errorf("metrics: %s has no steps yet", args[0]))
			}
			if err != nil {
				return input.BadInput(fmt.Errorf("%w; want the folder of a run", err))
			}
			text, err := input.Read(filepath.Join(args[0], "job.yaml"), 1<<20)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return input.BadInput(err)
			}
			return watch.WriteReport(a.out, watch.Ended(args[0], l, string(text), savesIn(args[0])))
		}),
	}
}

// savesIn returns the complete checkpoints of a run folder, as far as they can be found.
func savesIn(run string) (all []watch.Save) {
	root, err := state.FindCheckpoints(run)
	if err != nil {
		return nil
	}
	list, _ := checkpoint.List(root) // an unreadable folder has none
	best, _ := state.Best(list)
	for _, e := range list {
		if e.Status == checkpoint.Complete {
			all = append(all, watch.Save{Step: int(e.Step), Time: float64(e.Created.UnixMilli()) / 1000, Bytes: e.Bytes, Best: e.Path == best.Path})
		}
	}
	return all
}
