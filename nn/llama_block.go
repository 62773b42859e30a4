package nn

import (
	"cmp"
	"math"
	"slices"

	"zeroth/device"
)

// llamaBlock computes x2 = x + o(attention(norm(x))), y = x2 + down(silu(gate(n)) * up(n)) with n =
// norm(x2). Norms may be applied to the added terms instead, or also: x2 = x +
// norm(o(attention(x))). Experts may replace the MLP, which then is their shared one if there is any.
type llamaBlock struct {
	params
	l                 Llama
	layer             int
	attn, mlp         half
	normQ, normK      rows // the weights of a HeadNorm
	qkv               [3]linear
	o, gate, up, down linear
	mix               mixture // of a layer with experts
	joined, gateUp    linear  // queries, keys and values, and gate and up, as one layer each, see Model.Joined; without weights if they are not
}

// join implements joiner.
func (b *llamaBlock) join(follows []bool) Module {
	x := *b
	x.joined = joined(b.params, follows, &b.qkv[0], &b.qkv[1], &b.qkv[2])
	x.gateUp = joined(b.params, follows, &b.gate, &b.up)
	return &x
}

// Defers implements Splitter.
func (b *llamaBlock) Defers(param int) bool {
	for _, l := range []*linear{&b.qkv[0], &b.qkv[1], &b.qkv[2], &b.o, &b.gate, &b.up, &b.down} {
		if l.defers(param, b.params) {
			return true
		}
	}
	return false
}

// half contains the norms of one half of a block, and its place for dropout.
type half struct {
	before, after rows // weights; none if there is no such norm
	site          int
}

// ffn returns the width of the MLP's or the shared expert's hidden layer.
func (b *llamaBlock) ffn() int {
	if b.l.Experts.In(b.layer) {
		return b.l.Experts.Shared
	}
	return b.l.FFN
}

func (b *llamaBlock) attention(bt *Batch) device.Attn {
	d := b.l.head()
	a := device.Attn{B: bt.B, T: bt.T, Past: bt.past(), Start: bt.Start, H: b.l.Heads, KV: b.l.KV, D: d, Scale: float32(1 / math.Sqrt(cmp.Or(b.l.Scale, float64(d)))), Cap: float32(b.l.CapScores)}
	a.Drop = bt.dropsWeights(b.l.Dropout.Attention, b.layer, b.l.Cut.Index*b.l.Heads)
	if b.l.kind(b.layer) == Windowed {
		a.Window = b.l.Window
	}
	return a
}

func (b *llamaBlock) rope(bt *Batch) device.Rope {
	r := device.Rope{T: bt.T, Past: bt.past(), Span: bt.length(), Start: bt.Start, D: b.l.head(), Part: b.l.RotaryDim, Theta: b.l.Theta, Scaling: b.l.Scaling.For(cmp.Or(bt.Longest, bt.length()))}
	if b.l.kind(b.layer) == Windowed && b.l.LocalTheta != 0 {
		r.Theta, r.Scaling = b.l.LocalTheta, device.RopeScaling{}
	}
	return r
}

// rotate applies rotary positions to queries and keys, if the layer has them.
func (b *llamaBlock) rotate(q Ops, x device.Mat, bt *Batch, back bool) {
	if b.l.kind(b.layer) != NoPE {
		q.Rope(x, b.rope(bt), back)
	}
}

// split views (R, A+2K) as its queries, keys and values, and returns the columns with rotary
// positions: the first two.
func (b *llamaBlock) split(m device.Mat) (parts [3]device.Mat, turned device.Mat) {
	a, k := b.l.queries(), b.l.keys()
	return [3]device.Mat{m.Columns(0, a), m.Columns(a, a+k), m.Columns(a+k, a+2*k)}, m.Columns(0, a+k)
}

// normed returns the column groups of queries and keys that a HeadNorm normalizes separately, and
// how many of them are queries.
func (b *llamaBlock) normed(m device.Mat) (groups []device.Mat, queries int) {
	if b.l.HeadNorm == AllHeads {
		a := b.l.queries()
		return []device.Mat{m.Columns(0, a), m.Columns(a, a+b.l.keys())}, 1
	}
	for h := range b.l.Heads + b.l.KV {
		groups = append(groups, m.Columns(h*b.l.head(), (h+1)*b.l.head()))
	}
	return groups, b.l.Heads
}

// gain returns the factor of a norm: its weight, for Gemma 1 + weight.
func (b *llamaBlock) gain(p pass, norm rows) device.Buffer {
	return shifted(p.q, p.mem, norm.of(p.w).Buf, b.l.plus())
}

// take allocates the activations of the block that to selects, see pass.take.
func (b *llamaBlock) take(p pass, s *Saved, to purpose) {
	r, own, c, f := p.bt.Rows(), p.bt.Held(), b.l.Width, b.ffn()
	f32 := func(of *device.Buffer, n int, again Recompute) { p.take(of, device.F32, n, to, again, true) }
	act := func(of *device.Buffer, cols int, again Recompute, read bool) {
		p.take(of, p.bt.Compute, r*cols, to, again, read)
	}
	stream := func(of *device.Buffer, again Recompute, read bool) { p.take(of, p.bt.Compute, own*c, to, again, read) }
	if b.attn.before.exist() {
		f32(&s.attn.before.rstd, own, RecomputeBlock)
		stream(&s.attn.before.y, RecomputeElementwise, b.reads(&b.qkv[0], &b.qkv[1], &b.qkv[2]))
	}
	act(&s.qkv, b.l.columns(), RecomputeLinear, true)
	f32(&s.lse, r*b.l.Heads, RecomputeBlock)
	act(&s.o, b.l.queries(), RecomputeBlock, true)
	stream(&s.x2, RecomputeLinear, true)
	if b.mlp.before.exist() {
		f32(&s.mlp.before.rstd, own, RecomputeBlock)
		stream(&s.mlp.before.y, RecomputeElementwise, b.readsNorm())
	}
	if p.bt.MLPChunk == 0 {
		act(&s.hidden, 2*f, RecomputeMLP, true)
		act(&s.act, f, RecomputeElementwise, b.reads(&b.down))
	}
	if b.l.Experts.In(b.layer) {
		b.takeExperts(p, s, to)
	}
	if b.normQ.exist() {
		heads := 2
		if b.l.HeadNorm == EachHead {
			heads = b.l.Heads + b.l.KV
		}
		act(&s.raw, b.l.queries()+b.l.keys(), RecomputeLinear, true)
		f32(&s.rstdQK, r*heads, RecomputeLinear)
	}
	if b.attn.after.exist() {
		stream(&s.attn.out, RecomputeLinear, true)
		f32(&s.attn.rstd, own, RecomputeLinear)
	}
	if b.mlp.after.exist() {
		stream(&s.mlp.out, RecomputeBlock, true)
		f32(&s.mlp.rstd, own, RecomputeBlock)
	}
}

// readsNorm reports whether Backward reads the output of the norm before the MLP or the experts.
func (b *llamaBlock) readsNorm() bool {
	return b.l.Experts.In(b.layer) || b.reads(&b.gate, &b.up)
}

// reads reports whether Backward reads the input of layers.
func (b *llamaBlock) reads(layers ...*linear) bool {
	return slices.ContainsFunc(layers, func(l *linear) bool { return l.readsInput(b.params) })
}

// with implements declarer.
func (b *llamaBlock) with(declared params) Module {
	x := *b
	x.params = declared
	return &x
}

func (b *llamaBlock) Forward(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, y device.Buffer, s *Saved) {
	if s == nil {
		defer mem.Release(mem.Mark())
		s = new(Saved)
	}
	p := pass{q: q, mem: mem, w: w, bt: bt}
	b.take(p, s, saving)
	defer mem.Release(mem.Mark())
	b.take(p, s, lending)
	b.project(p, x, s)
	p.attend(s, b.layer, b.attention(p.bt))
	b.addAttention(p, x, s)
	if b.l.Experts.In(b.layer) {
		b.forwardExperts(p, y, s)
		return
	}
	b.forwardMLP(p, device.Matrix(y, bt.Held(), b.l.Width), s)
}

// forwardMLP computes the block's output.
func (b *llamaBlock) forwardMLP(p pass, y device.Mat, s *Saved) {
	b.eachMLP(p, s, func(p pass, s Saved, lo, hi int) {
		b.expand(p, &s)
		b.activate(p, &s)
		b.addMLP(p, y.RowRange(lo, hi), &s)
	})
}

// eachMLP calls f for the MLP's rows, see pass.eachMLP.
func (b *llamaBlock) eachMLP(p pass, s *Saved, f func(p pass, s Saved, lo, hi int)) {
	p.eachMLP(s, 2*b.ffn(), b.ffn(), f)
}

// Restore implements Restorer.
func (b *llamaBlock) Restore(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x device.Buffer, s *Saved) {
	p, lost := pass{q: q, mem: mem, w: w, bt: bt}, bt.Recompute
	b.take(p, s, restoring)
	if lost <= RecomputeNone {
		return
	}
	defer mem.Release(mem.Mark())
	own, c := bt.Held(), b.l.Width
	switch {
	case lost >= RecomputeLinear:
		b.project(p, x, s)
		if lost == RecomputeBlock {
			p.attend(s, b.layer, b.attention(p.bt))
		}
		b.addAttention(p, x, s)
	case b.reads(&b.qkv[0], &b.qkv[1], &b.qkv[2]):
		b.normBefore(p, b.attn, s.attn, device.Matrix(x, own, c))
	}
	if b.l.Experts.In(b.layer) {
		b.restoreExperts(p, s, lost)
		return
	}
	again := lost == RecomputeBlock && b.mlp.after.exist() // the norm's input is the output of the last product
	switch {
	case bt.MLPChunk > 0 && again:
		b.forwardMLP(p, device.Matrix(mem.Take(bt.Compute, own*c), own, c), s)
		return
	case bt.MLPChunk > 0:
		return // Backward computes it
	case lost >= RecomputeMLP:
		b.expand(p, s)
	case b.reads(&b.gate, &b.up):
		b.normBefore(p, b.mlp, s.mlp, device.Matrix(s.x2, own, c))
	}
	if again || b.reads(&b.down) {
		b.activate(p, s)
	}
	if again {
		b.addMLP(p, device.Matrix(mem.Take(bt.Compute, own*c), own, c), s)
	}
}

// input returns the memory of the input of a half of the block: x, or the output of the norm before
// it.
func (b *llamaBlock) input(h half, s savedHalf, x device.Mat) device.Mat {
	if !h.before.exist() {
		return x
	}
	return device.Matrix(s.before.y, x.Rows, x.Cols)
}

// normBefore computes and returns the input of a half of the block.
func (b *llamaBlock) normBefore(p pass, h half, s savedHalf, x device.Mat) device.Mat {
	in := b.input(h, s, x)
	if h.before.exist() {
		p.q.RMSNorm(in, s.before.rstd, x, b.gain(p, h.before), float32(b.l.Eps))
	}
	return in
}

// addTo sets y = x + l(in), the end of a half of the block, or adds the norm of l(in) if there is
// one after. The added term is multiplied by Factors.Residual; in training, dropout applies to it.
func (b *llamaBlock) addTo(p pass, h half, s savedHalf, l *linear, y, x, in device.Mat) {
	if !h.after.exist() && !p.bt.dropping(b.l.Dropout.Residual) && b.l.Factors.Residual == 0 {
		l.forwardOnto(p, y, x, in)
		return
	}
	l.forwardSummed(p, b.term(h, s, y), in)
	b.addTerm(p, h, s, y, x)
}

// term returns memory for what a half of the block adds to the stream: y, or the input of the norm after.
func (b *llamaBlock) term(h half, s savedHalf, y device.Mat) device.Mat {
	if h.after.exist() {
		return device.Matrix(s.out, y.Rows, y.Cols)
	}
	return y
}

// addTerm sets y to x plus the term.
func (b *llamaBlock) addTerm(p pass, h half, s savedHalf, y, x device.Mat) {
	if h.after.exist() {
		p.q.RMSNorm(y, s.rstd, b.term(h, s, y), b.gain(p, h.after), float32(b.l.Eps))
	}
	if factor := float32(b.l.Factors.Residual); factor != 0 {
		p.q.Scale(y.Buf, factor)
	}
	if p.bt.dropping(b.l.Dropout.Residual) {
		p.bt.drop(p.q, y.Buf, y.Buf, x.Buf, b.l.Dropout.Residual, placeOf(b.layer, h.site), y.Cols)
		return
	}
	p.q.AddTo(y.Buf, y.Buf, x.Buf)
}

// project computes queries, keys and values from the block's input.
func (b *llamaBlock) project(p pass, x device.Buffer, s *Saved) {
	r := p.bt.Rows()
	norm := b.normBefore(p, b.attn, s.attn, device.Matrix(x, p.bt.Held(), b.l.Width))
	qkv := device.Matrix(s.qkv, r, b.l.columns())
	parts, turned := b.split(qkv)
	to := parts
	if b.normQ.exist() {
		raw := device.Matrix(s.raw, r, turned.Cols)
		to[0], to[1] = raw.Columns(0, parts[0].Cols), raw.Columns(parts[0].Cols, raw.Cols)
	}
	mark := p.mem.Mark()
	in := p.whole(norm)
	if b.joined.weight.exist() && !b.normQ.exist() {
		b.joined.forward(p, qkv, in)
	} else {
		for i, part := range to {
			b.qkv[i].forward(p, part, in)
		}
	}
	p.mem.Release(mark)
	if b.normQ.exist() {
		b.normHeads(p, qkv, s)
	}
	for i := range p.bt.parts() {
		one, lo, hi := p.bt.part(i)
		_, turned := b.split(qkv.RowRange(lo, hi))
		b.rotate(p.q, turned, &one, false)
	}
	p.mem.Release(mark)
}

// addAttention computes the residual stream between the halves.
func (b *llamaBlock) addAttention(p pass, x device.Buffer, s *Saved) {
	own, c := p.bt.Held(), b.l.Width
	o := device.Matrix(s.o, p.bt.Rows(), b.l.queries())
	b.addTo(p, b.attn, s.attn, &b.o, device.Matrix(s.x2, own, c), device.Matrix(x, own, c), o)
}

// normHeads sets queries and keys of qkv to the normalized raw ones.
func (b *llamaBlock) normHeads(p pass, qkv device.Mat, s *Saved) {
	from, queries := b.normed(device.Matrix(s.raw, qkv.Rows, s.raw.N/qkv.Rows))
	to, _ := b.normed(qkv)
	gains := [2]device.Buffer{b.gain(p, b.normQ), b.gain(p, b.normK)}
	for i, x := range from {
		p.q.RMSNorm(to[i], s.rstdQK.Slice(i*qkv.Rows, (i+1)*qkv.Rows), x, gains[min(1, i/queries)], float32(b.l.Eps))
	}
}

// gated views the saved hidden layer as the outputs of gate and up, and both as one matrix if they
// are joined.
func (b *llamaBlock) gated(p pass, s *Saved) (both, gate, up device.Mat) {
	r, f := p.bt.Rows(), b.ffn()
	if b.gateUp.weight.exist() {
		both = device.Matrix(s.hidden, r, 2*f)
		return both, both.Columns(0, f), both.Columns(f, 2*f)
	}
	return both, device.Matrix(s.hidden, r, f), device.Matrix(s.hidden.Slice(r*f, 2*r*f), r, f)
}

// forwardGates computes and returns the outputs of gate and up.
func (b *llamaBlock) forwardGates(p pass, in device.Mat, s *Saved) (gate, up device.Mat) {
	both, gate, up := b.gated(p, s)
	layers, outs := b.gates(both, gate, up)
	for i, l := range layers {
		l.forward(p, outs[i], in)
	}
	return gate, up
}

// gates returns the layers gate and up with their outputs, as one if they are joined.
func (b *llamaBlock) gates(both, gate, up device.Mat) ([]*linear, []device.Mat) {
	if both.Rows > 0 {
		return []*linear{&b.gateUp}, []device.Mat{both}
	}
	return []*linear{&b.gate, &b.up}, []device.Mat{gate, up}
}

// expand computes the outputs of gate and up.
func (b *llamaBlock) expand(p pass, s *Saved) {
	norm := b.normBefore(p, b.mlp, s.mlp, device.Matrix(s.x2, p.bt.Held(), b.l.Width))
	defer p.mem.Release(p.mem.Mark())
	b.forwardGates(p, p.whole(norm), s)
}

// activate computes the input of the last linear layer.
func (b *llamaBlock) activate(p pass, s *Saved) {
	_, gate, up := b.gated(p, s)
	p.q.Gate(device.Matrix(s.act, gate.Rows, b.l.FFN), gate, up, b.l.Gate.activation())
}

// addMLP computes the block's output.
func (b *llamaBlock) addMLP(p pass, y device.Mat, s *Saved) {
	b.addTo(p, b.mlp, s.mlp, &b.down, y, device.Matrix(s.x2, y.Rows, y.Cols), device.Matrix(s.act, p.bt.Rows(), b.l.FFN))
}

// Backward overwrites saved activations with gradients as soon as they are no longer needed. Its
// working space is the gradient of queries, keys and values, and whatever head norms need.
func (b *llamaBlock) Backward(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, s *Saved) {
	p := pass{q: q, mem: mem, w: w, dw: dw, bt: bt}
	if b.l.Experts.In(b.layer) {
		b.backwardExperts(p, d, s)
	} else {
		b.backwardMLP(p, d, s)
	}
	b.backwardAttention(p, x, d, s)
}

// outputGrad returns the gradient of the output of a half's last linear layer, given the gradient d of
// the half's sum. With a norm after, it overwrites the norm's saved input.
func (b *llamaBlock) outputGrad(p pass, h half, s savedHalf, d device.Mat) device.Mat {
	d = p.bt.dropped(p.q, p.mem, d, b.l.Dropout.Residual, placeOf(b.layer, h.site))
	if factor := float32(b.l.Factors.Residual); factor != 0 {
		if !p.bt.dropping(b.l.Dropout.Residual) { // otherwise d is a copy already
			sum := d
			d = device.Matrix(p.mem.Take(d.Buf.Type, d.Rows*d.Cols), d.Rows, d.Cols)
			p.q.Cast(d.Buf, sum.Buf)
		}
		p.q.Scale(d.Buf, factor)
	}
	if !h.after.exist() {
		return p.keep(d)
	}
	out := device.Matrix(s.out, d.Rows, d.Cols)
	p.q.RMSNormGrad(out, h.after.gradient(p), d, out, b.gain(p, h.after), s.rstd, false)
	return out
}

// normOutput returns memory for the gradient of the output of the norm before a half of the block; without
// a norm it is d.
func (h half) normOutput(p pass, s savedHalf, d device.Mat) device.Mat {
	if !h.before.exist() {
		return d
	}
	return p.spent(device.Matrix(s.before.y, d.Rows, d.Cols))
}

// inputGrad sets to, of normOutput, given the gradients dys of the outputs of the layers that read the
// norm's output; without a norm it adds to to.
func (b *llamaBlock) inputGrad(p pass, h half, to device.Mat, dys []device.Mat, layers ...*linear) {
	p.summed(to, !h.before.exist(), func(all device.Mat, add bool) {
		for i, dy := range dys {
			layers[i].inputGrad(p, all, dy, i > 0 || add)
		}
	})
}

// normGrad adds the gradient of x, the input of the norm before a half, if there is one, to d, given
// that of its output, to.
func (b *llamaBlock) normGrad(p pass, h half, s savedHalf, d, to, x device.Mat) {
	if h.before.exist() {
		p.q.RMSNormGrad(d, h.before.gradient(p), to, x, b.gain(p, h.before), s.before.rstd, true)
	}
}

func (b *llamaBlock) backwardMLP(p pass, d device.Buffer, s *Saved) {
	defer p.mem.Release(p.mem.Mark())
	own, c := p.bt.Held(), b.l.Width
	dm, x2 := device.Matrix(d, own, c), device.Matrix(s.x2, own, c)
	dout := b.outputGrad(p, b.mlp, s.mlp, dm)
	to := b.mlp.normOutput(p, s.mlp, dm)
	b.eachMLP(p, s, func(p pass, s Saved, lo, hi int) {
		if p.bt.MLPChunk > 0 {
			p.again(func() { b.expand(p, &s); b.activate(p, &s) })
		}
		b.gateGrads(p, to.RowRange(lo, hi), dout.RowRange(lo, hi), &s)
	})
	b.normGrad(p, b.mlp, s.mlp, dm, to, x2)
}

// gateGrads computes the gradients of the MLP's parameters and, as inputGrad does, of its input, given
// that of its output.
func (b *llamaBlock) gateGrads(p pass, to, dout device.Mat, s *Saved) {
	defer p.mem.Release(p.mem.Mark())
	act := device.Matrix(s.act, p.bt.Rows(), b.l.FFN)
	both, gate, up := b.gated(p, s)
	dout = p.whole(dout)
	b.down.paramGrads(p, dout, act)
	dact := p.spent(act)
	b.down.inputGrad(p, dact, dout, false)
	p.q.GateGrad(gate, up, dact, gate, up, b.l.Gate.activation())
	in := p.whole(b.input(b.mlp, s.mlp, device.Matrix(s.x2, to.Rows, to.Cols)))
	layers, dys := b.gates(both, gate, up)
	for i, l := range layers {
		l.paramGrads(p, dys[i], in)
	}
	b.inputGrad(p, b.mlp, to, dys, layers...)
}

func (b *llamaBlock) backwardAttention(p pass, x, d device.Buffer, s *Saved) {
	defer p.mem.Release(p.mem.Mark())
	r, own, c, a := p.bt.Rows(), p.bt.Held(), b.l.Width, b.l.queries()
	dm, o, xm := device.Matrix(d, own, c), device.Matrix(s.o, r, a), device.Matrix(x, own, c)
	parts, _ := b.split(device.Matrix(s.qkv, r, b.l.columns()))
	dqkv := p.operand(r, b.l.columns())
	dparts, turned := b.split(dqkv)
	delta := p.mem.Take(device.F32, s.lse.N)

	dout := p.whole(b.outputGrad(p, b.attn, s.attn, dm))
	b.o.paramGrads(p, dout, o)
	do := b.attentionGrad(p, s)
	b.o.inputGrad(p, do, dout, false)
	p.attentionGrad(dparts[0], dparts[1], dparts[2], delta, do, o, s.lse, parts[0], parts[1], parts[2], b.attention(p.bt))
	b.rotate(p.q, turned, p.bt, true)
	if b.normQ.exist() {
		b.normHeadsGrad(p, dqkv, s)
	}
	in := p.whole(b.input(b.attn, s.attn, xm))
	layers, dys := []*linear{&b.qkv[0], &b.qkv[1], &b.qkv[2]}, dparts[:]
	if b.joined.weight.exist() {
		layers, dys = []*linear{&b.joined}, []device.Mat{dqkv}
	}
	for i, l := range layers {
		l.paramGrads(p, dys[i], in)
	}
	to := b.attn.normOutput(p, s.attn, dm)
	b.inputGrad(p, b.attn, to, dys, layers...)
	b.normGrad(p, b.attn, s.attn, dm, to, xm)
}

// attentionGrad returns memory for the gradient of attention's output, (R, A). It reuses the memory of
// x2, which is no longer needed, if the size is right.
func (b *llamaBlock) attentionGrad(p pass, s *Saved) device.Mat {
	r, a := p.bt.Rows(), b.l.queries()
	if s.x2.N == r*a {
		return p.spent(device.Matrix(s.x2, r, a))
	}
	return device.Matrix(p.mem.Take(p.bt.Compute, r*a), r, a)
}

// normHeadsGrad replaces the gradient of normalized queries and keys, columns of dqkv, by the
// gradient of the raw ones.
func (b *llamaBlock) normHeadsGrad(p pass, dqkv device.Mat, s *Saved) {
	raw, queries := b.normed(device.Matrix(s.raw, dqkv.Rows, s.raw.N/dqkv.Rows))
	d, _ := b.normed(dqkv)
	gains := [2]device.Buffer{b.gain(p, b.normQ), b.gain(p, b.normK)}
	own := [2]device.Buffer{b.normQ.gradient(p), b.normK.gradient(p)}
	grads := [2]device.Mat{device.Matrix(own[0], 1, raw[0].Cols), device.Matrix(own[1], 1, raw[queries].Cols)} // a row for each group
	if b.l.HeadNorm == EachHead {
		n := b.l.head()
		grads = [2]device.Mat{device.Matrix(p.mem.Take(device.F32, queries*n), queries, n), device.Matrix(p.mem.Take(device.F32, b.l.KV*n), b.l.KV, n)}
	}
	for i, x := range raw {
		which := min(1, i/queries)
		at := i - which*queries
		p.q.RMSNormGrad(d[i], grads[which].RowRange(at, at+1).Buf, d[i], x, gains[which], s.rstdQK.Slice(i*x.Rows, (i+1)*x.Rows), false)
	}
	if b.l.HeadNorm == EachHead {
		p.q.SumRows(own[0], grads[0])
		p.q.SumRows(own[1], grads[1])
	}
}
