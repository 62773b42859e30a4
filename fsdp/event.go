package fsdp

import (
	"fmt"

	"zeroth/device"
)

// Op is what a rank does for a unit.
type Op uint8

const (
	Forward   Op = iota
	Recompute    // Forward again, before Backward
	Backward
	Weights   // the rest of a Backward that has left gradients of weights
	Gather    // the unit becomes whole in its slot
	Reduce    // its gradient is summed over the ranks of a shard group
	Replicate // and over its replicas
	ToHost    // its gradient goes to the host
	FromHost  // and comes back to be added to
	Vacate    // its gradient of a micro-batch leaves its slot, which another unit's takes
	Norm      // of its gradient; told by who updates
	Update
	GatherUpdate  // what the update of its matrices depends on becomes whole; told by who updates
	ScatterUpdate // and what that came to goes to the shards,
	ShareUpdate   // and to its replicas
	Exchange      // modules gather or add up activations; of no unit
	ExchangeKeys  // keys and values, or their gradients; likewise
	InUse         // the memory in use for it changes: Event.Of and Bytes
	ops
)

var opNames = [ops]string{"forward", "recompute", "backward", "weight gradient", "all-gather", "reduce-scatter", "all-reduce",
	"gradient to host", "gradient from host", "vacate", "norm", "update",
	"all-gather of the update", "reduce-scatter of the update", "all-reduce of the update", "exchange of activations", "exchange of keys and values", "memory in use"}

func (o Op) String() string { return opNames[o] }

// Label is what an operation is called on queues, in errors and traces.
func Label(unit string, o Op) string { return "unit " + unit + ": " + o.String() }

// Event is an operation that a rank has issued. Passes of a step are told twice,
// before and after, so that what is between is theirs.
type Event struct {
	Op    Op
	Units []*Unit // of the step, or the one; nil of an exchange
	Step  int     // of a pass: its module; else -1
	Saves bool    // a Forward keeps its activations
	Done  bool    // of a pass: it is issued
	Sent  int64   // bytes this rank sends for it, if parts go around a ring, or from each rank to each
	Queue device.Queue

	Micro int // the micro-batch, from 0; -1 after all of them

	Of    device.Use // InUse: what the memory is
	Bytes int64      // by which it changes
	Stays bool       // it had been given back since the unit was used last, too soon: it was in use all the time
}

// place is where something of a unit is.
type place uint8

const (
	paramSlot   place = iota
	gradSlotted       // the gradient of a micro-batch
	gradKept          // the gradient that is kept whole
	gradShard
	places
)

// use notes that a place has begun or ceased to be in use, and tells it.
func (r *Runner) use(u *Unit, at place, now bool) {
	if u.inUse[at] == now {
		return
	}
	u.inUse[at] = now
	e := Event{Op: InUse, Units: u.self[:], Step: -1, Queue: r.cfg.Compute, Of: device.UnitGrads, Bytes: 4 * int64(u.Layout.Len())}
	switch at {
	case paramSlot:
		e.Of, e.Bytes = device.Gathered, int64(r.cfg.DType.Size()*u.Layout.Len())
		e.Stays, u.stays = now && u.stays, !now
	case gradShard:
		e.Of, e.Bytes = device.Grads, 4*int64(u.Own().Len())
	}
	if !now {
		e.Bytes = -e.Bytes
	}
	r.tell(e)
}

// hold notes that a unit is whole in a slot and will be used.
func (r *Runner) hold(u *Unit) {
	if !r.cfg.Policy.KeepParams {
		r.use(u, paramSlot, true)
	}
}

// usePass notes what a pass of a step uses, or once it is done no longer does. A unit that
// several modules use keeps its slot until it is updated.
func (r *Runner) usePass(o Op, i int, done bool) {
	s, keep := &r.steps[i], r.cfg.Policy.KeepGrads
	for _, u := range s.units {
		switch {
		case done && o == Recompute:
		case done:
			if !u.shared() && o != Weights {
				r.use(u, paramSlot, false)
			}
			if (o == Weights || o == Backward && s.left == nil) && i == u.first && keep && r.micro > 0 {
				r.use(u, gradSlotted, false) // it is added to what is kept
			}
		case o != Backward && o != Weights:
			r.hold(u)
		default:
			if s.reads(-1) && o == Backward {
				r.hold(u)
			}
			if o == Backward && s.left != nil {
				continue
			}
			if u.trained() && keep && r.micro == 0 {
				r.use(u, gradKept, true)
			} else if u.trained() {
				r.use(u, gradSlotted, true)
			}
		}
	}
}

// Begin begins a step. It forgets what was in use: the step before may not have come to its
// updates.
func (r *Runner) Begin() {
	r.micro = 0
	for _, u := range r.Units {
		u.inUse, u.stays = [places]bool{}, false
	}
}

// End issues what follows the last backward pass of a step: tied units are summed over all
// stages that use them, after everything that a stage waits for in the others.
func (r *Runner) End() {
	for _, u := range r.Units {
		if !u.Tied || u.Frozen {
			continue
		}
		if !u.GradOffloaded {
			r.replicate(u, u.Grad)
			u.Reduced = r.cfg.Comm.Mark()
			continue
		}
		r.replicate(u, u.partial)
		r.toHost(u, u.partial)
		r.grads[u.dwSlot].free, u.Reduced = u.sent, u.sent
	}
	for _, u := range r.Units {
		r.use(u, gradSlotted, false)
	}
	r.micro = 0
}

// Spent notes that a unit's gradient is used up and its parameters in a slot are old.
func (r *Runner) Spent(u *Unit) {
	for at := range places {
		if at != gradSlotted {
			r.use(u, at, false)
		}
	}
	u.stays = false
}

// Listener hears what a Runner does, from the goroutine that issues it.
type Listener interface {
	Event(Event)
	// Arena tells the height of one of the activations' arenas, in bytes, whenever it has
	// changed, and what was taken for, if who took it says.
	Arena(arena int, what string, height int)
}

// tell tells an event to who listens.
func (r *Runner) tell(e Event) {
	if r.cfg.Listener != nil {
		e.Micro = r.micro
		r.cfg.Listener.Event(e)
	}
}

// tellOf tells of an operation on one unit, for which the rank sends so many bytes.
func (r *Runner) tellOf(o Op, u *Unit, q device.Queue, sent int) {
	r.tell(Event{Op: o, Units: u.self[:], Step: -1, Sent: int64(sent), Queue: q})
}

// around is the bytes a rank sends whose parts of so many go once around a ring.
func around(ranks, bytes int) int { return bytes / ranks * (ranks - 1) }

// sends is the bytes the rank sends of so many that a unit has, to gather or to reduce them
// in its shard group: a master sends all to each of the others and gets all from each.
func (u *Unit) sends(o Op, bytes int) int {
	n := u.Shard.Size()
	switch master := u.Shard.Rank() == 0; {
	case !u.Layout.Master:
		return around(n, bytes)
	case master == (o == Reduce):
		return 0
	case master:
		return bytes * (n - 1)
	}
	return bytes
}

// pass tells of a pass of a step.
func (r *Runner) pass(o Op, i int, saves, done bool) {
	if r.in, r.op = &r.steps[i], o; done {
		r.in = nil
	}
	r.tell(Event{Op: o, Units: r.steps[i].units, Step: i, Saves: saves, Done: done, Queue: r.cfg.Compute})
	r.usePass(o, i, done)
}

// blame names the module that panics, and its unit: it may be a user's.
func (r *Runner) blame() {
	if r.in == nil {
		return
	}
	if why := recover(); why != nil {
		panic(fmt.Sprintf("%s: module %T: %v", Label(r.in.units[0].Name, r.op), r.in.mod, why))
	}
}
