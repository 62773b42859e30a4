package forecast

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/spec"
	"zeroth/shard"
)

// Row is a row of the plan's table, in bytes.
type Row struct {
	Category  Category `json:"-"` // the last category for the arena
	Name      string   `json:"category"`
	Title     string   `json:"title"`
	Allocated *int64   `json:"allocated,omitempty"` // nil: part of the arena in the row above
	AtRest    int64    `json:"at_rest"`             // in use between steps
	AtPeak    int64    `json:"at_peak"`             // in use at the plan's peak instant
	ChangedBy string   `json:"changed_by,omitempty"`
}

// Rows returns the plan's table. Activations are allocated as one arena, whose row is followed by
// rows for its contents.
func (p *Plan) Rows() (rows []Row) {
	for c := range Categories {
		x := categories[c]
		row := Row{Category: c, Name: x.name, Title: x.title, AtRest: p.AtRest[c], AtPeak: p.Peak.InUse[c], ChangedBy: x.knob}
		if c == Params {
			row.Title = "parameters, " + p.whole(3)
		}
		if x.use != device.Activations {
			bytes := p.Allocated[x.use]
			row.Allocated = &bytes
		}
		if c == SavedActivations {
			rows = append(rows, p.arena())
		}
		rows = append(rows, row)
	}
	return rows
}

// whole describes whether parameters are sharded.
func (p *Plan) whole(stage int) string {
	if p.Config.Zero.Stage < stage || spec.Mesh(p.Config).Shard == 1 {
		return "whole"
	}
	return "sharded"
}

// arenaTitle is the display name of the arena of activations.
const arenaTitle = "arena of activations"

func (p *Plan) arena() Row {
	bytes, row := p.Allocated[device.Activations], Row{Category: Categories, Name: "activations", Title: arenaTitle}
	row.Allocated = &bytes
	for c := SavedActivations; c <= WorkSpace; c++ {
		row.AtPeak += p.Peak.InUse[c]
	}
	return row
}

// Print prints the plan as a table. Totals are in both units.
func (p *Plan) Print(out io.Writer) error {
	var b strings.Builder
	for _, row := range p.header() {
		fmt.Fprintf(&b, "%-7s %s\n", row[0], row[1])
	}
	t := show.Columns{Align: "lrrrl"}
	t.Add("bytes per rank", "allocated", "at rest", "at the peak", "changed by")
	for _, l := range p.lines() {
		if l[1] == "" && l[2] != "" {
			l[0] = "  " + l[0]
		}
		t.Add(l[:]...)
	}
	if p.Kinds != nil {
		fmt.Fprintf(&b, "\n%s\nof the rank that allocates most, %s:\n", p.byPlace().Within(show.Width(out)), p.most())
	}
	fmt.Fprintf(&b, "\n%s\n", t.Within(show.Width(out)))
	for _, line := range p.footer() {
		fmt.Fprintln(&b, line)
	}
	return show.Print(out, b.String())
}

// most returns the place of a rank that allocates most.
func (p *Plan) most() string {
	if p.Config.Parallel.Master {
		return "rank " + p.ranks()
	}
	return fmt.Sprintf("at place %d", p.Kind)
}

// ranks returns the ranks at the plan's place in a job with a master.
func (p *Plan) ranks() string {
	if n := p.Config.Parallel.Ranks; p.Kind > 0 && n > 2 {
		return fmt.Sprintf("1-%d", n-1)
	}
	return fmt.Sprint(p.Kind)
}

// byPlace returns a table with a column for each place.
func (p *Plan) byPlace() *show.Columns {
	t := &show.Columns{Align: "l" + strings.Repeat("r", len(p.Kinds))}
	row := func(name string, cell func(*Plan) string) {
		cells := []string{name}
		for _, x := range p.Kinds {
			cells = append(cells, cell(x))
		}
		t.Add(cells...)
	}
	master := p.Config.Parallel.Master
	if master {
		row("rank", (*Plan).ranks)
	} else {
		row("place in the pipeline", func(x *Plan) string { return fmt.Sprint(x.Kind) })
		row("layers", func(x *Plan) string { return stageLayers(x) })
		row("number of parameters", func(x *Plan) string { return show.Compact(float64(x.Parameters)) })
	}
	for use := range device.Uses {
		if slices.ContainsFunc(p.Kinds, func(x *Plan) bool { return x.Allocated[use] > 0 }) {
			row(useTitle(use), func(x *Plan) string { return show.ByteSize(x.Allocated[use]) })
		}
	}
	row("total", func(x *Plan) string { return show.ByteSize(x.Allocated.Total()) })
	if master {
		row("sent per step", func(x *Plan) string { return show.ByteSize(x.Sent) })
		return t
	}
	sent := func(dimension string, always bool, of func(*Plan) int64) {
		if always || slices.ContainsFunc(p.Kinds, func(x *Plan) bool { return of(x) > 0 }) {
			row("sent per step, "+dimension, func(x *Plan) string { return show.ByteSize(of(x)) })
		}
	}
	sent("shard", true, func(x *Plan) int64 { return x.By.Shard })
	sent("replicate", true, func(x *Plan) int64 { return x.By.Replicate })
	sent("pipeline", true, func(x *Plan) int64 { return x.By.Pipeline })
	sent("context", false, func(x *Plan) int64 { return x.By.Context })
	sent("expert", false, func(x *Plan) int64 { return x.By.Expert })
	sent("tensor", false, func(x *Plan) int64 { return x.By.Tensor })
	return t
}

// stageLayers returns the layers of a place, stage by stage.
func stageLayers(p *Plan) string {
	var words []string
	s := p.Config.PipelineShape()
	for i, n := range spec.StageLayers(p.Config) {
		if i%s.Ranks == p.Kind {
			words = append(words, fmt.Sprint(n))
		}
	}
	return strings.Join(words, " + ")
}

// lines returns the non-empty rows of the table as text. Rows of the arena's parts have no
// allocation.
func (p *Plan) lines() (lines [][5]string) {
	for _, r := range p.Rows() {
		switch {
		case r.Allocated == nil && p.highest(r.Category) > 0:
			lines = append(lines, [5]string{r.Title, "", show.ByteSize(r.AtRest), show.ByteSize(r.AtPeak), r.ChangedBy})
		case r.Allocated != nil && *r.Allocated > 0:
			lines = append(lines, [5]string{r.Title, show.ByteSize(*r.Allocated), show.ByteSize(r.AtRest), show.ByteSize(r.AtPeak), r.ChangedBy})
		}
	}
	return append(lines,
		[5]string{"total", show.ByteSize(p.Allocated.Total()), show.ByteSize(p.AtRest.Total()), show.ByteSize(p.Peak.InUse.Total())},
		[5]string{"of which padding", show.ByteSize(p.Padding)})
}

// footer returns the lines below the table.
func (p *Plan) footer() []string {
	total := p.Allocated.Total()
	lines := []string{
		"peak    " + p.Peak.Name,
		"needs   " + show.BothUnits(total) + " of a rank's device, all of it allocated before step 1",
	}
	if p.Saved > 0 {
		where := ""
		if p.Config.Zero.Offload.Activations == "host" {
			where = ", in host memory"
		}
		lines = append(lines, fmt.Sprintf("saved   %s per token and layer%s, with zero.recompute %s", show.ByteSize(int64(p.Saved)), where, p.Config.Zero.Recompute))
	}
	if host := p.Host.Total(); host > 0 {
		lines = append(lines, fmt.Sprintf("host    %s of host memory per rank: %s", show.BothUnits(host), amounts(p.Host)))
	}
	if p.Disk > 0 {
		lines = append(lines, fmt.Sprintf("disk    %s per rank", show.BothUnits(p.Disk)))
	}
	low, high := Sum(p.Outside)
	for _, e := range p.Outside {
		lines = append(lines, fmt.Sprintf("outside %s: estimated %s to %s (%s)", e.Name, show.ByteSize(e.Low), show.ByteSize(e.High), e.Source))
	}
	if m := p.Measured; m != nil {
		lines = append(lines, m.line(p))
	}
	if p.Simulated != nil {
		lines = append(lines, p.Simulated.Lines()...)
	}
	if p.Machine.Memory == 0 && p.Lacks != nil {
		lines = append(lines, "here    "+p.verdict())
	}
	if m := p.Machine.Memory; m > 0 {
		verdict := p.verdict()
		switch {
		case high == 0:
			lines = append(lines, fmt.Sprintf("%-7s %s: %s", "device", show.BothUnits(m), verdict))
		default:
			lines = append(lines, fmt.Sprintf("%-7s %s, %s: %s", "device", show.BothUnits(m), spare(m-total-high, m-total-low), verdict))
		}
	}
	return lines
}

// spare describes the remaining memory of a device, between low and high bytes. Negative amounts
// are missing.
func spare(low, high int64) string {
	switch {
	case low >= 0:
		return fmt.Sprintf("%s to %s to spare", show.ByteSize(low), show.ByteSize(high))
	case high < 0:
		return fmt.Sprintf("%s to %s too large", show.ByteSize(-high), show.ByteSize(-low))
	}
	return fmt.Sprintf("from %s too large to %s to spare", show.ByteSize(-low), show.ByteSize(high))
}

// amounts returns bytes by category as text.
func amounts(b device.Bytes) string {
	var parts []string
	for use, n := range b {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", show.ByteSize(n), useTitle(device.Use(use))))
		}
	}
	return strings.Join(parts, ", ")
}

// misfit is the verdict for which Fits returns an error.
const misfit = "does not fit"

// Fits returns an input error if the device has too little memory in any case. If the device
// memory is unknown, it returns Lacks.
func (p *Plan) Fits() error {
	if p.Lacks != nil || p.verdict() != misfit {
		return p.Lacks
	}
	low, _ := Sum(p.Outside)
	l := unlimited(p.Config, p.Machine.Memory)
	l.GPU = p.Machine.GPU
	over := func(x *Choice) int64 { _, free := x.Free(); return -free }
	return input.BadInput(fmt.Errorf("the job does not fit: a rank needs %s and its device has %s; %s; 'zeroth fit' compares all settings",
		show.BothUnits(p.Allocated.Total()+low), show.BothUnits(p.Machine.Memory), nearby(p.Config, l, over, setup.Footprint.DeviceTotal)))
}

// Suffices reports whether the device has enough memory in any case.
func (p *Plan) Suffices() bool { return p.verdict() == "fits" }

// verdict returns a short description of whether the device has enough memory, empty if its memory
// is unknown.
func (p *Plan) verdict() string {
	low, high := Sum(p.Outside)
	switch free := p.Machine.Memory - p.Allocated.Total(); {
	case p.Lacks != nil:
		return misfit
	case p.Machine.Memory == 0:
		return ""
	case free >= high:
		return "fits"
	case free >= low:
		return "fits if memory outside zeroth is small"
	}
	return misfit
}

// highest returns the maximum bytes of a category at any event.
func (p *Plan) highest(c Category) (n int64) {
	for _, m := range p.Timeline {
		n = max(n, m.InUse[c])
	}
	return n
}

// header returns labelled lines that describe the planned job.
func (p *Plan) header() [][2]string {
	c, mesh := p.Config, spec.Mesh(p.Config)
	ranks := fmt.Sprintf("%d, stage %d, %s", mesh.World(), c.Zero.Stage, c.Precision)
	if c.Zero.Stage > 0 {
		ranks = fmt.Sprintf("%d = shard %d × replicate %d, stage %d, %s", mesh.World(), mesh.Shard, mesh.Replicate, c.Zero.Stage, c.Precision)
	}
	if mesh.World() > mesh.DataRanks() || mesh.Expert > 1 {
		ranks = fmt.Sprintf("%d = %s, stage %d, %s", mesh.World(), mesh.Dimensions(), c.Zero.Stage, c.Precision)
	}
	if c.Parallel.Master {
		ranks += "; rank 0 is the master"
	}
	if s := c.PipelineShape(); s.Ranks > 1 {
		ranks += fmt.Sprintf("; %s of %d micro-batches", s.Schedule, s.Micro)
	}
	if words := p.exchange(); words != "" {
		ranks += "; " + words
	}
	each := fmt.Sprintf("micro-batches of %d × accumulate %d × %d %sranks", c.Train.MicroBatch, c.Train.Accumulate, c.Parallel.DataRanks(), sharing(c))
	if !spec.Share(c).Even() {
		each = fmt.Sprintf("%d micro-batches of %d on %d %sranks, %d or %d each", c.Train.Batch/c.Train.MicroBatch, c.Train.MicroBatch, c.Parallel.DataRanks(), sharing(c), c.Train.Accumulate, c.Train.Accumulate-1)
	}
	return append([][2]string{
		{"model", fmt.Sprintf("%s, %s parameters", p.Model, show.Grouped(p.Parameters))},
		{"ranks", ranks},
		{"batch", fmt.Sprintf("%d sequences of %s tokens a step: %s", c.Train.Batch, show.Grouped(int64(c.Model.Context)), each)},
	}, spec.GroupRows(p.Groups)...)
}

// exchange describes what makes the exchange of divided experts slow; "" if nothing does.
func (p *Plan) exchange() string {
	c, m := p.Config, spec.Mesh(p.Config)
	var words []string
	if n, k := m.Expert, c.Model.Experts.Router.TopK; n > max(1, k) {
		words = append(words, fmt.Sprintf("experts exchange %.3g times the rows of an all-to-all", float64(n)/float64(k)))
	}
	if n := p.Machine.Job(c).At.HostRanks; m.Expert > 1 && n%m.Size(shard.Expert, shard.Context, shard.Tensor) != 0 {
		words = append(words, "experts are exchanged between hosts")
	}
	return strings.Join(words, ", ")
}

// sharing returns a prefix for "ranks" if some ranks share their data.
func sharing(c *spec.Job) string {
	if c.Parallel.DataRanks() < c.Parallel.Ranks {
		return "data "
	}
	return ""
}

// kindJSON is the JSON form of a place's plan.
type kindJSON struct {
	Kind       int              `json:"place"`
	Layers     string           `json:"layers,omitempty"`
	Parameters int64            `json:"parameters"`
	Allocated  int64            `json:"allocated"`
	By         map[string]int64 `json:"by_use"`
	AtPeak     int64            `json:"at_peak"`
	Peak       string           `json:"peak"`
	Sent       Sent             `json:"sent_bytes_a_step"`
}

func (p *Plan) kindsJSON() (all []kindJSON) {
	for _, x := range p.Kinds {
		by := map[string]int64{}
		for use, n := range x.Allocated {
			if n > 0 {
				by[device.Use(use).String()] = n
			}
		}
		layers := ""
		if !p.Config.Parallel.Master {
			layers = stageLayers(x)
		}
		all = append(all, kindJSON{x.Kind, layers, x.Parameters, x.Allocated.Total(), by, x.Peak.InUse.Total(), x.Peak.Name, x.By})
	}
	return all
}

// MarshalJSON encodes the plan. Sizes are whole bytes.
func (p *Plan) MarshalJSON() ([]byte, error) {
	c, mesh := p.Config, spec.Mesh(p.Config)
	pipeline, master := p.kindsJSON(), []kindJSON(nil)
	if c.Parallel.Master {
		pipeline, master = nil, pipeline
	}
	return json.Marshal(struct {
		Model      string         `json:"model"`
		Parameters int64          `json:"parameters"`
		Groups     []spec.Grouped `json:"groups,omitempty"`
		Ranks      int            `json:"ranks"`
		Shard      int            `json:"shard"`
		Replicate  int            `json:"replicate"`
		Stage      int            `json:"stage"`
		Precision  string         `json:"precision"`
		Recompute  string         `json:"recompute"`
		MicroBatch int            `json:"micro_batch"`
		Accumulate int            `json:"accumulate"`
		Context    int            `json:"context"`
		Allocated  int64          `json:"allocated"`
		AtRest     int64          `json:"at_rest"`
		AtPeak     int64          `json:"at_peak"`
		Peak       string         `json:"peak"`
		Saved      float64        `json:"saved_per_token_and_layer"`
		Padding    int64          `json:"padding"`
		Categories []Row          `json:"categories"`
		Outside    []Estimate     `json:"outside,omitempty"`
		Memory     int64          `json:"memory,omitempty"`
		Verdict    string         `json:"verdict,omitempty"`
		Host       int64          `json:"host,omitempty"`
		Disk       int64          `json:"disk,omitempty"`
		Sent       int64          `json:"sent_bytes_a_step"`
		Pipeline   []kindJSON     `json:"pipeline,omitempty"`
		Master     []kindJSON     `json:"master,omitempty"` // rank 0 and one other rank
		Simulated  *Step          `json:"simulated,omitempty"`
	}{
		p.Model, p.Parameters, p.Groups, mesh.World(), mesh.Shard, mesh.Replicate, c.Zero.Stage, c.Precision.String(), c.Zero.Recompute,
		c.Train.MicroBatch, c.Train.Accumulate, c.Model.Context,
		p.Allocated.Total(), p.AtRest.Total(), p.Peak.InUse.Total(), p.Peak.Name, p.Saved, p.Padding, p.Rows(), p.Outside, p.Machine.Memory, p.verdict(), p.Host.Total(), p.Disk, p.Sent, pipeline, master, p.Simulated,
	})
}
