package forecast

import (
	"fmt"
	"io"
	"strings"

	"zeroth/device"
	"zeroth/internal/show"
)

// Stages contains the plans of a job at several ZeRO stages.
type Stages struct {
	Plans   []*Plan  // at least one
	Refused []string // why each of the other stages cannot be planned
}

// Lines returns a line for each stage.
func (s *Stages) Lines() (lines []string) {
	for _, p := range s.Plans {
		line := fmt.Sprintf("stage %d %s of a rank's device", p.Config.Zero.Stage, show.BothUnits(p.Allocated.Total()))
		if v := p.verdict(); v != "" {
			line += ": " + v
		}
		lines = append(lines, line)
	}
	return append(lines, s.Refused...)
}

// WriteSVG draws the memory of a rank at each stage as stacked bars, with a line at the
// memory of its device.
func (s *Stages) WriteSVG(out io.Writer) error {
	if _, err := io.WriteString(out, show.SVG(s.chart())); err != nil {
		return fmt.Errorf("stages: %w", err)
	}
	return nil
}

func (s *Stages) chart() *show.Chart {
	first, most := s.Plans[0], int64(0)
	for _, p := range s.Plans {
		_, high := Sum(p.Outside)
		most = max(most, p.Allocated.Total()+high)
	}
	unit, name := scale(most)
	c := &show.Chart{Title: "Memory of a rank at each stage of ZeRO: " + first.Model, Notes: []string{first.setting()}}
	if len(s.Refused) > 0 {
		c.Notes = append(c.Notes, "the job's other settings exclude the missing stages")
	}
	if _, high := Sum(first.Outside); high > 0 {
		c.Notes = append(c.Notes, "above each bar: allocated + estimated outside the allocator")
	}
	c.X = show.Axis{Label: "stage", Hi: float64(len(s.Plans))}
	c.Y = show.Axis{Label: "memory (" + name + ")", Hi: float64(most) / unit * 1.12}
	c.Series = s.bars(unit)
	for i, p := range s.Plans {
		at := float64(i)
		c.X.Bands = append(c.X.Bands, show.Band{From: at, To: at + 1, Label: fmt.Sprint(p.Config.Zero.Stage)})
		if v := p.verdict(); v != "" {
			c.X.Bands = append(c.X.Bands, show.Band{From: at, To: at + 1, Label: v, Short: "may fit", Row: 1})
		}
		_, high := Sum(p.Outside)
		top := show.XY{X: at + 0.5, Y: float64(p.Allocated.Total()+high) / unit}
		label := show.ByteSize(p.Allocated.Total())
		if high > 0 {
			number, _, _ := strings.Cut(label, " ")
			label = fmt.Sprintf("%s + %.1f %s", number, float64(high)/unit, name)
		}
		c.Marks = append(c.Marks, show.Mark{XY: top, Label: label})
	}
	drawLimit(c, first.Machine.Memory, most, unit)
	return c
}

// bars returns stacked areas for the memory allocated at each stage by use, and on top the
// estimate of memory outside the allocator.
func (s *Stages) bars(unit float64) (list []show.Series) {
	below := make([]float64, len(s.Plans))
	add := func(name string, color show.Color, bytes func(*Plan) int64) {
		for i, p := range s.Plans {
			n := bytes(p)
			if n == 0 {
				continue
			}
			top, left, right := below[i]+float64(n)/unit, float64(i)+0.2, float64(i)+0.8
			list = append(list, show.Series{Name: name, Color: color, Fill: true,
				Points: []show.XY{{X: left, Y: below[i]}, {X: left, Y: top}, {X: right, Y: top}, {X: right, Y: below[i]}}})
			below[i] = top
		}
	}
	var seen [device.Uses]bool
	for _, c := range stacking {
		use, title := categories[c].use, categories[c].title
		if seen[use] {
			continue
		}
		if seen[use] = true; use == device.Activations {
			title = arenaTitle
		}
		add(title, colors[c], func(p *Plan) int64 { return p.Allocated[use] })
	}
	add("outside, estimated", show.Color{Light: "#d8dee4", Dark: "#3d444d"}, func(p *Plan) int64 {
		_, high := Sum(p.Outside)
		return high
	})
	return list
}
