package cpu

import "zeroth/device"

// AttentionGrad overwrites dq, dk and dv with the gradients of Attention. With
// P = exp(Scale q·k - lse), computed again block by block, and delta the row
// sums of do*o (Dao et al., arXiv 2205.14135, appendix B.2):
//
//	dv = P^T do,  dS = P * (do·v - delta),  dq = Scale dS k,  dk = Scale dS^T q.
//
// A piece of work is a key and value head with all query heads that share it,
// so each element is summed by one worker, in one order. delta (B, H, T)
// float32 is work space.
func (q *Queue) AttentionGrad(dq, dk, dv device.Mat, delta device.Buffer, do, o device.Mat, lse device.Buffer, qm, k, v device.Mat, a device.Attn) {
	const op = "attention gradient"
	wantAttn(op, &a, lse)
	wantLen(op, delta, device.F32, lse.N)
	attnRows(op, &a, a.H, &dq, &do, &o, &qm)
	attnRows(op, &a, a.KV, &dk, &dv, &k, &v)
	t := q.issue(op)
	t.m = [8]device.Mat{dq, dk, dv, do, o, qm, k, v}
	t.b[0], t.b[1], t.attn = delta, lse, a
	q.kernel(t, runAttentionGrad, a.B*a.KV, 1)
}

// attnBackward is the work space of one worker.
type attnBackward struct {
	t            *task
	dQ, dK, dV   []float32 // (T, D)
	Q, dO, K     []float32 // (attnBlock, D); Q times Scale
	Kt, Vt       []float32 // (D, attnBlock)
	P, dS        []float32 // (attnBlock, attnBlock)
	delta, lse   []float32 // (B, H, T)
	first        int       // row of the sequence's first position
	head, shared int       // first column of the query head and of its key head
}

func runAttentionGrad(t *task, w *worker, lo, hi int) {
	a := &t.attn
	f := attnBackward{t: t, delta: t.b[0].F32(), lse: t.b[1].F32()}
	whole, part, square := a.T*a.D, attnBlock*a.D, attnBlock*attnBlock
	mem := w.floats(3*whole + 5*part + 2*square)
	f.dQ, f.dK, f.dV = take(&mem, whole), take(&mem, whole), take(&mem, whole)
	f.Q, f.dO, f.K = take(&mem, part), take(&mem, part), take(&mem, part)
	f.Kt, f.Vt = take(&mem, part), take(&mem, part)
	f.P, f.dS = take(&mem, square), take(&mem, square)
	for i := lo; i < hi; i++ {
		f.keyHead(i/a.KV, i%a.KV)
	}
}

// keyHead computes key head kv of sequence b and the query heads that use it.
func (f *attnBackward) keyHead(b, kv int) {
	a, t, share := &f.t.attn, f.t, f.t.attn.H/f.t.attn.KV
	f.first, f.shared = b*a.T, kv*a.D
	clear(f.dK)
	clear(f.dV)
	for h := kv * share; h < (kv+1)*share; h++ {
		f.head = h * a.D
		f.queryHead((b*a.H + h) * a.T)
		storeBlock(&t.m[0], f.first, f.head, f.dQ, a.T, a.D, a.Scale)
	}
	storeBlock(&t.m[1], f.first, f.shared, f.dK, a.T, a.D, 1)
	storeBlock(&t.m[2], f.first, f.shared, f.dV, a.T, a.D, 1)
}

// queryHead sets dQ, without Scale, and adds to dK and dV; stat is where the
// head's rows begin in delta and lse.
func (f *attnBackward) queryHead(stat int) {
	a := &f.t.attn
	clear(f.dQ)
	f.deltas(f.delta[stat:][:a.T])
	for k0 := 0; k0 < a.T; k0 += attnBlock {
		nk := min(attnBlock, a.T-k0)
		loadBlock(f.K, &f.t.m[7], f.first+k0, f.shared, nk, a.D, 1)
		transpose(f.Vt, f.K, nk, a.D)
		loadBlock(f.K, &f.t.m[6], f.first+k0, f.shared, nk, a.D, 1)
		transpose(f.Kt, f.K, nk, a.D)
		for q0 := k0; q0 < a.T; q0 += attnBlock {
			f.pair(stat, q0, k0, min(attnBlock, a.T-q0), nk)
		}
	}
}

// deltas sets delta to the row sums of do*o.
func (f *attnBackward) deltas(delta []float32) {
	D := f.t.attn.D
	for i := range delta {
		loadBlock(f.Q, &f.t.m[4], f.first+i, f.head, 1, D, 1)
		loadBlock(f.dO, &f.t.m[3], f.first+i, f.head, 1, D, 1)
		var s float32
		for j, o := range f.Q[:D] {
			s += o * f.dO[j]
		}
		delta[i] = s
	}
}

// pair adds what nq queries from q0 on and nk keys from k0 on have to do with
// each other.
func (f *attnBackward) pair(stat, q0, k0, nq, nk int) {
	a, D := &f.t.attn, f.t.attn.D
	loadBlock(f.Q, &f.t.m[5], f.first+q0, f.head, nq, D, a.Scale)
	loadBlock(f.dO, &f.t.m[3], f.first+q0, f.head, nq, D, 1)
	P, dS, Q, dO := panelOf(f.P, attnBlock), panelOf(f.dS, attnBlock), panelOf(f.Q, D), panelOf(f.dO, D)
	clear(f.P)
	clear(f.dS)
	panelMul(P, Q, panelOf(f.Kt, attnBlock), nq, nk, D)
	panelMul(dS, dO, panelOf(f.Vt, attnBlock), nq, nk, D)
	for i := range nq {
		row := stat + q0 + i
		f.slope(i, min(nk, q0+i-k0+1), f.lse[row], f.delta[row])
	}
	panelMul(panelOf(f.dV[k0*D:], D), P.t(), dO, nk, D, nq)
	panelMul(panelOf(f.dK[k0*D:], D), dS.t(), Q, nk, D, nq)
	panelMul(panelOf(f.dQ[q0*D:], D), dS, panelOf(f.K, D), nq, D, nk)
}

// slope turns row i of P from scores into probabilities and that of dS from
// do·v into the gradient of the scores; zeros beyond the first n, the seen.
func (f *attnBackward) slope(i, n int, lse, delta float32) {
	p, ds := f.P[i*attnBlock:][:attnBlock], f.dS[i*attnBlock:][:attnBlock]
	for j, s := range p[:n] {
		p[j] = exp32(s - lse)
		ds[j] = p[j] * (ds[j] - delta)
	}
	clear(p[n:])
	clear(ds[n:])
}
