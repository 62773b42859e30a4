package report

import (
	"fmt"
	"math"
	"slices"

	"zeroth/internal/input"
	"zeroth/internal/show"
)

// blue and red are the colors of training and validation.
var (
	blue = show.Color{Light: "#1f5aa6", Dark: "#6cb0f5"}
	red  = show.Color{Light: "#c83c28", Dark: "#ff7b6b"}
)

// WriteLossSVG draws the training loss, its moving average and the validation loss over the
// steps, on a logarithmic axis if the losses span a wide range.
func WriteLossSVG(path string, steps []Step, evals []Eval) error {
	if err := input.WriteBytes(path, []byte(show.SVG(lossChart(steps, evals)))); err != nil {
		return fmt.Errorf("drawing: %w", err)
	}
	return nil
}

func lossChart(steps []Step, evals []Eval) *show.Chart {
	train := pointsOf(steps, func(s Step) float64 { return s.Loss })
	var val []show.XY
	for _, e := range evals {
		val = point(val, e.Step, e.ValLoss)
	}
	c := &show.Chart{Title: "Training and validation loss", X: show.Axis{Label: "step"}, Y: show.Axis{Label: "loss (nats per token)"}}
	c.Series = append(trainLines(train), show.Series{Name: "validation", Color: red, Points: val, Width: 2, Dots: len(val) <= 30})
	if best, ok := lowest(evals); ok {
		c.Notes = append(c.Notes, fmt.Sprintf("lowest validation loss %.4f, at step %s", best.ValLoss, show.Grouped(int64(best.Step))))
	}
	fitAxes(c)
	return c
}

// trainLines returns the loss of every step and, if there are many, its moving average.
func trainLines(train []show.XY) []show.Series {
	const window = 20 // independent averages in the curve
	half := len(train) / window / 2
	drawn, run := thin(train, 1000)
	line := show.Series{Name: "training", Color: blue, Points: drawn, Width: 2, Dots: len(drawn) <= 30}
	if run > 1 {
		line.Name = fmt.Sprintf("training, means of %s steps", show.Grouped(int64(run)))
	}
	if half == 0 {
		return []show.Series{line}
	}
	line.Width, line.Faint, line.Dots = 1, true, false
	average, run := thin(smooth(train, half), 1000)
	if last := len(train) - 1; run > 1 { // thinning moves the end of the curve away from the last step
		average = append(average, smooth(train, half)[last])
	}
	return []show.Series{line, {Name: fmt.Sprintf("training, mean of %s steps", show.Grouped(int64(2*half+1))), Color: blue, Points: average, Width: 2}}
}

// point appends a value if it is finite.
func point(xy []show.XY, step int, y float64) []show.XY {
	if math.IsNaN(y) || math.IsInf(y, 0) {
		return xy
	}
	return append(xy, show.XY{X: float64(step), Y: y})
}

// smooth returns the mean of each point and up to half points on either side. Near the
// beginning, where losses fall fast, both sides have equally many; near the end there are
// fewer points after than before.
func smooth(xy []show.XY, half int) []show.XY {
	sums := make([]float64, len(xy)+1) // of all points before
	for i, p := range xy {
		sums[i+1] = sums[i] + p.Y
	}
	out := make([]show.XY, len(xy))
	for i, p := range xy {
		before := min(half, i)
		after := min(before, len(xy)-1-i)
		out[i] = show.XY{X: p.X, Y: (sums[i+after+1] - sums[i-before]) / float64(before+after+1)}
	}
	return out
}

// thin replaces runs of points by their means so that at most n are left, and returns the
// length of a run.
func thin(xy []show.XY, n int) (out []show.XY, run int) {
	run = (len(xy) + n - 1) / n
	if run <= 1 {
		return xy, 1
	}
	for k := range slices.Chunk(xy, run) {
		var mean show.XY
		for _, p := range k {
			mean.X, mean.Y = mean.X+p.X/float64(len(k)), mean.Y+p.Y/float64(len(k))
		}
		out = append(out, mean)
	}
	return out, run
}
