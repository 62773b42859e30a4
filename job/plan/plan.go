package plan

import (
	"fmt"

	"zeroth/device"
	"zeroth/job/config"
	"zeroth/job/setup"
	"zeroth/job/show"
	"zeroth/job/sim"
	"zeroth/pipe"
	"zeroth/shard"
	"zeroth/zero"
)

// Category is what a rank's memory is used for: as device.Use has it, with the
// arena of activations told apart.
type Category uint8

// The categories; the table below has their names and what each is.
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
	TokenIDs
	Statistics
	OffloadStaging
	WireStaging
	CheckpointStaging
	BounceMemory
	Categories // number of categories
)

// Amounts is a number of bytes in each category.
type Amounts [Categories]int64

// Total is the sum over the categories.
func (a *Amounts) Total() (n int64) {
	for _, x := range a {
		n += x
	}
	return n
}

// category is a category's name for programs, its name for people, the
// allocation it is part of, and what to change to change it.
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
	TokenIDs:          {"inputs", "token ids", device.Inputs, "train.micro_batch"},
	Statistics:        {"stats", "losses and norms", device.Stats, "train.micro_batch, parallel.ranks"},
	OffloadStaging:    {"offload_staging", "offload staging", device.Staging, "zero.offload"},
	WireStaging:       {"wire_staging", "wire staging", device.Wires, "parallel.collective fast; one process"},
	CheckpointStaging: {"checkpoint_staging", "checkpoint staging", device.Snapshot, "checkpoint.async"},
	BounceMemory:      {"bounce", "bounce memory of collectives", device.Bounce, "ranks of a process, parallel.shard"},
}

func (c Category) String() string { return categories[c].name }

// MarshalText makes a category a key of JSON.
func (c Category) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// atRest is what is in use between steps: what has a value that the next step
// reads. Work space of kernels, staging and the like, of which no event tells,
// are always in use.
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

// Phase is what happens at an event of a step.
type Phase string

// The phases, in the words of the schedule's labels where it has some.
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

// Moment is the highest instant of an event.
type Moment struct {
	Phase Phase
	Unit  string
	Micro int    // the micro-batch, from 0; -1 after all of them
	Name  string // for people: "backward of h.31, before its reduce-scatter"
	InUse Amounts

	module  int  // index of the module that is called; -1 if none is
	reduces bool // a reduction comes after it, where gradients of its micro-batch are reduced
}

// Plan is what one rank of a job allocates and, event by event, uses of it.
type Plan struct {
	Config     *config.Config
	Machine    Machine
	Model      string           // "GPT-2 10.7M"
	Parameters int64            // of the model
	Place      int              // of the rank, among the job's
	Places     []*Plan          // of all places, where there are several: this is the one that allocates most
	Groups     []config.Grouped // of parameters, where the job has some
	Allocated  device.Bytes     // before step 1 and for good: what the device must have
	Host       device.Bytes     // of what is offloaded, in host memory
	Disk       int64            // bytes of what is offloaded, on disk
	Padding    int64            // bytes of Allocated without a meaning, on the rank that has most
	AtRest     Amounts          // in use between steps
	Peak       *Moment          // the highest, one of Timeline
	Timeline   []*Moment        // in the order of issue; of many micro-batches the first ones and the last
	Sent       int64            // bytes a rank sends in a step, flat or around rings, and by links
	By         Sent             // of which dimension
	Outside    []Estimate       // of what is not in Allocated
	Simulated  *sim.Result      // of a step's time; nil where none was asked for
	Measured   *Measured        // of a run; nil where there was none

	Lacks error // the job does not fit, as training it would say, or nil
}

// Machine is what a job is planned for.
type Machine struct {
	GPU    bool  // ranks are GPUs, whose kernels' work space is not the CPU's
	Memory int64 // bytes a rank's device has; 0: what parallel.memory says

	Spread setup.Spread // of the ranks over processes; zero: one
}

// Job is the job as the machine's processes would run it.
func (m Machine) Job(c *config.Config) *setup.Job {
	if m.Spread.Processes == 0 {
		return setup.Planned(c)
	}
	return m.Spread.Of(c)
}

// Sent is bytes by the dimension of the mesh in which they are sent.
type Sent struct {
	Shard     int64 `json:"shard"`
	Replicate int64 `json:"replicate"`
	Pipeline  int64 `json:"pipeline,omitempty"`
	Context   int64 `json:"context,omitempty"`
	Tensor    int64 `json:"tensor,omitempty"`
}

// New is a dry run of a step of the job on a device that only counts. It reads
// no data and allocates no memory.
func New(c *config.Config, m Machine) (*Plan, error) {
	micros := setup.FewMicro(c)
	if setup.Pipeline(c) > 1 {
		micros = c.Train.Accumulate // whose micro-batches are not alike
	}
	return plan(c, m, micros)
}

// plan is Plan by dry runs of at most so many micro-batches, three or more.
func plan(c *config.Config, m Machine, micros int) (*Plan, error) {
	var most *Plan
	var all []*Plan
	parameters := int64(0)
	for at := range setup.Places(c) {
		p, err := planAt(c, m, micros, at)
		if err != nil {
			return nil, err
		}
		if all, parameters = append(all, p), parameters+p.Parameters; most == nil || p.Allocated.Total() > most.Allocated.Total() {
			most = p
		}
	}
	if config.Mesh(c).World() == config.Mesh(c).DataRanks() && len(all) == 1 {
		return most, nil
	}
	whole := *most
	whole.Parameters = 0
	if len(all) > 1 {
		whole.Places = all
	}
	for _, p := range config.Parameters(c) {
		whole.Parameters += int64(p.Numel())
	}
	whole.Model = fmt.Sprintf("%s %s", config.Network(c).Name, show.Compact(float64(whole.Parameters)))
	return &whole, nil
}

// planAt is the plan of a rank at a place.
func planAt(c *config.Config, m Machine, micros, at int) (*Plan, error) {
	if m.Memory == 0 {
		m.Memory = c.Parallel.Memory
	}
	var w *Tracker
	t, dev, host, err := setup.DryRank(setup.Micros(m.Job(c), micros), at, func(z *zero.Config) { w = NewTracker(z) })
	if err != nil {
		return nil, err
	}
	f := setup.Footprint{Device: dev.Usage().Live, Host: host.Usage().Live, Disk: t.DiskBytes()}
	if m.GPU {
		f.Device[device.Workspace] = 0
	}
	w.Begin(f.Device)
	t.DryRun()
	w.extend(c.Train.Accumulate)
	f.Arena = t.ArenaPeak()
	p := &Plan{Config: c, Machine: m, Place: at, Allocated: f.Fitted().Device, Host: f.Host, Disk: f.Disk}
	p.AtRest, p.Timeline, p.By = atRest(p.Allocated), w.Moments, w.sent
	p.By.Pipeline = linked(c, at)
	p.Sent = p.By.Shard + p.By.Replicate + p.By.Pipeline + p.By.Context + p.By.Tensor
	for _, u := range t.Units() {
		p.Parameters += int64(u.Layout.Numel())
	}
	p.Groups = config.Groups(c)
	p.Model = fmt.Sprintf("%s %s", config.Network(c).Name, show.Compact(float64(p.Parameters)))
	p.Padding, p.Outside = padding(c, t), Outside(c, m)
	for _, m := range p.Timeline {
		m.Name = w.Name(m)
		if p.Peak == nil || m.InUse.Total() > p.Peak.InUse.Total() {
			p.Peak = m
		}
	}
	return p, nil
}

// linked is the bytes that a rank at a place of the pipeline sends to others in a step.
func linked(c *config.Config, at int) (bytes int64) {
	if setup.Pipeline(c) == 1 {
		return 0
	}
	rows := c.Train.MicroBatch * c.Model.Context / config.Mesh(c).Size(shard.Context, shard.Tensor)
	stream := int64(rows) * int64(config.Network(c).Width) * int64(c.Precision.Size())
	for _, a := range c.PipelineShape().Programs()[at] {
		if a.Kind == pipe.SendForward || a.Kind == pipe.SendBackward {
			bytes += stream
		}
	}
	return bytes
}

// padding is the bytes at the end of units that belong to no parameter. They
// are in the last shards.
func padding(c *config.Config, t *zero.Trainer) (bytes int64) {
	p := int64(c.Precision.Size())
	for _, u := range t.Units() {
		pad := int64(u.Layout.Len() - u.Layout.Numel())
		last := min(pad, int64(u.Layout.ShardLen()))
		params, grads, states := p*last, 4*last, int64(0)
		for _, t := range setup.Rules(c.Optimizer)[u.Rule].Types() {
			states += int64(t.Bytes(int(last)))
		}
		if c.Precision != device.F32 || u.ParamOffloaded || c.Train.Delayed {
			states += 4 * last
		}
		if u.ParamOffloaded {
			params = 0
		}
		if u.GradOffloaded {
			grads, states = 0, 0
		}
		if u.Whole() {
			params = p * pad
		}
		if c.Zero.Stage < 2 {
			grads = 4 * pad
		}
		if u.Frozen {
			grads, states = 0, 0
		}
		bytes += params + grads + states
	}
	return bytes
}

// Title is what people call an allocation.
func Title(u device.Use) string {
	if u == device.Activations {
		return "activations" // of several categories
	}
	for _, c := range categories {
		if c.use == u {
			return c.title
		}
	}
	return u.String()
}

// Use is the allocation a category is part of.
func (c Category) Use() device.Use { return categories[c].use }
