package nn

import "zeroth/device"

// Recompute says which activations of a block Forward does not save, because Restore computes them
// again before Backward. Each level includes the levels below it.
type Recompute uint8

// The levels; those after the first in the order of config.Recomputes.
const (
	SaveAll              Recompute = iota // Restore is not called: even activations that no gradient reads are saved
	RecomputeNone                         // all that Backward reads is saved
	RecomputeElementwise                  // outputs of norms and of the MLP's activation
	RecomputeMLP                          // the MLP's hidden layer
	RecomputeLinear                       // queries, keys and values, and the stream between the halves: all but attention
	RecomputeBlock                        // attention: only the block's input is saved
)

// Restorer is a Module that saves less than its Backward reads, depending on Batch.Recompute, and
// restores the rest. Of other modules, only the input is saved from RecomputeElementwise on, and
// Forward runs again.
type Restorer interface {
	Module
	// Restore allocates from mem, and computes, whatever Forward did not save in s at the level
	// of bt, which is not SaveAll. It does not compute y. Backward must follow.
	Restore(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x device.Buffer, s *Saved)
}

// purpose says for which part of a micro-batch a block allocates activations.
type purpose uint8

const (
	saving    purpose = iota // those that Forward saves
	lending                  // those that Forward releases when it ends
	restoring                // those that Forward has not saved
)

// take allocates activation b, n elements. Levels from again on compute it again. If Backward does not
// read it, it is not saved: Backward only needs the memory, for a gradient.
func (p pass) take(b *device.Buffer, t device.DType, n int, to purpose, again Recompute, read bool) {
	saved := (read || p.bt.Recompute == SaveAll) && p.bt.Recompute < again
	switch {
	case to == saving && saved, to == restoring && !saved && read:
		*b = p.mem.Keep(t, n)
	case to == lending && !saved, to == restoring && !saved:
		*b = p.mem.Take(t, n)
	}
}

// readsInput reports whether the layer's gradients depend on its input.
func (l *linear) readsInput(of params) bool {
	return l.up.exist() || l.weight.exist() && !of[l.weight.param].Frozen
}
