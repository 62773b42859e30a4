package report

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"zeroth/job/show"
)

// WriteLossSVG draws the training loss, its moving average and the validation
// loss over the steps. The path's extension (.svg, .png) is the format.
func WriteLossSVG(path string, steps []Step, evals []Eval) error {
	p := plot.New()
	p.Title.Text = "Loss"
	p.X.Label.Text, p.Y.Label.Text = "step", "loss (nats per token)"
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(show.Ticks), plot.TickerFunc(show.Ticks)
	show.Sans(p)
	p.Add(plotter.NewGrid())
	var train, val plotter.XYs
	for _, s := range steps {
		train = point(train, s.Step, s.Loss)
	}
	for _, e := range evals {
		val = point(val, e.Step, e.ValLoss)
	}
	const window = 20 // as many averages of their own does the curve show
	blue, pale, red := color.RGBA{31, 90, 166, 255}, color.RGBA{170, 198, 230, 255}, color.RGBA{200, 60, 40, 255}
	lines := []line{{"training", thin(train, 1000), blue, 1.6}, {"validation", val, red, 1.6}}
	if half := len(train) / window / 2; half > 0 {
		lines[0].color, lines[0].width = pale, 0.8
		average := smooth(train, half)[:len(train)-half/2] // the last ones are of few points
		lines = slices.Insert(lines, 1, line{"training, smoothed", thin(average, 1000), blue, 1.6})
	}
	for _, l := range lines {
		if err := l.draw(p); err != nil {
			return err
		}
	}
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(2)
	if len(train)+len(val) == 0 {
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, 1, 0, 1
	}
	return show.Save(p, path)
}

// point appends a finite value.
func point(xy plotter.XYs, step int, y float64) plotter.XYs {
	if math.IsNaN(y) || math.IsInf(y, 0) {
		return xy
	}
	return append(xy, plotter.XY{X: float64(step), Y: y})
}

// line is a curve of the drawing.
type line struct {
	name  string
	xy    plotter.XYs
	color color.Color
	width float64 // points
}

// draw adds the line, with dots where there are few enough to tell apart.
func (l line) draw(p *plot.Plot) error {
	if len(l.xy) == 0 {
		return nil
	}
	curve, dots, err := plotter.NewLinePoints(l.xy)
	if err != nil {
		return fmt.Errorf("plot: %s: %w", l.name, err)
	}
	curve.Color, curve.Width = l.color, vg.Points(l.width)
	dots.Color, dots.Radius, dots.Shape = l.color, vg.Points(2), draw.CircleGlyph{}
	p.Add(curve)
	p.Legend.Add(l.name, curve)
	if len(l.xy) <= 30 {
		p.Add(dots)
	}
	return nil
}

// smooth is the mean of each point and up to half points on either side, as
// many on one as on the other.
func smooth(xy plotter.XYs, half int) plotter.XYs {
	sums := make([]float64, len(xy)+1) // of all points before
	for i, p := range xy {
		sums[i+1] = sums[i] + p.Y
	}
	out := make(plotter.XYs, len(xy))
	for i, p := range xy {
		k := min(half, i, len(xy)-1-i)
		out[i] = plotter.XY{X: p.X, Y: (sums[i+k+1] - sums[i-k]) / float64(2*k+1)}
	}
	return out
}

// thin replaces runs of points by their means until at most n are left.
func thin(xy plotter.XYs, n int) plotter.XYs {
	run := (len(xy) + n - 1) / n
	if run <= 1 {
		return xy
	}
	var out plotter.XYs
	for len(xy) > 0 {
		k := min(run, len(xy))
		var mean plotter.XY
		for _, p := range xy[:k] {
			mean.X, mean.Y = mean.X+p.X/float64(k), mean.Y+p.Y/float64(k)
		}
		out, xy = append(out, mean), xy[k:]
	}
	return out
}
