package optim

import "math"

// Kind is what a schedule does after its warmup.
type Kind uint8

const (
	Constant    Kind = iota // stays at LR
	Linear                  // falls to MinLR on a straight line
	Cosine                  // falls to MinLR on half a cosine
	WSD                     // stays at LR until the last Decay steps, and falls to MinLR there on a straight line (Hu et al., arXiv 2404.06395)
	InverseSqrt             // LR / sqrt(1 + steps since the peak / timescale), the timescale being Warmup, or 10,000 without one (transformers)
)

// Schedule is the learning rate as a function of the step. Its peak, LR, is
// at step Warmup-1 (step 0 without warmup); its end, MinLR, at step Steps-1.
//
// The warmup is llm.c's: step s < Warmup runs at LR*(s+1)/Warmup, so no step
// is wasted at zero. That of transformers runs at LR*s/Warmup, one step behind. Unlike llm.c, the last step that is run really runs at
// MinLR, and so do steps past the end. Where the peak is the last step or
// later, because Steps is 1 or Warmup >= Steps, there is no fall before the
// end: the run only warms up.
type Schedule struct {
	Kind      Kind
	LR, MinLR float64
	Warmup    int // steps
	Steps     int // steps of the whole run, warmup included
	Decay     int // the last steps, in which WSD falls
}

// At is the learning rate of a step; the first update is step 0.
func (s Schedule) At(step int) float64 {
	peak := max(s.Warmup-1, 0)
	from := peak // the last step at LR
	if s.Kind == WSD {
		from = max(peak, s.Steps-1-s.Decay)
	}
	switch {
	case step < peak:
		return s.LR * float64(step+1) / float64(s.Warmup)
	case step <= from || s.Kind == Constant:
		return s.LR
	case s.Kind == InverseSqrt:
		scale := s.Warmup
		if scale == 0 {
			scale = 10_000
		}
		return s.LR / math.Sqrt(1+float64(step-peak)/float64(scale))
	case step >= s.Steps-1:
		return s.MinLR
	}
	done := float64(step-from) / float64(s.Steps-1-from) // in (0, 1)
	left := 1 - done
	if s.Kind == Cosine {
		left = (1 + math.Cos(math.Pi*done)) / 2
	}
	return s.MinLR + (s.LR-s.MinLR)*left
}
