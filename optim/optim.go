// Package optim is elementwise update rules and learning-rate schedules.
//
// A rule updates element i of a vector from element i of the others and
// nothing else, so any split of a vector over calls, ranks or workers gives
// the same bits.
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
}

// Group is how some parameters are updated.
type Group struct {
	LR    float64 // of the learning rate of the step: 1 is all of it
	Decay float64 // of the weights; 0 is none
}

// Rule is an update rule with its constants.
type Rule interface {
	// States names the state vectors, as checkpoints know them.
	States() []string
	// Types are those of their elements.
	Types() []device.DType
	// Step issues update t (the first is 1) of a piece on q.
	Step(q Ops, t int, h Hyper, p Piece)
}
