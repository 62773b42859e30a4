package forecast

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/zero"
)

// Category is a use of a rank's memory. It refines device.Use by dividing the arena of
// activations.
type Category uint8

// The categories; the table below has their names and descriptions.
const (
	Params Category = iota
	GatheredUnits
	Gradients
	UnitGradients
	MasterCopy
	OptimizerStates
	WholeUpdates
	SavedActivations
	Recomputed
	Logits
	WorkSpace
	KernelSpace
	Inputs
	Statistics
	OffloadStaging
	WireStaging
	CheckpointStaging
	BounceMemory
	Categories // number of categories
)

// Amounts is a number of bytes in each category.
type Amounts [Categories]int64

// Total returns the sum over the categories.
func (a *Amounts) Total() (n int64) {
	for _, x := range a {
		n += x
	}
	return n
}

// String lists the categories in use.
func (a Amounts) String() string {
	var words []string
	for c, n := range a {
		if n > 0 {
			words = append(words, categories[c].title+" "+show.ByteSize(n))
		}
	}
	return strings.Join(words, ", ")
}

// category has a category's name for programs, its title for people, its allocation, and the
// settings that change it.
type category struct {
	name, title string
	use         device.Use
	knob        string
}

var categories = [Categories]category{
	Params:            {"params", "parameters", device.Params, "zero.stage 3 shards them; parallel.shard, precision"},
	GatheredUnits:     {"gathered", "gathered units", device.Gathered, "zero.prefetch, precision"},
	Gradients:         {"grads", "sharded gradients", device.Grads, "parallel.shard"},
	UnitGradients:     {"unit_grads", "gradients of whole units", device.UnitGrads, "zero.stage 2 shards them; zero.prefetch"},
	MasterCopy:        {"master", "float32 master copy", device.Master, "zero.stage 1 shards it; parallel.shard, precision"},
	OptimizerStates:   {"optimizer", "optimizer states", device.States, "zero.stage 1 shards them; parallel.shard, optimizer.type"},
	WholeUpdates:      {"whole_updates", "updates of whole matrices", device.Updates, "zero.prefetch 0 has one unit at a time; optimizer.type"},
	SavedActivations:  {"saved_activations", "saved activations", device.Activations, "train.micro_batch, model.context, zero.recompute"},
	Recomputed:        {"recomputed", "recompute working set", device.Activations, "train.micro_batch, model.context"},
	Logits:            {"logits", "logits", device.Activations, "train.loss_chunk"},
	WorkSpace:         {"work", "work space of modules", device.Activations, "train.micro_batch, model.context"},
	KernelSpace:       {"kernels", "work space of kernels", device.Workspace, "the machine's processors for each rank"},
	Inputs:            {"inputs", "input batches", device.Inputs, "train.micro_batch"},
	Statistics:        {"stats", "losses and norms", device.Stats, "train.micro_batch, parallel.ranks"},
	OffloadStaging:    {"offload_staging", "offload staging", device.Staging, "zero.offload"},
	WireStaging:       {"wire_staging", "wire staging", device.Wires, "parallel.collective fast; one process"},
	CheckpointStaging: {"checkpoint_staging", "checkpoint staging", device.Snapshot, "checkpoint.async"},
	BounceMemory:      {"bounce", "bounce memory of collectives", device.Bounce, "ranks of a process, parallel.shard"},
}

func (c Category) String() string { return categories[c].name }

// MarshalText makes a category usable as a JSON key.
func (c Category) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// atRest returns the memory in use between steps, whose contents the next step reads. Categories
// without events, such as kernel work space and staging, are always in use.
func atRest(allocated device.Bytes) (a Amounts) {
	for c, x := range categories {
		switch x.use {
		case device.Activations, device.Gathered, device.Grads, device.UnitGrads:
		default:
			a[c] = allocated[x.use]
		}
	}
	return a
}

// Phase is the kind of an event of a step.
type Phase string

// The phases, named like the schedule's labels if there is one.
const (
	gathering   Phase = "all-gather"
	forward     Phase = "forward"
	recomputing Phase = "recompute"
	backward    Phase = "backward"
	reducing    Phase = "reduce-scatter"
	replicating Phase = "all-reduce"
	norming     Phase = "norm"
	updating    Phase = "update"
)

// Moment is the instant of an event with the highest memory use.
type Moment struct {
	Phase Phase
	Unit  string
	Micro int    // the micro-batch, from 0; -1 after all of them
	Name  string // for display: "backward of h.31, before its reduce-scatter"
	InUse Amounts

	module  int  // index of the module that is called, or -1
	reduces bool // a reduction follows, if gradients of its micro-batch are reduced
}

// Plan is the memory that one rank of a job allocates, and its use of it event by event.
type Plan struct {
	Config     *spec.Job
	Machine    Machine
	Model      string         // "GPT-2 10.7M"
	Parameters int64          // of the model
	Kind       int            // kind of the rank, below setup.RankKinds
	Kinds      []*Plan        // plans of all places if there are several; this is the one that allocates most
	Groups     []spec.Grouped // of parameters, if the job has groups
	Allocated  device.Bytes   // allocated before step 1 and never freed: the memory that the device must have
	Host       device.Bytes   // offloaded data in host memory
	Disk       int64          // offloaded data on disk, bytes
	Saved      float64        // bytes that a layer saves on a rank per token of its micro-batch, in Host with zero.offload.activations
	Padding    int64          // bytes of Allocated that are padding, on the rank with the most
	AtRest     Amounts        // in use between steps
	Peak       *Moment        // the highest moment of Timeline
	Timeline   []*Moment      // in order of issue; with many micro-batches only the first ones and the last
	Sent       int64          // bytes a rank sends in a step, directly or in rings, and over pipeline links
	By         Sent           // by dimension
	Outside    []Estimate     // of memory not in Allocated
	Simulated  *Step          // of the time of a step; nil if not simulated
	Measured   *Measured      // during a run; nil if there was none

	Lacks error // the error that training would return because the job does not fit, or nil
}

// String describes a rank's memory in a line. Print has more.
func (p *Plan) String() string {
	return fmt.Sprintf("%s: %s per rank, %s of host memory, %s of disk; at rest: %v", p.Model, show.ByteSize(p.Allocated.Total()), show.ByteSize(p.Host.Total()), show.ByteSize(p.Disk), p.AtRest)
}

// Machine is the machine that a job is planned for.
type Machine struct {
	GPU    bool  // ranks run on GPUs: no work space for CPU kernels
	Memory int64 // bytes of a rank's device; 0: parallel.memory

	Spread setup.Spread // of the ranks over processes; zero: one process
}

// Job returns the job as the machine's processes would run it.
func (m Machine) Job(c *spec.Job) *setup.Job {
	if m.Spread.Processes == 0 {
		return setup.Planned(c)
	}
	return m.Spread.Of(c)
}

// Sent is bytes sent by mesh dimension.
type Sent struct {
	Shard     int64 `json:"shard"`
	Replicate int64 `json:"replicate"`
	Pipeline  int64 `json:"pipeline,omitempty"`
	Context   int64 `json:"context,omitempty"`
	Tensor    int64 `json:"tensor,omitempty"`
	Expert    int64 `json:"expert,omitempty"`
}

// NewPlan plans a job by a dry run of a step on a device that only counts. It reads no data and
// allocates no memory.
func NewPlan(c *spec.Job, m Machine) (*Plan, error) {
	micros := setup.FewOf(c)
	if setup.Pipeline(c) > 1 {
		micros = c.Train.Accumulate // in a pipeline, each micro-batch takes other memory and operations
	}
	return plan(c, m, micros)
}

// plan is like NewPlan, with dry runs of at most micros micro-batches, three or more.
func plan(c *spec.Job, m Machine, micros int) (*Plan, error) {
	var most *Plan
	var all []*Plan
	for at := range setup.RankKinds(c) {
		p, err := planAt(c, m, micros, at)
		if err != nil {
			return nil, err
		}
		if all = append(all, p); most == nil || p.Allocated.Total() > most.Allocated.Total() {
			most = p
		}
	}
	whole := *most
	whole.Parameters = 0
	if len(all) > 1 {
		whole.Kinds = all
	}
	for _, p := range spec.Parameters(c) {
		whole.Parameters += int64(p.Numel())
	}
	return &whole, nil
}

// planAt returns the plan of a rank at a place.
func planAt(c *spec.Job, m Machine, micros, at int) (*Plan, error) {
	m.Memory = cmp.Or(m.Memory, c.Parallel.Memory)
	var w *Tracker
	d, err := setup.OpenDry(setup.Micros(m.Job(c), micros), at, func(z *zero.Config) { w = NewTracker(z) })
	if err != nil {
		return nil, err
	}
	t := d.Trainer
	w.Begin()
	t.DryRun()
	w.extend(c.Train.Accumulate)
	f := d.Footprint(t.ArenaPeak())
	if m.GPU {
		f.Device[device.Workspace] = 0
	}
	w.Rest(f.Device)
	p := &Plan{Config: c, Machine: m, Kind: at, Allocated: f.Device, Host: f.Host, Disk: f.Disk}
	p.AtRest, p.Timeline, p.By, p.Saved = atRest(p.Allocated), w.Moments, w.sent, t.KeptOfToken()
	for _, g := range d.Groups.Links {
		if g != nil {
			p.By.Pipeline += *g.(collective.Dry).Sent
		}
	}
	p.Sent = p.By.Shard + p.By.Replicate + p.By.Pipeline + p.By.Context + p.By.Tensor + p.By.Expert
	for _, u := range t.Units() {
		p.Parameters += int64(u.Parameters())
	}
	p.Groups = spec.Groups(c)
	p.Model = hf.Title(spec.Network(c))
	p.Padding, p.Outside = t.Padding(), Outside(c, m)
	for _, m := range p.Timeline {
		m.Name = w.Name(m)
		if p.Peak == nil || m.InUse.Total() > p.Peak.InUse.Total() {
			p.Peak = m
		}
	}
	return p, nil
}

// useTitle returns the display name of an allocation.
func useTitle(u device.Use) string {
	if u == device.Activations {
		return "activations" // comprises several categories
	}
	return categories[categoryOf(u)].title
}

// categoryOf returns the first category of an allocation.
func categoryOf(u device.Use) Category {
	return Category(slices.IndexFunc(categories[:], func(c category) bool { return c.use == u }))
}

// Use returns the allocation that contains the category.
func (c Category) Use() device.Use { return categories[c].use }
