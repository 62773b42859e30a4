package optim

import "math"

// Kind is what a schedule does after its warmup.
type Kind uint8

const (
	Constant Kind = iota // stays at LR
	Linear               // falls to MinLR on a straight line
	Cosine               // falls to MinLR on half a cosine
)

// Schedule is the learning rate as a function of the step. Its peak, LR, is
// at step Warmup-1 (step 0 without warmup); its end, MinLR, at step Steps-1.
//
// The warmup is llm.c's: step s < Warmup runs at LR*(s+1)/Warmup, so no step
// is wasted at zero. Unlike llm.c, the last step that is run really runs at
// MinLR, and so do steps past the end. Where the peak is the last step or
// later, because Steps is 1 or Warmup >= Steps, there is no fall before the
// end: the run only warms up.
type Schedule struct {
	Kind      Kind
	LR, MinLR float64
	Warmup    int // steps
	Steps     int // steps of the whole run, warmup included
}

// At is the learning rate of a step; the first update is step 0.
func (s Schedule) At(step int) float64 {
	peak := max(s.Warmup-1, 0)
	switch {
	case step < peak:
		return s.LR * float64(step+1) / float64(s.Warmup)
	case step == peak || s.Kind == Constant:
		return s.LR
	case step >= s.Steps-1:
		return s.MinLR
	}
	done := float64(step-peak) / float64(s.Steps-1-peak) // in (0, 1)
	left := 1 - done
	if s.Kind == Cosine {
		left = (1 + math.Cos(math.Pi*done)) / 2
	}
	return s.MinLR + (s.LR-s.MinLR)*left
}
