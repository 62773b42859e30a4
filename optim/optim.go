// Package optim is update rules and learning-rate schedules.
//
// An Elementwise rule updates element i of a vector from element i of the others and
// nothing else, so any split of a vector over calls, ranks or workers gives
// the same bits. A Whole rule does so before and after a part that has the whole matrix.
package optim

import "zeroth/device"

// Ops are the kernels rules need. w (float32) is the master copy, g the
// gradient (float32), m and v state (float32). When p is not empty it receives
// w rounded to p's type in the same pass. SGD without momentum passes an empty
// m: the kernel then updates w from g' and keeps nothing.
type Ops interface {
	AdamW(w, p, g, m, v device.Buffer, a device.AdamW)
	// AdamW8 is AdamW whose m is Q8 and whose v is U8.
	AdamW8(w, p, g, m, v device.Buffer, a device.AdamW)
	SGD(w, p, g, m device.Buffer, a device.SGD)
	Lion(w, p, g, m device.Buffer, a device.Lion)
	// Axpby sets y = alpha*a + beta*b in float32, all of any float type; y may be one of
	// them. When p is not empty it receives y rounded to its type.
	Axpby(y, p, a, b device.Buffer, alpha, beta float32)
}

// Piece is a run of elements of one parameter, all buffers of equal length.
type Piece struct {
	Master device.Buffer   // float32
	Param  device.Buffer   // compute dtype; empty when Master is the parameter
	Grad   device.Buffer   // float32
	State  []device.Buffer // of Rule.Types, in the order of Rule.States; the caller's again when Step returns
}

// Hyper is what changes from step to step, and from group to group of parameters.
type Hyper struct {
	LR        float64
	Decay     float64 // of the weights; 0 is none
	GradScale float64 // multiplies the gradient: clipping and loss scale in one
	Scale     float64 // of a Whole rule: multiplies LR, but not in the decay
}

// Group is how some parameters are updated.
type Group struct {
	LR    float64 // of the learning rate of the step: 1 is all of it
	Decay float64 // of the weights; 0 is none
	Scale float64 // of a Whole rule: Hyper's
}

// Rule is an update rule with its constants.
type Rule interface {
	// States names the state vectors, as checkpoints know them.
	States() []string
	// Types are those of their elements.
	Types() []device.DType
}

// Elementwise is a rule that needs no more than a piece.
type Elementwise interface {
	Rule
	// Step issues update t (the first is 1) of a piece on q.
	Step(q Ops, t int, h Hyper, p Piece)
}
