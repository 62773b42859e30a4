package nn

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"zeroth/device"
	"zeroth/shard"
)

// GPT2 is the shape of a GPT-2 model (Radford et al. 2019): learned positions, pre-norm blocks, tied embedding. Parameter names, shapes
// and initialisation are Hugging Face's GPT2LMHeadModel.
type GPT2 struct {
	Shape
	Inner   int               `says:"the width of the hidden layer"` // 0: 4 Width
	Act     device.Activation `says:"the activation"`                // of the hidden layer
	Untied  bool              `says:"whether the output layer is a matrix of its own"`
	ByLayer bool              `says:"whether scores are divided by the number of the layer"` // those of layer i by i+1
}

// Model lists the modules: the token embedding's unit ("root", with positions
// and the final norm) is used first and last, each block is a unit. Untied, final
// norm and output layer are a unit.
func (g GPT2) Model() *Model {
	m := &Model{Name: "GPT-2", Width: g.Width, Vocab: g.Vocab, Context: g.Context, Lookup: true, Blocks: g.Layers, QKV: 3 * g.Width}
	first := []shard.Param{
		weight("transformer.wte.weight", initStd, g.Vocab, g.Width),
		weight("transformer.wpe.weight", initStd, g.Context, g.Width),
	}
	norm := []shard.Param{gain("transformer.ln_f.weight", g.Width), bias("transformer.ln_f.bias", g.Width)}
	front, back, last := "embed", "head", append([]shard.Param{weight("lm_head.weight", initStd, g.Vocab, g.Width)}, norm...)
	if !g.Untied {
		first = append(first, norm...)
		front, back, last = "root", "root", first
	}
	m.add(front, embedding{params: first, positions: true, shared: !g.Untied, drop: g.Dropout.Embed})
	for i := range g.Layers {
		m.add(fmt.Sprintf("h.%d", i), g.block(i))
	}
	m.add(back, head{params: last, weight: len(last) - 2, bias: len(last) - 1, eps: float32(g.Eps)})
	return m
}

// inner is F, the width of the hidden layer.
func (g GPT2) inner() int {
	if g.Inner == 0 {
		return 4 * g.Width
	}
	return g.Inner
}

// gptBlock is x2 = x + proj(attention(norm(x))), y = x2 + out(act(fc(norm(x2)))).
type gptBlock struct {
	params
	g                   GPT2
	layer               int
	ln1, ln2            layerNorm
	qkv, proj, fc, down linear
}

// Leaves implements Splitter.
func (b *gptBlock) Leaves(param int) bool {
	return b.qkv.leaves(param, b.params) || b.proj.leaves(param, b.params) || b.fc.leaves(param, b.params) || b.down.leaves(param, b.params)
}

// layerNorm is where the parameters of a LayerNorm are in the block's list.
type layerNorm struct{ weight, bias rows }

// block builds layer i. The two weights that write to the residual stream start smaller
// by sqrt(2*Layers), one for each of them.
func (g GPT2) block(i int) *gptBlock {
	b, p := &gptBlock{g: g, layer: i}, fmt.Sprintf("transformer.h.%d.", i)
	c, f := g.Width, g.inner()
	residual := float32(initStd / math.Sqrt(2*float64(g.Layers)))
	norm := func(name string) layerNorm {
		return layerNorm{b.add(gain(p+name+".weight", c)), b.add(bias(p+name+".bias", c))}
	}
	conv := func(name string, std float32, in, out int) linear {
		return linear{conv: true, weight: b.add(weight(p+name+".weight", std, in, out)), bias: b.add(bias(p+name+".bias", out))}
	}
	b.ln1 = norm("ln_1")
	b.qkv = conv("attn.c_attn", initStd, c, 3*c)
	b.proj = conv("attn.c_proj", residual, c, c)
	b.ln2 = norm("ln_2")
	b.fc = conv("mlp.c_fc", initStd, c, f)
	b.down = conv("mlp.c_proj", residual, f, c)
	for _, l := range [...]*linear{&b.qkv, &b.proj, &b.fc, &b.down} {
		name := strings.TrimSuffix(b.params[l.weight.param].Name, ".weight")
		if g.LoRA.Targeted(name) {
			low, high := g.LoRA.params(name, l.weight.hi, l.weight.cols)
			g.LoRA.attach(l, b.add(low), b.add(high))
		}
	}
	return b
}

func (b *gptBlock) attn(bt *Batch) device.Attn {
	d := b.g.Width / b.g.Heads
	scale := 1 / math.Sqrt(cmp.Or(b.g.Scale, float64(d)))
	if b.g.ByLayer {
		scale /= float64(b.layer + 1)
	}
	return device.Attn{B: bt.B, T: bt.T, Past: bt.past(), Start: bt.Start, H: b.g.Heads, KV: b.g.Heads, D: d, Scale: float32(scale), Drop: bt.dropsWeights(b.g.Dropout.Attention, b.layer)}
}

// split views (R, 3C) as its query, key and value columns.
func split(m device.Mat) (q, k, v device.Mat) {
	c := m.Cols / 3
	return m.Columns(0, c), m.Columns(c, 2*c), m.Columns(2*c, 3*c)
}

// take takes the memory of all that a block saves.
func (b *gptBlock) take(p pass, s *Saved) {
	r, c, f := p.bt.Rows(), b.g.Width, b.g.inner()
	f32 := func(n int) device.Buffer { return p.mem.Keep(device.F32, n) }
	act := func(cols int) device.Buffer { return p.mem.Keep(p.bt.Compute, r*cols) }
	s.attn.before = savedNorm{f32(r), f32(r), act(c)}
	s.qkv, s.lse, s.o, s.x2 = act(3*c), f32(r*b.g.Heads), act(c), act(c)
	s.mlp.before = savedNorm{f32(r), f32(r), act(c)}
	s.hidden, s.act = act(f), act(f)
}

// norm sets and returns the normalised x.
func (b *gptBlock) norm(p pass, n layerNorm, s savedNorm, x device.Mat) device.Mat {
	y := device.Matrix(s.y, x.Rows, x.Cols)
	p.q.LayerNorm(y, s.mean, s.rstd, x, n.weight.of(p.w).Buf, n.bias.of(p.w).Buf, float32(b.g.Eps))
	return y
}

// normGrad adds the gradient of x, the input of a norm, to d, given that of its output.
func (b *gptBlock) normGrad(p pass, n layerNorm, s savedNorm, d, dy, x device.Mat) {
	p.q.LayerNormGrad(d, n.weight.gradient(p), n.bias.gradient(p), dy, x, n.weight.of(p.w).Buf, s.mean, s.rstd, true)
}

func (b *gptBlock) Forward(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, y device.Buffer, s *Saved) {
	if s == nil {
		defer mem.Release(mem.Mark())
		s = new(Saved)
	}
	p, r, c, f := pass{q: q, mem: mem, w: w, bt: bt}, bt.Rows(), b.g.Width, b.g.inner()
	b.take(p, s)
	xm, x2, o, qkv := device.Matrix(x, r, c), device.Matrix(s.x2, r, c), device.Matrix(s.o, r, c), device.Matrix(s.qkv, r, 3*c)
	b.qkv.forward(p, qkv, b.norm(p, b.ln1, s.attn.before, xm))
	for i := range bt.parts() {
		b.attend(p, i, o, s.lse, qkv)
	}
	b.addTo(p, &b.proj, placeAttn, x2, xm, o)

	act := device.Matrix(s.act, r, f)
	b.fc.forwardActivate(p, act, device.Matrix(s.hidden, r, f), b.norm(p, b.ln2, s.mlp.before, x2), b.g.Act)
	b.addTo(p, &b.down, placeMLP, device.Matrix(y, r, c), x2, act)
}

// attend sets o to the attention of part i of a batch.
func (b *gptBlock) attend(p pass, i int, o device.Mat, lse device.Buffer, qkv device.Mat) {
	one, lo, hi := p.bt.part(i)
	qkv = qkv.RowRange(lo, hi)
	qm, _, _ := split(qkv)
	_, km, vm := split(one.seen(p.q, b.layer, qkv))
	p.q.Attention(o.RowRange(lo, hi), lse.Slice(lo*b.g.Heads, hi*b.g.Heads), qm, km, vm, b.attn(&one))
}

// addTo sets y = x + l(in), the end of a half of the block; a training pass may drop some
// of what is added.
func (b *gptBlock) addTo(p pass, l *linear, place int, y, x, in device.Mat) {
	drop, some := p.bt.drops(b.g.Dropout.Residual, placeOf(b.layer, place), y.Cols)
	if !some {
		l.forwardOnto(p, y, x, in)
		return
	}
	l.forward(p, y, in)
	p.q.Dropout(y.Buf, y.Buf, x.Buf, drop)
}

func (b *gptBlock) Backward(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, s *Saved) {
	p := pass{q, mem, w, dw, bt}
	b.backwardMLP(p, d, s)
	b.backwardAttention(p, x, d, s)
}

func (b *gptBlock) backwardMLP(p pass, d device.Buffer, s *Saved) {
	defer p.mem.Release(p.mem.Mark())
	r, c, f := p.bt.Rows(), b.g.Width, b.g.inner()
	dm, x2 := device.Matrix(d, r, c), device.Matrix(s.x2, r, c)
	dfc := p.operand(r, f)
	mark := p.mem.Mark()
	dout := p.keep(p.bt.dropped(p.q, p.mem, dm, b.g.Dropout.Residual, placeOf(b.layer, placeMLP)))
	b.down.paramGrads(p, dout, device.Matrix(s.act, r, f))
	b.down.activationInputGrad(p, dfc, dout, device.Matrix(s.hidden, r, f), b.g.Act)
	p.mem.Release(mark)
	dln := device.Matrix(p.mem.Take(p.bt.Compute, r*c), r, c)
	b.fc.paramGrads(p, dfc, device.Matrix(s.mlp.before.y, r, c))
	b.fc.inputGrad(p, dln, dfc, false)
	b.normGrad(p, b.ln2, s.mlp.before, dm, dln, x2)
}

func (b *gptBlock) backwardAttention(p pass, x, d device.Buffer, s *Saved) {
	defer p.mem.Release(p.mem.Mark())
	r, c := p.bt.Rows(), b.g.Width
	dm, o := device.Matrix(d, r, c), device.Matrix(s.o, r, c)
	do := device.Matrix(p.mem.Take(p.bt.Compute, r*c), r, c)
	mark := p.mem.Mark()
	dout := p.keep(p.bt.dropped(p.q, p.mem, dm, b.g.Dropout.Residual, placeOf(b.layer, placeAttn)))
	b.proj.paramGrads(p, dout, o)
	b.proj.inputGrad(p, do, dout, false)
	p.mem.Release(mark)
	dqkv := p.operand(r, 3*c)
	delta := p.mem.Take(device.F32, r*b.g.Heads)
	qm, km, vm := split(device.Matrix(s.qkv, r, 3*c))
	dq, dk, dv := split(dqkv)
	p.q.AttentionGrad(dq, dk, dv, delta, do, o, s.lse, qm, km, vm, b.attn(p.bt))
	dln := do // its own gradient is spent
	b.qkv.paramGrads(p, dqkv, device.Matrix(s.attn.before.y, r, c))
	b.qkv.inputGrad(p, dln, dqkv, false)
	b.normGrad(p, b.ln1, s.attn.before, dm, dln, device.Matrix(x, r, c))
}
