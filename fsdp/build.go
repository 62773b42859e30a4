package fsdp

import (
	"errors"
	"fmt"

	"zeroth/device"
	"zeroth/shard"
)

// New lays out the units and allocates everything a step needs, or nothing.
func New(cfg Config) (*Runner, error) {
	r := &Runner{cfg: cfg}
	r.layUnits()
	if cfg.Away != nil {
		if err := cfg.Away(r.Units); err != nil {
			return nil, err
		}
	}
	if err := r.allocate(); err != nil {
		r.Free()
		return nil, err
	}
	r.view()
	return r, nil
}

// Free gives back what New allocated. The queues must be idle.
func (r *Runner) Free() {
	for _, h := range r.held {
		h.dev.Free(h.buf)
	}
	r.held = nil
}

func (r *Runner) layUnits() {
	byName := map[string]*Unit{}
	m := r.cfg.Model
	for i, mod := range m.Modules {
		u := byName[m.Units[i]]
		if u == nil {
			u = &Unit{
				Name: m.Units[i], labels: newLabels(m.Units[i]), index: len(r.Units), first: i, stale: true,
				Layout: shard.Lay(mod.Params(), r.cfg.Shard.Size(), Align*r.cfg.Replicate.Size()),
			}
			byName[u.Name] = u
			r.Units = append(r.Units, u)
		}
		u.last = i
		inner := i > 0 && i+1 < len(m.Modules)
		r.steps = append(r.steps, step{mod: mod, unit: u, replay: inner && r.cfg.Policy.Recompute, lookup: i == 0 && m.Lookup})
	}
	for _, u := range r.Units {
		u.whole = r.cfg.Policy.KeepParams || u.shared()
	}
}

func newLabels(unit string) labels {
	on := func(work string) string { return "unit " + unit + ": " + work }
	return labels{on("forward"), on("backward"), on("all-gather"), on("reduce-scatter"), on("all-reduce"), on("gradient to host"), on("gradient from host")}
}

// lay gives every unit a slot: those that own says one of their own, the others
// one of the first shared ones, in turn. It returns the elements of each slot,
// which are those of its longest unit. A first unit that is only looked up takes
// the turn of the last, so that the two, which are an embedding and an output
// layer and longer than what is between them, are not both provided for: their
// uses are a whole pass apart.
func (r *Runner) lay(shared int, own func(*Unit) bool, slot func(*Unit) *int) (lens []int) {
	lens = make([]int, shared)
	var turns []*Unit
	for _, u := range r.Units {
		if own(u) {
			*slot(u) = len(lens)
			lens = append(lens, u.Layout.Len())
		} else {
			turns = append(turns, u)
		}
	}
	if len(turns) > 1 && turns[0].first == 0 && r.steps[0].lookup {
		*slot(turns[0]) = (len(turns) - 2) % shared
		lens[*slot(turns[0])] = turns[0].Layout.Len()
		turns = turns[1:]
	}
	for i, u := range turns {
		*slot(u) = i % shared
		lens[i%shared] = max(lens[i%shared], u.Layout.Len())
	}
	return lens
}

// allocation collects what is allocated and what could not be.
type allocation struct {
	held []owned
	errs []error
}

func (a *allocation) take(d device.Device, t device.DType, n int, use device.Use) device.Buffer {
	b, err := d.Alloc(t, n, use)
	if err != nil {
		a.errs = append(a.errs, err)
		return device.Buffer{Type: t}
	}
	a.held = append(a.held, owned{d, b})
	return b
}

// allocate gives every unit its slots and shards.
func (r *Runner) allocate() error {
	p, dev, a := r.cfg.Policy, r.cfg.Device, &allocation{}
	slots := r.lay(p.ParamSlots(), (*Unit).Whole, func(u *Unit) *int { return &u.slot })
	grads := r.lay(p.GradSlots(), (*Unit).shared, func(u *Unit) *int { return &u.dwSlot })
	if r.cfg.Micro == 0 || p.KeepGrads && r.cfg.Micro == 1 {
		clear(grads) // the only micro-batch writes where the gradient is kept
	}
	whole := device.Gathered
	if p.KeepParams {
		whole = device.Params
	}
	for _, n := range slots {
		r.slots = append(r.slots, slot{buf: a.take(dev, r.cfg.DType, n, whole)})
	}
	for _, n := range grads {
		r.grads = append(r.grads, gradSlot{buf: a.take(dev, device.F32, n, device.UnitGrads)})
	}
	r.allocateShards(a)
	r.arena = device.NewArena(a.take(dev, device.F32, (r.cfg.ArenaSize+3)/4, device.Activations))
	r.held = a.held
	if err := errors.Join(a.errs...); err != nil {
		return fmt.Errorf("fsdp: %w", err)
	}
	return nil
}

// allocateShards gives every unit its parameter shard and its gradient, each
// where it rests.
func (r *Runner) allocateShards(a *allocation) {
	keep, back := r.cfg.Policy.KeepGrads, 0
	for _, u := range r.Units {
		n := u.Layout.ShardLen()
		if !u.whole && !u.ParamAway {
			u.Param = a.take(r.cfg.Device, r.cfg.DType, n, device.Params)
		}
		if r.cfg.Micro == 0 {
			continue
		}
		if keep {
			u.kept = a.take(r.cfg.Device, device.F32, u.Layout.Len(), device.UnitGrads)
		}
		switch {
		case u.GradAway:
			u.Grad = a.take(r.cfg.Host.Device, device.F32, n, device.Grads)
			back = max(back, n)
		case !keep:
			u.Grad = a.take(r.cfg.Device, device.F32, n, device.Grads)
		}
	}
	if !keep && r.cfg.Micro > 1 {
		r.back.buf = a.take(r.cfg.Device, device.F32, back, device.Staging)
	}
}

// view cuts the slots into the parameters and gradients of each step, and what
// is kept whole into this rank's shards.
func (r *Runner) view() {
	own := r.cfg.Shard.Rank()
	for _, u := range r.Units {
		mine := u.Layout.Shard(own)
		if u.whole {
			u.Param = r.slots[u.slot].buf.Slice(mine.Lo, mine.Hi)
		}
		if u.kept.N > 0 && !u.GradAway {
			u.Grad = u.kept.Slice(mine.Lo, mine.Hi)
		}
	}
	for i := range r.steps {
		s := &r.steps[i]
		s.w = params(s.unit, r.slots[s.unit.slot].buf)
		s.dw = params(s.unit, r.grads[s.unit.dwSlot].buf)
		s.kept = params(s.unit, s.unit.kept)
	}
}

// params are the views of a unit's parameters in a buffer that holds it whole;
// none in an empty buffer.
func params(u *Unit, whole device.Buffer) []device.Buffer {
	if whole.N == 0 {
		return nil
	}
	views := make([]device.Buffer, len(u.Layout.Params))
	for i, p := range u.Layout.Params {
		views[i] = whole.Slice(p.At.Lo, p.At.Hi)
	}
	return views
}
