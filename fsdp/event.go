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
	ops
)

var opNames = [ops]string{"forward", "recompute", "backward", "all-gather", "reduce-scatter", "all-reduce",
	"gradient to host", "gradient from host", "vacate", "norm", "update",
	"all-gather of the update", "reduce-scatter of the update", "all-reduce of the update"}

func (o Op) String() string { return opNames[o] }

// Label is what an operation is called on queues, in errors and traces.
func Label(unit string, o Op) string { return "unit " + unit + ": " + o.String() }

// Event is an operation that a rank has issued. Passes of a step are told twice,
// before and after, so that what is between is theirs.
type Event struct {
	Op    Op
	Units []*Unit // of the step, or the one
	Step  int     // of a pass: its module; else -1
	Saves bool    // a Forward keeps its activations
	Done  bool    // of a pass: it is issued
	Sent  int64   // bytes this rank sends for it, if parts go around a ring, or from each rank to each
	Queue device.Queue
}

// Listener hears what a Runner does, from the goroutine that issues it.
type Listener interface {
	Event(Event)
	// Arena tells the height of the activations' memory, in bytes, whenever it has
	// changed, and what was taken for, if who took it says.
	Arena(what string, height int)
}

// tell tells an event to who listens.
func (r *Runner) tell(e Event) {
	if r.cfg.Listener != nil {
		r.cfg.Listener.Event(e)
	}
}

// tellOf tells of an operation on one unit. Times is how often a rank sends its
// parts of so many bytes around a ring of so many ranks.
func (r *Runner) tellOf(o Op, u *Unit, q device.Queue, bytes, ranks, times int) {
	r.tell(Event{Op: o, Units: u.self[:], Step: -1, Sent: int64(times * (bytes / ranks) * (ranks - 1)), Queue: q})
}

// pass tells of a pass of a step.
func (r *Runner) pass(o Op, i int, saves, done bool) {
	if r.in, r.op = &r.steps[i], o; done {
		r.in = nil
	}
	r.tell(Event{Op: o, Units: r.steps[i].units, Step: i, Saves: saves, Done: done, Queue: r.cfg.Compute})
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
