package report

import (
	"fmt"
	"math"
	"slices"

	"zeroth/input"
	"zeroth/job/show"
)

// blue and red are the colors of what is trained on and of what is not.
var (
	blue = show.Color{Light: "#1f5aa6", Dark: "#6cb0f5"}
	red  = show.Color{Light: "#c83c28", Dark: "#ff7b6b"}
)

// WriteLossSVG draws the training loss, its moving average and the validation
// loss over the steps. Where the losses are far apart the axis is logarithmic.
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

// trainLines are the loss of every step and, of many steps, its moving average.
func trainLines(train []show.XY) []show.Series {
	const window = 20 // as many averages of their own does the curve show
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
	average, _ := thin(smooth(train, half)[:len(train)-half/2], 1000) // the last ones are of few points
	return []show.Series{line, {Name: fmt.Sprintf("training, mean of %s steps", show.Grouped(int64(2*half+1))), Color: blue, Points: average, Width: 2}}
}

// point appends a finite value.
func point(xy []show.XY, step int, y float64) []show.XY {
	if math.IsNaN(y) || math.IsInf(y, 0) {
		return xy
	}
	return append(xy, show.XY{X: float64(step), Y: y})
}

// smooth is the mean of each point and up to half points on either side, as
// many on one as on the other.
func smooth(xy []show.XY, half int) []show.XY {
	sums := make([]float64, len(xy)+1) // of all points before
	for i, p := range xy {
		sums[i+1] = sums[i] + p.Y
	}
	out := make([]show.XY, len(xy))
	for i, p := range xy {
		k := min(half, i, len(xy)-1-i)
		out[i] = show.XY{X: p.X, Y: (sums[i+k+1] - sums[i-k]) / float64(2*k+1)}
	}
	return out
}

// thin replaces runs of points by their means until at most n are left.
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
