package fit

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"zeroth/device"
	"zeroth/job/config"
	"zeroth/job/setup"
	"zeroth/job/sim"
	"zeroth/offload"
	"zeroth/pipe"
	"zeroth/shard"
	"zeroth/zero"
)

// The needs and the work of settings are measured by dry runs of small networks. In each stretch
// of equal layers some are omitted. The rest is run once as it is and once with one more layer:
// each omitted layer adds the difference. This holds if every slot that layers use in turn has
// been used, and every ring of staging memory is full; see steady. All counts are whole bytes, so
// nothing is rounded.
//
// Memory and traffic of units do not depend on the micro-batch, and activations and operations do
// not depend on how units are sharded. So the two are measured separately and added. In a pipeline
// each distinct place is measured by its chunks of layers.

// measured is the result of a dry run. Each layer adds the same amount to all of it.
type measured struct {
	needs   setup.Footprint // without activations, staging memory of saves and kernel work space
	state   int             // elements passed to saves
	traffic sim.Traffic
}

func (m measured) plus(o measured, times int) measured {
	return measured{m.needs.Plus(o.needs, times), m.state + times*o.state, m.traffic.Plus(o.traffic, int64(times))}
}

// extrapolated returns the result for a sequence of modules, extrapolated from runs in which each
// stretch has no fewer than least repetitions. Repetitions are removed and added in multiples of step.
func extrapolated(all []token, least, step int, run func(modules []int) (measured, error)) (measured, error) {
	list := stretches(all, least+step)
	reps := make([]int, len(list))
	for i, s := range list {
		reps[i] = least + (s.reps-least)%step
	}
	base, err := run(shorter(len(all), list, reps))
	sum := base
	for i, s := range list {
		if err != nil {
			break
		}
		var more measured
		times := (s.reps - reps[i]) / step
		reps[i] += step
		more, err = run(shorter(len(all), list, reps))
		reps[i] -= step
		sum = sum.plus(more, times).plus(base, -times)
	}
	return sum, err
}

// unitKey contains everything that memory and traffic of a place's units depend on.
type unitKey struct {
	at              string // the place
	mesh            shard.Mesh
	stage, prefetch int
	offload         config.Offload // without the ratio
	micros          int            // 1, or 2 for several
	first           int            // first unit updated on the host
	moves           bool           // measure traffic, not memory
}

// passKey contains everything that a place's activations depend on.
type passKey struct {
	of           string
	at           int
	mesh         shard.Mesh // of one model copy
	shape        pipe.Shape
	micro, chunk int
	recompute    string
}

// runKey identifies a dry run of some modules of a network.
type runKey struct {
	of      any
	modules string
}

// steady returns a number of layers beyond which each further layer only adds its own share. It
// counts one layer for every slot of parameters, of gradients (two) and of whole-matrix updates
// (three, from three units on), and a tile for every slot of the staging rings. The network's last
// module shares a slot with the additional layer.
func (s *search) steady(k unitKey) int {
	n := max(k.prefetch+1, 2) + 1
	if s.updates > 0 {
		n = max(n, 3)
	}
	if k.offload.Any() {
		n = max(n, k.offload.Buffers)
	}
	return n
}

// ofUnits measures the units of a choice at a place, with micro-batches of one sequence. Slots do
// not depend on where state is stored, and stored state does not depend on slots, so they are
// measured separately. However, whole-matrix updates have slots of their own if units are gathered
// ahead.
func (s *search) ofUnits(x *config.Config, p *pipelineRank) (measured, error) {
	k := s.keyOf(x, p)
	if !k.offload.Any() {
		return s.measure(x, p, k)
	}
	slots, few, rest := k, k, k
	rest.prefetch = 0
	if s.updates > 0 {
		rest.prefetch = min(1, k.prefetch)
	}
	slots.offload, slots.first = config.Offload{Optimizer: "none", Parameters: "none"}, p.count
	few = slots
	few.prefetch = rest.prefetch
	m, err := s.measure(x, p, rest)
	more, wrong := s.measure(x, p, slots)
	less, last := s.measure(x, p, few)
	return m.plus(more, 1).plus(less, -1), cmp.Or(err, wrong, last)
}

// keyOf returns everything that a choice's memory at a place depends on.
func (s *search) keyOf(x *config.Config, p *pipelineRank) unitKey {
	k := unitKey{p.alike, config.Mesh(x), x.Zero.Stage, x.Zero.Prefetch, x.Zero.Offload, min(2, x.Train.Accumulate), s.firstOnHost(x, p), false}
	k.offload.Ratio = 0
	return k
}

// measure returns the result for the units of all of a place's layers.
func (s *search) measure(x *config.Config, p *pipelineRank, k unitKey) (measured, error) {
	return s.kept.get(k, func() (measured, error) {
		least, step := s.steady(k), 1
		if !p.even || x.Parallel.Pipeline > 1 { // layers differ by their slots
			step = lcm(k.prefetch+1, 2)
		}
		if x.Parallel.Pipeline > 1 { // the place may lack the last module, which shares a slot
			least++
		}
		all := p.tokens(k.first)
		return extrapolated(all, least, step, func(modules []int) (measured, error) {
			short := k
			short.at, short.first = "", 0
			for _, i := range modules {
				short.first += all[i].onDevice
			}
			return s.runs.get(runKey{short, fmt.Sprint(named(all, modules))}, func() (measured, error) { return s.runUnits(x, p, short, modules) })
		})
	})
}

// named returns the tokens of the given modules.
func named(all []token, modules []int) (some []token) {
	for _, i := range modules {
		some = append(some, all[i])
	}
	return some
}

// firstOnHost returns the first of a place's units that a choice updates on the host.
func (s *search) firstOnHost(x *config.Config, p *pipelineRank) int {
	if o := x.Zero.Offload; o.Optimizer == "none" || o.Ratio == 0 {
		return p.count
	}
	return offload.Split(s.shards(x, p), x.Zero.Offload.Ratio)
}

// cutKey contains everything that the lengths of a place's shards depend on.
type cutKey struct {
	at   string
	mesh shard.Mesh
}

// shards returns the units of a place as sharded on the choice's mesh.
func (s *search) shards(x *config.Config, p *pipelineRank) []offload.Unit {
	units, err := s.cuts.get(cutKey{p.alike, config.Mesh(x)}, func() (units []offload.Unit, err error) {
		c := config.Standing(x, p.model)
		c.Zero.Offload, c.Train.MicroBatch, c.Train.LossChunk = config.Offload{Optimizer: "none", Parameters: "none"}, 1, x.Model.Context
		c.Train.Accumulate = min(c.Train.Accumulate, 2*max(1, c.Parallel.Pipeline)) // shards do not depend on it
		t, _, _, err := setup.DryRank(setup.Planned(c), p.at, func(*zero.Config) {})
		if err != nil {
			return nil, err
		}
		for _, u := range setup.ShardedUnits(t.Units()) {
			units = append(units, offload.Unit{Len: u.Part, Frozen: u.Frozen})
		}
		return units, nil
	})
	if err != nil {
		panic(fmt.Sprintf("fit: the units of %s: %v", p.alike, err)) // the choice's own dry run had no error
	}
	return units
}

// wholeUnits is a tile size that holds any unit. One transfer moves as many bytes as several.
const wholeUnits = 1 << 50

// runUnits makes a dry run of some of a place's modules with the choice's units.
func (s *search) runUnits(x *config.Config, p *pipelineRank, k unitKey, modules []int) (measured, error) {
	c := p.short(x, modules)
	c.Pipeline.Schedule, c.Pipeline.Virtual = string(pipe.OneF1B), 1
	c.Zero.Recompute, c.Train.MicroBatch, c.Train.LossChunk, c.Train.Accumulate = "none", 1, x.Model.Context, k.micros
	c.Zero.Prefetch, c.Zero.Offload = k.prefetch, k.offload
	if k.offload.Optimizer != "none" {
		units, before := s.shards(x, p), make([]int, len(p.units)+1)
		for i, n := range p.units {
			before[i+1] = before[i] + n
		}
		var some []offload.Unit
		for _, i := range modules {
			some = append(some, units[before[i]:before[i+1]]...)
		}
		c.Zero.Offload.Ratio = offload.RatioFrom(some, k.first)
	}
	job := s.limits.machine(x).Job(c)
	var meter *sim.Meter
	t, dev, host, err := setup.DryRank(job, p.at, func(z *zero.Config) {
		if k.moves {
			meter, z.Offload.Tile = sim.NewMeter(z, s.limits.Hardware.Clock(setup.Planned(x))), wholeUnits
		}
	})
	if err != nil {
		return measured{}, err
	}
	if k.moves {
		if meter.Step(t); c.Zero.Offload.Disk() { // nothing to read has been written before the first step
			meter.Step(t)
		}
		return measured{traffic: meter.Traffic}, nil
	}
	m := measured{needs: setup.Footprint{Device: dev.Usage().Live, Host: host.Usage().Live, Disk: t.DiskBytes()}, state: t.StateLen()}
	m.needs.Device[device.Activations] = 0
	return m, nil
}

// ofPasses measures the given number of the choice's micro-batches at a place.
func (s *search) ofPasses(x *config.Config, p *pipelineRank, micros int) (measured, error) {
	c := alone(x)
	c.Train.MicroBatch, c.Train.LossChunk, c.Zero.Recompute, c.Train.Accumulate = x.Train.MicroBatch, x.Train.LossChunk, x.Zero.Recompute, micros
	k := passKey{p.alike, p.at, config.Mesh(c), c.PipelineShape(), x.Train.MicroBatch, x.Train.LossChunk, x.Zero.Recompute}
	return s.passes.get(k, func() (measured, error) {
		return p.extrapolated(func(chunks [][]int) (m measured, err error) {
			m.needs, err = setup.DryPlace(setup.Planned(p.short(c, chunks...)), p.at)
			m.needs.Device[device.Activations] = 0
			return m, err
		})
	})
}

// extrapolated returns the result for the place, extrapolated from runs with shorter stretches in
// its chunks.
func (p *pipelineRank) extrapolated(run func(chunks [][]int) (measured, error)) (measured, error) {
	const twice = 2
	all, reps := p.tokens(p.count), make([]int, len(p.chunks))
	some := func(longer int) (chunks [][]int) {
		from := 0
		for i, n := range p.chunks {
			list, few := stretches(all[from:from+n], twice+1), []int{twice}
			if i == longer {
				few[0]++
			}
			first := 0
			if p.modules[from] == 0 {
				first = 1
			}
			if len(list) > 1 || len(list) == 1 && list[0].at != first {
				list = nil // memory may peak before the last layer, which only a full run shows
			}
			if reps[i] = 0; list != nil {
				reps[i] = list[0].reps - twice
			}
			chunk := shorter(n, list, few)
			for j := range chunk {
				chunk[j] += from
			}
			chunks, from = append(chunks, chunk), from+n
		}
		return chunks
	}
	base, err := run(some(-1))
	sum := base
	for i, more := range slices.Clone(reps) {
		if more > 0 && err == nil {
			var longer measured
			longer, err = run(some(i))
			sum = sum.plus(longer, more).plus(base, -more)
		}
	}
	return sum, err
}

// needsAt returns the needs of a rank at a place.
func (s *search) needsAt(x *config.Config, p *pipelineRank) (n setup.Footprint, err error) {
	one := x.Copy()
	one.Train.MicroBatch, one.Train.LossChunk, one.Zero.Recompute = 1, x.Model.Context, "none"
	one.Pipeline.Schedule, one.Pipeline.Virtual = string(pipe.OneF1B), 1
	micros, whole := min(2, x.Train.Accumulate), *p
	whole.chunks = []int{len(p.modules)}
	few := micros
	if x.Parallel.Pipeline > 1 {
		few = min(setup.FewMicro(x), x.Train.Accumulate)
	}
	units, err := s.ofUnits(x, p)
	passes, wrong := s.ofPasses(x, p, few)
	less, last := s.ofPasses(one, &whole, micros)
	if err = cmp.Or(err, wrong, last); err != nil {
		return n, err
	}
	n = units.needs.Plus(passes.needs, 1).Plus(less.needs, -1)
	n.Arena = passes.needs.Arena
	n = n.Fitted()
	if n.Device[device.Workspace] = 0; !s.limits.GPU {
		n.Device[device.Workspace] = setup.Workspace(config.Standing(x, s.whole.with(s.whole.first)), setup.Workers(x))
	}
	at := &n.Device
	if setup.HostApart(x) {
		at = &n.Host
	}
	at[device.Snapshot] = int64(4 * setup.StagedOf(x, units.state))
	return n, nil
}

// needs returns the needs of the rank that needs most.
func (s *search) needs(x *config.Config) (most setup.Footprint, err error) {
	places, err := s.pipelineRanks(x)
	for i, p := range places {
		n, err := s.needsAt(x, p)
		if err != nil {
			return n, err
		}
		if i == 0 || n.Memory() > most.Memory() {
			most = n
		}
	}
	return most, err
}

// memo caches results. The first caller of a key computes its result, and others wait for it.
type memo[K comparable, V any] struct {
	mu sync.Mutex
	of map[K]func() (V, error)
}

func (m *memo[K, V]) get(k K, find func() (V, error)) (V, error) {
	m.mu.Lock()
	f := m.of[k]
	if f == nil {
		if m.of == nil {
			m.of = map[K]func() (V, error){}
		}
		f = sync.OnceValues(find)
		m.of[k] = f
	}
	m.mu.Unlock()
	return f()
}

func lcm(a, b int) int {
	n := a
	for n%b != 0 {
		n += a
	}
	return n
}
