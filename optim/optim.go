// Package optim implements update rules and learning-rate schedules.
//
// An Elementwise rule updates element i of a vector from element i of the others only, so
// any split of a vector over calls, ranks or workers gives the same bits. A Whole rule has
// such a part before and after a part that needs the whole matrix.
package optim

import "zeroth/device"

// Ops are the kernels that rules need. w (float32) is the master copy, g the
// gradient (float32), m and v state (float32). If p is not empty, it receives
// w rounded to p's type in the same pass. SGD without momentum passes an empty
// m: the kernel then updates w from the gradient and has no state.
type Ops interface {
	AdamW(w, p, g, m, v device.Buffer, a device.AdamW)
	// AdamW8 is AdamW with m in Q8 and v in U8.
	AdamW8(w, p, g, m, v device.Buffer, a device.AdamW)
	SGD(w, p, g, m device.Buffer, a device.SGD)
	Lion(w, p, g, m device.Buffer, a device.Lion)
	// Axpby sets y = alpha*a + beta*b in float32; buffers have any float type and y may be a
	// or b. If p is not empty, it receives y rounded to its type.
	Axpby(y, p, a, b device.Buffer, alpha, beta float32)
}

// Piece is a range of elements of one parameter; all buffers have the same length.
type Piece struct {
	Master device.Buffer   // float32
	Param  device.Buffer   // compute dtype; empty if Master is the parameter
	Grad   device.Buffer   // float32
	State  []device.Buffer // of Rule.Types, in the order of Rule.States; Step does not retain the slice
}

// Hyper has the hyperparameters that depend on the step and the parameter group.
type Hyper struct {
	LR        float64
	Decay     float64 // weight decay; 0 is none
	GradScale float64 // factor of the gradient: clipping and loss scale combined
	Scale     float64 // for a Whole rule: factor of LR, except in the decay
}

// Group has the factors by which a group of parameters deviates from the job's settings.
type Group struct {
	LR    float64 // factor of the step's learning rate
	Decay float64 // weight decay; 0 is none
	Scale float64 // for a Whole rule: Hyper.Scale
}

// Rule is an update rule with its constants.
type Rule interface {
	// States returns the names of the state vectors, as used in checkpoints.
	States() []string
	// Types returns their element types.
	Types() []device.DType
}

// Elementwise is a rule that needs only a piece.
type Elementwise interface {
	Rule
	// Step issues update t (the first is 1) of a piece on q.
	Step(q Ops, t int, h Hyper, p Piece)
}
