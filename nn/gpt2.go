package nn

import (
	"cmp"
	"fmt"
	"math"

	"zeroth/device"
	"zeroth/shard"
)

// GPT2 is the shape of a GPT-2 model (Radford et al. 2019): learned positions, pre-norm blocks,
// tied embedding. Parameter names, shapes and initialization are those of Hugging Face's
// GPT2LMHeadModel.
type GPT2 struct {
	Shape
	Inner   int               `says:"the width of the hidden layer"` // 0: 4 Width
	Act     device.Activation `says:"the activation"`                // of the hidden layer
	Untied  bool              `says:"whether the output layer is a matrix of its own"`
	ByLayer bool              `says:"whether scores are divided by the number of the layer"` // those of layer i by i+1
}

// Model returns the model. The token embedding's unit ("root", with positions and the final norm)
// is used first and last; each block is a unit. If untied, final norm and output layer are a unit.
func (g GPT2) Model() *Model {
	m := &Model{Name: "GPT-2", Width: g.Width, Vocab: g.Vocab, Context: g.Context, Lookup: true, Blocks: g.Layers, QKV: 3 * g.queries(), Heads: g.Heads, Head: g.Width / g.Heads}
	words, part := g.Cut.vocab(weight("transformer.wte.weight", initStd, g.Vocab, g.Width))
	places := weight("transformer.wpe.weight", initStd, g.Context, g.Width)
	h := head{part: part, eps: float32(g.Eps)}
	if g.Untied {
		out, _ := g.Cut.vocab(weight("lm_head.weight", initStd, g.Vocab, g.Width))
		h.params = []shard.Param{out}
	}
	norm := []shard.Param{gain("transformer.ln_f.weight", g.Width), bias("transformer.ln_f.bias", g.Width)}
	e := embedding{params: []shard.Param{words, places}, positions: true, part: part, shared: !g.Untied, drop: g.Dropout.Embed}
	m.around(g.Cut, e, h, norm, func() {
		for i := range g.Layers {
			m.addBlock(fmt.Sprintf("h.%d", i), g.block(i), g.Cut)
		}
	})
	return m
}

// head returns the width D of a head, heads the number of this rank's heads, queries the width of
// their queries, and inner the width F of this rank's hidden layer.
func (g GPT2) head() int    { return g.Width / g.Heads }
func (g GPT2) heads() int   { return g.Cut.narrow(g.Heads, "heads") }
func (g GPT2) queries() int { return g.head() * g.heads() }
func (g GPT2) inner() int {
	return g.Cut.narrow(cmp.Or(g.Inner, 4*g.Width), "columns of the hidden layer")
}

// gptBlock computes x2 = x + proj(attention(norm(x))), y = x2 + out(act(fc(norm(x2)))).
type gptBlock struct {
	params
	g                   GPT2
	layer               int
	ln1, ln2            layerNorm
	qkv, proj, fc, down linear
}

// Defers implements Splitter.
func (b *gptBlock) Defers(param int) bool {
	return b.qkv.defers(param, b.params) || b.proj.defers(param, b.params) || b.fc.defers(param, b.params) || b.down.defers(param, b.params)
}

// layerNorm locates the parameters of a LayerNorm in the block's list.
type layerNorm struct{ weight, bias rows }

// block returns layer i. The two weights that write to the residual stream are initialized smaller
// by sqrt(2*Layers).
func (g GPT2) block(i int) *gptBlock {
	b, p := &gptBlock{g: g, layer: i}, fmt.Sprintf("transformer.h.%d.", i)
	c, a, f := g.Width, g.queries(), g.inner()
	residual := float32(initStd / math.Sqrt(2*float64(g.Layers)))
	norm := func(name string) layerNorm {
		return layerNorm{b.add(gain(p+name+".weight", c)), b.add(bias(p+name+".bias", c))}
	}
	var all []fused
	conv := func(l *linear, name string, std float32, f fused) {
		f.name = p + name
		in, out := f.whole(g.Cut)
		*l = linear{conv: true, inner: f.inner, weight: b.add(f.divide(g.Cut, weight(f.name+".weight", std, in, out), 1, 0))}
		l.bias = b.add(f.divide(g.Cut, bias(f.name+".bias", out), 0, -1))
		all = append(all, f)
	}
	b.ln1 = norm("ln_1")
	conv(&b.qkv, "attn.c_attn", initStd, fused{in: c, parts: []part{{&b.qkv, a}, {&b.qkv, a}, {&b.qkv, a}}})
	conv(&b.proj, "attn.c_proj", residual, fused{in: a, parts: []part{{&b.proj, c}}, inner: true})
	b.ln2 = norm("ln_2")
	conv(&b.fc, "mlp.c_fc", initStd, fused{in: c, parts: []part{{&b.fc, f}}})
	conv(&b.down, "mlp.c_proj", residual, fused{in: f, parts: []part{{&b.down, c}}, inner: true})
	for k, f := range all {
		g.LoRA.attach(&b.params, f, g.Cut, i*adaptersPerBlock+k)
	}
	return b
}

func (b *gptBlock) attn(bt *Batch) device.Attn {
	d, heads := b.g.head(), b.g.heads()
	scale := 1 / math.Sqrt(cmp.Or(b.g.Scale, float64(d)))
	if b.g.ByLayer {
		scale /= float64(b.layer + 1)
	}
	return device.Attn{B: bt.B, T: bt.T, Past: bt.past(), Start: bt.Start, H: heads, KV: heads, D: d, Scale: float32(scale),
		Drop: bt.dropsWeights(b.g.Dropout.Attention, b.layer, b.g.Cut.Index*heads)}
}

// split views (R, 3A) as its query, key and value columns.
func split(m device.Mat) (q, k, v device.Mat) {
	c := m.Cols / 3
	return m.Columns(0, c), m.Columns(c, 2*c), m.Columns(2*c, 3*c)
}

// take allocates the activations of the block that to selects, see pass.take.
func (b *gptBlock) take(p pass, s *Saved, to purpose) {
	r, own, c, a, f := p.bt.Rows(), p.bt.Held(), b.g.Width, b.g.queries(), b.g.inner()
	norm := func(n *savedNorm, read bool) {
		p.take(&n.mean, device.F32, own, to, RecomputeBlock, true)
		p.take(&n.rstd, device.F32, own, to, RecomputeBlock, true)
		p.take(&n.y, p.bt.Compute, own*c, to, RecomputeElementwise, read)
	}
	norm(&s.attn.before, b.qkv.readsInput(b.params))
	p.take(&s.qkv, p.bt.Compute, r*3*a, to, RecomputeLinear, true)
	p.take(&s.lse, device.F32, r*b.g.heads(), to, RecomputeBlock, true)
	p.take(&s.o, p.bt.Compute, r*a, to, RecomputeBlock, true)
	p.take(&s.x2, p.bt.Compute, own*c, to, RecomputeLinear, true)
	norm(&s.mlp.before, b.fc.readsInput(b.params))
	if p.bt.MLPChunk == 0 {
		p.take(&s.hidden, p.bt.Compute, r*f, to, RecomputeMLP, true)
		p.take(&s.act, p.bt.Compute, r*f, to, RecomputeElementwise, b.down.readsInput(b.params))
	}
}

// with implements declarer.
func (b *gptBlock) with(declared params) Module {
	x := *b
	x.params = declared
	return &x
}

// norm computes and returns the normalized x.
func (b *gptBlock) norm(p pass, n layerNorm, s savedNorm, x device.Mat) device.Mat {
	y := device.Matrix(s.y, x.Rows, x.Cols)
	p.q.LayerNorm(y, s.mean, s.rstd, x, n.weight.of(p.w).Buf, n.bias.of(p.w).Buf, float32(b.g.Eps))
	return y
}

// normGrad adds the gradient of a norm's input x to d, given the gradient dy of its output.
func (b *gptBlock) normGrad(p pass, n layerNorm, s savedNorm, d, dy, x device.Mat) {
	p.q.LayerNormGrad(d, n.weight.gradient(p), n.bias.gradient(p), dy, x, n.weight.of(p.w).Buf, s.mean, s.rstd, true)
}

func (b *gptBlock) Forward(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, y device.Buffer, s *Saved) {
	if s == nil {
		defer mem.Release(mem.Mark())
		s = new(Saved)
	}
	p := pass{q: q, mem: mem, w: w, bt: bt}
	b.take(p, s, saving)
	defer mem.Release(mem.Mark())
	b.take(p, s, lending)
	b.project(p, x, s)
	p.attend(s, b.layer, b.attn(p.bt))
	b.addAttention(p, x, s)
	own, c, f := bt.Held(), b.g.Width, b.g.inner()
	ym := device.Matrix(y, own, c)
	p.eachMLP(s, f, f, func(p pass, s Saved, lo, hi int) {
		b.expand(p, &s)
		b.addTo(p, &b.down, placeMLP, ym.RowRange(lo, hi), device.Matrix(s.x2, hi-lo, c), device.Matrix(s.act, p.bt.Rows(), f))
	})
}

// Restore implements Restorer.
func (b *gptBlock) Restore(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x device.Buffer, s *Saved) {
	p, lost := pass{q: q, mem: mem, w: w, bt: bt}, bt.Recompute
	b.take(p, s, restoring)
	if lost <= RecomputeNone {
		return
	}
	switch {
	case lost >= RecomputeLinear:
		b.project(p, x, s)
		if lost == RecomputeBlock {
			p.attend(s, b.layer, b.attn(p.bt))
		}
		b.addAttention(p, x, s)
	case b.qkv.readsInput(b.params):
		b.norm(p, b.ln1, s.attn.before, device.Matrix(x, bt.Held(), b.g.Width))
	}
	switch {
	case bt.MLPChunk > 0:
		return // Backward computes it
	case lost >= RecomputeMLP:
		b.expand(p, s)
		return
	}
	if b.fc.readsInput(b.params) {
		b.norm(p, b.ln2, s.mlp.before, device.Matrix(s.x2, bt.Held(), b.g.Width))
	}
	if b.down.readsInput(b.params) {
		q.Activate(s.act, s.hidden, b.g.Act)
	}
}

// project computes queries, keys and values from the block's input.
func (b *gptBlock) project(p pass, x device.Buffer, s *Saved) {
	norm := b.norm(p, b.ln1, s.attn.before, device.Matrix(x, p.bt.Held(), b.g.Width))
	defer p.mem.Release(p.mem.Mark())
	b.qkv.forward(p, device.Matrix(s.qkv, p.bt.Rows(), 3*b.g.queries()), p.whole(norm))
}

// addAttention computes the residual stream between the halves.
func (b *gptBlock) addAttention(p pass, x device.Buffer, s *Saved) {
	own, c := p.bt.Held(), b.g.Width
	o := device.Matrix(s.o, p.bt.Rows(), b.g.queries())
	b.addTo(p, &b.proj, placeAttn, device.Matrix(s.x2, own, c), device.Matrix(x, own, c), o)
}

// expand computes the MLP's hidden layer and its activation.
func (b *gptBlock) expand(p pass, s *Saved) {
	r, f := p.bt.Rows(), b.g.inner()
	norm := b.norm(p, b.ln2, s.mlp.before, device.Matrix(s.x2, p.bt.Held(), b.g.Width))
	defer p.mem.Release(p.mem.Mark())
	b.fc.forwardActivate(p, device.Matrix(s.act, r, f), device.Matrix(s.hidden, r, f), p.whole(norm), b.g.Act)
}

// addTo sets y = x + l(in), the end of a half of the block, with dropout of the added term in
// training.
func (b *gptBlock) addTo(p pass, l *linear, place int, y, x, in device.Mat) {
	if !p.bt.dropping(b.g.Dropout.Residual) {
		l.forwardOnto(p, y, x, in)
		return
	}
	l.forwardSummed(p, y, in)
	p.bt.drop(p.q, y.Buf, y.Buf, x.Buf, b.g.Dropout.Residual, placeOf(b.layer, place), y.Cols)
}

func (b *gptBlock) Backward(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, s *Saved) {
	p := pass{q: q, mem: mem, w: w, dw: dw, bt: bt}
	b.backwardMLP(p, d, s)
	b.backwardAttention(p, x, d, s)
}

func (b *gptBlock) backwardMLP(p pass, d device.Buffer, s *Saved) {
	defer p.mem.Release(p.mem.Mark())
	own, c, f := p.bt.Held(), b.g.Width, b.g.inner()
	dm, x2 := device.Matrix(d, own, c), device.Matrix(s.x2, own, c)
	dln := p.spent(device.Matrix(s.mlp.before.y, own, c))
	p.eachMLP(s, f, f, func(p pass, s Saved, lo, hi int) {
		if p.bt.MLPChunk > 0 {
			p.again(func() { b.expand(p, &s) })
		}
		b.hiddenGrads(p, dln.RowRange(lo, hi), dm.RowRange(lo, hi), &s)
	})
	b.normGrad(p, b.ln2, s.mlp.before, dm, dln, x2)
}

// hiddenGrads computes the gradients of the MLP's parameters and of its input, dln, given that of its
// output, dm.
func (b *gptBlock) hiddenGrads(p pass, dln, dm device.Mat, s *Saved) {
	defer p.mem.Release(p.mem.Mark())
	r, f := p.bt.Rows(), b.g.inner()
	dfc := p.operand(r, f)
	mark := p.mem.Mark()
	dout := p.whole(p.keep(p.bt.dropped(p.q, p.mem, dm, b.g.Dropout.Residual, placeOf(b.layer, placeMLP))))
	b.down.paramGrads(p, dout, device.Matrix(s.act, r, f))
	b.down.activationInputGrad(p, dfc, dout, device.Matrix(s.hidden, r, f), b.g.Act)
	p.mem.Release(mark)
	b.fc.paramGrads(p, dfc, p.whole(device.Matrix(s.mlp.before.y, dm.Rows, dm.Cols)))
	p.summed(dln, false, func(all device.Mat, _ bool) { b.fc.inputGrad(p, all, dfc, false) })
}

func (b *gptBlock) backwardAttention(p pass, x, d device.Buffer, s *Saved) {
	defer p.mem.Release(p.mem.Mark())
	r, own, c, a := p.bt.Rows(), p.bt.Held(), b.g.Width, b.g.queries()
	dm, o := device.Matrix(d, own, c), device.Matrix(s.o, r, a)
	do := device.Matrix(p.mem.Take(p.bt.Compute, r*a), r, a)
	mark := p.mem.Mark()
	dout := p.whole(p.keep(p.bt.dropped(p.q, p.mem, dm, b.g.Dropout.Residual, placeOf(b.layer, placeAttn))))
	b.proj.paramGrads(p, dout, o)
	b.proj.inputGrad(p, do, dout, false)
	p.mem.Release(mark)
	dqkv := p.operand(r, 3*a)
	delta := p.mem.Take(device.F32, r*b.g.heads())
	qm, km, vm := split(device.Matrix(s.qkv, r, 3*a))
	dq, dk, dv := split(dqkv)
	p.attentionGrad(dq, dk, dv, delta, do, o, s.lse, qm, km, vm, b.attn(p.bt))
	dln := device.Matrix(do.Buf, own, c) // its own gradient is no longer needed
	b.qkv.paramGrads(p, dqkv, p.whole(device.Matrix(s.attn.before.y, own, c)))
	p.summed(dln, false, func(all device.Mat, _ bool) { b.qkv.inputGrad(p, all, dqkv, false) })
	b.normGrad(p, b.ln1, s.attn.before, dm, dln, device.Matrix(x, own, c))
}
