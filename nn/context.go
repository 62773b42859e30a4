package nn

import "zeroth/device"

// If ranks divide the positions of sequences (context parallelism as in Llama 3, arXiv 2407.21783,
// section 3.3.2), each of n ranks has two of 2n equal chunks of every sequence: rank r has chunks r
// and 2n-1-r, whose positions together attend to as many keys on every rank. The chunks are the
// sequences of its Batch: two per sequence, of T positions, with the starts of their documents in
// Start. Attention gathers the keys and values of all ranks; everything else works on each row
// separately.

// Chunks returns the chunks of a sequence that a rank has.
func Chunks(rank, ranks int) [2]int { return [2]int{rank, 2*ranks - 1 - rank} }

// length returns the number of positions in a whole sequence.
func (b *Batch) length() int {
	if b.Context == nil {
		return b.past() + b.T
	}
	return 2 * b.Context.Size() * b.T
}

// before returns the number of positions that precede those of piece i, first in its sequence, then
// among the rows of all ranks.
func (b *Batch) before(i int) (inSequence, inAll int) {
	if b.Context == nil {
		return 0, 0
	}
	past := Chunks(b.Context.Rank(), b.Context.Size())[i%2] * b.T
	return past, i/2*b.length() + past
}

// chunk returns the first row of piece i of a rank, in the order of positions and in the order of
// ranks.
func (b *Batch) chunk(rank, i int) (ordered, ranked int) {
	return i/2*b.length() + Chunks(rank, b.Context.Size())[i%2]*b.T, (rank*b.B + i) * b.T
}

// gathered returns the keys and values of all positions, side by side, in the order of positions;
// empty if ranks do not divide positions.
func (p pass) gathered(k, v device.Mat) (all device.Mat) {
	bt, g := p.bt, p.bt.Context
	if g == nil {
		return all
	}
	rows, cols := g.Size()*bt.Rows(), k.Cols+v.Cols
	all = device.Matrix(p.mem.Take(k.Buf.Type, rows*cols), rows, cols)
	defer p.mem.Release(p.mem.Mark())
	ranked := device.Matrix(p.mem.Take(k.Buf.Type, rows*cols), rows, cols)
	own := ranked.RowRange(g.Rank()*bt.Rows(), (g.Rank()+1)*bt.Rows())
	p.q.CopyBlock(own.Columns(0, k.Cols), k)
	p.q.CopyBlock(own.Columns(k.Cols, cols), v)
	g.Gather(ranked.Buf, own.Buf)
	for r := range g.Size() {
		for i := range bt.B {
			to, from := bt.chunk(r, i)
			p.q.Cast(all.RowRange(to, to+bt.T).Buf, ranked.RowRange(from, from+bt.T).Buf)
		}
	}
	return all
}

// seenBy returns the part of the gathered keys (the first k columns) and values to which piece i
// attends.
func (b *Batch) seenBy(i int, all device.Mat, k int) (keys, values device.Mat) {
	past, _ := b.before(i)
	first := i / 2 * b.length()
	seen := all.RowRange(first, first+past+b.T)
	return seen.Columns(0, k), seen.Columns(k, all.Cols)
}

// piece returns the attention of piece i, given that of the batch; without Context, a itself.
func (b *Batch) piece(a device.Attn, i int) device.Attn {
	if b.Context == nil {
		return a
	}
	past, row := b.before(i)
	a.B, a.Past, a.Start = 1, past, b.Start.Slice(i*b.T, (i+1)*b.T)
	if a.Drop.Drop > 0 {
		a.Drop.Row += uint64(row)
	}
	return a
}

// attend computes the attention of a block from its saved queries, keys and values, given that of the batch.
func (p pass) attend(s *Saved, layer int, a device.Attn) {
	defer p.mem.Release(p.mem.Mark())
	r, queries, keys := p.bt.Rows(), a.H*a.D, a.KV*a.D
	qkv, o := device.Matrix(s.qkv, r, queries+2*keys), device.Matrix(s.o, r, queries)
	all := p.gathered(qkv.Columns(queries, queries+keys), qkv.Columns(queries+keys, qkv.Cols))
	for i := range p.bt.parts() {
		one, lo, hi := p.bt.part(i)
		own := qkv.RowRange(lo, hi)
		seen := one.seen(p.q, layer, own)
		k, v := seen.Columns(queries, queries+keys), seen.Columns(queries+keys, seen.Cols)
		if all.Rows > 0 {
			k, v = p.bt.seenBy(i, all, keys)
		}
		a.B, a.T, a.Past, a.Start = one.B, one.T, one.past(), one.Start
		p.q.Attention(o.RowRange(lo, hi), s.lse.Slice(lo*a.H, hi*a.H), own.Columns(0, queries), k, v, p.bt.piece(a, i))
	}
}

// attentionGrad sets dq, dk and dv to the gradients of attention. Gradients of gathered keys and
// values are summed over ranks in float32.
func (p pass) attentionGrad(dq, dk, dv device.Mat, delta device.Buffer, do, o device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn) {
	bt, g := p.bt, p.bt.Context
	if g == nil {
		p.q.AttentionGrad(dq, dk, dv, delta, do, o, lse, q, k, v, a)
		return
	}
	defer p.mem.Release(p.mem.Mark())
	all, heads, length := p.gathered(k, v), lse.N/bt.Rows(), bt.length()
	float := func(rows int) device.Mat {
		return device.Matrix(p.mem.Take(device.F32, rows*all.Cols), rows, all.Cols)
	}
	ranked, ordered, more := float(all.Rows), float(length), float(length/2)
	grad := func(i int, to device.Mat) (ends int) {
		lo, hi := i*bt.T, (i+1)*bt.T
		keys, values := bt.seenBy(i, all, k.Cols)
		to = to.RowRange(0, keys.Rows)
		p.q.AttentionGrad(dq.RowRange(lo, hi), to.Columns(0, k.Cols), to.Columns(k.Cols, to.Cols), delta.Slice(lo*heads, hi*heads),
			do.RowRange(lo, hi), o.RowRange(lo, hi), lse.Slice(lo*heads, hi*heads), q.RowRange(lo, hi), keys, values, bt.piece(a, i))
		return keys.Rows
	}
	for s := range bt.B / 2 {
		end := grad(2*s+1, ordered)
		p.q.Zero(ordered.RowRange(end, length).Buf)
		both := ordered.RowRange(0, grad(2*s, more)).Buf
		p.q.AddTo(both, both, more.Buf.Slice(0, both.N))
		for r := range g.Size() {
			for i := 2 * s; i < 2*s+2; i++ {
				from, to := bt.chunk(r, i)
				from -= s * length
				p.q.Cast(ranked.RowRange(to, to+bt.T).Buf, ordered.RowRange(from, from+bt.T).Buf)
			}
		}
	}
	own := ranked.RowRange(g.Rank()*bt.Rows(), (g.Rank()+1)*bt.Rows())
	g.Reduce(own.Buf, ranked.Buf)
	if t := dk.Buf.Type; t != device.F32 {
		narrow := device.Matrix(p.mem.Take(t, own.Rows*own.Cols), own.Rows, own.Cols)
		p.q.Cast(narrow.Buf, own.Buf)
		own = narrow
	}
	p.q.CopyBlock(dk, own.Columns(0, k.Cols))
	p.q.CopyBlock(dv, own.Columns(k.Cols, own.Cols))
}
