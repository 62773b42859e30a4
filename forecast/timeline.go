package forecast

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"

	"zeroth/device"
	"zeroth/internal/show"
)

// colors maps categories to their color in every drawing. Related categories share a hue; the
// darker one is the whole or permanent part.
var colors = [Categories]show.Color{
	Params: {Light: "#1f5aa6", Dark: "#3f7fd0"}, GatheredUnits: {Light: "#7db8e0", Dark: "#9fd0f5"},
	Gradients: {Light: "#0f7a3c", Dark: "#2c9c58"}, UnitGradients: {Light: "#7cc47f", Dark: "#9fe0a0"},
	MasterCopy: {Light: "#5e3a9e", Dark: "#8a63d2"}, OptimizerStates: {Light: "#a79bd6", Dark: "#c4b8f0"},
	SavedActivations: {Light: "#e67e22", Dark: "#e88a30"}, Recomputed: {Light: "#f8c27f", Dark: "#fad4a2"},
	Logits: {Light: "#c83c28", Dark: "#e0553f"}, WorkSpace: {Light: "#f0917a", Dark: "#f7ae9c"},
	KernelSpace: {Light: "#7a7a7a", Dark: "#8c8c8c"}, Inputs: {Light: "#4a4a4a", Dark: "#6a6a6a"}, Statistics: {Light: "#b4b4b4", Dark: "#c8c8c8"},
	OffloadStaging: {Light: "#9c6b1e", Dark: "#c08a36"}, WireStaging: {Light: "#b98a45", Dark: "#d3aa63"}, CheckpointStaging: {Light: "#d6b56a", Dark: "#e6cd92"},
	BounceMemory: {Light: "#6b7a2e", Dark: "#8fa045"},
}

// stacking lists the categories from the bottom of a drawing, the most constant ones first.
var stacking = []Category{Params, MasterCopy, OptimizerStates, KernelSpace, Inputs, Statistics, OffloadStaging, WireStaging, CheckpointStaging, BounceMemory,
	Gradients, UnitGradients, GatheredUnits, SavedActivations, Recomputed, Logits, WorkSpace}

// used returns the categories that are in use at some event, from the bottom of a drawing.
func (p *Plan) used() (list []Category) {
	for _, c := range stacking {
		if p.highest(c) > 0 {
			list = append(list, c)
		}
	}
	return list
}

// WriteCSV writes a line for every event: its description, the highest bytes in use by category,
// their sum and the allocated bytes. With a measured run it adds the run's bytes in use and
// allocated.
func (p *Plan) WriteCSV(out io.Writer) error {
	w := csv.NewWriter(out)
	head := []string{"event", "phase", "unit", "micro_batch"}
	for c := range Categories {
		head = append(head, c.String())
	}
	head = append(head, "in_use", "allocated")
	if p.Measured != nil {
		head = append(head, "measured_in_use", "measured_allocated")
	}
	lines := [][]string{head}
	for i, m := range p.Timeline {
		line := []string{strconv.Itoa(i), string(m.Phase), m.Unit, strconv.Itoa(m.Micro)}
		for _, n := range append(append(m.InUse[:], m.InUse.Total(), p.Allocated.Total()), p.Measured.at(i)...) {
			line = append(line, strconv.FormatInt(n, 10))
		}
		lines = append(lines, line)
	}
	if err := w.WriteAll(lines); err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	return nil
}

// stretch is a part of a step, the events From to To-1.
type stretch struct {
	From int    `json:"from"`
	To   int    `json:"to"`
	Name string `json:"name"`
}

// stretches returns the forward and backward passes and the update of the step, and its
// micro-batches if there are several. A gather belongs to the pass that uses it, and a reduction
// to the backward pass before it.
func (p *Plan) stretches() (passes, micros []stretch) {
	join := func(list []stretch, i int, name string, begins bool) []stretch {
		if n := len(list); n > 0 && list[n-1].Name == name && !begins {
			list[n-1].To = i + 1
			return list
		}
		return append(list, stretch{i, i + 1, name})
	}
	for i, m := range p.Timeline {
		passes = join(passes, i, p.passAt(i), i > 0 && m.Micro != p.Timeline[i-1].Micro)
		if m.Micro >= 0 && p.Config.Train.Accumulate > 1 {
			micros = join(micros, i, fmt.Sprintf("micro-batch %d", m.Micro+1), false)
		}
	}
	return passes, micros
}

// passAt returns the pass that an event belongs to.
func (p *Plan) passAt(event int) string {
	for _, m := range p.Timeline[event:] {
		switch m.Phase {
		case forward:
			return "forward"
		case recomputing, backward, reducing, replicating:
			return "backward"
		case norming, updating:
			return "update"
		}
	}
	return "update" // a gather for the next step
}

// alike describes which micro-batches the timeline omits because they equal earlier ones, empty if
// none.
func (p *Plan) alike() string {
	switch n, first := p.Config.Train.Accumulate, p.Config.PipelineShape().Full(); {
	case n < first+2:
		return ""
	case n == first+2:
		return fmt.Sprintf("micro-batch %d looks like micro-batch %d and is not drawn", n-1, first)
	default:
		return fmt.Sprintf("micro-batches %d to %d look like micro-batch %d and are not drawn", first+1, n-1, first)
	}
}

// shorter abbreviates the names of stretches.
var shorter = strings.NewReplacer("forward", "fwd", "backward", "bwd", "micro-batch ", "")

// bands returns the stretches for the axis, micro-batches below passes.
func (p *Plan) bands() (list []show.Band) {
	passes, micros := p.stretches()
	for row, stretches := range [][]stretch{passes, micros} {
		for _, s := range stretches {
			list = append(list, show.Band{From: float64(s.From), To: float64(s.To), Label: s.Name, Short: shorter.Replace(s.Name), Row: row})
		}
	}
	return list
}

// title returns the title of a step's drawings.
func (p *Plan) title() string {
	return fmt.Sprintf("Memory of a rank in one training step: %s, stage %d", p.Model, p.Config.Zero.Stage)
}

// setting describes the planned job without its stage.
func (p *Plan) setting() string {
	c := p.Config
	return fmt.Sprintf("%s, %s, micro-batch %d of %s tokens, recompute %s", ranksOf(c.Parallel.Ranks), c.Precision,
		c.Train.MicroBatch, show.Grouped(int64(c.Model.Context)), c.Zero.Recompute)
}

func ranksOf(n int) string {
	if n == 1 {
		return "1 rank"
	}
	return show.Grouped(int64(n)) + " ranks"
}

// peakLine describes the peak.
func (p *Plan) peakLine() string {
	return fmt.Sprintf("peak %s in use: %s", show.ByteSize(p.Peak.InUse.Total()), p.Peak.Name)
}

// WriteSVG draws the memory in use at every event as stacked categories, with lines for the
// allocation, the device's memory and the use in a measured run.
func (p *Plan) WriteSVG(out io.Writer) error {
	if _, err := io.WriteString(out, show.SVG(p.chart())); err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	return nil
}

func (p *Plan) chart() *show.Chart {
	unit, name := scale(p.Allocated.Total())
	all, n := float64(p.Allocated.Total())/unit, float64(len(p.Timeline))
	c := &show.Chart{Title: p.title(), Notes: []string{p.setting(), p.peakLine(), p.alike()}}
	c.X = show.Axis{Label: "events of the step, in issue order", Hi: n, Bands: p.bands()}
	c.Y = show.Axis{Label: "memory in use (" + name + ")", Hi: all * 1.08}
	below := make([]float64, len(p.Timeline))
	for _, of := range p.used() {
		top := make([]float64, len(below))
		for i, m := range p.Timeline {
			top[i] = below[i] + float64(m.InUse[of])/unit
		}
		c.Series = append(c.Series, show.Series{Name: categories[of].title, Color: colors[of], Fill: true, Points: outline(below, top)})
		below = top
	}
	c.Series = append(c.Series, level("allocated, "+show.ByteSize(p.Allocated.Total()), all, n, show.Ink))
	drawLimit(c, p.Machine.Memory, p.Allocated.Total(), unit)
	if p.Measured != nil {
		c.Series = append(c.Series, show.Series{Name: fmt.Sprintf("measured in step %d", p.Measured.Step), Color: show.Ink, Width: 1.6, Points: p.Measured.steps(unit)})
	}
	return c
}

// level returns a dashed line across a drawing.
func level(name string, y, width float64, color show.Color) show.Series {
	return show.Series{Name: name, Color: color, Width: 2, Dash: true, Points: []show.XY{{X: 0, Y: y}, {X: width, Y: y}}}
}

// drawLimit draws a line at the device's memory, if it is not 0. If it is far above the drawing,
// an arrow points to it.
func drawLimit(c *show.Chart, memory, drawn int64, unit float64) {
	has := "device has " + show.ByteSize(memory)
	switch {
	case memory > 2*drawn:
		c.Y.Hi *= 1.08
		c.Marks = append(c.Marks, show.Mark{XY: show.XY{X: 0.86 * c.X.Hi, Y: 0.93 * c.Y.Hi}, Label: "↑ " + has})
	case memory > 0:
		y := float64(memory) / unit
		c.Y.Hi = max(c.Y.Hi, y*1.05)
		c.Series = append(c.Series, level(has, y, c.X.Hi, limitColor))
	}
}

// limitColor is the color of the device's memory.
var limitColor = show.Color{Light: "#d1002f", Dark: "#ff5c7a"}

// steps returns the memory in use as a line, in units of the given number of bytes.
func (m *Measured) steps(unit float64) (xy []show.XY) {
	for i, x := range m.Timeline {
		y := float64(x.InUse.Total()) / unit
		xy = append(xy, show.XY{X: float64(i), Y: y}, show.XY{X: float64(i + 1), Y: y})
	}
	return xy
}

// scale returns a binary unit for a number of bytes.
func scale(n int64) (unit float64, name string) {
	unit, name = 1, "bytes"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if float64(n) < 1024*unit {
			break
		}
		unit, name = unit*1024, next
	}
	return unit, name
}

// outline returns the outline of the area between two step curves. Event i extends from i to i+1.
func outline(below, top []float64) (xy []show.XY) {
	there := len(top)
	for i, y := range top {
		if i > 0 && i+1 < there && top[i-1] == y && top[i+1] == y {
			continue
		}
		xy = append(xy, show.XY{X: float64(i), Y: y}, show.XY{X: float64(i + 1), Y: y})
	}
	for i := there - 1; i >= 0; i-- {
		y := below[i]
		if i > 0 && i+1 < there && below[i-1] == y && below[i+1] == y {
			continue
		}
		xy = append(xy, show.XY{X: float64(i + 1), Y: y}, show.XY{X: float64(i), Y: y})
	}
	return xy
}

// WriteTrace writes the simulated work of a rank's queues and the memory in use, like Trace.Write
// for a run. A step of many micro-batches is shortened to four.
func (p *Plan) WriteTrace(out io.Writer) error {
	t, of := *p.Simulated.Trace, p.Simulated.Job
	if t.Memory = p; of.Train.Accumulate != p.Config.Train.Accumulate {
		few, err := NewPlan(of, p.Machine)
		if err != nil {
			return err
		}
		t.Memory = few
	}
	return t.Write(out)
}

// Measured is the memory that the first rank of a run used at each event of a step, from the
// heights of its arenas, the units in its schedule's slots and the buffers of its collectives; and
// what its allocator held.
type Measured struct {
	Step      int
	Timeline  []*Moment
	Allocated device.Bytes
}

// at returns the bytes in use at an event and the bytes allocated, nothing without a run.
func (m *Measured) at(event int) []int64 {
	if m == nil {
		return nil
	}
	return []int64{m.Timeline[event].InUse.Total(), m.Allocated.Total()}
}

// line compares the measured use with the plan.
func (m *Measured) line(p *Plan) string {
	same, most := 0, int64(0)
	for i, x := range m.Timeline {
		if x.InUse == p.Timeline[i].InUse {
			same++
		}
		most = max(most, x.InUse.Total())
	}
	return fmt.Sprintf("run     step %d used at most %s of %s allocated; every category was as planned at %d of %d events",
		m.Step, show.ByteSize(most), show.ByteSize(m.Allocated.Total()), same, len(m.Timeline))
}
