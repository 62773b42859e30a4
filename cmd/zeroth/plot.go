package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"zeroth/input"
	"zeroth/job/report"
	"zeroth/job/show"
)

func (a *app) plot() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "plot RUN...",
		Short: "Draw the losses, gradient norms, learning rates and speeds of runs",
		Long: `Draw the losses, gradient norms, learning rates and speeds of one run, or of
several over each other, as their metrics.jsonl has them. A run may still be
training. The drawing is an SVG: any browser shows it.`,
		Example: `  zeroth plot run1 --out run1.svg
  zeroth plot runs/* --out runs.svg`,
		RunE: a.do(func(_ *cobra.Command, args []string) error {
			if err := plottable(args, out); err != nil {
				return input.BadInput(err)
			}
			var runs []report.Run
			var errs []error
			for _, folder := range args {
				r, err := a.metricsOf(folder)
				runs, errs = append(runs, r), append(errs, err)
			}
			if err := errors.Join(errs...); err != nil {
				return input.BadInput(err)
			}
			err := writeFile(out, func(w io.Writer) error { return report.WriteRunsSVG(w, runs) })
			if err != nil {
				return err
			}
			return show.Print(a.out, report.RunsTable(runs).Within(show.Width(a.out))+"drawn in "+show.Printable(out)+"\n")
		}),
	}
	cmd.Flags().StringVar(&out, "out", "", "the drawing, a `file` that ends in .svg")
	return cmd
}

// plottable refuses what cannot be drawn, before anything is read.
func plottable(folders []string, out string) error {
	var errs []error
	if n := len(folders); n < 1 || n > report.MostRuns {
		errs = append(errs, fmt.Errorf("plot takes 1 to %d run folders, like: zeroth plot run1 --out run1.svg (there are %d)", report.MostRuns, n))
	}
	switch {
	case out == "":
		errs = append(errs, errors.New("--out is missing: where to draw? For example --out run1.svg"))
	case filepath.Ext(out) != ".svg":
		errs = append(errs, fmt.Errorf("--out %s: want a file that ends in .svg", out))
	}
	return errors.Join(errs...)
}

// metricsOf reads what a run has written so far. Lines that cannot be read are
// told and left out.
func (a *app) metricsOf(folder string) (report.Run, error) {
	path := filepath.Join(folder, "metrics.jsonl")
	l, err := report.ReadLog(path)
	switch {
	case err != nil:
		return report.Run{}, fmt.Errorf("%w; want the folder of a run", err)
	case len(l.Steps) == 0 && l.Damage != nil:
		return report.Run{}, l.Damage
	case len(l.Steps) == 0:
		return report.Run{}, fmt.Errorf("metrics: %s has no steps yet", path)
	case l.Damage != nil:
		a.say("%s\n", show.Printable(fmt.Sprintf("%v; lines that cannot be read and are not drawn: %d", l.Damage, l.Lost)))
	}
	return report.Run{Name: filepath.Clean(folder), Steps: l.Steps, Evals: l.Evals}, nil
}
