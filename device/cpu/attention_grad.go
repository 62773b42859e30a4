package cpu

import (
	"fmt"

	"zeroth/device"
)

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
	if a.Past > 0 {
		panic(fmt.Sprintf("cpu: %s of positions after %d others", op, a.Past))
	}
	attnRows(op, &a, a.T, a.H, &dq, &do, &o, &qm)
	attnRows(op, &a, a.T, a.KV, &dk, &dv, &k, &v)
	t := q.issue(op)
	t.m = [8]device.Mat{dq, dk, dv, do, o, qm, k, v}
	t.b[0], t.b[1], t.attn = delta, lse, a
	q.kernel(t, runAttentionGrad, a.B*a.KV, 1)
}

// attnBackward is the work space of one worker: keys and values of a head,
// packed once, and a block of queries.
type attnBackward struct {
	t            *args
	args         *callArgs
	isa          *vecISA
	Dp           int
	K, dK, dV    []float32 // (T, Dp)
	Kt, Vt       []float32 // panels of 2 lanes keys
	Q, dO, dQ    []float32 // (gradBlock, Dp); Q times Scale, dQ without
	P, dS        []float32 // (gradBlock, gradBlock)
	delta, lse   []float32 // (B, H, T)
	first        int       // row of the sequence's first position
	head, shared int       // first column of the query head and of its key head
	add          int       // 1 if dK and dV have parts of another query head already

	tiles tileBackward // if in use, what takes the place of K, Kt, Vt and products
}

func runAttentionGrad(t *args, w *worker, lo, hi int) {
	a := &t.attn
	f := attnBackward{t: t, args: &w.args, isa: bestVec, Dp: padded(a.D, rowUnit), delta: t.b[0].F32(), lse: t.b[1].F32()}
	if tilesFor(t.m[:]) {
		f.useTiles(w)
	} else {
		T := padded(a.T, gradBlock)
		whole, panels, part, square := T*f.Dp, T*a.D, gradBlock*f.Dp, gradBlock*gradBlock
		mem := w.floats(3*whole + 2*panels + 3*part + 2*square + edge)
		f.K, f.dK, f.dV = take(&mem, whole), take(&mem, whole), take(&mem, whole)
		f.Q, f.dO, f.dQ = take(&mem, part), take(&mem, part), take(&mem, part)
		f.P, f.dS = take(&mem, square), take(&mem, square)
		f.Kt, f.Vt = take(&mem, panels), take(&mem, panels)
	}
	for i := lo; i < hi; i++ {
		f.keyHead(i/a.KV, i%a.KV)
	}
}

// keyHead computes key head kv of sequence b and the query heads that use it.
func (f *attnBackward) keyHead(b, kv int) {
	a, t, share := &f.t.attn, f.t, f.t.attn.H/f.t.attn.KV
	f.first, f.shared, f.add = b*a.T, kv*a.D, 0
	scale := float32(1) // of dK, which tiles leave without
	if f.tiles.use {
		f.tiles.pack(f)
		scale = a.Scale
	} else {
		f.pack()
	}
	for h := kv * share; h < (kv+1)*share; h++ {
		f.head = h * a.D
		for q0 := 0; q0 < a.T; q0 += gradBlock {
			f.queries((b*a.H+h)*a.T, q0, min(gradBlock, a.T-q0))
		}
		f.add = 1
	}
	f.isa.storeRows(&t.m[1], f.first, f.shared, f.dK, f.Dp, a.T, a.D, scale)
	f.isa.storeRows(&t.m[2], f.first, f.shared, f.dV, f.Dp, a.T, a.D, 1)
}

// pack makes the head's keys and values ready.
func (f *attnBackward) pack() {
	a := &f.t.attn
	for k0 := 0; k0 < a.T; k0 += gradBlock {
		nk, K := min(gradBlock, a.T-k0), f.K[k0*f.Dp:]
		f.isa.loadRows(K, f.Dp, &f.t.m[7], f.first+k0, f.shared, nk, a.D, 1)
		f.isa.panels(f.Vt[k0*a.D:], K, f.Dp, nk, a.D)
		f.isa.loadRows(K, f.Dp, &f.t.m[6], f.first+k0, f.shared, nk, a.D, 1)
		f.isa.panels(f.Kt[k0*a.D:], K, f.Dp, nk, a.D)
	}
}

// queries computes dq of nq queries from q0 on and what they add to dK and dV;
// stat is where the head's rows begin in delta and lse.
func (f *attnBackward) queries(stat, q0, nq int) {
	a, isa, Dp := &f.t.attn, f.isa, f.Dp
	isa.loadRows(f.Q, Dp, &f.t.m[4], f.first+q0, f.head, nq, a.D, 1)
	isa.loadRows(f.dO, Dp, &f.t.m[3], f.first+q0, f.head, nq, a.D, 1)
	for i := range nq { // Q has o for now
		clear(f.Q[i*Dp+a.D : (i+1)*Dp])
		clear(f.dO[i*Dp+a.D : (i+1)*Dp])
		f.delta[stat+q0+i] = isa.dot(floatPtr(f.Q, i*Dp), floatPtr(f.dO, i*Dp), Dp)
	}
	if f.tiles.use {
		f.tiles.queries(f, f.first+q0, nq)
	} else {
		isa.loadRows(f.Q, Dp, &f.t.m[5], f.first+q0, f.head, nq, a.D, a.Scale)
	}
	for k0 := 0; k0 <= q0; k0 += gradBlock {
		f.pair(stat+q0, q0, k0, nq, min(gradBlock, a.T-k0))
	}
	isa.storeRows(&f.t.m[0], f.first+q0, f.head, f.dQ, Dp, nq, a.D, a.Scale)
}

// pair adds what nq queries from q0 on and nk keys from k0 on have to do with
// each other; row is the first query's in delta and lse.
func (f *attnBackward) pair(row, q0, k0, nq, nk int) {
	a, isa, Dp, see := &f.t.attn, f.isa, f.Dp, q0-k0+1
	if f.tiles.use {
		f.tiles.scores(f, k0, nq, nk, see)
	} else {
		isa.scores(&f.args.micro, f.P, gradBlock, f.Q, Dp, f.Kt[k0*a.D:], nq, nk, see, a.D)
		isa.scores(&f.args.micro, f.dS, gradBlock, f.dO, Dp, f.Vt[k0*a.D:], nq, nk, see, a.D)
	}
	r := &f.args.softmaxGrad
	r.ld, r.most = gradBlock, nk
	for i := 0; i < nq; i += isa.rows {
		end := min(nk, see+i+isa.rows-1)
		if f.tiles.use {
			end = gradBlock
		}
		r.p, r.ds, r.rows, r.n, r.end = floatPtr(f.P, i*gradBlock), floatPtr(f.dS, i*gradBlock), min(isa.rows, nq-i), see+i, end
		r.lse, r.delta = floatPtr(f.lse, row+i), floatPtr(f.delta, row+i)
		isa.softmaxGrad(r)
	}
	add, addQ := f.add, 1
	if q0 > k0 {
		add = 1
	}
	if k0 == 0 {
		addQ = 0
	}
	if f.tiles.use {
		f.tiles.gradients(f, k0, nq, add, addQ)
		return
	}
	f.spread(f.dV[k0*Dp:], f.P, f.dO, nq, nk, see, add)
	f.spread(f.dK[k0*Dp:], f.dS, f.Q, nq, nk, see, add)
	isa.pvProduct(&f.args.micro, f.dQ, f.dS, gradBlock, f.K[k0*Dp:], Dp, nq, nk, see, Dp, addQ)
}

// spread sets c (nk, Dp), or adds to it, to the transpose of p (nq, nk) times
// b (nq, Dp), for the queries that see a key.
func (f *attnBackward) spread(c, p, b []float32, nq, nk, see, add int) {
	isa, Dp, t := f.isa, f.Dp, &f.args.micro
	t.ai, t.ak, t.ldb, t.ldc, t.add = 1, gradBlock, Dp, Dp, add
	for j := 0; j < Dp; j += 2 * isa.lanes {
		micro := isa.micro[min(2, ceil(Dp-j, isa.lanes))]
		for i := 0; i < nk; i += isa.rows {
			from := max(0, i-see+1) // the first query that sees key i
			t.k, t.a = nq-from, floatPtr(p, from*gradBlock+i)
			t.b, t.c = floatPtr(b, from*Dp+j), floatPtr(c, i*Dp+j)
			micro(t)
		}
	}
}
