package optim

import (
	"errors"
	"fmt"
)

// ErrScaleAtMin means that gradients overflow even at the smallest loss scale, so a smaller
// one would not help.
var ErrScaleAtMin = errors.New("gradients overflow at the smallest loss scale")

// LossScale keeps small fp16 gradients from vanishing: the loss is multiplied
// by Scale before the backward pass and the gradient divided by it after. The
// dynamic rule is DeepSpeed's (runtime/fp16/loss_scaler.py,
// DynamicLossScaler, consecutive_hysteresis false):
//
//   - An overflowed step is skipped. While more than one tolerated overflow is
//     Left, it uses up one; after that the scale halves, down to Min. An overflow
//     at Min is an error.
//   - After every Window steps without an overflow the scale doubles and Left
//     is reset to Hysteresis.
//
// All fields together are the state a checkpoint saves.
type LossScale struct {
	Dynamic    bool    // whether Update changes anything
	Scale      float64 // > 0
	Min        float64 // > 0, lower bound of Scale
	Window     int     // steps, > 0
	Hysteresis int     // overflows, >= 1
	Left       int     // overflows until the scale halves, 1..Hysteresis
	Clean      int     // steps since the last overflow or doubling, 0..Window-1
}

// DynamicLossScale returns DeepSpeed's default for fp16.
func DynamicLossScale() LossScale {
	return LossScale{Dynamic: true, Scale: 1 << 16, Min: 1, Window: 1000, Hysteresis: 2, Left: 2}
}

// StaticLossScale returns a scale that never changes; 1 disables scaling.
func StaticLossScale(scale float64) LossScale { return LossScale{Scale: scale} }

// Update records a step; overflow means that its gradients were not finite and the step
// was skipped. On an error the state is unchanged.
func (s *LossScale) Update(overflow bool) error {
	if !s.Dynamic {
		return nil
	}
	if overflow {
		return s.overflowed()
	}
	s.Clean++
	if s.Clean == s.Window {
		s.Scale *= 2
		s.Left, s.Clean = s.Hysteresis, 0
	}
	return nil
}

func (s *LossScale) overflowed() error {
	switch {
	case s.Left > 1:
		s.Left--
	case s.Scale <= s.Min:
		return fmt.Errorf("loss scale %g: %w: lower the learning rate, clip harder, or use precision bf16", s.Scale, ErrScaleAtMin)
	default:
		s.Scale = max(s.Scale/2, s.Min)
	}
	s.Clean = 0
	return nil
}
