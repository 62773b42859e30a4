package job

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// WriteLossSVG draws the training loss, its moving average and the validation
// loss over the steps. The path's extension (.svg, .png) is the format.
func WriteLossSVG(path string, steps []Step, evals []Eval) error {
	p := plot.New()
	p.Title.Text = "Loss"
	p.X.Label.Text, p.Y.Label.Text = "step", "loss (nats per token)"
	p.X.Tick.Marker = plot.DefaultTicks{}
	sans(p)
	p.Add(plotter.NewGrid())
	var train, val plotter.XYs
	for _, s := range steps {
		train = point(train, s.Step, s.Loss)
	}
	for _, e := range evals {
		val = point(val, e.Step, e.ValLoss)
	}
	blue, pale, red := color.RGBA{31, 90, 166, 255}, color.RGBA{170, 198, 230, 255}, color.RGBA{200, 60, 40, 255}
	if err := curve(p, "training", thin(train, 1000), pale, 0.8); err != nil {
		return err
	}
	if err := curve(p, "training, smoothed", thin(smooth(train), 1000), blue, 1.6); err != nil {
		return err
	}
	if err := curve(p, "validation", val, red, 1.6); err != nil {
		return err
	}
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(2)
	if len(train)+len(val) == 0 {
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, 1, 0, 1
	}
	if err := p.Save(8*vg.Inch, 5*vg.Inch, path); err != nil {
		return fmt.Errorf("loss plot: %w", err)
	}
	return nil
}

// sans sets every text in a sans-serif face.
func sans(p *plot.Plot) {
	p.Title.TextStyle.Font.Variant = "Sans"
	p.Legend.TextStyle.Font.Variant = "Sans"
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font.Variant = "Sans"
		a.Tick.Label.Font.Variant = "Sans"
	}
	p.Title.Padding = vg.Points(6)
}

// point appends a finite value.
func point(xy plotter.XYs, step int, y float64) plotter.XYs {
	if math.IsNaN(y) || math.IsInf(y, 0) {
		return xy
	}
	return append(xy, plotter.XY{X: float64(step), Y: y})
}

// curve adds a line, with dots where there are few enough to tell apart.
func curve(p *plot.Plot, name string, xy plotter.XYs, c color.Color, width float64) error {
	if len(xy) == 0 {
		return nil
	}
	l, dots, err := plotter.NewLinePoints(xy)
	if err != nil {
		return fmt.Errorf("loss plot: %s: %w", name, err)
	}
	l.Color, l.Width = c, vg.Points(width)
	dots.Color, dots.Radius, dots.Shape = c, vg.Points(2), draw.CircleGlyph{}
	p.Add(l)
	p.Legend.Add(name, l)
	if len(xy) <= 30 {
		p.Add(dots)
	}
	return nil
}

// smooth is the moving average that forgets with about a twentieth of the
// points, without the pull towards its start.
func smooth(xy plotter.XYs) plotter.XYs {
	keep := 1 - 1/math.Max(1, float64(len(xy))/20)
	out := make(plotter.XYs, len(xy))
	sum, weight := 0.0, 0.0
	for i, p := range xy {
		sum, weight = keep*sum+p.Y, keep*weight+1
		out[i] = plotter.XY{X: p.X, Y: sum / weight}
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
