package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// update issues a rule on w (master copy), g (gradient) and the states, all float32 and of equal
// length. If p is not empty, it receives w rounded to its type. A state may be empty if the rule
// allows it.
func (q *Queue) update(t *task, f kernel.RuleFunc, w, p, g, m, v device.Buffer) {
	kernel.WantLen(t.name, device.F32, w.N, g, w)
	if p.N != 0 {
		kernel.WantVec(t.name, p, w.N)
	}
	t.Rule = f
	t.B[0], t.B[1], t.B[2], t.B[3], t.B[4] = w, p, g, m, v
	q.kernel(t, kernel.RunRule, kernel.Blocks(w.N), kernel.PieceWork/kernel.BlockLen)
}

// AdamW performs one step of Adam with decoupled decay; see device.AdamW.
func (q *Queue) AdamW(w, p, g, m, v device.Buffer, a device.AdamW) {
	kernel.WantLen("adamw", device.F32, w.N, m, v)
	t := q.issue("adamw")
	t.K = adamW(a)
	q.update(t, kernel.BestVec.AdamW, w, p, g, m, v)
}

// AdamW8 is like AdamW with moments coded in blocks: m is Q8, v is U8. Each block is decoded,
// updated like in AdamW, and coded.
func (q *Queue) AdamW8(w, p, g, m, v device.Buffer, a device.AdamW) {
	kernel.WantLen("adamw in 8 bits", device.F32, w.N, w, g)
	kernel.WantLen("adamw in 8 bits", device.Q8, w.N, m)
	kernel.WantLen("adamw in 8 bits", device.U8, w.N, v)
	if p.N != 0 {
		kernel.WantVec("adamw in 8 bits", p, w.N)
	}
	t := q.issue("adamw in 8 bits")
	t.K = adamW(a)
	t.B[0], t.B[1], t.B[2], t.B[3], t.B[4] = w, p, g, m, v
	const blocks = kernel.BlockLen / device.BlockLen
	q.kernel(t, kernel.RunAdamW8, (w.N+device.BlockLen-1)/device.BlockLen, blocks*kernel.PieceWork/kernel.BlockLen/4)
}

// adamW returns the constants of AdamW in the kernels' order.
func adamW(a device.AdamW) [10]float32 {
	return [10]float32{a.GradScale, a.L2, a.Beta1, 1 - a.Beta1, a.Beta2, 1 - a.Beta2, a.Shrink, a.Step, a.RootC2, a.Eps}
}

// SGD performs one step of stochastic gradient descent; see device.SGD. Without momentum m may be
// empty.
func (q *Queue) SGD(w, p, g, m device.Buffer, a device.SGD) {
	f := kernel.BestVec.Sgd
	if m.N != 0 || a.Momentum != 0 {
		kernel.WantLen("sgd", device.F32, w.N, m)
		f = kernel.BestVec.Momentum
	}
	t := q.issue("sgd")
	t.K = [10]float32{a.GradScale, a.Decay, a.LR, a.Momentum}
	q.update(t, f, w, p, g, m, device.Buffer{})
}

// Lion performs one step of Lion; see device.Lion. The sign of 0 is 0.
func (q *Queue) Lion(w, p, g, m device.Buffer, a device.Lion) {
	kernel.WantLen("lion", device.F32, w.N, m)
	t := q.issue("lion")
	t.K = [10]float32{a.GradScale, a.Beta1, 1 - a.Beta1, a.Beta2, 1 - a.Beta2, a.Shrink, a.LR}
	q.update(t, kernel.BestVec.Lion, w, p, g, m, device.Buffer{})
}
