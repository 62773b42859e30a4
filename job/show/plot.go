package show

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Ticks are some five to ten multiples of 1, 2 or 5 times a power of ten.
func Ticks(lo, hi float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/5)))
	for _, m := range []float64{5, 2} {
		if (hi-lo)/(step*m) < 5 {
			continue
		}
		step *= m
		break
	}
	var out []plot.Tick
	for i := math.Ceil(lo / step); i*step <= hi; i++ {
		out = append(out, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step, 'g', 6, 64)})
	}
	return out
}

// Save draws into a file. Browsers get a choice of faces, as the one the plot
// was measured with is seldom installed.
func Save(p *plot.Plot, path string) error {
	const margin = 10 // points, around everything
	drawing, err := draw.NewFormattedCanvas(8*vg.Inch, 5*vg.Inch, strings.TrimPrefix(filepath.Ext(path), "."))
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	p.Draw(draw.Crop(draw.New(drawing), margin, -margin, margin, -margin))
	var b bytes.Buffer
	if _, err := drawing.WriteTo(&b); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	out := bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,sans-serif;"))
	if err := os.WriteFile(path, out, 0o644); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

// Sans sets every text in a sans-serif face.
func Sans(p *plot.Plot) {
	p.Title.TextStyle.Font.Variant = "Sans"
	p.Legend.TextStyle.Font.Variant = "Sans"
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font.Variant = "Sans"
		a.Tick.Label.Font.Variant = "Sans"
	}
	p.Title.Padding = vg.Points(6)
}
