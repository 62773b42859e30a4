package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// Attention sets o = softmax(Scale q·k)·v for each head, where each position attends to itself and
// the previous ones, within a.Window and its document. lse (B, H, T) float32 receives the
// log-sum-exp of each position's scores, including those whose probability a.Drop drops. Values at
// invisible positions must be finite.
func (q *Queue) Attention(o device.Mat, lse device.Buffer, qm, k, v device.Mat, a device.Attn) {
	kernel.WantAttn("attention", &a, lse)
	kernel.AttnRows("attention", &a, a.T, a.H, &o, &qm)
	kernel.AttnRows("attention", &a, a.Keys(), a.KV, &k, &v)
	device.Starts("attention", a.Start, a.B*a.T, 0)
	t := q.issue("attention")
	t.M[0], t.M[1], t.M[2], t.M[3] = o, qm, k, v
	t.B[0], t.B[1], t.Attn = lse, a.Start, a
	q.kernel(t, kernel.RunAttention, a.B*a.H*kernel.QueryBlocks(&a), 1)
}
