package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"

	"zeroth/internal/show"
)

// Run contains the metrics of a run and its name in a drawing.
type Run struct {
	Name  string
	Steps []Step
	Evals []Eval
}

// MostRuns is the most runs in a drawing, limited by the number of distinguishable colors.
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
	norm := panel(runs, "Gradient norm", "norm before clipping", func(s Step) float64 { return s.GradNorm })
	fitAxes(norm)
	rate := panel(runs, "Learning rate", "learning rate", func(s Step) float64 { return s.LR })
	fitFromZero(rate)
	speed := panel(runs, "Speed", "tokens per second", func(s Step) float64 { return s.TokensPerSecond })
	fitFromZero(speed)
	charts = append(charts, norm, rate, speed)
	if _, err := io.WriteString(out, show.SVG(charts...)); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

// compared draws the losses of several runs: training losses smoothed, validation losses
// dashed.
func compared(runs []Run) *show.Chart {
	c := &show.Chart{Title: "Training and validation loss", Notes: []string{"training losses are moving averages over a twentieth of the run; validation losses are dashed"},
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

// panel draws one value of every run over the steps in a small chart, whose axes the caller
// fits. A long run is drawn as 400 means.
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
	return c
}

// fitAxes makes the axes span all points, the Y axis logarithmically if they span a wide
// range.
func fitAxes(c *show.Chart) {
	c.Y.FitWide(fitSteps(c)...)
}

// fitFromZero makes the axes span all points and 0, linearly.
func fitFromZero(c *show.Chart) {
	c.Y.Fit(append(fitSteps(c), 0)...)
	c.Y.Lo = 0
}

// fitSteps makes the X axis span all points, and returns their Y values.
func fitSteps(c *show.Chart) []float64 {
	var all []show.XY
	for _, s := range c.Series {
		all = append(all, s.Points...)
	}
	xs, ys := show.Extent(all)
	c.X.Hi = 1.02 * slices.Max(append(xs, 1))
	if first := slices.Min(append(xs, c.X.Hi)); first > c.X.Hi/4 { // the run goes on from a checkpoint
		c.X.Lo = first
	}
	return ys
}

// pointsOf returns the finite values of a quantity over the steps.
func pointsOf(steps []Step, value func(Step) float64) (xy []show.XY) {
	for _, s := range steps {
		xy = point(xy, s.Step, value(s))
	}
	return xy
}

// RunsTable returns a table with a row for each run.
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

// MedianSpeed returns the median of the tokens per second, 0 if there is none.
func MedianSpeed(steps []Step) float64 {
	rates := pointsOf(steps, func(s Step) float64 { return s.TokensPerSecond })
	slices.SortFunc(rates, func(a, b show.XY) int { return cmp.Compare(a.Y, b.Y) })
	if len(rates) == 0 {
		return 0
	}
	return rates[len(rates)/2].Y
}

// lowest returns the evaluation with the lowest loss, ignoring NaN.
func lowest(evals []Eval) (best Eval, ok bool) {
	for _, e := range evals {
		if !math.IsNaN(e.ValLoss) && (!ok || e.ValLoss < best.ValLoss) {
			best, ok = e, true
		}
	}
	return best, ok
}
