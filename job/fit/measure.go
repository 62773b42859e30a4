package fit

import (
	"fmt"
	"sync"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/job/config"
	"zeroth/job/setup"
	"zeroth/job/sim"
	"zeroth/nn"
	"zeroth/offload"
	"zeroth/shard"
	"zeroth/zero"
)

// What settings need and do is learnt by dry runs of small networks. Of a stretch of
// layers that are alike some are left out, and those left are run once as they are and
// once with one more: each layer beyond adds what that one did. This holds once every
// slot that layers take in turn has had its turn, and every ring of staging memory is
// full; see steady. All is counted in whole bytes, so nothing is rounded.
//
// The units' memory and traffic do not depend on the micro-batch, nor activations and
// operations on how units are kept. So the two are learnt apart and added.

// measured is what a dry run has counted. All of it grows by as much with every layer.
type measured struct {
	needs   setup.Footprint // but for activations, staging memory of saves and work space of kernels
	state   int             // elements that saves hand out
	traffic sim.Traffic
	ops     sim.Operations
}

func (m measured) plus(o measured, times int) measured {
	return measured{m.needs.Plus(o.needs, times), m.state + times*o.state, m.traffic.Plus(o.traffic, int64(times)), m.ops.Plus(o.ops, float64(times))}
}

// extrapolated is what a sequence of modules comes to, by runs of shorter ones in which
// each stretch repeats at least so often. Repetitions are left out and added by step.
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

// unitKey is what the memory and the traffic of units depend on.
type unitKey struct {
	mesh            shard.Mesh
	stage, prefetch int
	offload         config.Offload // without the ratio
	micros          int            // 1, or 2 of more
	first           int            // the first unit that is updated on the host
	moves           bool           // traffic is asked for, else memory
}

// passKey is what activations and operations depend on.
type passKey struct {
	micro, chunk int
	recompute    string
	micros       int // as in unitKey
}

// runKey is a dry run of some of a network's modules.
type runKey struct {
	of      any
	modules string
}

// steady is so many layers that one more changes nothing but what that layer adds: there
// is one for every slot of parameters, of gradients (two) and of updates of whole matrices
// (three, from three units on), and a tile for every slot of the rings of staging memory.
// The network's last module shares a slot with the layer that is one over.
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

// ofUnits is what a choice's units need, with micro-batches of one sequence. How many
// slots units take in turn does not depend on where their state rests, nor that on the
// slots; but updates of whole matrices have slots of their own where units are gathered
// ahead.
func (s *search) ofUnits(x *config.Config) (measured, error) {
	k, err := s.keyOf(x)
	if err != nil || !k.offload.Any() {
		return s.measure(x, k, err)
	}
	slots, few, rest := k, k, k
	rest.prefetch = 0
	if s.updates > 0 {
		rest.prefetch = min(1, k.prefetch)
	}
	slots.offload, slots.first = config.Offload{Optimizer: "none", Parameters: "none"}, s.layers.count
	few = slots
	few.prefetch = rest.prefetch
	m, err := s.measure(x, rest, nil)
	more, err := s.measure(x, slots, err)
	less, err := s.measure(x, few, err)
	return m.plus(more, 1).plus(less, -1), err
}

// keyOf is what the choice's memory depends on.
func (s *search) keyOf(x *config.Config) (unitKey, error) {
	first, err := s.firstOnHost(x)
	k := unitKey{config.Mesh(x), x.Zero.Stage, x.Zero.Prefetch, x.Zero.Offload, min(2, x.Train.Accumulate), first, false}
	k.offload.Ratio = 0
	return k, err
}

// measure is what the units of all layers come to, if nothing is wrong.
func (s *search) measure(x *config.Config, k unitKey, wrong error) (measured, error) {
	if wrong != nil {
		return measured{}, wrong
	}
	return s.kept.get(k, func() (measured, error) {
		step := 1
		if !s.layers.even { // which layer takes which slot makes a difference
			step = lcm(k.prefetch+1, 2)
		}
		all := s.layers.tokens(k.first)
		return extrapolated(all, s.steady(k), step, func(modules []int) (measured, error) {
			short := k
			short.first = 0
			for _, i := range modules {
				short.first += all[i].here
			}
			return s.runs.get(runKey{short, fmt.Sprint(named(all, modules))}, func() (measured, error) { return s.runUnits(x, short, modules) })
		})
	})
}

// named is what modules are alike in.
func named(all []token, modules []int) (some []token) {
	for _, i := range modules {
		some = append(some, all[i])
	}
	return some
}

// firstOnHost is the first unit that a choice updates on the host.
func (s *search) firstOnHost(x *config.Config) (int, error) {
	if o := x.Zero.Offload; o.Optimizer == "none" || o.Ratio == 0 {
		return s.layers.count, nil
	}
	units, err := s.cuts.get(config.Mesh(x), func() ([]offload.Unit, error) { return s.shards(x), nil })
	return offload.Split(units, x.Zero.Offload.Ratio), err
}

// shards are the units of the network as a rank of the choice's mesh has them.
func (s *search) shards(x *config.Config) (units []offload.Unit) {
	mesh, rules := config.Mesh(x), setup.Rules(x.Optimizer)
	groups := fsdp.Groups{Shard: collective.Dry{Of: mesh.Shard}, Replica: collective.Dry{Of: mesh.Replicate}}
	for _, u := range fsdp.LayOut(s.layers.model, fsdp.Policy{}, zero.Begin(rules), func(nn.Unit) fsdp.Groups { return groups }) {
		units = append(units, offload.Unit{Len: u.Layout.ShardLen(), Frozen: u.Frozen})
	}
	return units
}

// wholeUnits is a tile that holds any unit: as many bytes move in one as in many.
const wholeUnits = 1 << 50

// runUnits is a dry run of some modules with a choice's units.
func (s *search) runUnits(x *config.Config, k unitKey, modules []int) (measured, error) {
	c := x.Copy()
	c.Zero.Recompute, c.Train.MicroBatch, c.Train.LossChunk, c.Train.Accumulate = "none", 1, x.Model.Context, k.micros
	c.Zero.Prefetch, c.Zero.Offload = k.prefetch, k.offload
	if k.offload.Optimizer != "none" {
		units, err := s.cuts.get(k.mesh, func() ([]offload.Unit, error) { return s.shards(x), nil })
		if err != nil {
			return measured{}, err
		}
		var some []offload.Unit
		for _, i := range modules {
			for _, u := range s.layers.units[i] {
				some = append(some, units[u])
			}
		}
		c.Zero.Offload.Ratio = offload.RatioFrom(some, k.first)
	}
	job := s.limits.machine(x).Job(config.Standing(c, s.layers.with(modules)))
	var meter *sim.Meter
	t, dev, host, err := setup.DryRank(job, 0, func(z *zero.Config) {
		if k.moves {
			meter, z.Offload.Tile = sim.NewMeter(z), wholeUnits
		}
	})
	if err != nil {
		return measured{}, err
	}
	if k.moves {
		if meter.Step(t); c.Zero.Offload.Disk() { // nothing had been written that could be read
			meter.Step(t)
		}
		return measured{traffic: meter.Traffic}, nil
	}
	m := measured{needs: setup.Footprint{Device: dev.Usage().Live, Host: host.Usage().Live, Disk: t.DiskBytes()}, state: t.StateLen()}
	m.needs.Device[device.Activations] = 0
	return m, nil
}

// ofPasses is what a choice's micro-batches need, and the operations of one, alone on a rank.
func (s *search) ofPasses(x *config.Config) (measured, error) {
	k := passKey{x.Train.MicroBatch, x.Train.LossChunk, x.Zero.Recompute, min(2, x.Train.Accumulate)}
	return s.passes.get(k, func() (measured, error) {
		all := s.layers.tokens(s.layers.count)
		const twice = 2
		if list := stretches(all, twice+1); len(list) > 1 || len(list) == 1 && list[0].at != 1 {
			// The most may be in use before the last layer: nothing tells but a run of all.
			return s.runPasses(x, k, shorter(len(all), nil, nil))
		}
		return extrapolated(all, twice, 1, func(modules []int) (measured, error) { return s.runPasses(x, k, modules) })
	})
}

func (s *search) runPasses(x *config.Config, k passKey, modules []int) (measured, error) {
	c := alone(config.Standing(x, s.layers.with(modules)))
	c.Train.MicroBatch, c.Train.LossChunk, c.Zero.Recompute, c.Train.Accumulate = k.micro, k.chunk, k.recompute, k.micros
	var l *sim.Recording
	t, dev, host, err := setup.DryRank(setup.Planned(c), 0, func(z *zero.Config) { l = sim.RecordAll(z) })
	if err != nil {
		return measured{}, err
	}
	t.DryRun()
	m := measured{needs: setup.Footprint{Device: dev.Usage().Live, Host: host.Usage().Live, Arena: t.ArenaPeak()}, ops: sim.Operations{}.Plus(l.Operations, 1/float64(k.micros))}
	m.needs.Device[device.Activations] = 0
	return m, nil
}

// needs is what a rank of a choice needs.
func (s *search) needs(x *config.Config) (n setup.Footprint, err error) {
	one := x.Copy()
	one.Train.MicroBatch, one.Train.LossChunk, one.Zero.Recompute = 1, x.Model.Context, "none"
	units, err := s.ofUnits(x)
	if err != nil {
		return n, err
	}
	passes, err := s.ofPasses(x)
	if err != nil {
		return n, err
	}
	less, err := s.ofPasses(one)
	if err != nil {
		return n, err
	}
	n = units.needs.Plus(passes.needs, 1).Plus(less.needs, -1)
	n.Arena = passes.needs.Arena
	n = n.Fitted()
	n.Device[device.Workspace] = 0
	if !s.limits.GPU {
		n.Device[device.Workspace] = setup.Workspace(config.Standing(x, s.layers.with(s.layers.first)), setup.Workers(x))
	}
	at := &n.Device
	if setup.HostApart(x) {
		at = &n.Host
	}
	at[device.Snapshot] = int64(4 * setup.StagedOf(x, units.state))
	return n, nil
}

// weigh finds what a step of a choice costs, if it has not been found yet.
func (s *search) weigh(c *Choice) error {
	if c.Cost.Compute > 0 {
		return nil
	}
	passes, err := s.ofPasses(c.Config)
	if err != nil {
		return err
	}
	k, err := s.keyOf(c.Config)
	k.moves = true
	units, err := s.measure(c.Config, k, err)
	if err != nil {
		return err
	}
	rates := s.limits.Rates
	if s.limits.Hardware != nil {
		bus := s.busOf(c.Config)
		rates.Link, rates.Apart = bus[0], bus[1]
	}
	if h := s.limits.Hardware; h != nil {
		c.hostUpdate = units.traffic.HostUpdate(h.HostMemory)
	}
	c.Cost = sim.Weigh(c.Config, passes.ops, units.traffic, s.updates/float64(c.Config.Parallel.Ranks), rates)
	return nil
}

// memo remembers answers. Whoever asks first finds out, others wait.
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
