package fsdp

import (
	"fmt"

	"zeroth/device"
)

// Op is an operation of a rank for a unit.
type Op uint8

const (
	Forward   Op = iota
	Recompute    // activations that Forward has not saved, before Backward
	Backward
	Weights   // the weight gradients that a Backward has deferred
	Gather    // all-gather the unit into its slot
	Reduce    // sum its gradient over the ranks of a shard group
	Replicate // and over its replicas
	ToHost    // copy its gradient to the host
	FromHost  // copy it back, to be added to
	SendKept  // copy to the host what a step keeps for the backward pass
	BringKept // copy it back
	Vacate    // a micro-batch's gradient leaves its slot for another unit's
	Norm      // of its gradient; reported by the trainer
	Update
	GatherUpdate  // gather the input of the update of whole matrices; reported by the trainer
	ScatterUpdate // distribute the result to the shards
	ShareUpdate   // and to the replicas
	Exchange      // modules gather or reduce activations; belongs to no unit
	ExchangeKeys  // keys and values, or their gradients; belongs to no unit
	ExchangeRows  // rows for experts of other ranks, or their gradients; belongs to no unit
	InUse         // the memory in use for it changes: see Event.Use and Bytes
	ops
)

var opNames = [ops]string{"forward", "recompute", "backward", "weight gradient", "all-gather", "reduce-scatter", "all-reduce",
	"gradient to host", "gradient from host", "activations to host", "activations from host", "vacate", "norm", "update",
	"all-gather of the update", "reduce-scatter of the update", "all-reduce of the update", "exchange of activations", "exchange of keys and values", "exchange of rows", "memory in use"}

func (o Op) String() string { return opNames[o] }

// Label returns the name of an operation on queues, in errors and in traces.
func Label(unit string, o Op) string { return "unit " + unit + ": " + o.String() }

// Event describes an operation that a rank has issued. Passes of a step are reported twice, before
// and after, so that events in between belong to them.
type Event struct {
	Op    Op
	Units []*Unit // of the step, or a single one; nil for an exchange
	Step  int     // for a pass: index of its module; else -1
	Saves bool    // a Forward keeps its activations
	Done  bool    // for a pass: it has been issued
	Sent  int64   // bytes this rank sends for it, around a ring or directly to each rank

	Micro int // the micro-batch, from 0; -1 after all of them

	Use   device.Use // for InUse: the purpose of the memory
	Bytes int64      // for InUse: the change
	Stays bool       // for InUse: it was released too early since the unit's last use, and was in use all the time
}

// slotKind identifies the memory of a unit's parameters or gradients.
type slotKind uint8

const (
	paramSlot   slotKind = iota
	gradSlotted          // the gradient of a micro-batch
	gradKept             // the gradient that is kept whole
	gradShard
	decoded // the parameters, while codes are stored
	slotKinds
)

// use records whether memory of a unit is in use, and reports changes.
func (r *Runner) use(u *Unit, at slotKind, now bool) {
	if u.inUse[at] == now {
		return
	}
	u.inUse[at] = now
	e := Event{Op: InUse, Units: u.self[:], Step: -1, Use: device.UnitGrads, Bytes: 4 * int64(u.Layout.Len())}
	switch at {
	case paramSlot:
		e.Use, e.Bytes = device.Gathered, int64(r.stored(u).Size()*u.Layout.Len())
		e.Stays, u.stays = now && u.stays, !now
	case decoded:
		e.Use, e.Bytes = device.Gathered, int64(r.cfg.DType.Size()*u.Values.Len())
	case gradShard:
		e.Use, e.Bytes = device.Grads, 4*int64(u.Own().Len())
	}
	if !now {
		e.Bytes = -e.Bytes
	}
	r.emit(e)
}

// hold records that a unit has been gathered into a slot for use.
func (r *Runner) hold(u *Unit) {
	if !r.cfg.Policy.KeepParams {
		r.use(u, paramSlot, true)
	}
}

// usePass records the memory used by a pass of a step, or released by it once it is done. A unit
// used by several modules keeps its slot until it is updated.
func (r *Runner) usePass(o Op, i int, done bool) {
	s, keep := &r.steps[i], r.cfg.Policy.KeepGrads
	for _, u := range s.units {
		switch {
		case done && o == Recompute:
		case done:
			if !u.shared() && o != Weights {
				r.use(u, paramSlot, false)
			}
			r.use(u, decoded, false)
			if (o == Weights || o == Backward && s.deferred == nil) && i == u.first && keep && r.micro > 0 {
				r.use(u, gradSlotted, false) // it is added to the kept gradient
			}
		case o != Backward && o != Weights:
			r.hold(u)
			r.use(u, decoded, u.coded())
		default:
			if s.reads(-1) && o == Backward {
				r.hold(u)
				r.use(u, decoded, u.coded())
			}
			if o == Backward && s.deferred != nil {
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

// Begin starts a step. It resets the memory in use, since the previous step may not have reached its
// updates.
func (r *Runner) Begin() {
	r.micro = 0
	for _, u := range r.Units {
		u.inUse, u.stays = [slotKinds]bool{}, false
	}
}

// End completes the backward passes of a step: it sums the gradients of tied units over all stages
// that use them, after everything for which other stages wait.
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

// Spent records that a unit's gradient has been consumed and its parameters in a slot are outdated.
func (r *Runner) Spent(u *Unit) {
	for at := range slotKinds {
		if at != gradSlotted {
			r.use(u, at, false)
		}
	}
	u.stays = false
}

// Listener receives the events of a Runner, on the goroutine that issues the operations.
type Listener interface {
	Event(Event)
	// Arena reports the height of one of the activations' arenas, in bytes, whenever it changes,
	// and the purpose of the allocation, if known.
	Arena(arena int, what string, height int)
}

// emit reports an event to the listener.
func (r *Runner) emit(e Event) {
	if r.cfg.Listener != nil {
		e.Micro = r.micro
		r.cfg.Listener.Event(e)
	}
}

// emitFor reports an operation on one unit for which the rank sends sent bytes.
func (r *Runner) emitFor(o Op, u *Unit, sent int) {
	r.emit(Event{Op: o, Units: u.self[:], Step: -1, Sent: int64(sent)})
}

// around returns the bytes that a rank sends if its share of bytes goes once around a ring.
func around(ranks, bytes int) int { return bytes / ranks * (ranks - 1) }

// sends returns the bytes that the rank sends to gather or reduce a unit of that many bytes in its
// shard group. A master sends everything to each of the others and receives everything from each.
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

// pass reports a pass of a step.
func (r *Runner) pass(o Op, i int, saves, done bool) {
	if r.in, r.op = &r.steps[i], o; done {
		r.in = nil
	}
	r.emit(Event{Op: o, Units: r.steps[i].units, Step: i, Saves: saves, Done: done})
	r.usePass(o, i, done)
}

// blame adds the module, which may be a user's, and its unit to a panic.
func (r *Runner) blame() {
	if r.in == nil {
		return
	}
	if why := recover(); why != nil {
		panic(fmt.Sprintf("%s: module %T: %v", Label(r.in.units[0].Name, r.op), r.in.mod, why))
	}
}
