package fit

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"zeroth/device"
	"zeroth/input"
	"zeroth/job/config"
	"zeroth/job/plan"
	"zeroth/job/setup"
	"zeroth/job/sim"
	"zeroth/offload"
	"zeroth/optim"
	"zeroth/shard"
)

// Limits describes the available resources.
type Limits struct {
	Ranks  int       `json:"ranks"`
	Memory int64     `json:"memory"` // bytes per rank's device
	Host   int64     `json:"host"`   // bytes of host memory per rank; 0: no offloading
	Disk   int64     `json:"disk"`   // bytes of disk per rank; 0: no offloading to disk
	GPU    bool      `json:"gpu"`
	Rates  sim.Rates `json:"rates"`

	Hardware *sim.Hardware `json:"hardware,omitempty"` // hardware on which listed choices are simulated; nil: no simulation
}

// machine returns the machine for which a choice is planned. Processes are only set for GPUs on
// several hosts of known hardware.
func (l Limits) machine(c *config.Config) plan.Machine {
	m := plan.Machine{GPU: l.GPU, Memory: l.Memory}
	if l.GPU && l.Hardware != nil {
		if s := l.Hardware.Spread(c); s.Hosts > 1 {
			m.Spread = s
		}
	}
	return m
}

// Choice is a way to set a job, with its requirements and its cost.
type Choice struct {
	Config    *config.Config
	Sets      []string // settings that differ from the job's, as arguments of --set
	Needs     setup.Footprint
	Low, High int64 // estimates of memory outside the allocator, bytes
	Cost      sim.Cost
	Exact     bool        // Needs comes from a dry run
	Simulated *sim.Result // nil: not simulated

	limits Limits
	least  int     // percentage of the optimizer state that must be offloaded; 0: not searched, or nothing fits
	whole  float64 // simulated seconds of a step that offloads all optimizer state

	flops      float64 // of the model in a step, mean of a pipeline's ranks; 0: not weighed
	hostUpdate float64 // seconds of the host's kernels alone; only set on known hardware by weigh
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
	return max(c.lacks(), c.lacksBeside())
}

// lacks returns the bytes missing on the device.
func (c *Choice) lacks() int64 {
	low, _ := c.Free()
	return -low
}

// lacksBeside returns the bytes missing on the host or the disk, whichever lacks more.
func (c *Choice) lacksBeside() int64 {
	return max(c.Needs.Host.Total()-c.limits.Host, c.Needs.Disk-c.limits.Disk)
}

// Binding returns the largest category of the resource that is most exceeded, with its name in
// JSON output, and its bytes.
func (c *Choice) Binding() (what string, bytes int64) { return c.binding(device.Use.String) }

// binding is like Binding, with category names from name.
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

// Result lists the settings of a job that fit.
type Result struct {
	Limits Limits
	Job    *Choice   // as the job is set
	Fits   []*Choice // the fastest of each way, fastest first
	Others []*Choice // ways that do not fit, each with the choice that lacks least
	Tried  int
}

// way distinguishes the choices that are listed separately.
type way struct {
	piped, chunked, divided      bool
	stage                        int
	recompute, optimizer, params string
}

func (c *Choice) way() way {
	z, p := c.Config.Zero, c.Config.Parallel
	return way{p.Pipeline > 1, p.Context > 1, p.Tensor > 1, z.Stage, z.Recompute, z.Offload.Optimizer, z.Offload.Parameters}
}

// listed bounds the ways of each sort in an answer.
const listed = 8

// Search searches over divisions of the model, stages, shard groups, micro-batches, recomputation,
// prefetch, loss chunks, and offloading and its ratio. It uses dry runs of a few layers, then
// makes full dry runs of the choices that it returns. On known hardware it also simulates them,
// within a budget of seconds. It preserves the sequences per step if the ranks divide them,
// otherwise the sequences per rank.
func Search(c *config.Config, l Limits) (*Result, error) {
	if err := searchable(c); err != nil {
		return nil, err
	}
	s, err := newSearch(c, l)
	if err == nil && l.Hardware != nil {
		err = s.divide()
	}
	if err == nil && l.Hardware != nil && l.Host > 0 && !slices.ContainsFunc(s.all, (*Choice).Fits) {
		s.offloading = true
		err = s.divide()
	}
	if err != nil {
		return nil, err
	}
	f := &Result{Limits: l, Tried: len(s.all)}
	if f.Job, err = s.choice(s.job); err != nil {
		return nil, err
	}
	if err := s.answer(f); err != nil {
		return nil, err
	}
	if err := s.tune(f.Fits); err != nil {
		return nil, err
	}
	slices.SortStableFunc(f.Fits, order)
	return f, nil
}

// answer adds the best choice of each way to the result. It measures their exact needs and
// simulates them in order of speed, within the budget.
func (s *search) answer(f *Result) error {
	best := map[way]*Choice{}
	for _, x := range s.all {
		if b := best[x.way()]; b == nil || better(x, b) {
			best[x.way()] = x
		}
	}
	for _, x := range best {
		if err := s.weigh(x); err != nil {
			return err
		}
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
	all := slices.Concat([]*Choice{f.Job}, f.Fits, f.Others)
	affordable, left := make([]bool, len(all)), mostPasses
	for i, x := range all {
		if n := x.passes(); n <= left {
			affordable[i], left = true, left-n
		}
	}
	longest := make([]int, len(all)) // simulated first, so that none is left for one processor
	for i := range longest {
		longest[i] = i
	}
	slices.SortStableFunc(longest, func(a, b int) int { return all[b].passes() - all[a].passes() })
	return each(len(all), func(i int) error {
		i = longest[i]
		err := s.dryRun(all[i], affordable[i])
		if fit := i - 1; err == nil && s.limits.Hardware != nil && fit >= 0 && fit < len(f.Fits) {
			f.Fits[fit], err = s.refine(all[i])
		}
		return err
	})
}

// mostPasses bounds the module passes simulated for an answer, to limit it to seconds.
const mostPasses = 24_000

// passes returns the number of module passes in a simulation of the choice.
func (c *Choice) passes() int {
	n, _ := sim.Few(c.Config)
	if n < c.Config.Train.Accumulate {
		n *= 2
	}
	return n * (c.Config.Model.Layers + 2)
}

// refine returns the choice with the shard group size of the shortest simulated step, searching
// outward from its own size. It skips pipelines, which take too long to simulate repeatedly.
func (s *search) refine(c *Choice) (*Choice, error) {
	sizes := divisors(c.Config.Parallel.DataRanks())
	at := slices.Index(sizes, c.Config.Parallel.Shard)
	if c.Simulated == nil || c.Config.Parallel.Pipeline > 1 || c.Config.Zero.Stage == 0 {
		return c, nil
	}
	for _, step := range []int{-1, 1} {
		for next := at + step; next > 0 && next < len(sizes); next += step {
			x := c.Config.Copy()
			x.Parallel.Shard, x.Parallel.Replicate = sizes[next], x.Parallel.DataRanks()/sizes[next]
			y, err := s.choice(x)
			if err == nil && y.Fits() {
				err = s.dryRun(y, true)
			}
			if err != nil {
				return nil, err
			}
			if !y.Fits() || order(y, c) >= 0 {
				break
			}
			c = y
		}
	}
	return c, nil
}

// searchable returns an error for a job with a master, or a model with too many layers to search.
func searchable(c *config.Config) error {
	if c.Parallel.Master {
		return input.BadInput(fmt.Errorf("%v: parallel.master is true: fit only searches settings without a master, which are all faster; want false, or use plan for this job", c.Position("parallel.master")))
	}
	if n := len(config.Network(c).Modules) - 2; n > fitLayers {
		return input.BadInput(fmt.Errorf("%v: %d layers: fit supports at most %d; use plan to see what a single setting needs", c.Position("model.layers"), n, fitLayers))
	}
	return nil
}

// Seconds returns the duration of a step, simulated if available, otherwise estimated.
func (c *Choice) Seconds() float64 {
	if c.Simulated != nil {
		return c.Simulated.Seconds
	}
	return c.Cost.Seconds()
}

// better reports whether a is preferable: fitting choices by speed, others by the least memory
// missing.
func better(a, b *Choice) bool {
	switch {
	case a.Fits() != b.Fits():
		return a.Fits()
	case a.Fits():
		return order(a, b) < 0
	}
	return a.over() < b.over()
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

// dryRun weighs a choice and replaces its estimated needs by those of a full dry run. If asked
// to, it also simulates it.
func (s *search) dryRun(c *Choice, simulate bool) error {
	if err := s.weigh(c); err != nil {
		return err
	}
	needs, err := setup.DryRun(c.limits.machine(c.Config).Job(c.Config))
	if err != nil {
		return err
	}
	if c.Needs, c.Exact = needs, true; s.limits.GPU {
		c.Needs.Device[device.Workspace] = 0
	}
	if !simulate {
		return nil
	}
	return c.simulate()
}

// search is the state of one call of Search.
type search struct {
	limits    Limits
	job       *config.Config // on the available ranks
	whole     *layers
	updates   float64 // operations of whole-matrix updates, over all ranks
	undivided bool    // micro-batches are fixed

	offloading bool // allow offloading with other divisions, because nothing fits without

	networks memo[[2]int, *layers]
	piped    memo[pipelineKey, []*pipelineRank]
	profiles memo[profileKey, []passing]
	clocks   memo[clockKey, float64]
	kept     memo[unitKey, measured]
	passes   memo[passKey, measured]
	runs     memo[runKey, measured]
	cuts     memo[cutKey, []offload.Unit]
	all      []*Choice
}

// bare returns a search that has not tried anything yet.
func bare(c *config.Config, l Limits) (*search, error) {
	s := &search{limits: l, job: on(c, l.Ranks)}
	one := s.job.Copy()
	one.Parallel.Context, one.Parallel.Tensor = 1, 1
	var err error
	if s.whole, err = s.network(one); err != nil {
		return nil, err
	}
	rules := setup.Rules(c)
	for _, u := range s.whole.model.Units() {
		for _, p := range u.Params {
			if r, ok := rules[p.Rule].(optim.Whole); ok && !p.Frozen {
				s.updates += r.Flops(p.Shape[0], p.Shape[1])
			}
		}
	}
	return s, nil
}

// network returns the layers of the job, with matrices and positions divided as in the choice.
func (s *search) network(x *config.Config) (*layers, error) {
	m := config.Mesh(x)
	return s.networks.get([2]int{m.Size(shard.Context), m.Size(shard.Tensor)}, func() (*layers, error) { return layersOf(x) })
}

// pipelineKey contains everything that the places of a choice's pipeline depend on.
type pipelineKey struct {
	pipeline, virtual, context, tensor int
	recompute                          string
}

// pipelineRanks returns the distinct places of the choice's pipeline.
func (s *search) pipelineRanks(x *config.Config) ([]*pipelineRank, error) {
	m := config.Mesh(x)
	k := pipelineKey{x.Parallel.Pipeline, x.Pipeline.Virtual, m.Size(shard.Context), m.Size(shard.Tensor), x.Zero.Recompute}
	return s.piped.get(k, func() ([]*pipelineRank, error) {
		l, err := s.network(x)
		if err != nil {
			return nil, err
		}
		return pipelineRanksOf(x, l, s.whole.model), nil
	})
}

func newSearch(c *config.Config, l Limits) (*search, error) {
	s, err := bare(c, l)
	if err == nil {
		err = s.run(true)
	}
	return s, err
}

// run measures all settings of the job. If a setting must offload part of its optimizer state, it
// also measures the smallest such part. With all, it weighs the settings that fit; otherwise it
// stops at the first that fits.
func (s *search) run(all bool) error {
	var ways []*config.Config
	s.each(func(x config.Config) { ways = append(ways, &x) })
	tried, found := make([][]*Choice, len(ways)), atomic.Bool{}
	err := each(len(ways), func(i int) error {
		if found.Load() && !all {
			return nil
		}
		c, err := s.choice(ways[i])
		if err != nil {
			return err
		}
		tried[i] = []*Choice{c}
		least, err := s.least(c)
		if err != nil {
			return err
		}
		if least != nil && least.Config.Zero.Offload.Ratio != c.Config.Zero.Offload.Ratio {
			tried[i] = append(tried[i], least)
		}
		for _, x := range tried[i] {
			if !x.Fits() {
				continue
			}
			if found.Store(true); all {
				err = cmp.Or(err, s.weigh(x))
			}
		}
		return err
	})
	s.all = slices.Concat(tried...)
	return err
}

// on returns the job on the given ranks in one shard group, with its model divided as before if
// possible.
func on(c *config.Config, ranks int) *config.Config {
	if ranks == c.Parallel.Ranks {
		return c.Copy()
	}
	x := c.Copy()
	if x.Parallel.Ranks = ranks; ranks%(c.Parallel.Ranks/c.Parallel.DataRanks()) != 0 {
		x.Parallel.Pipeline, x.Parallel.Context, x.Parallel.Tensor = 1, 1, 1
	}
	data := x.Parallel.DataRanks()
	x.Parallel.Shard, x.Parallel.Replicate = data, 1
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

func (s *search) choice(x *config.Config) (*Choice, error) {
	needs, err := s.needs(x)
	if err != nil {
		return nil, err
	}
	c := &Choice{Config: x, Needs: needs, limits: s.limits}
	c.Low, c.High = plan.Sum(plan.Outside(x, s.limits.machine(x)))
	c.Sets = differs(s.job, x)
	return c, nil
}

// differs returns the keys set differently in x, as arguments of --set.
func differs(c *config.Config, x *config.Config) (sets []string) {
	for _, k := range []struct {
		key     string
		is, was any
	}{
		{"zero.stage", x.Zero.Stage, c.Zero.Stage},
		{"parallel.pipeline", x.Parallel.Pipeline, c.Parallel.Pipeline},
		{"pipeline.schedule", schedule(x), schedule(c)},
		{"pipeline.virtual", virtual(x), virtual(c)},
		{"pipeline.layers", staged(x), staged(c)},
		{"parallel.context", x.Parallel.Context, c.Parallel.Context},
		{"parallel.tensor", x.Parallel.Tensor, c.Parallel.Tensor},
		{"parallel.shard", x.Parallel.Shard, c.Parallel.Shard},
		{"parallel.replicate", x.Parallel.Replicate, c.Parallel.Replicate},
		{"train.micro_batch", x.Train.MicroBatch, c.Train.MicroBatch},
		{"train.accumulate", x.Train.Accumulate, c.Train.Accumulate},
		{"zero.recompute", x.Zero.Recompute, c.Zero.Recompute},
		{"zero.prefetch", x.Zero.Prefetch, c.Zero.Prefetch},
		{"train.loss_chunk", x.Train.LossChunk, c.Train.LossChunk},
		{"zero.offload.optimizer", x.Zero.Offload.Optimizer, c.Zero.Offload.Optimizer},
		{"zero.offload.parameters", x.Zero.Offload.Parameters, c.Zero.Offload.Parameters},
		{"zero.offload.ratio", x.Zero.Offload.Ratio, c.Zero.Offload.Ratio},
		{"zero.offload.path", x.Zero.Offload.Path, c.Zero.Offload.Path},
	} {
		if k.is != k.was {
			sets = append(sets, fmt.Sprintf("%s=%v", k.key, k.is))
		}
	}
	return sets
}

// schedule returns the job's schedule, "null" without a pipeline.
func schedule(c *config.Config) any {
	if c.Parallel.Pipeline == 1 {
		return "null"
	}
	return c.Pipeline.Schedule
}

// staged returns the layers of each stage if the job sets them, else "null".
func staged(c *config.Config) any {
	if len(c.Pipeline.Layers) == 0 {
		return "null"
	}
	return fmt.Sprint(c.Pipeline.Layers)
}

// virtual returns the stages per rank, "null" if the schedule implies them.
func virtual(c *config.Config) any {
	if c.Parallel.Pipeline == 1 || c.Pipeline.Virtual == 1 {
		return "null"
	}
	return c.Pipeline.Virtual
}

// Limits of a search for settings.
const (
	fitLayers = 1000 // layers of a model to search
	fitMicros = 32   // micro-batch sizes to try
)
