package optim

import (
	"cmp"
	"math"
)

// Kind selects the shape of a schedule after its warmup.
type Kind uint8

const (
	Constant    Kind = iota // stays at LR
	Linear                  // falls to MinLR on a straight line
	Cosine                  // falls to MinLR on half a cosine
	WSD                     // stays at LR, then falls to MinLR on a straight line in the last Decay steps (Hu et al., arXiv 2404.06395)
	InverseSqrt             // LR / sqrt(1 + steps since the peak / timescale), with timescale Warmup, or 10,000 without warmup (transformers)
)

// Schedule is the learning rate as a function of the step. Its peak, LR, is
// at step Warmup-1 (step 0 without warmup); its end, MinLR, at step Steps-1.
//
// The warmup is that of llm.c: step s < Warmup runs at LR*(s+1)/Warmup, so that
// no step is wasted at zero. Unlike in llm.c, the last step really runs at
// MinLR, and so do steps past the end. With a Lag, peak and end are that many
// steps later, and the steps before the warmup run at zero: Lag 1 is the
// schedule of transformers, and Lag 2 that of DeepSpeed. If the peak is the last step or later, because Steps is 1 or
// Warmup >= Steps, the run only warms up.
type Schedule struct {
	Kind      Kind
	LR, MinLR float64
	Warmup    int // steps
	Steps     int // steps of the whole run, warmup included
	Decay     int // length of WSD's final decay, in steps
	Lag       int // steps
}

// At returns the learning rate of a step; the first update is step 0.
func (s Schedule) At(step int) float64 {
	peak, end := max(s.Warmup-1+s.Lag, 0), s.Steps-1+s.Lag
	from := peak // the last step at LR
	if s.Kind == WSD {
		from = max(peak, end-s.Decay)
	}
	switch {
	case step < peak:
		return s.LR * float64(max(step+1-s.Lag, 0)) / float64(max(s.Warmup, 1))
	case step <= from || s.Kind == Constant:
		return s.LR
	case s.Kind == InverseSqrt:
		scale := s.Warmup
		scale = cmp.Or(scale, 10_000)
		return s.LR / math.Sqrt(1+float64(step-peak)/float64(scale))
	case step >= end:
		return s.MinLR
	}
	done := float64(step-from) / float64(end-from) // in (0, 1)
	remaining := 1 - done
	if s.Kind == Cosine {
		remaining = (1 + math.Cos(math.Pi*done)) / 2
	}
	return s.MinLR + (s.LR-s.MinLR)*remaining
}
