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
	if err := r.allocate(); err != nil {
		r.Free()
		return nil, err
	}
	r.view()
	return r, nil
}

// Free gives back what New allocated. The queues must be idle.
func (r *Runner) Free() {
	for _, b := range r.held {
		r.cfg.Device.Free(b)
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
				Name: m.Units[i], labels: newLabels(m.Units[i]), first: i, stale: true,
				Layout: shard.Lay(mod.Params(), r.cfg.Shard.Size(), Align*r.cfg.Replicate.Size()),
			}
			byName[u.Name] = u
			r.Units = append(r.Units, u)
		}
		u.last = i
		inner := i > 0 && i+1 < len(m.Modules)
		r.steps = append(r.steps, step{mod: mod, unit: u, replay: inner && r.cfg.Policy.Recompute})
	}
}

func newLabels(unit string) labels {
	on := func(work string) string { return "unit " + unit + ": " + work }
	return labels{on("forward"), on("backward"), on("all-gather"), on("reduce-scatter"), on("all-reduce")}
}

// owns says whether a unit has a slot to itself.
func (r *Runner) owns(u *Unit) bool { return r.cfg.Policy.KeepParams || u.shared() }

// turns hands out slots: units that share take one of the shared ones in turn,
// each of which grows to its longest unit, the others one of their own.
type turns struct {
	shared, next int
	len          []int // elements of each slot
}

func (t *turns) take(n int, own bool) (slot int) {
	if own {
		t.len = append(t.len, n)
		return len(t.len) - 1
	}
	slot = t.next % t.shared
	t.next++
	t.len[slot] = max(t.len[slot], n)
	return slot
}

// allocate gives every unit its slots and shards. The gradients of units share
// two slots, so that one is reduced while the other is written.
func (r *Runner) allocate() error {
	p := r.cfg.Policy
	slots := turns{shared: p.Prefetch + 1, len: make([]int, p.Prefetch+1)}
	grads := turns{shared: min(2, p.Prefetch+1), len: make([]int, min(2, p.Prefetch+1))}
	var errs []error
	alloc := func(t device.DType, n int, use device.Use) device.Buffer {
		b, err := r.cfg.Device.Alloc(t, n, use)
		if err != nil {
			errs = append(errs, err)
			return device.Buffer{Type: t}
		}
		r.held = append(r.held, b)
		return b
	}
	for _, u := range r.Units {
		u.slot = slots.take(u.Layout.Len(), r.owns(u))
		u.dwSlot = grads.take(u.Layout.Len(), u.shared())
	}
	if r.cfg.Micro == 0 || p.KeepGrads && r.cfg.Micro == 1 {
		clear(grads.len) // the only micro-batch writes where the gradient is kept
	}
	whole := device.Gathered
	if p.KeepParams {
		whole = device.Params
	}
	for _, n := range slots.len {
		r.slots = append(r.slots, slot{buf: alloc(r.cfg.DType, n, whole)})
	}
	for _, n := range grads.len {
		r.grads = append(r.grads, gradSlot{buf: alloc(device.F32, n, device.UnitGrads)})
	}
	for _, u := range r.Units {
		if !r.owns(u) {
			u.Param = alloc(r.cfg.DType, u.Layout.ShardLen(), device.Params)
		}
		switch {
		case r.cfg.Micro == 0:
		case p.KeepGrads:
			u.kept = alloc(device.F32, u.Layout.Len(), device.UnitGrads)
		default:
			u.Grad = alloc(device.F32, u.Layout.ShardLen(), device.Grads)
		}
	}
	r.arena = device.NewArena(alloc(device.F32, (r.cfg.ArenaSize+3)/4, device.Activations))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("fsdp: %w", err)
	}
	return nil
}

// view cuts the slots into the parameters and gradients of each step, and what
// is kept whole into this rank's shards.
func (r *Runner) view() {
	own := r.cfg.Shard.Rank()
	for _, u := range r.Units {
		mine := u.Layout.Shard(own)
		if r.owns(u) {
			u.Param = r.slots[u.slot].buf.Slice(mine.Lo, mine.Hi)
		}
		if u.kept.N > 0 {
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
