package forecast

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"zeroth/config"
	"zeroth/device"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/spec"
)

// Limits describes the available resources.
type Limits struct {
	Ranks  int   `json:"ranks"`
	Memory int64 `json:"memory"` // bytes per rank's device
	Host   int64 `json:"host"`   // bytes of host memory per rank; 0: no offloading
	Disk   int64 `json:"disk"`   // bytes of disk per rank; 0: no offloading to disk
	GPU    bool  `json:"gpu"`

	Hardware *Hardware `json:"hardware,omitempty"` // on which settings are simulated; nil: rough, so that only ratios of times are meaningful
}

// rough is the hardware of unknown machines.
var rough = &Hardware{
	Name: "rough", Flops: map[string]float64{"fp32": 1e11, "bf16": 1e11, "fp16": 1e11}, Memory: 1e10,
	Links: []Link{{Bandwidth: 5e9}}, HostLink: 5e9, HostMemory: 1e10, Disk: 1e9,
}

// hardware returns the hardware to simulate.
func (l Limits) hardware() *Hardware { return cmp.Or(l.Hardware, rough) }

// machine returns the machine for which a choice is planned. Processes are only set for GPUs on
// several hosts of known hardware.
func (l Limits) machine(c *spec.Job) Machine {
	m := Machine{GPU: l.GPU, Memory: l.Memory}
	if l.GPU && l.Hardware != nil {
		if s := l.Hardware.Spread(c); s.Hosts > 1 {
			m.Spread = s
		}
	}
	return m
}

// Choice is a way to set a job, with what a dry run of it needs and the time of a simulated step.
type Choice struct {
	Config    *spec.Job
	Sets      []string // settings that differ from the job's, as arguments of --set
	Needs     setup.Footprint
	Low, High int64 // estimates of memory outside the allocator, bytes
	Simulated *Step // nil: not simulated, because it does not fit or has too many tasks

	limits Limits
	least  int     // percentage of the optimizer state that must be offloaded; 0: unknown
	whole  float64 // simulated seconds of a step that offloads all optimizer state; 0: unknown
}

// Free returns the remaining device memory at worst and at best, in bytes.
func (c *Choice) Free() (low, high int64) {
	free := c.limits.Memory - c.Needs.Device.Total()
	return free - c.High, free - c.Low
}

// Fits reports whether the choice fits in any case.
func (c *Choice) Fits() bool { return c.over() <= 0 }

// over returns the bytes missing on the device, the host or the disk, whichever lacks most. The
// choice fits if the result is not positive.
func (c *Choice) over() int64 {
	return max(c.lacks(), c.Needs.Host.Total()-c.limits.Host, c.Needs.Disk-c.limits.Disk)
}

// lacks returns the bytes missing on the device.
func (c *Choice) lacks() int64 {
	low, _ := c.Free()
	return -low
}

// binding returns the largest category of the resource that is most exceeded, with its name from name, and
// its bytes.
func (c *Choice) binding(name func(device.Use) string) (what string, bytes int64) {
	needs, where := c.Needs.Device, ""
	switch over := c.over(); {
	case over == c.lacks():
	case over == c.Needs.Host.Total()-c.limits.Host:
		needs, where = c.Needs.Host, " in host memory"
	default:
		return "the file on disk", c.Needs.Disk
	}
	bytes = slices.Max(needs[:])
	return name(device.Use(slices.Index(needs[:], bytes))) + where, bytes
}

// Settings lists the settings of a job that fit.
type Settings struct {
	Limits Limits
	Job    *Choice   // as the job is set
	Fits   []*Choice // the fastest of each way, fastest first
	Others []*Choice // ways that do not fit, each with the choice that lacks least
	Tried  int

	Command func(sets []string) string // the command to run with other settings, for people; nil: none
}

// way distinguishes the choices that are listed separately: divided in which dimensions, and with which stage,
// recomputation and offloading.
func (c *Choice) way() [8]any {
	z, p := c.Config.Zero, c.Config.Parallel
	return [...]any{p.Pipeline > 1, p.Context > 1, p.Tensor > 1, z.Stage, z.Recompute, z.Offload.Optimizer, z.Offload.Parameters, z.Offload.Activations}
}

// listed bounds the ways of each sort in an answer.
const listed = 8

// Search searches over divisions of the model, stages, shard groups, micro-batches, recomputation,
// prefetch, loss chunks, and offloading and its ratio. It keeps the sequences per step if the
// ranks divide them, otherwise the sequences per rank. No change of a single setting makes the
// first of Fits faster; see search.climb.
func Search(c *spec.Job, l Limits) (*Settings, error) {
	if err := searchable(c); err != nil {
		return nil, err
	}
	s := newSearch(c, l)
	job, err := s.measure(s.job)
	if err != nil {
		return nil, err
	}
	s.descend(job)
	f := &Settings{Limits: l, Job: job}
	best := map[[8]any]*Choice{}
	for _, x := range s.all() {
		f.Tried++
		if b := best[x.way()]; b == nil || s.compare(x, b) < 0 {
			best[x.way()] = x
		}
	}
	for _, x := range best {
		if x.Fits() {
			f.Fits = append(f.Fits, x)
		} else {
			f.Others = append(f.Others, x)
		}
	}
	slices.SortFunc(f.Fits, order)
	slices.SortFunc(f.Others, func(a, b *Choice) int { return cmp.Or(cmp.Compare(a.over(), b.over()), order(a, b)) })
	f.Fits = f.Fits[:min(listed, len(f.Fits))]
	f.Others = f.Others[:min(max(3, listed-len(f.Fits)), len(f.Others))]
	if len(f.Fits) > 0 {
		f.Fits[0] = s.tune(f.Fits[0])
	}
	return f, nil
}

// Possible reports whether any settings of a job fit.
func Possible(c *spec.Job, l Limits) bool {
	s := newSearch(c, l).quick
	x, err := s.measure(s.job)
	return searchable(c) == nil && err == nil && s.descend(x).Fits()
}

// searchable returns an error for a job with a master, or a model with too many layers to search.
func searchable(c *spec.Job) error {
	if c.Parallel.Master {
		return input.BadInput(fmt.Errorf("%v: parallel.master is true: fit only searches settings without a master, which are all faster; want false, or use plan for this job", c.Position("parallel.master")))
	}
	if n := len(spec.Network(c).Modules) - 2; n > fitLayers {
		return input.BadInput(fmt.Errorf("%v: %d layers: fit supports at most %d; use plan to see what a single setting needs", c.Position("model.layers"), n, fitLayers))
	}
	return nil
}

// Seconds returns the duration of a simulated step, infinity without one.
func (c *Choice) Seconds() float64 {
	if c.Simulated != nil {
		return c.Simulated.Seconds
	}
	return math.Inf(1)
}

// order compares choices by time. Times within a thousandth are equal and ordered by the number of
// changed settings, then by memory.
func order(a, b *Choice) int {
	if x, y := a.Seconds(), b.Seconds(); x < y*0.999 || y < x*0.999 {
		return cmp.Compare(x, y)
	}
	return cmp.Or(
		cmp.Compare(len(a.Sets), len(b.Sets)),
		cmp.Compare(a.Needs.Device.Total(), b.Needs.Device.Total()),
		slices.Compare(a.Sets, b.Sets))
}

// onRanks returns the job on the given ranks in one shard group, with its model divided as before if
// possible. Each rank gets as many sequences as the one with most.
func onRanks(c *spec.Job, ranks int) *spec.Job {
	if ranks == c.Parallel.Ranks && spec.Share(c).Even() {
		return c.Copy()
	}
	x := c.Copy()
	if x.Parallel.Ranks = ranks; ranks%(c.Parallel.Ranks/c.Parallel.DataRanks()) != 0 {
		x.Parallel.Pipeline, x.Parallel.Context, x.Parallel.Tensor = 1, 1, 1
		x.Pipeline = plain
	}
	data := x.Parallel.DataRanks()
	if data%max(1, x.Parallel.Expert) != 0 {
		x.Parallel.Expert = 1
	}
	x.Parallel.Shard, x.Parallel.Replicate = x.Parallel.Holders(), 1
	a := x.Train.MicroBatch * x.Train.Accumulate
	if b := c.Train.Batch; b%data == 0 {
		a = b / data
	}
	for x.Train.MicroBatch = min(a, x.Train.MicroBatch); a%x.Train.MicroBatch != 0; {
		x.Train.MicroBatch--
	}
	x.Train.Accumulate = a / x.Train.MicroBatch
	x.Train.Batch = a * data
	return x
}

// differs returns the keys set differently in x, as arguments of --set.
func differs(c *spec.Job, x *spec.Job) (sets []string) {
	is, was := pipelineOf(x), pipelineOf(c)
	for _, k := range []struct {
		key     string
		is, was any
	}{
		{"zero.stage", x.Zero.Stage, c.Zero.Stage},
		{"parallel.pipeline", x.Parallel.Pipeline, asked(c, "parallel.pipeline", c.Parallel.Pipeline)},
		{"pipeline.schedule", orNull(is.Schedule != "", is.Schedule), orNull(was.Schedule != "", was.Schedule)},
		{"pipeline.virtual", orNull(is.Virtual > 1, is.Virtual), orNull(was.Virtual > 1, was.Virtual)},
		{"pipeline.layers", orNull(len(x.Pipeline.Layers) > 0, fmt.Sprint(x.Pipeline.Layers)), orNull(len(c.Pipeline.Layers) > 0, fmt.Sprint(c.Pipeline.Layers))},
		{"parallel.context", x.Parallel.Context, asked(c, "parallel.context", c.Parallel.Context)},
		{"parallel.tensor", x.Parallel.Tensor, asked(c, "parallel.tensor", c.Parallel.Tensor)},
		{"parallel.expert", x.Parallel.Expert, c.Parallel.Expert},
		{"parallel.shard", x.Parallel.Shard, c.Parallel.Shard},
		{"parallel.replicate", x.Parallel.Replicate, c.Parallel.Replicate},
		{"train.micro_batch", x.Train.MicroBatch, c.Train.MicroBatch},
		{"train.accumulate", x.Train.Accumulate, c.Train.Accumulate},
		{"zero.recompute", x.Zero.Recompute, c.Zero.Recompute},
		{"optimizer.type", x.Optimizer.Type, c.Optimizer.Type},
		{"zero.prefetch", x.Zero.Prefetch, c.Zero.Prefetch},
		{"train.loss_chunk", x.Train.LossChunk, c.Train.LossChunk},
		{"train.mlp_chunk", x.Train.MLPChunk, c.Train.MLPChunk},
		{"zero.offload.optimizer", x.Zero.Offload.Optimizer, c.Zero.Offload.Optimizer},
		{"zero.offload.parameters", x.Zero.Offload.Parameters, c.Zero.Offload.Parameters},
		{"zero.offload.activations", x.Zero.Offload.Activations, c.Zero.Offload.Activations},
		{"zero.offload.ratio", x.Zero.Offload.Ratio, c.Zero.Offload.Ratio},
		{"zero.offload.path", x.Zero.Offload.Path, c.Zero.Offload.Path},
	} {
		if k.is != k.was {
			sets = append(sets, fmt.Sprintf("%s=%v", k.key, k.is))
		}
	}
	return sets
}

// asked returns the size that a job gives to a dimension of its mesh, 1 by default.
func asked(c *spec.Job, key string, size int) int {
	if c.Sets(key) {
		return size
	}
	return 1
}

// pipelineOf returns the stages of a job and their schedule, nothing without a pipeline.
func pipelineOf(c *spec.Job) config.Pipeline {
	if c.Parallel.Pipeline == 1 {
		return config.Pipeline{}
	}
	return c.Pipeline
}

// orNull returns the value of a key, "null" unless it is set.
func orNull(set bool, value any) any {
	if set {
		return value
	}
	return "null"
}

// fitLayers is the maximum number of a model's layers in a search.
const fitLayers = 1000
