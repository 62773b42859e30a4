package fsdp

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/nn"
	"zeroth/shard"
)

// LayOut lays out a model's units for the groups that each belongs to. Parameters begin at
// multiples of begin. The units have no memory until New.
func LayOut(m *nn.Model, p Policy, begin int, groups func(unit nn.Unit) Groups) (units []*Unit) {
	for i, of := range m.Units() {
		u := &Unit{
			Name: of.Name, Groups: groups(of), index: i, first: of.First, last: of.Last, stale: true,
			Frozen: of.Params[0].Frozen, Rule: of.Params[0].Rule, Single: of.Params[0].Single, Code: device.Code(of.Params[0].Code),
		}
		u.self[0] = u
		for o := range ops {
			u.labels[o] = Label(u.Name, o)
		}
		stored := slices.Clone(of.Params)
		for k, x := range of.Params {
			stored[k] = Stored(x)
			if one := of.Params[0]; x.Code != one.Code || x.Code != 0 && !x.Frozen || x.Single != one.Single || x.Expert != one.Expert || x.Frozen != one.Frozen || x.Rule != one.Rule {
				panic(fmt.Sprintf("fsdp: unit %s has parameters of different kinds: %+v and %+v", u.Name, one, x))
			}
		}
		if u.Code != device.Floats {
			u.Values = shard.Lay(of.Params, 1, Align, 1)
		}
		u.Layout = shard.Lay(stored, u.Shard.Size(), max(Align, begin)*u.Replica.Size(), begin)
		_, u.Layout.Master = u.Shard.(collective.Master)
		u.gaps = u.Layout.Gaps()
		u.whole = p.KeepParams || u.shared()
		units = append(units, u)
	}
	return units
}

// Own returns the elements of this rank's shard.
func (u *Unit) Own() shard.Range { return u.Layout.Shard(u.Shard.Rank()) }

// own returns this rank's shard within a buffer that contains the whole unit.
func (u *Unit) own(whole device.Buffer) device.Buffer {
	return whole.Slice(u.Own().Lo, u.Own().Hi)
}

// New allocates everything that steps over the units need, or nothing.
func New(cfg Config) (*Runner, error) {
	r := &Runner{cfg: cfg, Units: cfg.Units}
	r.layOutSteps()
	r.plant()
	if err := r.allocate(); err != nil {
		r.Free()
		return nil, err
	}
	r.view()
	return r, nil
}

// Clear discards a step that has failed: parameters are gathered again, and gradients written anew, in
// a number of micro-batches and, if sums have one, with another tree. The queues must be idle.
func (r *Runner) Clear(micro int, tree *Tree) {
	r.cfg.Micro, r.cfg.Tree = micro, tree
	r.plant()
	for _, a := range r.arenas {
		a.Release(0)
	}
	for _, u := range r.Units {
		u.stale = true
	}
	r.in = nil
}

// Free releases what New allocated. The queues must be idle.
func (r *Runner) Free() {
	for _, h := range r.held {
		h.dev.Free(h.buf)
	}
	r.held = nil
}

func (r *Runner) layOutSteps() {
	byName := map[string]*Unit{}
	for _, u := range r.Units {
		byName[u.Name] = u
	}
	m := r.cfg.Model
	for i, mod := range m.Modules {
		inner := (i > 0 || m.Before) && (i+1 < len(m.Modules) || m.After)
		s := step{mod: mod, lookup: i == 0 && m.Lookup}
		s.restorer, _ = mod.(nn.Restorer)
		switch level := r.cfg.Policy.Recompute; {
		case inner && s.restorer != nil:
			s.recompute = level
		case inner && level > nn.RecomputeNone:
			s.recompute = nn.RecomputeBlock
		}
		for _, use := range m.Uses[i] {
			s.units = append(s.units, byName[use.Unit])
		}
		if split, ok := mod.(nn.Splitter); ok && r.cfg.Split {
			deferred := make([]bool, len(mod.Params()))
			for k := range deferred {
				deferred[k] = split.Defers(k)
			}
			if slices.Contains(deferred, true) {
				s.deferred = deferred
			}
		}
		r.steps = append(r.steps, s)
	}
}

// lay assigns slots to the units selected by takes: each unit selected by own gets a slot of its
// own, and the others share slots in rotation. It returns the length of each slot, which is the
// length of its longest unit. If a step uses several units, each rotates through separate slots. A
// first unit that is only looked up shares the last one's slot: they are an embedding and an output
// layer, longer than the units between them, and are used a whole pass apart.
func (r *Runner) lay(shared int, takes, own func(*Unit) bool, slot func(*Unit) *int) (lens []int) {
	var turns [][]*Unit // by index of the unit within its step
	for i, s := range r.steps {
		at := 0
		for _, u := range s.units {
			switch {
			case !takes(u) || u.first != i:
			case own(u):
				*slot(u) = len(lens)
				lens = append(lens, u.Layout.Len())
			default:
				if at == len(turns) {
					turns = append(turns, nil)
				}
				turns[at] = append(turns[at], u)
				at++
			}
		}
	}
	for _, units := range turns {
		base := len(lens)
		lens = append(lens, make([]int, shared)...)
		take := func(u *Unit, turn int) {
			*slot(u) = base + turn%shared
			lens[*slot(u)] = max(lens[*slot(u)], u.Layout.Len())
		}
		if len(units) > 1 && units[0].first == 0 && r.steps[0].lookup {
			take(units[0], len(units)-2)
			units = units[1:]
		}
		for i, u := range units {
			take(u, i)
		}
	}
	return lens
}

// allocation collects allocated buffers and errors.
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

// allocate allocates the slots and shards of all units.
func (r *Runner) allocate() error {
	p, dev, a := r.cfg.Policy, r.cfg.Device, &allocation{}
	grads := r.lay(p.GradSlots(), (*Unit).trained, (*Unit).shared, func(u *Unit) *int { return &u.dwSlot })
	if r.cfg.Micro == 0 || p.KeepGrads && r.cfg.Micro == 1 && !r.cfg.More {
		clear(grads) // the only micro-batch writes directly to the kept gradient
	}
	whole := device.Gathered
	if p.KeepParams {
		whole = device.Params
	}
	for _, t := range slices.Compact([]device.DType{r.cfg.DType, device.F32, device.I32}) {
		is, before := func(u *Unit) bool { return r.stored(u) == t }, len(r.slots)
		for _, n := range r.lay(p.ParamSlots(), is, (*Unit).Whole, func(u *Unit) *int { return &u.slot }) {
			r.slots = append(r.slots, slot{buf: a.take(dev, t, n, whole)})
		}
		for _, u := range r.Units {
			if is(u) {
				u.slot += before
			}
		}
	}
	decoded := 0
	for i := range r.steps {
		decoded = max(decoded, r.steps[i].layOutDecoded())
	}
	r.decoded = a.take(dev, r.cfg.DType, decoded, device.Gathered)
	for _, n := range grads {
		r.grads = append(r.grads, gradSlot{buf: a.take(dev, device.F32, n, device.UnitGrads)})
	}
	r.allocateShards(a)
	r.allocateSums(a)
	r.allocateFlights(a)
	r.held = a.held
	if err := errors.Join(a.errs...); err != nil {
		return fmt.Errorf("fsdp: %w", err)
	}
	return nil
}

// layOutDecoded places the values of the step's units in codes one after the other, and returns their length.
func (s *step) layOutDecoded() (n int) {
	s.decoded = make([]int, len(s.units))
	for k, u := range s.units {
		if s.decoded[k] = n; u.coded() {
			n += u.Values.Len()
		}
	}
	return n
}

// allocateFlights allocates memory for working space, flights, streams and places. A single flight
// keeps its data below the working space.
func (r *Runner) allocateFlights(a *allocation) {
	chunks, dev := r.cfg.Chunks, r.cfg.Device
	if chunks == nil {
		chunks = []Chunk{{Hi: len(r.steps), Flights: 1}}
	}
	work := r.open(a, dev, 0)
	for _, c := range chunks {
		var flights []*Flight
		for i := range c.Flights {
			kept := work
			if len(chunks) > 1 || c.Flights > 1 || r.cfg.Split {
				kept = r.open(a, dev, i)
			}
			flights = append(flights, &Flight{Chunk: c, kept: kept, passed: make([]passed, c.Hi-c.Lo), keeping: scratch{work, kept}, working: scratch{work, work}})
		}
		r.flights = append(r.flights, flights)
	}
	for i := range r.cfg.Streams {
		r.streams = append(r.streams, r.open(a, dev, i))
	}
	if !r.cfg.Policy.HostActivations {
		return
	}
	for range places {
		r.places = append(r.places, place{scratch: scratch{work, r.open(a, dev, 0)}})
	}
	for _, flights := range r.flights {
		for i, f := range flights {
			f.host = r.open(a, r.cfg.Host.Device, i)
			f.host.Listen(nil)
		}
	}
}

// open allocates the next arena. The alike before it are for the same passes of other micro-batches.
func (r *Runner) open(a *allocation, dev device.Device, alike int) *device.Arena {
	i, base := len(r.arenas), device.Buffer{Type: device.F32, N: endless, Use: device.Activations}
	if r.cfg.Arenas != nil {
		base = a.take(dev, device.F32, r.cfg.Arenas[i]/4, device.Activations)
	}
	arena := device.NewArena(base)
	if l := r.cfg.Listener; l != nil {
		arena.Listen(func(what string, height int) { l.Arena(i, what, height) })
	}
	r.arenas, r.alike = append(r.arenas, arena), append(r.alike, i-alike)
	return arena
}

// endless exceeds the length of any arena.
const endless = math.MaxInt / 8

// Flight returns one of a chunk's flights.
func (r *Runner) Flight(chunk, i int) *Flight { return r.flights[chunk][i] }

// OpenStream returns a slot's memory for the residual stream of rows positions, or for its
// gradient, until CloseStream.
func (r *Runner) OpenStream(i, rows int) device.Buffer {
	return r.streams[i].Take(r.cfg.DType, rows*r.cfg.Model.Width)
}

// CloseStream allows operations issued later to reuse a slot.
func (r *Runner) CloseStream(i int) { r.streams[i].Release(0) }

// Peaks returns the maximum bytes of each arena used by any pass, or by one of another micro-batch: a step may have
// fewer in flight than there is memory for.
func (r *Runner) Peaks() []int {
	bytes := make([]int, len(r.arenas))
	for i, first := range r.alike {
		bytes[first] = max(bytes[first], r.arenas[i].Peak())
	}
	for i, first := range r.alike {
		bytes[i] = bytes[first]
	}
	return bytes
}

// PeakNow returns the sums of Peaks, of the arenas on the device and of those in host memory.
func (r *Runner) PeakNow() (bytes, host int) {
	onHost := 0
	if r.cfg.Policy.HostActivations {
		onHost = len(slices.Concat(r.flights...))
	}
	for i, n := range r.Peaks() {
		if i < len(r.arenas)-onHost {
			bytes += n
		} else {
			host += n
		}
	}
	return bytes, host
}

// Kept returns the most bytes that a module, other than the first and last of the model or of a chunk, has kept
// between the last forward pass and its backward pass: what it saves, and its output.
func (r *Runner) Kept() (bytes int) {
	for _, flights := range r.flights {
		f := flights[0]
		for i := range len(f.passed) - 1 {
			if f.Lo+i > 0 || r.cfg.Model.Before {
				p := &f.passed[i]
				bytes = max(bytes, p.onHost.Bytes(), f.passed[i+1].mark-p.mark)
			}
		}
	}
	return bytes
}

// allocateShards allocates each unit's parameter shard and gradient, on the device or the host.
func (r *Runner) allocateShards(a *allocation) {
	keep, back := r.cfg.Policy.KeepGrads, 0
	for _, u := range r.Units {
		n := u.Own().Len()
		if !u.whole && !u.ParamOffloaded && !u.MasterOnly {
			u.Param = a.take(r.cfg.Device, r.stored(u), n, device.Params)
		}
		if r.cfg.Micro == 0 || u.Frozen {
			continue
		}
		if keep {
			u.kept = a.take(r.cfg.Device, device.F32, u.Layout.Len(), device.UnitGrads)
		}
		switch {
		case u.GradOffloaded:
			u.Grad = a.take(r.cfg.Host.Device, device.F32, n, device.Grads)
			back = max(back, n)
		case !keep:
			u.Grad = a.take(r.cfg.Device, device.F32, n, device.Grads)
		}
	}
	if !keep && (r.cfg.Micro > 1 || r.cfg.More) {
		r.back.buf = a.take(r.cfg.Device, device.F32, back, device.Staging)
	}
}

// view creates the views of each step's parameters and gradients in the slots, and of this rank's
// shards in whole buffers.
func (r *Runner) view() {
	for _, u := range r.Units {
		mine := u.Own()
		if u.whole {
			u.Param = r.slots[u.slot].buf.Slice(mine.Lo, mine.Hi)
		}
		if u.kept.N > 0 && !u.GradOffloaded {
			u.Grad = u.kept.Slice(mine.Lo, mine.Hi)
		}
	}
	for i := range r.steps {
		s := &r.steps[i]
		n := len(s.mod.Params())
		s.w, s.dw, s.kept = make([]device.Buffer, n), make([]device.Buffer, n), make([]device.Buffer, n)
		for k, at := range nn.ParamIndices(r.cfg.Model.Uses[i]) {
			var grad device.Buffer
			u := s.units[k]
			if u.trained() {
				grad = r.grads[u.dwSlot].buf
			}
			if u.coded() {
				put(s.w, at, u.Values, r.decoded.Slice(s.decoded[k], s.decoded[k]+u.Values.Len()))
				continue
			}
			put(s.w, at, u.Layout, r.slots[u.slot].buf)
			put(s.dw, at, u.Layout, grad)
			put(s.kept, at, u.Layout, u.kept)
		}
	}
}

// put stores views of a unit's parameters in a whole buffer at their indices; empty ones if the
// buffer is empty.
func put(views []device.Buffer, at []int, l *shard.Layout, whole device.Buffer) {
	for i, p := range l.Params {
		if whole.N > 0 {
			views[at[i]] = whole.Slice(p.At.Lo, p.At.Hi)
		}
	}
}
