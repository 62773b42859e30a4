package show

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Color is a CSS color for a light background and one for a dark background.
type Color struct{ Light, Dark string }

// Ink is the color of text and of lines that belong to no series.
var Ink = Color{"#1f2328", "#e6edf3"}

// XY is a point in axis units.
type XY struct{ X, Y float64 }

// Chart is a drawing with a title, notes, two axes, series and a legend. A file may contain
// several charts, one below the other.
type Chart struct {
	Title  string
	Notes  []string // lines below the title; long ones are broken
	X, Y   Axis
	Height float64  // of the plot, a drawing being 800 wide; 0 is 320
	Series []Series // the first is drawn first, under the others
	Marks  []Mark
}

// Axis spans Lo to Hi.
type Axis struct {
	Label  string // quantity, with the unit in parentheses
	Lo, Hi float64
	Log    bool   // Lo is positive
	Bands  []Band // named stretches instead of numbers
}

// Band is a named interval of an axis. Row 0 is next to an X axis; a Y axis has only row 0 and
// no short names.
type Band struct {
	From, To float64
	Label    string
	Short    string // used instead if there is too little room
	Row      int
}

// Series is a line or the outline of a filled area. Series with the same name share an entry
// of the legend; those without a name have none.
type Series struct {
	Name   string
	Color  Color
	Points []XY
	Fill   bool
	Faint  bool    // drawn as in the background
	Width  float64 // of a line, in units of the drawing
	Dash   bool
	Dots   bool // a dot at each point
}

// Mark is a text centered above a point.
type Mark struct {
	XY
	Label string
}

// Fit makes an axis span the values with a margin. Without values it spans 0 to 1.
func (a *Axis) Fit(values ...float64) {
	if len(values) == 0 {
		a.Lo, a.Hi, a.Log = 0, 1, false
		return
	}
	a.Lo, a.Hi = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		a.Lo, a.Hi = min(a.Lo, v), max(a.Hi, v)
	}
	switch gap := 0.04 * (a.Hi - a.Lo); {
	case a.Log:
		a.Lo, a.Hi = a.Lo/1.06, a.Hi*1.06
	case gap == 0:
		a.Lo, a.Hi = a.Lo-1, a.Hi+1
	default:
		a.Lo, a.Hi = a.Lo-gap, a.Hi+gap
	}
}

// FitWide is like Fit, but makes the axis logarithmic if the values span a wide range.
func (a *Axis) FitWide(values ...float64) {
	if len(values) > 0 {
		lo := slices.Min(values)
		a.Log = lo > 0 && slices.Max(values) >= 8*lo
	}
	if a.Log {
		a.Label += ", logarithmic"
	}
	a.Fit(values...)
}

// at returns the position of a value on the axis: 0 at Lo, 1 at Hi.
func (a *Axis) at(v float64) float64 {
	if a.Log {
		return math.Log(v/a.Lo) / math.Log(a.Hi/a.Lo)
	}
	return (v - a.Lo) / (a.Hi - a.Lo)
}

// Ticks returns the numbers to print at an axis.
func (a *Axis) Ticks() []float64 {
	if !a.Log || a.Hi/a.Lo < 3 {
		return ticks(a.Lo, a.Hi)
	}
	factors := []float64{1, 2, 5}
	if a.Hi/a.Lo > 1e4 {
		factors = factors[:1]
	}
	var out []float64
	for p := math.Floor(math.Log10(a.Lo)); p <= math.Log10(a.Hi); p++ {
		for _, f := range factors {
			if v := f * math.Pow(10, p); v >= a.Lo && v <= a.Hi {
				out = append(out, v)
			}
		}
	}
	return out
}

// ticks returns about five to ten multiples of 1, 2 or 5 times a power of ten.
func ticks(lo, hi float64) (out []float64) {
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/5)))
	for _, m := range []float64{5, 2} {
		if (hi-lo)/(step*m) >= 5 {
			step *= m
			break
		}
	}
	for i := math.Ceil(lo / step); i*step <= hi; i++ {
		out = append(out, i*step+0) // no negative zero
	}
	return out
}

// tickLabel formats a number at an axis: 2.5, 12,000, 1.5M, 3e-05.
func tickLabel(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e15 || a > 0 && a < 1e-3:
		return fmt.Sprintf("%.3g", v)
	case a >= 1e9:
		return fmt.Sprintf("%.4gG", v/1e9)
	case a >= 1e6:
		return fmt.Sprintf("%.4gM", v/1e6)
	case a >= 1e3 && v == math.Trunc(v):
		return Grouped(int64(v))
	}
	return fmt.Sprintf("%.6g", v)
}

// Extent returns the x and y values of points.
func Extent(points []XY) (xs, ys []float64) {
	for _, p := range points {
		xs, ys = append(xs, p.X), append(ys, p.Y)
	}
	return xs, ys
}

// broken breaks a text between words into lines of up to most characters.
func broken(text string, most int) []string { return lined(strings.Fields(text), most) }

// lined joins pieces of text to lines of up to most characters; a longer piece gets its own
// line.
func lined(pieces []string, most int) (lines []string) {
	line := ""
	for _, piece := range pieces {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(piece) > most {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+piece, " ")
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
