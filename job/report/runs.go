package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"

	"zeroth/job/show"
)

// Run is what a run's metrics say, under a name that tells it from others.
type Run struct {
	Name  string
	Steps []Step
	Evals []Eval
}

// MostRuns is how many runs a drawing compares: as many as there are colors to
// tell apart.
const MostRuns = 8

var runColors = [MostRuns]show.Color{
	blue, {Light: "#c2620a", Dark: "#f0a04b"}, {Light: "#0f7a3c", Dark: "#4cc07a"}, {Light: "#7b3fb5", Dark: "#b58cf0"},
	{Light: "#b01f5b", Dark: "#ff7fb0"}, {Light: "#0a7f8c", Dark: "#4cc9d6"}, {Light: "#6b5b00", Dark: "#d6c04c"}, {Light: "#5a5a5a", Dark: "#b4b4b4"},
}

// WriteRunsSVG draws the losses, gradient norms, learning rates and speeds of up
// to MostRuns runs over their steps.
func WriteRunsSVG(out io.Writer, runs []Run) error {
	loss := compared(runs)
	if len(runs) == 1 {
		loss = lossChart(runs[0].Steps, runs[0].Evals)
		loss.Title += " of " + runs[0].Name
	}
	charts := []*show.Chart{loss}
	for _, of := range []struct {
		title, unit string
		value       func(Step) float64
	}{
		{"Gradient norm", "norm before clipping", func(s Step) float64 { return s.GradNorm }},
		{"Learning rate", "learning rate", func(s Step) float64 { return s.LR }},
		{"Speed", "tokens a second", func(s Step) float64 { return s.TokensPerSecond }},
	} {
		charts = append(charts, panel(runs, of.title, of.unit, of.value))
	}
	if _, err := io.WriteString(out, show.SVG(charts...)); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

// compared is the losses of several runs: of training smoothed, of validation
// dashed.
func compared(runs []Run) *show.Chart {
	c := &show.Chart{Title: "Training and validation loss", Notes: []string{"training is smoothed: means around each step of a twentieth of the run; validation is dashed"},
		X: show.Axis{Label: "step"}, Y: show.Axis{Label: "loss (nats per token)"}}
	for i, r := range runs {
		lines := trainLines(pointsOf(r.Steps, func(s Step) float64 { return s.Loss }))
		train := lines[len(lines)-1]
		train.Name, train.Color = r.Name, runColors[i]
		var val []show.XY
		for _, e := range r.Evals {
			val = point(val, e.Step, e.ValLoss)
		}
		c.Series = append(c.Series, train, show.Series{Color: runColors[i], Points: val, Width: 2, Dash: true})
	}
	fitAxes(c)
	return c
}

// panel is one figure of every run, smaller, over the steps. Of long runs it has
// means, 400 a run.
func panel(runs []Run, title, unit string, value func(Step) float64) *show.Chart {
	c := &show.Chart{Title: title, Height: 150, X: show.Axis{Label: "step"}, Y: show.Axis{Label: unit}}
	longest := 1
	for i, r := range runs {
		xy, run := thin(pointsOf(r.Steps, value), 400)
		longest = max(longest, run)
		x := show.Series{Color: runColors[i], Points: xy, Width: 1.5, Dots: len(xy) <= 30}
		if len(runs) > 1 {
			x.Name = r.Name
		}
		c.Series = append(c.Series, x)
	}
	if longest > 1 {
		c.Y.Label += fmt.Sprintf(", means of up to %s steps", show.Grouped(int64(longest)))
	}
	fitAxes(c)
	return c
}

// fitAxes makes the axes span what is drawn.
func fitAxes(c *show.Chart) {
	var all []show.XY
	for _, s := range c.Series {
		all = append(all, s.Points...)
	}
	xs, ys := show.Extent(all)
	c.X.Hi = 1.02 * slices.Max(append(xs, 1))
	c.Y.FitWide(ys...)
}

// pointsOf are a figure's finite values over the steps.
func pointsOf(steps []Step, value func(Step) float64) (xy []show.XY) {
	for _, s := range steps {
		xy = point(xy, s.Step, value(s))
	}
	return xy
}

// RunsTable is the runs side by side, for people.
func RunsTable(runs []Run) *show.Columns {
	t := &show.Columns{Align: "lrrrr"}
	t.Add("run", "steps", "last loss", "lowest validation loss", "median tokens/s")
	for _, r := range runs {
		loss, val, speed := "-", "-", "-"
		if n := len(r.Steps); n > 0 {
			loss = fmt.Sprintf("%.4f", r.Steps[n-1].Loss)
			if x := MedianSpeed(r.Steps); x > 0 {
				speed = show.Compact(x)
			}
		}
		if best, ok := lowest(r.Evals); ok {
			val = fmt.Sprintf("%.4f at step %s", best.ValLoss, show.Grouped(int64(best.Step)))
		}
		t.Add(show.Printable(r.Name), show.Grouped(int64(len(r.Steps))), loss, val, speed)
	}
	return t
}

// MedianSpeed is the median of the tokens per second; 0 if there is none.
func MedianSpeed(steps []Step) float64 {
	rates := pointsOf(steps, func(s Step) float64 { return s.TokensPerSecond })
	slices.SortFunc(rates, func(a, b show.XY) int { return cmp.Compare(a.Y, b.Y) })
	if len(rates) == 0 {
		return 0
	}
	return rates[len(rates)/2].Y
}

// lowest is the evaluation with the lowest loss that is a number.
func lowest(evals []Eval) (best Eval, ok bool) {
	for _, e := range evals {
		if !math.IsNaN(e.ValLoss) && (!ok || e.ValLoss < best.ValLoss) {
			best, ok = e, true
		}
	}
	return best, ok
}
