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

// layers is a network by which of its modules are alike: they have the same
// parameters, issue the same kernels and take the same memory. The first and the
// last module, and any that share a unit, are like no other.
type layers struct {
	model *nn.Model
	kind  []int   // of each module
	first []int   // of each kind, the first module
	units [][]int // of each module: those that it is the first to use
	count int     // units
	even  bool    // the modules between the first and the last have units of equal lengths
}

// layersOf compares the modules of the job's network by a dry run of all of them.
func layersOf(c *config.Config) (*layers, error) {
	m := config.Network(c)
	p := &profiler{modules: make([][]byte, len(m.Modules))}
	t, _, _, err := setup.DryRank(setup.Planned(alone(config.Standing(c, m))), 0, func(z *zero.Config) {
		p.recording = sim.RecordAll(z)
		z.Listener = p
	})
	if err != nil {
		return nil, err
	}
	t.DryRun()
	l := &layers{model: m, units: make([][]int, len(m.Modules)), even: true}
	lengths, shared := make([][]int, len(m.Modules)), map[string]bool{}
	for i, u := range m.Units() {
		n := 0
		for _, x := range u.Params {
			n += x.Numel()
			p.modules[u.First] = fmt.Append(p.modules[u.First], x.Shape, x.Frozen, x.Rule)
		}
		shared[u.Name] = u.First != u.Last
		l.units[u.First], lengths[u.First], l.count = append(l.units[u.First], i), append(lengths[u.First], n), i+1
	}
	last, seen := len(m.Modules)-1, map[string]int{}
	for i, does := range p.modules {
		if i == 0 || i == last || slices.ContainsFunc(m.Uses[i], func(u nn.Use) bool { return shared[u.Unit] }) {
			does = fmt.Append(does, "module ", i)
		}
		does = fmt.Append(does, nn.Places(m.Uses[i]))
		if _, ok := seen[string(does)]; !ok {
			seen[string(does)] = len(seen)
			l.first = append(l.first, i)
		}
		l.kind = append(l.kind, seen[string(does)])
		l.even = l.even && (i == 0 || i == last || slices.Equal(lengths[i], lengths[1]))
	}
	return l, nil
}

// alone is the job on one rank, with micro-batches of one sequence and all of it on
// the device: what modules do in it depends on nothing else.
func alone(c *config.Config) *config.Config {
	x := c.Copy()
	x.Parallel.Ranks, x.Parallel.Shard, x.Parallel.Replicate = 1, 1, 1
	x.Zero.Stage, x.Zero.Prefetch, x.Zero.Recompute = 0, 0, "none"
	x.Zero.Offload.Optimizer, x.Zero.Offload.Parameters = "none", "none"
	x.Train.MicroBatch, x.Train.Accumulate, x.Train.LossChunk = 1, 1, x.Model.Context
	return x
}

// profiler writes down what each module does in a step.
type profiler struct {
	recording *sim.Recording
	modules   [][]byte
	tasks     int // of the compute queue when the pass began
	floor     int // bytes of the arena that were taken then,
	now       int // and are now
	heights   []byte
}

// Event implements fsdp.Listener.
func (p *profiler) Event(e fsdp.Event) {
	if e.Step < 0 {
		return
	}
	tasks := p.recording.Queues[0].Tasks
	if !e.Done {
		p.tasks, p.floor, p.heights = len(tasks), p.now, p.heights[:0]
		return
	}
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

// with is the network of some of the modules alone.
func (l *layers) with(modules []int) *nn.Model {
	m := *l.model
	m.Modules, m.Uses = make([]nn.Module, 0, len(modules)), make([][]nn.Use, 0, len(modules))
	for _, i := range modules {
		m.Modules, m.Uses = append(m.Modules, l.model.Modules[i]), append(m.Uses, l.model.Uses[i])
	}
	return &m
}

// token is what a module is alike in: its kind, and how many of its units keep their
// state on the device.
type token struct{ kind, here int }

// tokens are those of all modules where units from one on are updated on the host.
func (l *layers) tokens(first int) []token {
	all := make([]token, len(l.kind))
	for i, kind := range l.kind {
		here := 0
		for _, u := range l.units[i] {
			if u < first {
				here++
			}
		}
		all[i] = token{kind, here}
	}
	return all
}

// stretch is modules that repeat.
type stretch struct{ at, period, reps int }

// stretches are the parts of a sequence that repeat more than so often, in order.
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

// longestPeriod is the most modules whose repetition is looked for.
const longestPeriod = 16

// longest is the stretch of which most can be left out; it has no repetitions if none can.
func longest(all []token, least int) (best stretch) {
	saved := 0
	for period := 1; period <= longestPeriod && period*(least+1) <= len(all); period++ {
		same := 0 // neighbouring modules that are like those a period before
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

// shorter are the modules of a sequence of so many, of which each stretch has so many repetitions.
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
