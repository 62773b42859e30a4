package show

import (
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"
)

// The dimensions of a drawing, in its own units: this is its width, and on the screen it is as
// wide as the page around it. Text has 15 units, on small screens 20, and there is room for that.
const (
	wide      = 800
	plotLeft  = 84
	plotRight = wide - 18
	textLine  = 26
	textMost  = 74  // characters in a line of small screens
	character = 9.2 // their mean width
)

// style begins every drawing. Browsers choose the colors for the reader's background; other
// programs use the light ones.
const style = `svg{width:100%;height:auto;max-height:100vh;background:#fff;font-family:system-ui,-apple-system,"Segoe UI",Arial,sans-serif;font-size:15px}
.ground{fill:#fff}.ink{fill:#1f2328}.soft{fill:#57606a}.rule{stroke:#d0d7de;fill:none}.frame{stroke:#8c959f;fill:none}
.title{font-size:1.15em;font-weight:600}.halo{stroke:#fff;stroke-width:4px;paint-order:stroke}.seam{stroke:#fff;stroke-width:.6px;stroke-linejoin:round}
@media (max-width:560px){svg{font-size:20px}.key{font-size:18px}}
@media (min-width:1100px){svg{font-size:13px}}
@media (prefers-color-scheme:dark){svg{background:#0d1117}.ground{fill:#0d1117}.ink{fill:#e6edf3}.soft{fill:#9da7b3}.rule{stroke:#30363d}.frame{stroke:#6e7681}.halo{stroke:#0d1117}.seam{stroke:#0d1117}}
`

// svg is a drawing in progress.
type svg struct {
	strings.Builder
	colors []Color
	y      float64 // where the next line of text or the plot begins
}

func (s *svg) add(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// text writes text at a position. Anchor is start, middle or end.
func (s *svg) text(x, y float64, anchor, class, text string) {
	s.add(`<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`, x, y, anchor, class, inXML(text))
}

// inXML escapes a text for XML.
func inXML(text string) string { return html.EscapeString(Printable(text)) }

// color returns the index of a color in the drawing.
func (s *svg) color(c Color) int {
	i := slices.Index(s.colors, c)
	if i < 0 {
		i = len(s.colors)
		s.colors = append(s.colors, c)
	}
	return i
}

// SVG draws charts, one below the other. The file is self-contained and has no scripts.
func SVG(charts ...*Chart) string {
	s := &svg{}
	for _, c := range charts {
		s.chart(c)
	}
	var head strings.Builder
	fmt.Fprintf(&head, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %d %.0f" role="img">`+"\n", wide, s.y, wide, s.y)
	fmt.Fprintf(&head, "<title>%s</title>\n<style>\n%s", inXML(charts[0].Title), style)
	dark := ""
	for i, c := range s.colors {
		fmt.Fprintf(&head, ".f%d{fill:%s}.l%d{stroke:%s;fill:none}", i, c.Light, i, c.Light)
		dark += fmt.Sprintf(".f%d{fill:%s}.l%d{stroke:%s}", i, c.Dark, i, c.Dark)
	}
	fmt.Fprintf(&head, "\n@media (prefers-color-scheme:dark){%s}\n</style>\n", dark)
	fmt.Fprintf(&head, `<rect class="ground" width="%d" height="%.0f"/>`+"\n", wide, s.y)
	return head.String() + s.String() + "</svg>\n"
}

// chart draws one chart below s.y, and moves s.y below it.
func (s *svg) chart(c *Chart) {
	s.heading(c)
	top := s.y
	s.axes(c, top)
	for _, series := range c.Series {
		s.series(c, series, top)
	}
	for _, b := range c.X.Bands {
		if b.From > c.X.Lo {
			s.add(`<path class="frame" opacity="0.6" d="M%.1f %.1fv%.1f"/>`, c.x(b.From), top, c.height()+8+float64(b.Row*textLine))
		}
	}
	for _, m := range c.Marks {
		s.text(c.x(m.X), c.y(m.Y, top)-8, "middle", "ink halo", m.Label)
	}
	s.add(`<rect class="frame" x="%d" y="%.1f" width="%d" height="%.1f"/>`, plotLeft, top, plotRight-plotLeft, c.height())
	s.legend(c)
	s.y += 10
}

// heading writes the title, the notes and the label of the Y axis.
func (s *svg) heading(c *Chart) {
	s.y += 32
	for _, line := range broken(c.Title, textMost*9/10) {
		s.text(16, s.y, "start", "ink title", line)
		s.y += textLine
	}
	for _, note := range c.Notes {
		for _, line := range broken(note, textMost) {
			s.text(16, s.y, "start", "soft", line)
			s.y += textLine
		}
	}
	s.y += 6
	s.text(16, s.y, "start", "ink", c.Y.Label)
	s.y += 12
}

// x and y return the position of values in the drawing.
func (c *Chart) x(v float64) float64 { return plotLeft + (plotRight-plotLeft)*c.X.at(v) }

func (c *Chart) y(v, top float64) float64 { return top + c.height()*(1-c.Y.at(v)) }

func (c *Chart) height() float64 { return cmp.Or(c.Height, 320) }

// axes draws the grid and its labels, and moves s.y below.
func (s *svg) axes(c *Chart, top float64) {
	for _, b := range c.Y.Bands {
		s.text(plotLeft-8, c.y((b.From+b.To)/2, top)+5, "end", "soft", b.Label)
	}
	for _, v := range c.rungs() {
		y := c.y(v, top)
		s.add(`<path class="rule" d="M%d %.1fH%d"/>`, plotLeft, y, plotRight)
		s.text(plotLeft-8, y+5, "end", "soft", tickLabel(v))
	}
	s.y = top + c.height() + 22
	if c.X.Bands != nil {
		s.bands(c)
	} else {
		for _, v := range c.X.Ticks() {
			x := c.x(v)
			s.add(`<path class="rule" d="M%.1f %.1fv%.1f"/>`, x, top, c.height())
			s.text(x, s.y, "middle", "soft", tickLabel(v))
		}
	}
	s.y += textLine
	s.text((plotLeft+plotRight)/2, s.y, "middle", "ink", c.X.Label)
	s.y += 14
}

// rungs returns the numbers at the Y axis, as many as fit, or none if the axis has bands.
func (c *Chart) rungs() []float64 {
	if c.Y.Bands != nil {
		return nil
	}
	ticks := c.Y.Ticks()
	for float64(len(ticks)*textLine) > c.height() {
		var second []float64
		for i := 0; i < len(ticks); i += 2 {
			second = append(second, ticks[i])
		}
		ticks = second
	}
	return ticks
}

// bands writes the names of bands that have room for them.
func (s *svg) bands(c *Chart) {
	rows := 0
	for _, b := range c.X.Bands {
		from, to := c.x(b.From), c.x(b.To)
		for _, label := range []string{b.Label, b.Short} {
			if float64(len([]rune(label)))*character < to-from {
				s.text((from+to)/2, s.y+float64(b.Row*textLine), "middle", "soft", label)
				break
			}
		}
		rows = max(rows, b.Row)
	}
	s.y += float64(rows * textLine)
}

// series draws a line or an area.
func (s *svg) series(c *Chart, x Series, top float64) {
	if len(x.Points) == 0 {
		return
	}
	var d strings.Builder
	for i, p := range x.Points {
		fmt.Fprintf(&d, "%c%.1f %.1f", "ML"[min(i, 1)], c.x(p.X), c.y(p.Y, top))
	}
	k := s.color(x.Color)
	name := "<title>" + inXML(x.Name) + "</title>"
	if x.Fill {
		s.add(`<path class="f%d seam"%s d="%sZ">%s</path>`, k, x.looks(), d.String(), name)
		return
	}
	s.add(`<path class="l%d"%s d="%s">%s</path>`, k, x.looks(), d.String(), name)
	if x.Dots {
		for _, p := range x.Points {
			s.add(`<circle class="f%d" cx="%.1f" cy="%.1f" r="%.1f"/>`, k, c.x(p.X), c.y(p.Y, top), x.Width+1)
		}
	}
}

// looks returns the attributes of a series other than its color.
func (x Series) looks() (a string) {
	if !x.Fill {
		a = fmt.Sprintf(` stroke-width="%.1f" stroke-linejoin="round"`, x.Width)
	}
	if x.Dash {
		a += ` stroke-dasharray="7 4"`
	}
	if x.Faint {
		a += ` opacity="0.5"`
	}
	return a
}

// legend writes the names of series in as many columns as fit: lines first, then areas from
// top to bottom.
func (s *svg) legend(c *Chart) {
	list := c.named()
	longest := 1
	for _, x := range list {
		longest = max(longest, len([]rune(x.Name)))
	}
	column := float64(longest)*character + 38
	columns := max(1, min(len(list), int((wide-20)/column)))
	column = (wide - 20) / float64(columns)
	for i, x := range list {
		if i%columns == 0 {
			s.y += textLine
		}
		left, k := 20+column*float64(i%columns), s.color(x.Color)
		x.Width = max(x.Width, 2)
		if x.Fill {
			s.add(`<rect class="f%d"%s x="%.1f" y="%.1f" width="22" height="14"/>`, k, x.looks(), left, s.y-12)
		} else {
			s.add(`<path class="l%d"%s d="M%.1f %.1fh22"/>`, k, x.looks(), left, s.y-5)
		}
		s.text(left+30, s.y, "start", "ink key", x.Name)
	}
	s.y += 10
}

// named returns the series that the legend lists.
func (c *Chart) named() (list []Series) {
	var areas []Series
	same := func(name string) func(Series) bool { return func(x Series) bool { return x.Name == name } }
	for _, x := range c.Series {
		switch {
		case x.Name == "" || len(x.Points) == 0 || slices.ContainsFunc(areas, same(x.Name)) || slices.ContainsFunc(list, same(x.Name)):
		case x.Fill:
			areas = append(areas, x)
		default:
			list = append(list, x)
		}
	}
	slices.Reverse(areas)
	return append(list, areas...)
}
