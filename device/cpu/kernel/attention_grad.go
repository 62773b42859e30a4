package kernel

// attnBackward contains a worker's working space: the keys and values of a head, packed once, and
// a block of queries.
type attnBackward struct {
	t            *Args
	args         *callArgs
	isa          *VecISA
	Dp           int
	K, dK, dV    []float32 // (Keys, Dp)
	Kt, Vt       []float32 // panels of 2 lanes keys
	Q, dO, dQ    []float32 // (gradBlock, Dp); Q is multiplied by Scale, dQ is not
	P, dS        []float32 // (gradBlock, gradBlock)
	slopes       []float32 // (gradBlock, gradBlock): derivative of the cap
	delta, lse   []float32 // (B, H, T) float32
	first        int       // row of the sequence's first query
	keys         int       // row of the sequence's first key
	head, shared int       // first column of the query head and of its key head
	start        []int32   // (T) of the sequence, or nil
	drop         scoreDrop
	add          int // 1 if dK and dV already contain the contributions of another query head

	tiles tileBackward // if used, replaces K, Kt, Vt and the products
}

// RunAttentionGrad computes the gradients of key heads: piece b*KV + kv.
func RunAttentionGrad(t *Args, w *Worker, lo, hi int) {
	a := &t.Attn
	f := attnBackward{t: t, args: &w.args, isa: BestVec, Dp: padded(a.D, rowUnit), delta: t.B[0].F32(), lse: t.B[1].F32(), drop: newScoreDrop(t, w)}
	if tilesFor(t.M[3:]) {
		f.useTiles(w)
	} else {
		T := padded(a.Keys(), gradBlock)
		whole, panels, part, square := T*f.Dp, T*a.D, gradBlock*f.Dp, gradBlock*gradBlock
		mem := w.Floats(3*whole + 2*panels + 3*part + 3*square + Edge)
		f.K, f.dK, f.dV = take(&mem, whole), take(&mem, whole), take(&mem, whole)
		f.Q, f.dO, f.dQ = take(&mem, part), take(&mem, part), take(&mem, part)
		f.P, f.dS, f.slopes = take(&mem, square), take(&mem, square), take(&mem, square)
		f.Kt, f.Vt = take(&mem, panels), take(&mem, panels)
	}
	for i := lo; i < hi; i++ {
		f.keyHead(i/a.KV, i%a.KV)
	}
}

// keyHead computes key head kv of sequence b for all query heads that use it.
func (f *attnBackward) keyHead(b, kv int) {
	a, t, share := &f.t.Attn, f.t, f.t.Attn.H/f.t.Attn.KV
	f.first, f.keys, f.shared, f.add = b*a.T, b*a.Keys(), kv*a.D, 0
	f.start = starts(&t.B[2], b, a.T)
	scale := float32(1) // for dK, which tiles compute without scale
	if f.tiles.use {
		f.tiles.pack(f)
		scale = a.Scale
	} else {
		f.pack()
	}
	if a.Past > 0 { // some keys may not be visible to the first queries, or to any
		clear(f.dK)
		clear(f.dV)
		f.add = 1
	}
	for h := kv * share; h < (kv+1)*share; h++ {
		f.head, f.drop.row = h*a.D, a.DropRow(b, h, 0)
		for begin := a.Past / gradBlock * gradBlock; begin < a.Keys(); begin += gradBlock {
			q0, end := max(begin, a.Past), min(begin+gradBlock, a.Keys())
			f.queries((b*a.H+h)*a.T, q0, end-q0)
		}
		f.add = 1
	}
	f.isa.storeRows(&t.M[1], f.keys, f.shared, f.dK, f.Dp, a.Keys(), a.D, scale)
	f.isa.storeRows(&t.M[2], f.keys, f.shared, f.dV, f.Dp, a.Keys(), a.D, 1)
}

// pack prepares the head's keys and values.
func (f *attnBackward) pack() {
	a := &f.t.Attn
	for k0 := 0; k0 < a.Keys(); k0 += gradBlock {
		nk, K := min(gradBlock, a.Keys()-k0), f.K[k0*f.Dp:]
		f.isa.loadRows(K, f.Dp, &f.t.M[7], f.keys+k0, f.shared, nk, a.D, 1)
		f.isa.panels(f.Vt[k0*a.D:], K, f.Dp, nk, a.D)
		f.isa.loadRows(K, f.Dp, &f.t.M[6], f.keys+k0, f.shared, nk, a.D, 1)
		f.isa.panels(f.Kt[k0*a.D:], K, f.Dp, nk, a.D)
	}
}

// queries computes dq for the nq queries from position q0 on and adds their contributions to dK
// and dV. stat is the start of the head's rows in delta and lse.
func (f *attnBackward) queries(stat, q0, nq int) {
	a, isa, Dp, at := &f.t.Attn, f.isa, f.Dp, q0-f.t.Attn.Past
	isa.loadRows(f.Q, Dp, &f.t.M[4], f.first+at, f.head, nq, a.D, 1)
	isa.loadRows(f.dO, Dp, &f.t.M[3], f.first+at, f.head, nq, a.D, 1)
	for i := range nq { // Q temporarily contains o
		clear(f.Q[i*Dp+a.D : (i+1)*Dp])
		clear(f.dO[i*Dp+a.D : (i+1)*Dp])
		f.delta[stat+at+i] = isa.dot(FloatPtr(f.Q, i*Dp), FloatPtr(f.dO, i*Dp), Dp)
	}
	if f.tiles.use {
		f.tiles.queries(f, f.first+at, nq)
	} else {
		isa.loadRows(f.Q, Dp, &f.t.M[5], f.first+at, f.head, nq, a.D, a.Scale)
	}
	first := a.First(at, f.start) / gradBlock * gradBlock
	for k0 := first; k0 <= q0; k0 += gradBlock {
		f.pair(stat+at, q0, k0, nq, min(gradBlock, a.Keys()-k0), k0 > first)
	}
	isa.storeRows(&f.t.M[0], f.first+at, f.head, f.dQ, Dp, nq, a.D, a.Scale)
}

// pair adds the contributions of nq queries from q0 on with nk keys from k0 on. row is the first
// query's row in delta and lse; again reports whether earlier keys were processed.
func (f *attnBackward) pair(row, q0, k0, nq, nk int, again bool) {
	a, isa, Dp, see := &f.t.Attn, f.isa, f.Dp, q0-k0+1
	if f.tiles.use {
		f.tiles.scores(f, k0, nq, nk, see)
	} else {
		isa.scores(&f.args.micro, f.P, gradBlock, f.Q, Dp, f.Kt[k0*a.D:], nq, nk, see, a.D)
		isa.scores(&f.args.micro, f.dS, gradBlock, f.dO, Dp, f.Vt[k0*a.D:], nq, nk, see, a.D)
	}
	if a.Cap > 0 {
		capScores(f.P, f.slopes, gradBlock, nq, nk, see, a.Cap)
	}
	hide(a, f.start, f.P, gradBlock, q0, k0, nq, nk)
	if f.drop.w != nil {
		f.drop.mask(f.drop.row+uint64(q0-a.Past), k0, gradBlock, nq, nk, see)
		f.drop.apply(f.dS, gradBlock, nq, nk, see)
	}
	r := &f.args.softmaxGrad
	r.Ld, r.Most = gradBlock, nk
	more := (isa.Rows - (see-1)%isa.Rows) % isa.Rows // spread reads these elements if tiles of queries and keys are not aligned
	for i := 0; i < nq; i += isa.Rows {
		end := min(nk, see+i+isa.Rows-1+more)
		if f.tiles.use {
			end = gradBlock
		}
		r.P, r.Ds, r.Rows, r.N, r.End = FloatPtr(f.P, i*gradBlock), FloatPtr(f.dS, i*gradBlock), min(isa.Rows, nq-i), see+i, end
		r.Lse, r.Delta = FloatPtr(f.lse, row+i), FloatPtr(f.delta, row+i)
		isa.SoftmaxGrad(r)
	}
	if f.drop.w != nil { // dV uses the remaining probabilities
		f.drop.apply(f.P, gradBlock, nq, nk, see)
	}
	if a.Cap > 0 {
		mulScores(f.dS, f.slopes, gradBlock, nq, nk, see)
	}
	add, addQ := f.add, 0
	if q0 > k0 {
		add = 1
	}
	if again {
		addQ = 1
	}
	if f.tiles.use {
		f.tiles.gradients(f, k0, nq, add, addQ)
		return
	}
	f.spread(f.dV[k0*Dp:], f.P, f.dO, nq, nk, see, add)
	f.spread(f.dK[k0*Dp:], f.dS, f.Q, nq, nk, see, add)
	isa.pvProduct(&f.args.micro, f.dQ, f.dS, gradBlock, f.K[k0*Dp:], Dp, nq, nk, see, Dp, addQ)
}

// spread sets c (nk, Dp) to the transpose of p (nq, nk) times b (nq, Dp), or adds to it, using
// only the queries that see each key.
func (f *attnBackward) spread(c, p, b []float32, nq, nk, see, add int) {
	isa, Dp, t := f.isa, f.Dp, &f.args.micro
	t.Ai, t.Ak, t.Ldb, t.Ldc, t.Add = 1, gradBlock, Dp, Dp, add
	for j := 0; j < Dp; j += 2 * isa.Lanes {
		micro := isa.Micro[min(2, Ceil(Dp-j, isa.Lanes))]
		for i := 0; i < nk; i += isa.Rows {
			from := max(0, i-see+1) // the first query that sees key i
			t.K, t.A = nq-from, FloatPtr(p, from*gradBlock+i)
			t.B, t.C = FloatPtr(b, from*Dp+j), FloatPtr(c, i*Dp+j)
			micro(t)
		}
	}
}
