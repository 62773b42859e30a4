package optim

import (
	"math"

	"zeroth/device"
)

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter,
// arXiv 1711.05101), the update of torch.optim.AdamW.
type AdamW struct{ Beta1, Beta2, Eps float64 }

// States returns PyTorch's names.
func (AdamW) States() []string { return []string{"exp_avg", "exp_avg_sq"} }

// Types returns float32 for both.
func (AdamW) Types() []device.DType { return []device.DType{device.F32, device.F32} }

// Step applies the Adam update and shrinks the parameter by 1-LR*Decay.
func (r AdamW) Step(q Ops, t int, h Hyper, p Piece) {
	a := adam(r.Beta1, r.Beta2, r.Eps, t, h)
	a.Shrink = shrink(h)
	q.AdamW(p.Master, p.Param, p.Grad, p.State[0], p.State[1], a)
}

// AdamW8 is AdamW with moments stored in 8 bits per element, in blocks of 256, like
// bitsandbytes' AdamW8bit (Dettmers et al., arXiv 2110.02861); see device.Q8. A step
// decodes them, computes AdamW in float32, and encodes them again.
type AdamW8 struct{ Beta1, Beta2, Eps float64 }

// States returns AdamW's names, so that each can resume from the other's checkpoints.
func (AdamW8) States() []string { return AdamW{}.States() }

// Types returns the 8-bit types; only the first moment is signed.
func (AdamW8) Types() []device.DType { return []device.DType{device.Q8, device.U8} }

// Step applies AdamW between decoding and encoding.
func (r AdamW8) Step(q Ops, t int, h Hyper, p Piece) {
	a := adam(r.Beta1, r.Beta2, r.Eps, t, h)
	a.Shrink = shrink(h)
	q.AdamW8(p.Master, p.Param, p.Grad, p.State[0], p.State[1], a)
}

// Adam is Adam (Kingma and Ba, arXiv 1412.6980) with L2 regularisation: the decay is added
// to the gradient and so enters the moments, as in torch.optim.Adam.
type Adam struct{ Beta1, Beta2, Eps float64 }

// States returns PyTorch's names.
func (Adam) States() []string { return []string{"exp_avg", "exp_avg_sq"} }

// Types returns float32 for both.
func (Adam) Types() []device.DType { return []device.DType{device.F32, device.F32} }

// Step runs AdamW's kernel without shrinking.
func (r Adam) Step(q Ops, t int, h Hyper, p Piece) {
	a := adam(r.Beta1, r.Beta2, r.Eps, t, h)
	a.Shrink, a.L2 = 1, float32(h.Decay)
	q.AdamW(p.Master, p.Param, p.Grad, p.State[0], p.State[1], a)
}

// adam returns the kernel's arguments common to all Adam variants at step t >= 1. It
// computes the bias corrections in float64 from the betas rounded to float32, which the
// kernel uses. So the moments are exact for a beta that differs by at most 6e-8, and the first step
// is exact; computed from the unrounded beta, 1-0.999 would have a relative error of 1.3e-5.
func adam(beta1, beta2, eps float64, t int, h Hyper) device.AdamW {
	a := device.AdamW{
		GradScale: float32(h.GradScale),
		Beta1:     float32(beta1),
		Beta2:     float32(beta2),
		Eps:       float32(eps),
	}
	a.Step = float32(h.LR / (1 - math.Pow(float64(a.Beta1), float64(t))))
	a.RootC2 = float32(1 / math.Sqrt(1-math.Pow(float64(a.Beta2), float64(t))))
	return a
}

// SGD is stochastic gradient descent with heavy-ball momentum and coupled
// decay, the update of torch.optim.SGD without dampening or Nesterov. With
// Momentum 0 it has no state.
type SGD struct{ Momentum float64 }

// States returns PyTorch's name, or none without momentum.
func (r SGD) States() []string {
	if r.Momentum == 0 {
		return nil
	}
	return []string{"momentum_buffer"}
}

// Types returns float32, or none without momentum.
func (r SGD) Types() []device.DType {
	return []device.DType{device.F32}[:len(r.States())]
}

// Step updates the momentum and the parameter. It does not depend on t: the momentum starts as zeros.
func (r SGD) Step(q Ops, _ int, h Hyper, p Piece) {
	a := device.SGD{GradScale: float32(h.GradScale), Momentum: float32(r.Momentum), Decay: float32(h.Decay), LR: float32(h.LR)}
	var m device.Buffer
	if r.Momentum != 0 {
		m = p.State[0]
	}
	q.SGD(p.Master, p.Param, p.Grad, m, a)
}

// Lion moves every element by LR, against the sign of a mean of momentum and
// gradient (Chen et al., arXiv 2302.06675); its decay is decoupled.
type Lion struct{ Beta1, Beta2 float64 }

// States returns the name in the authors' code.
func (Lion) States() []string { return []string{"exp_avg"} }

// Types returns float32.
func (Lion) Types() []device.DType { return []device.DType{device.F32} }

// Step updates the momentum and the parameter. It does not depend on t: Lion has no bias correction.
func (r Lion) Step(q Ops, _ int, h Hyper, p Piece) {
	q.Lion(p.Master, p.Param, p.Grad, p.State[0], device.Lion{
		GradScale: float32(h.GradScale),
		Beta1:     float32(r.Beta1),
		Beta2:     float32(r.Beta2),
		Shrink:    shrink(h),
		LR:        float32(h.LR),
	})
}

// shrink returns the factor of decoupled decay.
func shrink(h Hyper) float32 { return float32(1 - h.LR*h.Decay) }
