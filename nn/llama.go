package nn

import (
	"fmt"
	"math"

	"zeroth/device"
	"zeroth/shard"
)

// Llama is the shape of a Llama model (Touvron et al., arXiv 2302.13971; with
// grouped queries as in arXiv 2307.09288): RMSNorm before each half of a block,
// rotary positions, SwiGLU, no biases. With Bias, the queries, keys and values
// have some, as in Qwen2 (arXiv 2407.10671). Parameter names, shapes and
// initialisation are Hugging Face's LlamaForCausalLM and Qwen2ForCausalLM.
type Llama struct {
	Layers, Width, Context, Vocab int
	Heads, KV                     int // query heads; key and value heads. KV divides Heads, 2*Heads divides Width
	FFN                           int // width of the hidden layer
	Eps                           float32
	Theta                         float64 // of the rotary positions
	Scaling                       device.RopeScaling
	Tied                          bool // the output layer is the token embedding
	Bias                          bool
	Padded                        bool // looking up the token Pad gives its embedding no gradient, as PyTorch's
	Pad                           int  // nn.Embedding(padding_idx=Pad) has it; as an output layer it has one
}

// Model lists the modules. Embedding, every block, and final norm with output
// layer are units; tied, embedding and final norm are one unit, "root", used
// first and last.
func (l Llama) Model() *Model {
	m := &Model{Name: "Llama", Width: l.Width, Vocab: l.Vocab, Context: l.Context, Lookup: true, Blocks: l.Layers, QKV: llamaBlock{l: l}.columns()}
	if l.Bias {
		m.Name = "Qwen2"
	}
	first, last := []shard.Param{weight("model.embed_tokens.weight", initStd, l.Vocab, l.Width)}, []shard.Param{}
	front, back := "embed", "head"
	if l.Tied {
		first = append(first, gain("model.norm.weight", l.Width))
		last, front, back = first, "root", "root"
	} else {
		last = append(last, weight("lm_head.weight", initStd, l.Vocab, l.Width), gain("model.norm.weight", l.Width))
	}
	m.add(front, embedding{params: first, shared: l.Tied, padded: l.Padded, pad: l.Pad})
	for i := range l.Layers {
		m.add(fmt.Sprintf("layers.%d", i), llamaBlock{l, i, l.block(i)})
	}
	m.add(back, head{params: last, weight: 1, eps: l.Eps})
	return m
}

// The indices of a block's parameters.
const (
	norm1 = iota
	projQ
	projK
	projV
	projO
	norm2
	projGate
	projUp
	projDown
	biasQ
	biasK
	biasV
)

// block lists the parameters of layer i. Linear weights are (out, in), as in
// PyTorch's Linear.
func (l Llama) block(i int) []shard.Param {
	p, c, kv := fmt.Sprintf("model.layers.%d.", i), l.Width, l.Width/l.Heads*l.KV
	params := []shard.Param{
		gain(p+"input_layernorm.weight", c),
		weight(p+"self_attn.q_proj.weight", initStd, c, c),
		weight(p+"self_attn.k_proj.weight", initStd, kv, c),
		weight(p+"self_attn.v_proj.weight", initStd, kv, c),
		weight(p+"self_attn.o_proj.weight", initStd, c, c),
		gain(p+"post_attention_layernorm.weight", c),
		weight(p+"mlp.gate_proj.weight", initStd, l.FFN, c),
		weight(p+"mlp.up_proj.weight", initStd, l.FFN, c),
		weight(p+"mlp.down_proj.weight", initStd, c, l.FFN),
	}
	if l.Bias {
		params = append(params, bias(p+"self_attn.q_proj.bias", c), bias(p+"self_attn.k_proj.bias", kv), bias(p+"self_attn.v_proj.bias", kv))
	}
	return params
}

// llamaBlock is x2 = x + o(attention(norm(x))), y = x2 + down(silu(gate(n)) * up(n))
// with n = norm(x2).
type llamaBlock struct {
	l      Llama
	layer  int
	params []shard.Param
}

func (b llamaBlock) Params() []shard.Param { return b.params }

// The indices of what a block saves. K is the width of its keys.
const (
	saveRstd1 = iota // (R) float32
	saveNorm1        // (R, C)
	saveQKV          // (R, C+2K), queries and keys turned by their positions
	saveLse          // (B, H, T) float32
	saveO            // (R, C)
	saveX2           // (R, C)
	saveRstd2        // (R) float32
	saveNorm2        // (R, C)
	saveGate         // (R, F)
	saveUp           // (R, F)
	saveAct          // (R, F)
)

// headWidth is D.
func (l Llama) headWidth() int { return l.Width / l.Heads }

func (b llamaBlock) attn(bt *Batch) device.Attn {
	d := b.l.headWidth()
	return device.Attn{B: bt.B, T: bt.T, Past: bt.Past, H: b.l.Heads, KV: b.l.KV, D: d, Scale: float32(1 / math.Sqrt(float64(d)))}
}

func (b llamaBlock) rope(bt *Batch) device.Rope {
	return device.Rope{T: bt.T, Past: bt.Past, D: b.l.headWidth(), Theta: b.l.Theta, Scaling: b.l.Scaling}
}

// columns is those of queries, keys and values: C+2K.
func (b llamaBlock) columns() int { return b.l.Width + 2*b.l.headWidth()*b.l.KV }

// split views (R, C+2K) as its queries, keys and values, and as the columns that
// have positions: the first two.
func (b llamaBlock) split(m device.Mat) (parts [3]device.Mat, turned device.Mat) {
	c, k := b.l.Width, b.l.headWidth()*b.l.KV
	return [3]device.Mat{m.Columns(0, c), m.Columns(c, c+k), m.Columns(c+k, c+2*k)}, m.Columns(0, c+k)
}

// linear sets y = x·weightᵀ plus the bias, if there is one, plus the old y with add.
func (b llamaBlock) linear(q Ops, y, x device.Mat, w []device.Buffer, weight int, bias device.Buffer, add bool) {
	q.MatMul(y, x, matrix(w[weight], b.params[weight]).T(), bias, add)
}

func (b llamaBlock) take(mem Scratch, bt *Batch, s *Saved) {
	r, t, f32, c := bt.Rows(), bt.Compute, device.F32, b.l.Width
	f := b.l.FFN
	for _, part := range [...]struct {
		at, n int
		t     device.DType
	}{
		{saveRstd1, r, f32}, {saveNorm1, r * c, t}, {saveQKV, r * b.columns(), t}, {saveLse, r * b.l.Heads, f32}, {saveO, r * c, t}, {saveX2, r * c, t},
		{saveRstd2, r, f32}, {saveNorm2, r * c, t}, {saveGate, r * f, t}, {saveUp, r * f, t}, {saveAct, r * f, t},
	} {
		s[part.at] = mem.Take(part.t, part.n)
	}
}

func (b llamaBlock) Forward(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, y device.Buffer, s *Saved) {
	if s == nil {
		defer mem.Release(mem.Mark())
		s = new(Saved)
	}
	b.take(mem, bt, s)
	b.forwardAttention(q, w, bt, x, s)
	b.forwardMLP(q, w, bt, y, s)
}

func (b llamaBlock) forwardAttention(q Ops, w []device.Buffer, bt *Batch, x device.Buffer, s *Saved) {
	r, c := bt.Rows(), b.l.Width
	norm, o, x2 := device.Matrix(s[saveNorm1], r, c), device.Matrix(s[saveO], r, c), device.Matrix(s[saveX2], r, c)
	q.RMSNorm(norm, s[saveRstd1], device.Matrix(x, r, c), w[norm1], b.l.Eps)
	qkv, all := bt.qkv(b.layer, b.columns(), s[saveQKV])
	parts, turned := b.split(qkv)
	seen, _ := b.split(all)
	for i, part := range parts {
		var bias device.Buffer
		if b.l.Bias {
			bias = w[biasQ+i]
		}
		b.linear(q, part, norm, w, projQ+i, bias, false)
	}
	q.Rope(turned, b.rope(bt), false)
	q.Attention(o, s[saveLse], parts[0], seen[1], seen[2], b.attn(bt))
	q.Cast(x2.Buf, x)
	b.linear(q, x2, o, w, projO, device.Buffer{}, true)
}

func (b llamaBlock) forwardMLP(q Ops, w []device.Buffer, bt *Batch, y device.Buffer, s *Saved) {
	r, c, f := bt.Rows(), b.l.Width, b.l.FFN
	norm, none := device.Matrix(s[saveNorm2], r, c), device.Buffer{}
	q.RMSNorm(norm, s[saveRstd2], device.Matrix(s[saveX2], r, c), w[norm2], b.l.Eps)
	b.linear(q, device.Matrix(s[saveGate], r, f), norm, w, projGate, none, false)
	b.linear(q, device.Matrix(s[saveUp], r, f), norm, w, projUp, none, false)
	q.SwiGLU(s[saveAct], s[saveGate], s[saveUp])
	q.Cast(y, s[saveX2])
	b.linear(q, device.Matrix(y, r, c), device.Matrix(s[saveAct], r, f), w, projDown, none, true)
}

// Backward writes gradients over what was saved as soon as that is spent, so
// its work space is the gradient of queries, keys and values alone.
func (b llamaBlock) Backward(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, s *Saved) {
	b.backwardMLP(q, w, dw, bt, d, s)
	b.backwardAttention(q, mem, w, dw, bt, x, d, s)
}

// weightGrad sets the gradient of a linear layer's weight.
func (b llamaBlock) weightGrad(q Ops, dw []device.Buffer, weight int, dy, x device.Mat) {
	q.MatMul(matrix(dw[weight], b.params[weight]), dy.T(), x, device.Buffer{}, false)
}

// inputGrad sets dx to, or with add adds to it, the gradient of a linear
// layer's input.
func (b llamaBlock) inputGrad(q Ops, dx device.Mat, w []device.Buffer, weight int, dy device.Mat, add bool) {
	q.MatMul(dx, dy, matrix(w[weight], b.params[weight]), device.Buffer{}, add)
}

func (b llamaBlock) backwardMLP(q Ops, w, dw []device.Buffer, bt *Batch, d device.Buffer, s *Saved) {
	r, c, f := bt.Rows(), b.l.Width, b.l.FFN
	dm, act, norm := device.Matrix(d, r, c), device.Matrix(s[saveAct], r, f), device.Matrix(s[saveNorm2], r, c)
	gate, up := device.Matrix(s[saveGate], r, f), device.Matrix(s[saveUp], r, f)

	b.weightGrad(q, dw, projDown, dm, act)
	dact := act
	b.inputGrad(q, dact, w, projDown, dm, false)
	q.SwiGLUGrad(gate.Buf, up.Buf, dact.Buf, gate.Buf, up.Buf)
	dgate, dup := gate, up
	b.weightGrad(q, dw, projGate, dgate, norm)
	b.weightGrad(q, dw, projUp, dup, norm)
	dnorm := norm
	b.inputGrad(q, dnorm, w, projGate, dgate, false)
	b.inputGrad(q, dnorm, w, projUp, dup, true)
	q.RMSNormGrad(dm, dw[norm2], dnorm, device.Matrix(s[saveX2], r, c), w[norm2], s[saveRstd2], true)
}

func (b llamaBlock) backwardAttention(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, s *Saved) {
	defer mem.Release(mem.Mark())
	r, c := bt.Rows(), b.l.Width
	dm, o, norm := device.Matrix(d, r, c), device.Matrix(s[saveO], r, c), device.Matrix(s[saveNorm1], r, c)
	parts, _ := b.split(device.Matrix(s[saveQKV], r, b.columns()))
	dqkv := mem.Take(bt.Compute, s[saveQKV].N)
	dparts, turned := b.split(device.Matrix(dqkv, r, b.columns()))
	delta := mem.Take(device.F32, s[saveLse].N)

	b.weightGrad(q, dw, projO, dm, o)
	do := device.Matrix(s[saveNorm2], r, c)
	b.inputGrad(q, do, w, projO, dm, false)
	q.AttentionGrad(dparts[0], dparts[1], dparts[2], delta, do, o, s[saveLse], parts[0], parts[1], parts[2], b.attn(bt))
	q.Rope(turned, b.rope(bt), true)
	for i, dpart := range dparts {
		b.weightGrad(q, dw, projQ+i, dpart, norm)
		if b.l.Bias {
			q.SumRows(dw[biasQ+i], dpart)
		}
	}
	dnorm := norm
	for i, dpart := range dparts {
		b.inputGrad(q, dnorm, w, projQ+i, dpart, i > 0)
	}
	q.RMSNormGrad(dm, dw[norm1], dnorm, device.Matrix(x, r, c), w[norm1], s[saveRstd1], true)
}
