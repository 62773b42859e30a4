package nn

import (
	"cmp"
	"math"

	"zeroth/device"
	"zeroth/shard"
)

// llamaBlock is x2 = x + o(attention(norm(x))), y = x2 + down(silu(gate(n)) * up(n))
// with n = norm(x2). Norms may come after what is added instead, or also: x2 = x +
// norm(o(attention(x))).
type llamaBlock struct {
	l      Llama
	layer  int
	params []shard.Param
	at     [pieces]piece
}

func (b llamaBlock) Params() []shard.Param { return b.params }

// The indices of what a block saves. A is the width of its queries, K of its keys.
const (
	saveRstd1  = iota // (R) float32
	saveNorm1         // (R, C): norm(x)
	saveQKV           // (R, A+2K), queries and keys as attention reads them
	saveLse           // (B, H, T) float32
	saveO             // (R, A)
	saveX2            // (R, C)
	saveRstd2         // (R) float32
	saveNorm2         // (R, C): norm(x2)
	saveGate          // (R, F)
	saveUp            // (R, F)
	saveAct           // (R, F)
	saveRaw           // (R, A+K): queries and keys before a HeadNorm
	saveRstdQK        // (heads, or 2, R) float32, of a HeadNorm
	saveOut1          // (R, C): what attention puts out, before a norm after it
	saveAfter1        // (R) float32, of that norm
	saveOut2          // (R, C): what the MLP puts out, likewise
	saveAfter2        // (R) float32
)

// half is where one half of a block has its norms.
type half struct{ before, norm, rstd, after, out, rstdAfter, place int }

var (
	attends = half{before1, saveNorm1, saveRstd1, after1, saveOut1, saveAfter1, placeAttn}
	maps    = half{before2, saveNorm2, saveRstd2, after2, saveOut2, saveAfter2, placeMLP}
)

// has says whether the block has a piece.
func (b llamaBlock) has(what int) bool { return b.at[what].hi > 0 }

func (b llamaBlock) attn(bt *Batch) device.Attn {
	d := b.l.head()
	a := device.Attn{B: bt.B, T: bt.T, Past: bt.past(), Start: bt.Start, H: b.l.Heads, KV: b.l.KV, D: d, Scale: float32(1 / math.Sqrt(cmp.Or(b.l.Scale, float64(d)))), Cap: float32(b.l.CapScores)}
	a.Drop = bt.dropsWeights(b.l.Dropout.Attention, b.layer)
	if b.l.kind(b.layer) == Windowed {
		a.Window = b.l.Window
	}
	return a
}

func (b llamaBlock) rope(bt *Batch) device.Rope {
	r := device.Rope{T: bt.T, Past: bt.past(), Start: bt.Start, D: b.l.head(), Part: b.l.Turned, Theta: b.l.Theta, Scaling: b.l.Scaling.For(bt.past() + bt.T)}
	if b.l.kind(b.layer) == Windowed && b.l.LocalTheta != 0 {
		r.Theta, r.Scaling = b.l.LocalTheta, device.RopeScaling{}
	}
	return r
}

// turn turns queries and keys by their positions, where the layer has some.
func (b llamaBlock) turn(q Ops, x device.Mat, bt *Batch, back bool) {
	if b.l.kind(b.layer) != Unturned {
		q.Rope(x, b.rope(bt), back)
	}
}

// split views (R, A+2K) as its queries, keys and values, and as the columns that
// have positions: the first two.
func (b llamaBlock) split(m device.Mat) (parts [3]device.Mat, turned device.Mat) {
	a, k := b.l.queries(), b.l.head()*b.l.KV
	return [3]device.Mat{m.Columns(0, a), m.Columns(a, a+k), m.Columns(a+k, a+2*k)}, m.Columns(0, a+k)
}

// normed is the columns of queries and keys, one after the other, that a HeadNorm
// normalises together; and how many of them are queries.
func (b llamaBlock) normed(m device.Mat) (groups []device.Mat, queries int) {
	if b.l.HeadNorm == AllHeads {
		a := b.l.queries()
		return []device.Mat{m.Columns(0, a), m.Columns(a, a+b.l.head()*b.l.KV)}, 1
	}
	for h := range b.l.Heads + b.l.KV {
		groups = append(groups, m.Columns(h*b.l.head(), (h+1)*b.l.head()))
	}
	return groups, b.l.Heads
}

// linear sets y = x·weightᵀ plus the bias and what an adapter says, if there are some.
func (b llamaBlock) linear(q Ops, mem Scratch, y, x device.Mat, w []device.Buffer, weight int) {
	q.MatMul(y, x, b.at[weight].of(w, b.params).T(), b.biasOf(w, weight), false)
	b.adapter(q, mem, y, x, w, weight)
}

// biasOf is the bias of a linear layer, empty if it has none.
func (b llamaBlock) biasOf(w []device.Buffer, weight int) (bias device.Buffer) {
	if b.has(weight + biases) {
		bias = b.own(w, weight+biases)
	}
	return bias
}

// adapter adds to y, what a linear layer makes of x, what its adapter does, if it has one.
func (b llamaBlock) adapter(q Ops, mem Scratch, y, x device.Mat, w []device.Buffer, weight int) {
	if b.has(weight + ups) {
		b.l.LoRA.forward(q, mem, y, x, b.at[weight+downs].of(w, b.params), b.at[weight+ups].of(w, b.params))
	}
}

// gain is what a norm multiplies by; that of another than Gemma's is its weight.
func (b llamaBlock) gain(q Ops, mem Scratch, w []device.Buffer, norm int) device.Buffer {
	return shifted(q, mem, b.own(w, norm), b.l.plus())
}

// normGrad is where the gradient of a norm's weight goes.
func (b llamaBlock) normGrad(mem Scratch, dw []device.Buffer, norm int) device.Buffer {
	if p := b.at[norm].param; dw[p].N == 0 {
		return wanted(mem, dw[p], b.params[p].Numel())
	}
	return b.own(dw, norm)
}

// own is the weight of a norm, or its gradient.
func (b llamaBlock) own(w []device.Buffer, norm int) device.Buffer {
	return b.at[norm].of(w, b.params).Buf
}

func (b llamaBlock) take(mem Scratch, bt *Batch, s *Saved) {
	r, t, f32, c, f, a := bt.Rows(), bt.Compute, device.F32, b.l.Width, b.l.FFN, b.l.queries()
	heads := 2
	if b.l.HeadNorm == EachHead {
		heads = b.l.Heads + b.l.KV
	}
	for _, part := range [...]struct {
		at, n  int
		t      device.DType
		needed bool
	}{
		{saveRstd1, r, f32, b.has(before1)}, {saveNorm1, r * c, t, b.has(before1)}, {saveQKV, r * b.l.columns(), t, true},
		{saveLse, r * b.l.Heads, f32, true}, {saveO, r * a, t, true}, {saveX2, r * c, t, true},
		{saveRstd2, r, f32, b.has(before2)}, {saveNorm2, r * c, t, b.has(before2)},
		{saveGate, r * f, t, true}, {saveUp, r * f, t, true}, {saveAct, r * f, t, true},
		{saveRaw, r * (a + b.l.head()*b.l.KV), t, b.has(normQ)}, {saveRstdQK, r * heads, f32, b.has(normQ)},
		{saveOut1, r * c, t, b.has(after1)}, {saveAfter1, r, f32, b.has(after1)}, {saveOut2, r * c, t, b.has(after2)}, {saveAfter2, r, f32, b.has(after2)},
	} {
		if part.needed {
			s[part.at] = mem.Take(part.t, part.n)
		}
	}
}

func (b llamaBlock) Forward(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, y device.Buffer, s *Saved) {
	if s == nil {
		defer mem.Release(mem.Mark())
		s = new(Saved)
	}
	b.take(mem, bt, s)
	defer mem.Release(mem.Mark())
	b.forwardAttention(q, mem, w, bt, x, s)
	b.forwardMLP(q, mem, w, bt, y, s)
}

// reads is what a half of the block reads: x, normalised where a norm comes before.
func (b llamaBlock) reads(h half, x device.Mat, s *Saved) device.Mat {
	if !b.has(h.before) {
		return x
	}
	return device.Matrix(s[h.norm], x.Rows, x.Cols)
}

// before sets and returns what a half of the block reads.
func (b llamaBlock) before(q Ops, mem Scratch, w []device.Buffer, h half, x device.Mat, s *Saved) device.Mat {
	in := b.reads(h, x, s)
	if b.has(h.before) {
		q.RMSNorm(in, s[h.rstd], x, b.gain(q, mem, w, h.before), b.l.Eps)
	}
	return in
}

// after sets y = x plus what a half of the block puts out, in·weightᵀ, normalised
// where a norm comes after; a training pass may drop some of it.
func (b llamaBlock) after(q Ops, mem Scratch, w []device.Buffer, bt *Batch, h half, y, x, in device.Mat, weight int, s *Saved) {
	drop, some := bt.drops(b.l.Dropout.Residual, placeOf(b.layer, h.place), y.Cols)
	switch {
	case b.has(h.after):
		out := device.Matrix(s[h.out], y.Rows, y.Cols)
		b.linear(q, mem, out, in, w, weight)
		q.RMSNorm(y, s[h.rstdAfter], out, b.gain(q, mem, w, h.after), b.l.Eps)
	case some:
		b.linear(q, mem, y, in, w, weight)
	default:
		q.MatMulOnto(y, x, in, b.at[weight].of(w, b.params).T(), b.biasOf(w, weight))
		b.adapter(q, mem, y, in, w, weight)
		return
	}
	if some {
		q.Dropout(y.Buf, y.Buf, x.Buf, drop)
		return
	}
	q.AddTo(y.Buf, y.Buf, x.Buf)
}

func (b llamaBlock) forwardAttention(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x device.Buffer, s *Saved) {
	r, c := bt.Rows(), b.l.Width
	xm := device.Matrix(x, r, c)
	in := b.before(q, mem, w, attends, xm, s)
	qkv := device.Matrix(s[saveQKV], r, b.l.columns())
	parts, turned := b.split(qkv)
	to := parts
	if b.has(normQ) {
		raw := device.Matrix(s[saveRaw], r, turned.Cols)
		to[0], to[1] = raw.Columns(0, parts[0].Cols), raw.Columns(parts[0].Cols, raw.Cols)
	}
	for i, part := range to {
		b.linear(q, mem, part, in, w, projQ+i)
	}
	if b.has(normQ) {
		b.normHeads(q, mem, w, qkv, s)
	}
	o := device.Matrix(s[saveO], r, b.l.queries())
	for i := range bt.parts() {
		b.attend(q, bt, i, o, s[saveLse], qkv)
	}
	b.after(q, mem, w, bt, attends, device.Matrix(s[saveX2], r, c), xm, o, projO, s)
}

// attend sets o to the attention of part i of a batch, whose queries and keys are
// turned by their positions before.
func (b llamaBlock) attend(q Ops, bt *Batch, i int, o device.Mat, lse device.Buffer, qkv device.Mat) {
	one, lo, hi := bt.part(i)
	qkv = qkv.RowRange(lo, hi)
	parts, turned := b.split(qkv)
	b.turn(q, turned, &one, false)
	seen, _ := b.split(one.seen(q, b.layer, qkv))
	q.Attention(o.RowRange(lo, hi), lse.Slice(lo*b.l.Heads, hi*b.l.Heads), parts[0], seen[1], seen[2], b.attn(&one))
}

// normHeads sets queries and keys of qkv to the normalised raw ones.
func (b llamaBlock) normHeads(q Ops, mem Scratch, w []device.Buffer, qkv device.Mat, s *Saved) {
	from, queries := b.normed(device.Matrix(s[saveRaw], qkv.Rows, s[saveRaw].N/qkv.Rows))
	to, _ := b.normed(qkv)
	gains := [2]device.Buffer{b.gain(q, mem, w, normQ), b.gain(q, mem, w, normK)}
	for i, x := range from {
		q.RMSNorm(to[i], s[saveRstdQK].Slice(i*qkv.Rows, (i+1)*qkv.Rows), x, gains[normOf(i, queries)], b.l.Eps)
	}
}

// normOf is whose weight group i of normed has: the queries' or the keys'.
func normOf(i, queries int) int {
	if i < queries {
		return 0
	}
	return 1
}

func (b llamaBlock) forwardMLP(q Ops, mem Scratch, w []device.Buffer, bt *Batch, y device.Buffer, s *Saved) {
	r, c, f := bt.Rows(), b.l.Width, b.l.FFN
	x2 := device.Matrix(s[saveX2], r, c)
	in := b.before(q, mem, w, maps, x2, s)
	b.linear(q, mem, device.Matrix(s[saveGate], r, f), in, w, projGate)
	b.linear(q, mem, device.Matrix(s[saveUp], r, f), in, w, projUp)
	if b.l.Gemma {
		q.Activate(s[saveAct], s[saveGate], device.GeluTanh)
		q.Mul(s[saveAct], s[saveAct], s[saveUp])
	} else {
		q.SwiGLU(s[saveAct], s[saveGate], s[saveUp])
	}
	b.after(q, mem, w, bt, maps, device.Matrix(y, r, c), x2, device.Matrix(s[saveAct], r, f), projDown, s)
}

// Backward writes gradients over what was saved as soon as that is spent, so
// its work space is the gradient of queries, keys and values alone; and what the
// gradients of norms of heads and of Gemma's MLP take.
func (b llamaBlock) Backward(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, s *Saved) {
	b.backwardMLP(q, mem, w, dw, bt, d, s)
	b.backwardAttention(q, mem, w, dw, bt, x, d, s)
}

// linearGrads sets the gradients of a linear layer's weight, and of its bias if it
// has one, unless they are frozen.
func (b llamaBlock) linearGrads(q Ops, mem Scratch, w, dw []device.Buffer, weight int, dy, x device.Mat) {
	var db device.Buffer
	if b.has(weight+biases) && dw[b.at[weight+biases].param].N > 0 {
		db = b.own(dw, weight+biases)
	}
	switch {
	case dw[b.at[weight].param].N > 0:
		q.WeightGrad(b.at[weight].of(dw, b.params), db, dy, x)
	case db.N > 0:
		q.SumRows(db, dy)
	}
	if !b.has(weight + ups) {
		return
	}
	down, up := b.at[weight+downs], b.at[weight+ups]
	if dw[up.param].N > 0 {
		b.l.LoRA.upGrad(q, mem, up.of(dw, b.params), dy, x, down.of(w, b.params))
	}
	if dw[down.param].N > 0 {
		b.l.LoRA.downGrad(q, mem, down.of(dw, b.params), dy, x, up.of(w, b.params), up.lo > 0)
	}
}

// inputGrad sets dx to, or with add adds to it, the gradient of a linear
// layer's input.
func (b llamaBlock) inputGrad(q Ops, mem Scratch, dx device.Mat, w []device.Buffer, weight int, dy device.Mat, add bool) {
	q.MatMul(dx, dy, b.at[weight].of(w, b.params), device.Buffer{}, add)
	if b.has(weight + ups) {
		b.l.LoRA.inputGrad(q, mem, dx, dy, b.at[weight+downs].of(w, b.params), b.at[weight+ups].of(w, b.params))
	}
}

// out is the gradient of what a half of the block puts out, given d, that of their
// sum. It lies where that was saved, if a norm comes after.
func (b llamaBlock) out(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, h half, d device.Mat, s *Saved) device.Mat {
	d = bt.dropped(q, mem, d, b.l.Dropout.Residual, placeOf(b.layer, h.place))
	if !b.has(h.after) {
		return d
	}
	out := device.Matrix(s[h.out], d.Rows, d.Cols)
	q.RMSNormGrad(out, b.normGrad(mem, dw, h.after), d, out, b.gain(q, mem, w, h.after), s[h.rstdAfter], false)
	return out
}

// in adds to d the gradient of x, which a half of the block reads, by way of linear
// layers from weight on, whose outputs' gradients are dys.
func (b llamaBlock) in(q Ops, mem Scratch, w, dw []device.Buffer, h half, d, x device.Mat, dys []device.Mat, weight int, s *Saved) {
	to, has := d, b.has(h.before)
	if has {
		to = device.Matrix(s[h.norm], d.Rows, d.Cols)
	}
	for i, dy := range dys {
		b.inputGrad(q, mem, to, w, weight+i, dy, i > 0 || !has)
	}
	if has {
		q.RMSNormGrad(d, b.normGrad(mem, dw, h.before), to, x, b.gain(q, mem, w, h.before), s[h.rstd], true)
	}
}

func (b llamaBlock) backwardMLP(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, d device.Buffer, s *Saved) {
	defer mem.Release(mem.Mark())
	r, c, f := bt.Rows(), b.l.Width, b.l.FFN
	dm, act, x2 := device.Matrix(d, r, c), device.Matrix(s[saveAct], r, f), device.Matrix(s[saveX2], r, c)
	gate, up := device.Matrix(s[saveGate], r, f), device.Matrix(s[saveUp], r, f)

	dout := b.out(q, mem, w, dw, bt, maps, dm, s)
	b.linearGrads(q, mem, w, dw, projDown, dout, act)
	dact := act
	b.inputGrad(q, mem, dact, w, projDown, dout, false)
	dgate, dup := gate, up
	if b.l.Gemma {
		dgate = device.Matrix(mem.Take(bt.Compute, r*f), r, f)
		q.Mul(dgate.Buf, dact.Buf, up.Buf)
		q.ActivateGrad(dgate.Buf, gate.Buf, dgate.Buf, device.GeluTanh)
		q.Activate(gate.Buf, gate.Buf, device.GeluTanh)
		q.Mul(dup.Buf, dact.Buf, gate.Buf)
	} else {
		q.SwiGLUGrad(gate.Buf, up.Buf, dact.Buf, gate.Buf, up.Buf)
	}
	in := b.reads(maps, x2, s)
	b.linearGrads(q, mem, w, dw, projGate, dgate, in)
	b.linearGrads(q, mem, w, dw, projUp, dup, in)
	b.in(q, mem, w, dw, maps, dm, x2, []device.Mat{dgate, dup}, projGate, s)
}

func (b llamaBlock) backwardAttention(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, s *Saved) {
	defer mem.Release(mem.Mark())
	r, c, a := bt.Rows(), b.l.Width, b.l.queries()
	dm, o, xm := device.Matrix(d, r, c), device.Matrix(s[saveO], r, a), device.Matrix(x, r, c)
	parts, _ := b.split(device.Matrix(s[saveQKV], r, b.l.columns()))
	dqkv := device.Matrix(mem.Take(bt.Compute, s[saveQKV].N), r, b.l.columns())
	dparts, turned := b.split(dqkv)
	delta := mem.Take(device.F32, s[saveLse].N)

	dout := b.out(q, mem, w, dw, bt, attends, dm, s)
	b.linearGrads(q, mem, w, dw, projO, dout, o)
	do := b.gradOut(mem, bt, s)
	b.inputGrad(q, mem, do, w, projO, dout, false)
	q.AttentionGrad(dparts[0], dparts[1], dparts[2], delta, do, o, s[saveLse], parts[0], parts[1], parts[2], b.attn(bt))
	b.turn(q, turned, bt, true)
	if b.has(normQ) {
		b.normHeadsGrad(q, mem, w, dw, dqkv, s)
	}
	in := b.reads(attends, xm, s)
	for i, dpart := range dparts {
		b.linearGrads(q, mem, w, dw, projQ+i, dpart, in)
	}
	b.in(q, mem, w, dw, attends, dm, xm, dparts[:], projQ, s)
}

// gradOut is for the gradient of what attention puts out, (R, A): where x2 was, that is
// spent, if that is as wide.
func (b llamaBlock) gradOut(mem Scratch, bt *Batch, s *Saved) device.Mat {
	r, a := bt.Rows(), b.l.queries()
	if a == b.l.Width {
		return device.Matrix(s[saveX2], r, a)
	}
	return device.Matrix(mem.Take(bt.Compute, r*a), r, a)
}

// normHeadsGrad turns the gradient of normalised queries and keys, columns of dqkv,
// into that of the raw ones.
func (b llamaBlock) normHeadsGrad(q Ops, mem Scratch, w, dw []device.Buffer, dqkv device.Mat, s *Saved) {
	raw, queries := b.normed(device.Matrix(s[saveRaw], dqkv.Rows, s[saveRaw].N/dqkv.Rows))
	d, _ := b.normed(dqkv)
	gains := [2]device.Buffer{b.gain(q, mem, w, normQ), b.gain(q, mem, w, normK)}
	own := [2]device.Buffer{b.normGrad(mem, dw, normQ), b.normGrad(mem, dw, normK)}
	grads := [2]device.Mat{device.Matrix(own[0], 1, raw[0].Cols), device.Matrix(own[1], 1, raw[queries].Cols)} // by each group
	if b.l.HeadNorm == EachHead {
		n := b.l.head()
		grads = [2]device.Mat{device.Matrix(mem.Take(device.F32, queries*n), queries, n), device.Matrix(mem.Take(device.F32, b.l.KV*n), b.l.KV, n)}
	}
	for i, x := range raw {
		which, at := normOf(i, queries), i
		if which > 0 {
			at -= queries
		}
		q.RMSNormGrad(d[i], grads[which].RowRange(at, at+1).Buf, d[i], x, gains[which], s[saveRstdQK].Slice(i*x.Rows, (i+1)*x.Rows), false)
	}
	if b.l.HeadNorm == EachHead {
		q.SumRows(own[0], grads[0])
		q.SumRows(own[1], grads[1])
	}
}
