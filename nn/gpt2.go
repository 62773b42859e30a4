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
	Layers, Heads, Width, Context, Vocab int
	Eps                                  float32           // of the layer norms, 1e-5 in every published model
	Inner                                int               // width of the hidden layer; 0: 4 Width
	Act                                  device.Activation // of it
	Untied                               bool              // the output layer is a matrix of its own
	Scale                                float64           // of scores is Scale^-1/2; 0 is the width of a head
	ByLayer                              bool              // scores of layer i are divided by i+1
	LoRA                                 LoRA
	Dropout                              Dropout
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
		b := gptBlock{g: g, layer: i, params: g.block(i)}
		b.adapt()
		m.add(fmt.Sprintf("h.%d", i), b)
	}
	m.add(back, head{params: last, weight: len(last) - 2, bias: len(last) - 1, eps: g.Eps})
	return m
}

// inner is F, the width of the hidden layer.
func (g GPT2) inner() int {
	if g.Inner == 0 {
		return 4 * g.Width
	}
	return g.Inner
}

// The indices of a block's parameters.
const (
	ln1W = iota
	ln1B
	attnW
	attnB
	projW
	projB
	ln2W
	ln2B
	fcW
	fcB
	outW
	outB
)

// block lists the parameters of layer i. Linear weights are (in, out), as in
// Hugging Face's Conv1D. The two weights that write to the residual stream
// start smaller by sqrt(2*Layers), one for each of them.
func (g GPT2) block(i int) []shard.Param {
	p := fmt.Sprintf("transformer.h.%d.", i)
	c, f := g.Width, g.inner()
	residual := float32(initStd / math.Sqrt(2*float64(g.Layers)))
	return []shard.Param{
		gain(p+"ln_1.weight", c), bias(p+"ln_1.bias", c),
		weight(p+"attn.c_attn.weight", initStd, c, 3*c), bias(p+"attn.c_attn.bias", 3*c),
		weight(p+"attn.c_proj.weight", residual, c, c), bias(p+"attn.c_proj.bias", c),
		gain(p+"ln_2.weight", c), bias(p+"ln_2.bias", c),
		weight(p+"mlp.c_fc.weight", initStd, c, f), bias(p+"mlp.c_fc.bias", f),
		weight(p+"mlp.c_proj.weight", residual, f, c), bias(p+"mlp.c_proj.bias", c),
	}
}

// gptBlock is x2 = x + proj(attention(norm(x))), y = x2 + out(act(fc(norm(x2)))).
type gptBlock struct {
	g      GPT2
	layer  int
	params []shard.Param
	lora   [outB + 1]int // by the index of a weight, that of its adapter's first matrix, before the second; 0: it has none
}

// adapt lists the adapters of linear layers.
func (b *gptBlock) adapt() {
	for _, at := range [...]int{attnW, projW, fcW, outW} {
		p := b.params[at]
		if name := strings.TrimSuffix(p.Name, ".weight"); b.g.LoRA.Targeted(name) {
			down, up := b.g.LoRA.params(name, p.Shape[0], p.Shape[1])
			b.lora[at] = len(b.params)
			b.params = append(b.params, down, up)
		}
	}
}

// linear sets y = x·weight plus the bias and what an adapter says, if there is one.
func (b gptBlock) linear(q Ops, mem Scratch, y, x device.Mat, w []device.Buffer, weight int) {
	q.MatMul(y, x, matrix(w[weight], b.params[weight]), w[weight+1], false)
	b.adapter(q, mem, y, x, w, weight)
}

// adapter adds to y, what a linear layer makes of x, what its adapter does, if it has one.
func (b gptBlock) adapter(q Ops, mem Scratch, y, x device.Mat, w []device.Buffer, weight int) {
	if at := b.lora[weight]; at > 0 {
		b.g.LoRA.forward(q, mem, y, x, matrix(w[at], b.params[at]), matrix(w[at+1], b.params[at+1]))
	}
}

// linearGrad is the backward of y = linear(x): dx (overwritten), and the gradients of
// parameters unless they are empty: frozen. If x is the activation of something, dx is
// the gradient of that.
func (b gptBlock) linearGrad(q Ops, mem Scratch, dx device.Mat, w, dw []device.Buffer, weight int, dy, x device.Mat, of device.Buffer) {
	at, wt := b.lora[weight], matrix(w[weight], b.params[weight]).T()
	b.parameterGrads(q, mem, w, dw, weight, dy, x)
	if of.N > 0 && at == 0 {
		q.MatMulActivateGrad(dx, dy, wt, device.Matrix(of, dx.Rows, dx.Cols), b.g.Act)
		return
	}
	q.MatMul(dx, dy, wt, device.Buffer{}, false)
	if at > 0 {
		b.g.LoRA.inputGrad(q, mem, dx, dy, matrix(w[at], b.params[at]), matrix(w[at+1], b.params[at+1]))
	}
	if of.N > 0 {
		q.ActivateGrad(dx.Buf, of, dx.Buf, b.g.Act)
	}
}

// parameterGrads sets the gradients of a linear layer's parameters, and of its
// adapter's, unless they are empty.
func (b gptBlock) parameterGrads(q Ops, mem Scratch, w, dw []device.Buffer, weight int, dy, x device.Mat) {
	switch {
	case dw[weight].N > 0:
		q.WeightGrad(matrix(dw[weight], b.params[weight]).T(), dw[weight+1], dy, x)
	case dw[weight+1].N > 0:
		q.SumRows(dw[weight+1], dy)
	}
	at := b.lora[weight]
	if at > 0 && dw[at+1].N > 0 {
		b.g.LoRA.upGrad(q, mem, matrix(dw[at+1], b.params[at+1]), dy, x, matrix(w[at], b.params[at]))
	}
	if at > 0 && dw[at].N > 0 {
		b.g.LoRA.downGrad(q, mem, matrix(dw[at], b.params[at]), dy, x, matrix(w[at+1], b.params[at+1]), false)
	}
}

func (b gptBlock) Params() []shard.Param { return b.params }

// The indices of what a block saves.
const (
	sMean1 = iota // (R) float32
	sRstd1        // (R) float32
	sLn1          // (R, C)
	sQKV          // (R, 3C)
	sLse          // (B, H, T) float32
	sO            // (R, C)
	sX2           // (R, C)
	sMean2        // (R) float32
	sRstd2        // (R) float32
	sLn2          // (R, C)
	sFc           // (R, F)
	sAct          // (R, F)
)

func (b gptBlock) attn(bt *Batch) device.Attn {
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

func (b gptBlock) Forward(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, y device.Buffer, s *Saved) {
	if s == nil {
		defer mem.Release(mem.Mark())
		s = new(Saved)
	}
	r, c, f, t := bt.Rows(), b.g.Width, b.g.inner(), bt.Compute
	for _, part := range [...]struct {
		at, n int
		t     device.DType
	}{
		{sMean1, r, device.F32}, {sRstd1, r, device.F32}, {sLn1, r * c, t}, {sQKV, r * 3 * c, t},
		{sLse, r * b.g.Heads, device.F32}, {sO, r * c, t}, {sX2, r * c, t},
		{sMean2, r, device.F32}, {sRstd2, r, device.F32}, {sLn2, r * c, t}, {sFc, r * f, t}, {sAct, r * f, t},
	} {
		s[part.at] = mem.Take(part.t, part.n)
	}
	rc := func(b device.Buffer) device.Mat { return device.Matrix(b, r, c) }

	q.LayerNorm(rc(s[sLn1]), s[sMean1], s[sRstd1], rc(x), w[ln1W], w[ln1B], b.g.Eps)
	qkv := device.Matrix(s[sQKV], r, 3*c)
	b.linear(q, mem, qkv, rc(s[sLn1]), w, attnW)
	for i := range bt.parts() {
		b.attend(q, bt, i, rc(s[sO]), s[sLse], qkv)
	}
	b.adds(q, mem, bt, rc(s[sX2]), rc(x), rc(s[sO]), w, projW, placeAttn)

	q.LayerNorm(rc(s[sLn2]), s[sMean2], s[sRstd2], rc(s[sX2]), w[ln2W], w[ln2B], b.g.Eps)
	b.hidden(q, mem, device.Matrix(s[sAct], r, f), device.Matrix(s[sFc], r, f), rc(s[sLn2]), w)
	b.adds(q, mem, bt, rc(y), rc(s[sX2]), device.Matrix(s[sAct], r, f), w, outW, placeMLP)
}

// hidden sets fc to the linear layer of x and act to its activation.
func (b gptBlock) hidden(q Ops, mem Scratch, act, fc, x device.Mat, w []device.Buffer) {
	if b.lora[fcW] == 0 {
		q.MatMulActivate(act, fc, x, matrix(w[fcW], b.params[fcW]), w[fcB], b.g.Act)
		return
	}
	b.linear(q, mem, fc, x, w, fcW)
	q.Activate(act.Buf, fc.Buf, b.g.Act)
}

// adds sets y = x plus what a half of the block puts out, linear(in), of which a
// training pass may drop some.
func (b gptBlock) adds(q Ops, mem Scratch, bt *Batch, y, x, in device.Mat, w []device.Buffer, weight, place int) {
	drop, some := bt.drops(b.g.Dropout.Residual, placeOf(b.layer, place), y.Cols)
	if some {
		b.linear(q, mem, y, in, w, weight)
		q.Dropout(y.Buf, y.Buf, x.Buf, drop)
		return
	}
	q.MatMulOnto(y, x, in, matrix(w[weight], b.params[weight]), w[weight+1])
	b.adapter(q, mem, y, in, w, weight)
}

// addsGrad is its backward: the gradient of in, or of what in is the activation of, given
// d, that of y, and those of parameters. That of x is d.
func (b gptBlock) addsGrad(q Ops, mem Scratch, bt *Batch, din, d, in device.Mat, of device.Buffer, w, dw []device.Buffer, weight, place int) {
	defer mem.Release(mem.Mark())
	dout := bt.dropped(q, mem, d, b.g.Dropout.Residual, placeOf(b.layer, place))
	b.linearGrad(q, mem, din, w, dw, weight, dout, in, of)
}

// attend sets o to the attention of part i of a batch.
func (b gptBlock) attend(q Ops, bt *Batch, i int, o device.Mat, lse device.Buffer, qkv device.Mat) {
	one, lo, hi := bt.part(i)
	qkv = qkv.RowRange(lo, hi)
	qm, _, _ := split(qkv)
	_, km, vm := split(one.seen(q, b.layer, qkv))
	q.Attention(o.RowRange(lo, hi), lse.Slice(lo*b.g.Heads, hi*b.g.Heads), qm, km, vm, b.attn(&one))
}

func (b gptBlock) Backward(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, s *Saved) {
	b.backwardMLP(q, mem, w, dw, bt, d, s)
	b.backwardAttention(q, mem, w, dw, bt, x, d, s)
}

func (b gptBlock) backwardMLP(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, d device.Buffer, s *Saved) {
	defer mem.Release(mem.Mark())
	r, c, f := bt.Rows(), b.g.Width, b.g.inner()
	dm, act := device.Matrix(d, r, c), device.Matrix(s[sAct], r, f)
	dact := device.Matrix(mem.Take(bt.Compute, r*f), r, f) // of what was before the activation
	b.addsGrad(q, mem, bt, dact, dm, act, s[sFc], w, dw, outW, placeMLP)
	dln := device.Matrix(mem.Take(bt.Compute, r*c), r, c)
	b.linearGrad(q, mem, dln, w, dw, fcW, dact, device.Matrix(s[sLn2], r, c), device.Buffer{})
	q.LayerNormGrad(dm, wanted(mem, dw[ln2W], c), wanted(mem, dw[ln2B], c), dln, device.Matrix(s[sX2], r, c), w[ln2W], s[sMean2], s[sRstd2], true)
}

func (b gptBlock) backwardAttention(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, s *Saved) {
	defer mem.Release(mem.Mark())
	r, c := bt.Rows(), b.g.Width
	dm, o := device.Matrix(d, r, c), device.Matrix(s[sO], r, c)
	do := device.Matrix(mem.Take(bt.Compute, r*c), r, c)
	b.addsGrad(q, mem, bt, do, dm, o, device.Buffer{}, w, dw, projW, placeAttn)
	dqkv := device.Matrix(mem.Take(bt.Compute, r*3*c), r, 3*c)
	delta := mem.Take(device.F32, r*b.g.Heads)
	qm, km, vm := split(device.Matrix(s[sQKV], r, 3*c))
	dq, dk, dv := split(dqkv)
	q.AttentionGrad(dq, dk, dv, delta, do, o, s[sLse], qm, km, vm, b.attn(bt))
	dln := do // its own gradient is spent
	b.linearGrad(q, mem, dln, w, dw, attnW, dqkv, device.Matrix(s[sLn1], r, c), device.Buffer{})
	q.LayerNormGrad(dm, wanted(mem, dw[ln1W], c), wanted(mem, dw[ln1B], c), dln, device.Matrix(x, r, c), w[ln1W], s[sMean1], s[sRstd1], true)
}
