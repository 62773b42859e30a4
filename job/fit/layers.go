package fit

import (
	"encoding/binary"
	"fmt"
	"slices"

	"zeroth/fsdp"
	"zeroth/job/config"
	"zeroth/job/setup"
	"zeroth/job/sim"
	"zeroth/nn"
	"zeroth/zero"
)

// layers is a network and the kinds of its modules. Modules of one kind have the same parameters,
// issue the same kernels and need the same memory. The first and the last module and modules that
// share a unit are kinds of their own.
type layers struct {
	model *nn.Model // a rank's part if matrices are divided
	kind  []int     // of each module
	first []int     // first module of each kind
	even  bool      // inner modules have units of equal lengths
}

// layersOf compares the modules of the job's network by a dry run of all of them.
func layersOf(c *config.Config) (*layers, error) {
	m := config.Part(c, 0, c.Parallel.Tensor)
	p, err := profiled(unpiped(c), m)
	if err != nil {
		return nil, err
	}
	l := &layers{model: m, even: true}
	lengths, shared := make([][]int, len(m.Modules)), map[string]bool{}
	for _, u := range m.Units() {
		n := 0
		for _, x := range u.Params {
			n += x.Numel()
			p.modules[u.First] = fmt.Append(p.modules[u.First], x.Shape, x.Frozen, x.Rule)
		}
		shared[u.Name] = u.First != u.Last
		lengths[u.First] = append(lengths[u.First], n)
	}
	last, seen := len(m.Modules)-1, map[string]int{}
	for i, does := range p.modules {
		if i == 0 || i == last || slices.ContainsFunc(m.Uses[i], func(u nn.Use) bool { return shared[u.Unit] }) {
			does = fmt.Append(does, "module ", i)
		}
		does = fmt.Append(does, nn.ParamIndices(m.Uses[i]))
		if _, ok := seen[string(does)]; !ok {
			seen[string(does)] = len(seen)
			l.first = append(l.first, i)
		}
		l.kind = append(l.kind, seen[string(does)])
		l.even = l.even && (i == 0 || i == last || slices.Equal(lengths[i], lengths[1]))
	}
	return l, nil
}

// alone returns the job on one copy of the model, without offloading and with micro-batches of one
// sequence. The work of a module in it depends on nothing else.
func alone(c *config.Config) *config.Config {
	x := c.Copy()
	x.Parallel.Ranks, x.Parallel.Shard, x.Parallel.Replicate = c.Parallel.Ranks/c.Parallel.DataRanks(), 1, 1
	x.Zero.Stage, x.Zero.Prefetch, x.Zero.Recompute = 0, 0, "none"
	x.Zero.Offload.Optimizer, x.Zero.Offload.Parameters = "none", "none"
	x.Train.MicroBatch, x.Train.Accumulate, x.Train.LossChunk = 1, 1, x.Model.Context
	return x
}

// unpiped returns the job alone, without a pipeline.
func unpiped(c *config.Config) *config.Config {
	x := c.Copy()
	x.Parallel.Ranks, x.Parallel.Pipeline, x.Pipeline.Layers = c.Parallel.Ranks/c.Parallel.Pipeline, 1, nil
	return alone(x)
}

// passing is the work of a module for a micro-batch: operations, and seconds on the compute queue.
type passing struct {
	ops                        sim.Operations
	forward, backward, weights float64 // weights is the part of backward that ZBH1 defers
}

func (p passing) plus(o passing) passing {
	return passing{p.ops.Plus(o.ops, 1), p.forward + o.forward, p.backward + o.backward, p.weights + o.weights}
}

// profiled makes a dry run of a job without a pipeline, with the given network.
func profiled(c *config.Config, m *nn.Model) (*profiler, error) {
	p := &profiler{modules: make([][]byte, len(m.Modules)), ops: make([]sim.Operations, len(m.Modules))}
	t, _, _, err := setup.DryRank(setup.Planned(config.Standing(c, m)), 0, func(z *zero.Config) {
		p.recording = sim.RecordAll(z)
		z.Listener = p
	})
	if err == nil {
		t.DryRun()
	}
	return p, err
}

// profiler records the work of each module in a step.
type profiler struct {
	recording *sim.Recording
	modules   [][]byte
	ops       []sim.Operations
	passes    []modulePass
	before    sim.Operations // at the beginning of the pass
	tasks     int            // of the compute queue at the beginning of the pass
	floor     int            // bytes of the arena in use at the beginning of the pass
	now       int            // and now
	heights   []byte
}

// modulePass is a pass of a module and its tasks [from, to) on the compute queue.
type modulePass struct {
	op             fsdp.Op
	step, from, to int
}

// Event implements fsdp.Listener.
func (p *profiler) Event(e fsdp.Event) {
	p.recording.Event(e)
	if e.Step < 0 {
		return
	}
	tasks := p.recording.Queues[0].Tasks
	if !e.Done {
		p.tasks, p.floor, p.heights, p.before = len(tasks), p.now, p.heights[:0], p.recording.Operations
		return
	}
	p.ops[e.Step] = p.ops[e.Step].Plus(p.recording.Operations, 1).Plus(p.before, -1)
	p.passes = append(p.passes, modulePass{e.Op, e.Step, p.tasks, len(tasks)})
	does := append(binary.AppendVarint(p.modules[e.Step], int64(e.Op)), p.heights...)
	for _, t := range tasks[p.tasks:] {
		does = binary.AppendVarint(does, int64(t.Kernel))
	}
	p.modules[e.Step] = does
}

// Arena implements fsdp.Listener.
func (p *profiler) Arena(_ int, _ string, height int) {
	p.now, p.heights = height, binary.AppendVarint(p.heights, int64(height-p.floor))
}

// with returns the network of only the given modules.
func (l *layers) with(modules []int) *nn.Model {
	m := *l.model
	m.Modules, m.Uses = make([]nn.Module, 0, len(modules)), make([][]nn.Use, 0, len(modules))
	for _, i := range modules {
		m.Modules, m.Uses = append(m.Modules, l.model.Modules[i]), append(m.Uses, l.model.Uses[i])
	}
	return &m
}

// pipelineRank is a place of a pipeline: modules of a network, in chunks.
type pipelineRank struct {
	*layers
	at      int
	modules []int  // indices in the network
	chunks  []int  // number of modules per chunk
	units   []int  // units that each module is the first to use here
	count   int    // units
	alike   string // equal for places that are equal except for at
}

// pipelineRanksOf returns the distinct places of the job's pipeline. Of equal places it returns the
// first, which has the most micro-batches in flight. The layers may be parts of whole's divided
// matrices.
func pipelineRanksOf(c *config.Config, l *layers, whole *nn.Model) (all []*pipelineRank) {
	begins := []int{0}
	if c.Parallel.Pipeline > 1 {
		begins = config.Begins(config.Standing(c, whole))
	}
	begins = append(begins, len(l.kind))
	seen := map[string]bool{}
	for at := range c.Parallel.Pipeline {
		p, used := &pipelineRank{layers: l, at: at}, map[string]bool{}
		for s := at; s+1 < len(begins); s += c.Parallel.Pipeline {
			p.chunks = append(p.chunks, begins[s+1]-begins[s])
			for i := begins[s]; i < begins[s+1]; i++ {
				n := len(used)
				for _, u := range l.model.Uses[i] {
					used[u.Unit] = true
				}
				p.modules, p.units = append(p.modules, i), append(p.units, len(used)-n)
			}
		}
		p.count, p.alike = len(used), fmt.Sprint(p.chunks, p.tokens(len(used)))
		if !seen[p.alike] {
			seen[p.alike], all = true, append(all, p)
		}
	}
	return all
}

// short returns the job with only some of the place's modules in each of its chunks, and no layers
// at the other places.
func (p *pipelineRank) short(c *config.Config, chunks ...[]int) *config.Config {
	x, last := c.Copy(), len(p.kind)-1
	modules := []int{0}
	x.Pipeline.Layers = make([]int, len(chunks)*c.Parallel.Pipeline)
	for i, chunk := range chunks {
		for _, at := range chunk {
			if m := p.modules[at]; m > 0 && m < last {
				modules = append(modules, m)
				x.Pipeline.Layers[i*c.Parallel.Pipeline+p.at]++
			}
		}
	}
	if modules = append(modules, last); c.Parallel.Pipeline == 1 {
		x.Pipeline.Layers, modules = nil, modules[:0]
		for _, at := range chunks[0] {
			modules = append(modules, p.modules[at])
		}
	}
	return config.Standing(x, p.with(modules))
}

// token identifies modules that are alike: their kind, and how many of their units have optimizer
// state on the device.
type token struct{ kind, onDevice int }

// tokens returns the tokens of the place's modules if units from first on are updated on the host.
func (p *pipelineRank) tokens(first int) []token {
	all := make([]token, len(p.modules))
	for i, m := range p.modules {
		all[i] = token{p.kind[m], min(first, p.units[i])}
		first -= all[i].onDevice
	}
	return all
}

// stretch is a repeating sequence of modules.
type stretch struct{ at, period, reps int }

// stretches returns the parts of a sequence that repeat more than least times, in order.
func stretches(all []token, least int) []stretch {
	best := longest(all, least)
	if best.reps == 0 {
		return nil
	}
	end := best.at + best.period*best.reps
	list := append(stretches(all[:best.at], least), best)
	for _, s := range stretches(all[end:], least) {
		s.at += end
		list = append(list, s)
	}
	return list
}

// longestPeriod bounds the period of a stretch, in modules.
const longestPeriod = 16

// longest returns the stretch from which most modules can be omitted, without repetitions if there
// is none.
func longest(all []token, least int) (best stretch) {
	saved := 0
	for period := 1; period <= longestPeriod && period*(least+1) <= len(all); period++ {
		same := 0 // consecutive modules equal to those a period before
		for i := period; i < len(all); i++ {
			if all[i] != all[i-period] {
				same = 0
				continue
			}
			same++
			if reps := same/period + 1; (reps-least)*period > saved {
				saved, best = (reps-least)*period, stretch{i + 1 - same - period, period, reps}
			}
		}
	}
	return best
}

// shorter returns the modules of a sequence of length n in which each stretch is cut to the given
// repetitions.
func shorter(n int, list []stretch, reps []int) (modules []int) {
	next := 0
	for i, s := range list {
		for ; next < s.at+s.period*reps[i]; next++ {
			modules = append(modules, next)
		}
		next = s.at + s.period*s.reps
	}
	for ; next < n; next++ {
		modules = append(modules, next)
	}
	return modules
}
