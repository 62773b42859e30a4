package plan

import (
	"fmt"
	"slices"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/nn"
	"zeroth/zero"
)

// Tracker is the memory tracker: it listens to a trainer, on a device that only
// counts or in a run, and writes down what is in use at each of its events.
//
// Events are in the order in which work is issued. Work on other queues takes
// time: a gathered unit is in use from its gather on, a reduced gradient until
// its slot is wanted again, so what is said to be in use is never less than
// what is at any instant of a run.
type Tracker struct {
	policy  fsdp.Policy
	micros  int // micro-batches of the step
	modules int
	shard   int   // ranks of a shard group
	lookup  bool  // the first module's backward pass does not read its unit
	size    int64 // bytes of a parameter in use
	units   map[string]*trackedUnit

	On      bool // events are written down
	now     Amounts
	arena   []segment // what was taken and not given back, from the bottom
	micro   int
	back    bool           // the forward pass of the micro-batch is over
	passed  bool           // and the backward pass
	of      Category       // of what the arena gives out now
	passing bool           // a module's pass is being issued
	slotted []*trackedUnit // whose gradients of one micro-batch are in slots
	at      *Moment        // of the event that goes on; nil between events, or where none are kept
	Moments []*Moment
	sent    int64 // bytes the rank has sent,
	second  int64 // and in the second micro-batch
}

// trackedUnit is where the parameters and gradients of a unit are now.
type trackedUnit struct {
	name        string
	whole, part int64 // elements: of the padded unit, of a shard
	shared      bool  // several modules use it
	first       int   // the first that does

	held      bool // its parameters are in a slot, and in use
	left      int  // moments there were when its last use ended, while its slot still has it; else -1
	slotted   bool // its gradient of one micro-batch is in a slot
	kept      bool // its gradient is kept whole
	reduced   bool // its gradient shard has a value
	offloaded bool // which rests on the host
	frozen    bool // it has none
}

// segment is neighbouring memory of the arena, in bytes.
type segment struct {
	from, to int
	of       Category
}

// NewTracker listens to a trainer that is to be built.
func NewTracker(z *zero.Config) *Tracker {
	w := &Tracker{policy: z.Policy, micros: z.Micro, modules: len(z.Model.Modules), shard: z.Groups.Shard.Size(), size: int64(z.DType.Size()), units: map[string]*trackedUnit{}, lookup: z.Model.Lookup}
	z.Listener = w
	return w
}

// Begin is told what was allocated, before the step that is tracked.
func (w *Tracker) Begin(units []*fsdp.Unit, allocated device.Bytes) {
	w.On, w.arena, w.micro, w.back, w.passed, w.of, w.slotted, w.at, w.Moments, w.sent = true, nil, 0, false, false, SavedActivations, nil, nil, nil, 0
	for _, u := range units {
		first, last := u.Steps()
		w.units[u.Name] = &trackedUnit{
			name: u.Name, whole: int64(u.Layout.Len()), part: int64(u.Layout.ShardLen()),
			shared: first != last, first: first, left: -1, offloaded: u.GradOffloaded, frozen: u.Frozen,
		}
	}
	w.now = atRest(allocated)
}

// Event implements fsdp.Listener.
func (w *Tracker) Event(e fsdp.Event) {
	if !w.On {
		return
	}
	w.sent += e.Sent
	u := w.units[e.Units[0].Name]
	switch e.Op {
	case fsdp.Forward, fsdp.Recompute, fsdp.Backward:
		if e.Done {
			w.passDone(e)
		} else {
			w.pass(e)
		}
	case fsdp.Gather:
		w.turn()
		w.at, u.left = nil, -1
		w.hold(u)
		w.collective(e, u, e.Units[0].Shard)
	case fsdp.Reduce:
		w.collective(e, u, e.Units[0].Shard)
		w.reduce(u)
		w.at = nil
	case fsdp.Replicate:
		w.collective(e, u, e.Units[0].Replica)
		w.at = nil
	case fsdp.GatherUpdate, fsdp.ScatterUpdate:
		w.collective(e, u, e.Units[0].Shard)
		w.at = nil
	case fsdp.ShareUpdate:
		w.collective(e, u, e.Units[0].Replica)
		w.at = nil
	case fsdp.Vacate:
		w.at = nil
		w.unslot(u)
	case fsdp.Norm, fsdp.Update:
		w.settle()
		w.event(Phase(e.Op.String()), u.name, -1)
		if e.Op == fsdp.Update {
			w.update(u)
		}
	}
}

// collective is an event that only several ranks have.
func (w *Tracker) collective(e fsdp.Event, u *trackedUnit, g collective.Group) {
	if g.Size() > 1 {
		w.event(Phase(e.Op.String()), u.name, -1)
	}
}

// pass begins a module's pass. What it takes is work space, but for what a
// forward pass saves.
func (w *Tracker) pass(e fsdp.Event) {
	w.at = nil
	for _, x := range e.Units {
		u := w.units[x.Name]
		if e.Op != fsdp.Backward {
			w.turn()
			w.hold(u)
			continue
		}
		if e.Step > 0 || !w.lookup {
			w.hold(u)
		}
		if !u.frozen {
			w.gradient(u)
		}
	}
	w.event(Phase(e.Op.String()), e.Units[0].Name, e.Step)
	w.passing = true
	switch {
	case e.Op == fsdp.Recompute:
		w.of = Recomputed
	case e.Op == fsdp.Backward || !e.Saves:
		w.of = WorkSpace
	}
}

// passDone ends it. Between passes the schedule takes modules' outputs.
func (w *Tracker) passDone(e fsdp.Event) {
	w.at, w.of, w.passing = nil, SavedActivations, false
	if e.Op == fsdp.Recompute {
		return
	}
	for _, x := range e.Units {
		u := w.units[x.Name]
		w.leave(u)
		if e.Op == fsdp.Backward && e.Step == u.first && w.policy.KeepGrads && w.micro > 0 {
			w.unslot(u) // it has been added to what is kept
		}
	}
	w.back = w.back || e.Step == w.modules-1
	w.passed = e.Op == fsdp.Backward && e.Step == 0
}

// Arena implements fsdp.Listener.
func (w *Tracker) Arena(what string, height int) {
	if !w.On {
		return
	}
	if !w.passing {
		w.at = nil
	}
	if of := w.of; height > w.height() {
		if what == nn.Logits {
			of = Logits
		}
		w.raise(height, of)
	} else {
		w.lower(height)
	}
}

// event begins an event. Micro-batches but the first two and the last are as
// the second, and none of theirs is kept.
func (w *Tracker) event(p Phase, unit string, module int) {
	w.at = nil
	if !w.On || w.micro >= 2 && w.micro < w.micros-1 {
		return
	}
	w.at = &Moment{Phase: p, Unit: unit, Micro: w.micro, module: module, InUse: w.now}
	switch p {
	case norming, updating, gatheringUpdate, scatteringUpdate, sharingUpdate:
		w.at.Micro = -1
	}
	w.Moments = append(w.Moments, w.at)
}

// turn goes on to the next micro-batch once all of the last is issued.
func (w *Tracker) turn() {
	if w.passed {
		switch w.micro {
		case 0:
			w.second = -w.sent
		case 1:
			w.second += w.sent
		}
		w.micro++
		w.back, w.passed = false, false
	}
}

// extend makes a step of so many micro-batches of the one that was tracked: the
// second is repeated before the last.
func (w *Tracker) extend(micros int) {
	more := micros - w.micros
	if more == 0 {
		return
	}
	for _, m := range w.Moments {
		if m.Micro == w.micros-1 {
			m.Micro += more
		}
	}
	w.sent += int64(more) * w.second
	w.micros = micros
}

// add changes what is in use. The moment of an event is its highest.
func (w *Tracker) add(c Category, bytes int64) {
	w.now[c] += bytes
	if w.at != nil && w.now.Total() > w.at.InUse.Total() {
		w.at.InUse = w.now
	}
}

// raise fills the arena up to a height, for a category.
func (w *Tracker) raise(to int, of Category) {
	from := w.height()
	if to <= from {
		return
	}
	if n := len(w.arena); n > 0 && w.arena[n-1].of == of {
		w.arena[n-1].to = to
	} else {
		w.arena = append(w.arena, segment{from, to, of})
	}
	w.add(of, int64(to-from))
}

// lower empties the arena down to a height.
func (w *Tracker) lower(to int) {
	for n := len(w.arena); n > 0 && w.arena[n-1].to > to; n = len(w.arena) {
		s := &w.arena[n-1]
		w.add(s.of, -int64(s.to-max(s.from, to)))
		s.to = max(s.from, to)
		if s.to == s.from {
			w.arena = w.arena[:n-1]
		}
	}
}

func (w *Tracker) height() int {
	if len(w.arena) == 0 {
		return 0
	}
	return w.arena[len(w.arena)-1].to
}

// hold notes that a unit is whole in a slot and will be used. If it was left
// there by its last use, it was in use all the time.
func (w *Tracker) hold(u *trackedUnit) {
	if w.policy.KeepParams || u.held {
		return
	}
	if u.left >= 0 {
		for _, m := range w.Moments[u.left:] {
			m.InUse[GatheredUnits] += w.size * u.whole
		}
	}
	u.held, u.left = true, -1
	w.add(GatheredUnits, w.size*u.whole)
}

// leave notes that a unit has been used. A unit that several modules use keeps
// its slot until it is updated.
func (w *Tracker) leave(u *trackedUnit) {
	if u.held && !u.shared {
		u.held, u.left = false, len(w.Moments)
		w.add(GatheredUnits, -w.size*u.whole)
	}
}

// gradient notes that a unit's gradient begins to be written: where it is kept,
// or in its slot, which another unit may have to leave.
func (w *Tracker) gradient(u *trackedUnit) {
	if w.policy.KeepGrads && w.micro == 0 {
		if !u.kept {
			u.kept = true
			w.add(UnitGradients, 4*u.whole)
		}
		return
	}
	if u.slotted {
		return
	}
	u.slotted = true
	w.slotted = append(w.slotted, u)
	w.add(UnitGradients, 4*u.whole)
}

// unslot notes that the gradient in a unit's slot is no longer needed.
func (w *Tracker) unslot(u *trackedUnit) {
	if u.slotted {
		u.slotted = false
		w.slotted = slices.DeleteFunc(w.slotted, func(x *trackedUnit) bool { return x == u })
		w.add(UnitGradients, -4*u.whole)
	}
}

// reduce notes that a unit's gradient has been added to that of its shard.
func (w *Tracker) reduce(u *trackedUnit) {
	if w.policy.KeepGrads {
		return
	}
	if !u.reduced && !u.offloaded {
		u.reduced = true
		w.add(Gradients, 4*u.part)
	}
	if w.policy.Prefetch == 0 {
		w.unslot(u) // the next unit waits for the slot
	}
}

// settle notes that all reductions are done: what follows waits for them.
func (w *Tracker) settle() {
	w.at = nil
	w.lower(0)
	for len(w.slotted) > 0 {
		w.unslot(w.slotted[0])
	}
}

// update notes that a unit's gradient is used up and that its parameters in a
// slot are old.
func (w *Tracker) update(u *trackedUnit) {
	w.at = nil
	if u.kept {
		u.kept = false
		w.add(UnitGradients, -4*u.whole)
	}
	if u.reduced {
		u.reduced = false
		w.add(Gradients, -4*u.part)
	}
	if u.held {
		u.held = false
		w.add(GatheredUnits, -w.size*u.whole)
	}
	u.left = -1
}

// Name is a moment's for people.
func (w *Tracker) Name(m *Moment) string {
	what := m.Unit
	switch m.module {
	case 0:
		what = "the embedding"
	case w.modules - 1:
		what = "the output layer"
	}
	name := string(m.Phase) + " of " + what
	reduces := !w.policy.KeepGrads || m.Micro == w.micros-1
	if m.Phase == backward && m.module == w.units[m.Unit].first && reduces && w.shard > 1 {
		name += ", before its reduce-scatter"
	}
	if m.Micro >= 0 && w.micros > 1 {
		name += fmt.Sprintf(", micro-batch %d of %d", m.Micro+1, w.micros)
	}
	return name
}
