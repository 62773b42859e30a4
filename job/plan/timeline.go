package plan

import (
	"encoding/csv"
	"fmt"
	"image/color"
	"io"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"zeroth/device"
	"zeroth/job/show"
)

// colors are the categories', the same in every drawing.
var colors = [Categories]color.RGBA{
	Params: {31, 90, 166, 255}, GatheredUnits: {107, 174, 214, 255}, Gradients: {0, 109, 44, 255}, UnitGradients: {116, 196, 118, 255},
	MasterCopy: {84, 39, 143, 255}, OptimizerStates: {158, 154, 200, 255},
	SavedActivations: {230, 126, 34, 255}, Recomputed: {253, 190, 133, 255}, Logits: {200, 60, 40, 255}, WorkSpace: {252, 146, 114, 255},
	KernelSpace: {120, 120, 120, 255}, TokenIDs: {60, 60, 60, 255}, Statistics: {180, 180, 180, 255},
	OffloadStaging: {191, 129, 45, 255}, CheckpointStaging: {223, 194, 125, 255},
}

// used are the categories that any event has something in, from the bottom of a
// drawing: what changes least comes first.
func (p *Plan) used() (list []Category) {
	order := []Category{Params, MasterCopy, OptimizerStates, KernelSpace, TokenIDs, Statistics, OffloadStaging, CheckpointStaging,
		Gradients, UnitGradients, GatheredUnits, SavedActivations, Recomputed, Logits, WorkSpace}
	for _, c := range order {
		if p.highest(c) > 0 {
			list = append(list, c)
		}
	}
	return list
}

// WriteCSV writes a line for every event: what it is, the bytes in use in each
// category at its highest instant, their sum, and what is allocated; of a run,
// also what it had in use and allocated.
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

// WriteSVG draws what is in use at every event, one category upon the other,
// under the line of what is allocated, and what a
// run had in use as a line upon them. The path's extension is the format.
func (p *Plan) WriteSVG(path string) error {
	pl := plot.New()
	pl.Title.Text = fmt.Sprintf("%s, %d ranks, stage %d: a rank's memory in one step", p.Model, p.Config.Parallel.Ranks, p.Config.Zero.Stage)
	unit, name := scale(p.Allocated.Total())
	pl.X.Label.Text, pl.Y.Label.Text = "event, in the order of issue", name
	pl.Y.Tick.Marker = plot.TickerFunc(show.Ticks)
	show.Sans(pl)
	below := make([]float64, len(p.Timeline))
	var areas []*plotter.Polygon
	used := p.used()
	for _, c := range used {
		top := make([]float64, len(below))
		for i, m := range p.Timeline {
			top[i] = below[i] + float64(m.InUse[c])/unit
		}
		area, err := plotter.NewPolygon(outline(below, top))
		if err != nil {
			return fmt.Errorf("timeline: %w", err)
		}
		area.Color, area.LineStyle.Width = colors[c], 0
		pl.Add(area)
		areas, below = append(areas, area), top
	}
	all, n := float64(p.Allocated.Total())/unit, float64(len(p.Timeline))
	if p.Measured != nil {
		var xy plotter.XYs
		for i, m := range p.Measured.Timeline {
			y := float64(m.InUse.Total()) / unit
			xy = append(xy, plotter.XY{X: float64(i), Y: y}, plotter.XY{X: float64(i + 1), Y: y})
		}
		measured, err := plotter.NewLine(xy)
		if err != nil {
			return fmt.Errorf("timeline: %w", err)
		}
		measured.Width = vg.Points(1.2)
		pl.Add(measured)
		pl.Legend.Add("measured in step "+strconv.Itoa(p.Measured.Step), measured)
	}
	allocated, err := plotter.NewLine(plotter.XYs{{X: 0, Y: all}, {X: n, Y: all}})
	if err != nil {
		return fmt.Errorf("timeline: %w", err)
	}
	allocated.Width, allocated.Dashes = vg.Points(1), []vg.Length{vg.Points(4), vg.Points(2)}
	pl.Add(allocated)
	pl.Legend.Add("allocated", allocated)
	for i := len(areas) - 1; i >= 0; i-- {
		pl.Legend.Add(categories[used[i]].title, areas[i])
	}
	pl.Legend.Top = true
	pl.X.Min, pl.X.Max = 0, n*1.55 // the legend is beside what it explains
	pl.Y.Min, pl.Y.Max = 0, all*1.05
	pl.X.Tick.Marker = plot.TickerFunc(func(_, _ float64) []plot.Tick { return show.Ticks(0, n) })
	return show.Save(pl, path)
}

// scale is the unit of 1024s that a number of bytes is told in.
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

// outline is the outline of the area between two step curves. Event i is from i
// to i+1.
func outline(below, top []float64) (xy plotter.XYs) {
	there := len(top)
	for i, y := range top {
		if i > 0 && i+1 < there && top[i-1] == y && top[i+1] == y {
			continue
		}
		xy = append(xy, plotter.XY{X: float64(i), Y: y}, plotter.XY{X: float64(i + 1), Y: y})
	}
	for i := there - 1; i >= 0; i-- {
		y := below[i]
		if i > 0 && i+1 < there && below[i-1] == y && below[i+1] == y {
			continue
		}
		xy = append(xy, plotter.XY{X: float64(i + 1), Y: y}, plotter.XY{X: float64(i), Y: y})
	}
	return xy
}

// WriteTrace writes what the queues of a rank are forecast to do, and what is in
// use the while, as Trace.Write does for a run. Of many micro-batches there are
// four.
func (p *Plan) WriteTrace(out io.Writer) error {
	t, of := *p.Forecast.Trace, p.Forecast.Of
	if t.Memory = p; of.Train.Accumulate != p.Config.Train.Accumulate {
		few, err := New(of, p.Machine)
		if err != nil {
			return err
		}
		t.Memory = few
	}
	return t.Write(out)
}

// Measured is what the first rank of a run had in use at each event of a step:
// heights of its arena, units in the slots of its schedule, what its collectives
// were called on; and what its allocator held.
type Measured struct {
	Step      int
	Timeline  []*Moment
	Allocated device.Bytes
}

// at is what is in use at an event, and what is allocated; nothing without a run.
func (m *Measured) at(event int) []int64 {
	if m == nil {
		return nil
	}
	return []int64{m.Timeline[event].InUse.Total(), m.Allocated.Total()}
}

// line is what was measured beside a plan, in words.
func (m *Measured) line(p *Plan) string {
	same, most := 0, int64(0)
	for i, x := range m.Timeline {
		if x.InUse == p.Timeline[i].InUse {
			same++
		}
		most = max(most, x.InUse.Total())
	}
	return fmt.Sprintf("run     step %d had %s in use at the most, of %s allocated; in each category it had what was planned at %d of %d events",
		m.Step, show.ByteSize(most), show.ByteSize(m.Allocated.Total()), same, len(m.Timeline))
}
