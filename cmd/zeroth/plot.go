package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"zeroth/internal/input"
	"zeroth/internal/show"
	"zeroth/job/report"
)

func (a *app) plot() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "plot RUN...",
		Short: "Draw the losses, gradient norms, learning rates and speeds of runs",
		Long: `Draw the losses, gradient norms, learning rates and speeds in the metrics.jsonl of one
or more runs as an SVG. Runs may still be training.`,
		Example: `  zeroth plot run1 --out run1.svg
  zeroth plot runs/* --out runs.svg`,
		RunE: a.do(func(_ *cobra.Command, args []string) error {
			if err := plottable(args, out); err != nil {
				return err
			}
			runs, err := a.metricsOf(args)
			if err != nil {
				return err
			}
			if err := writeFile(out, func(w io.Writer) error { return report.WriteRunsSVG(w, runs) }); err != nil {
				return err
			}
			return show.Print(a.out, report.RunsTable(runs).Within(show.Width(a.out))+"drawn to "+show.Printable(out)+"\n")
		}),
	}
	cmd.Flags().StringVar(&out, "out", "", "`file` to draw to, ending in .svg")
	return cmd
}

// plottable reports invalid arguments before anything is read.
func plottable(folders []string, out string) error {
	var wrong input.Problems
	n := len(folders)
	wrong.If(n < 1 || n > report.MostRuns, "want 1 to %d run folders, such as: zeroth plot run1 --out run1.svg (%d given)", report.MostRuns, n)
	wrong.If(out == "", "--out is missing; name the file to draw to, such as --out run1.svg")
	wrong.If(out != "" && filepath.Ext(out) != ".svg", "--out %s: want a file name that ends in .svg", out)
	return wrong.Err()
}

// metricsOf reads the metrics that runs have written so far. It prints how many lines cannot be
// read, and skips them.
func (a *app) metricsOf(folders []string) (runs []report.Run, err error) {
	var wrong input.Problems
	for _, folder := range folders {
		r, err := a.readMetrics(folder)
		runs, wrong = append(runs, r), append(wrong, err)
	}
	return runs, wrong.Err()
}

func (a *app) readMetrics(folder string) (report.Run, error) {
	path := filepath.Join(folder, "metrics.jsonl")
	l, err := report.ReadLog(path)
	switch {
	case err != nil:
		return report.Run{}, fmt.Errorf("%w; want a run folder", err)
	case len(l.Steps) == 0 && l.Damage != nil:
		return report.Run{}, l.Damage
	case len(l.Steps) == 0:
		return report.Run{}, fmt.Errorf("metrics: %s has no steps yet", path)
	case l.Damage != nil:
		a.say("%s\n", show.Printable(fmt.Sprintf("%v; skipped %d lines that cannot be read", l.Damage, l.Lost)))
	}
	return report.Run{Name: filepath.Clean(folder), Steps: l.Steps, Evals: l.Evals}, nil
}
