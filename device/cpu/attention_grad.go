package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// AttentionGrad sets dq, dk and dv to the gradients of Attention; those of keys that no query
// attends to are 0. With P = exp(Scale q·k - lse), recomputed block by block, and delta the row
// sums of do*o (Dao et al., arXiv 2205.14135, appendix B.2):
//
//	dv = P^T do,  dS = P * (do·v - delta),  dq = Scale dS k,  dk = Scale dS^T q.
//
// If a.Drop drops elements of P, dv and do·v use the remaining ones, scaled.
//
// A piece of work is a key and value head with all query heads that share it, so each element is
// summed by one worker in a fixed order. delta (B, H, T) float32 is working space.
func (q *Queue) AttentionGrad(dq, dk, dv device.Mat, delta device.Buffer, do, o device.Mat, lse device.Buffer, qm, k, v device.Mat, a device.Attn) {
	const op = "attention gradient"
	kernel.WantAttn(op, &a, lse)
	kernel.WantLen(op, device.F32, lse.N, delta)
	kernel.AttnRows(op, &a, a.T, a.H, &dq, &do, &o, &qm)
	kernel.AttnRows(op, &a, a.Keys(), a.KV, &dk, &dv, &k, &v)
	device.Starts(op, a.Start, a.B*a.T, 0)
	t := q.issue(op)
	t.M = [8]device.Mat{dq, dk, dv, do, o, qm, k, v}
	t.B[0], t.B[1], t.B[2], t.Attn = delta, lse, a.Start, a
	q.kernel(t, kernel.RunAttentionGrad, a.B*a.KV, 1)
}
