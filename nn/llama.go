package nn

import (
	"cmp"
	"fmt"
	"math"

	"zeroth/device"
	"zeroth/shard"
)

// Llama is the shape of a Llama model (Touvron et al., arXiv 2302.13971; with grouped queries as in
// arXiv 2307.09288), with RMSNorm before each half of a block, rotary positions, SwiGLU and no
// biases; and of families built from the same parts. The fields after Pad are zero for Llama.
// Parameter names, shapes and initialization are those of Hugging Face.
type Llama struct {
	Shape
	Name      string             // of the family, for messages; empty means Llama
	KV        int                `says:"kv_heads"`            // key and value heads; divides Heads
	Head      int                `says:"the width of a head"` // even; 0: Width/Heads
	FFN       int                `says:"ffn"`                 // width of the hidden layer
	Theta     float64            `says:"rope_theta"`          // of rotary positions
	Scaling   device.RopeScaling `says:"the scaling of rotary positions"`
	RotaryDim int                `says:"the number of rotated elements of a head"` // see device.Rope; 0: all
	Tied      bool               `says:"tied"`                                     // the output layer is the token embedding
	Padded    bool               `says:"whether the padding token is not trained"` // like PyTorch's nn.Embedding(padding_idx=Pad): looking up
	Pad       int                `says:"the padding token"`                        // the token Pad gives its embedding no gradient; the output layer does

	BiasQKV    bool     `says:"biases of queries, keys and values"`   // Qwen2, arXiv 2407.10671
	BiasOut    bool     `says:"biases of the output of attention"`    //
	BiasMLP    bool     `says:"biases of the MLP"`                    //
	HeadNorm   HeadNorm `says:"the norms of queries and keys"`        // before the rotation
	Norms      Norms    `says:"the places of norms"`                  // of each half of a block
	Fused      bool     `says:"whether weights are fused"`            // queries, keys and values are one matrix, gate and up are one (Phi-3, arXiv 2404.14219)
	Layout     string   `says:"the kinds of layers"`                  // a letter for each, see Full; repeated; empty: all are Full
	Window     int      `says:"the window of attention"`              // positions to which a Windowed layer attends
	LocalTheta float64  `says:"rope_theta of layers with a window"`   // whose positions are not scaled; 0: Theta, scaled
	CapScores  float64  `says:"the soft cap of scores"`               // x becomes c tanh(x/c) (Gemma 2, arXiv 2408.00118); 0: none
	CapLogits  float64  `says:"the soft cap of logits"`               // like CapScores
	Gemma      bool     `says:"whether norms add 1 to their weights"` // and embeddings are scaled by the root of Width (Gemma, arXiv 2403.08295)
	Gate       Gate     `says:"the activation"`                       // of the MLP's gate
	Factors    Factors  `says:"the factors of the residual stream"`
	Experts    Experts  `says:"the experts"`
}

// Factors multiply the embeddings, what each half of a block adds to the residual stream, and the
// logits (Granite, as in arXiv 2203.03466). 0 means 1.
type Factors struct{ Embed, Residual, Logits float64 }

// Gate is the function of the gate of an MLP.
type Gate uint8

// The functions of device.Activation; SiLU is first.
const (
	GateSilu Gate = iota
	GateGeluTanh
	GateGeluErf
	GateRelu
	GateTanh
)

// activation returns the function.
func (g Gate) activation() device.Activation {
	return [...]device.Activation{device.Silu, device.GeluTanh, device.GeluErf, device.Relu, device.Tanh}[g]
}

// String returns the function's common name.
func (g Gate) String() string { return g.activation().String() }

// The kinds of layers in Layout: attention to all previous positions; attention to a window of
// them; attention to all without position embedding (SmolLM3).
const (
	Full     = 'f'
	Windowed = 'w'
	NoPE     = 'u'
)

// String describes what the norm covers.
func (n HeadNorm) String() string {
	return [...]string{"none", "of each head", "of all heads together"}[n]
}

// Norms selects the positions of the norms in a block's halves.
type Norms uint8

// Before each half; after it (OLMo 2, arXiv 2501.00656); both (Gemma 2).
const (
	NormBefore Norms = iota
	NormAfter
	NormBoth
)

// String returns the positions relative to each half of a block.
func (n Norms) String() string { return [...]string{"before", "after", "before and after"}[n] }

// HeadNorm selects an RMSNorm of queries and keys.
type HeadNorm uint8

// No norm; of each head, with one weight for all heads (Qwen3, arXiv 2505.09388); of all heads of a
// position together (OLMo 2).
const (
	NoHeadNorm HeadNorm = iota
	EachHead
	AllHeads
)

// Model returns the model. The embedding, every block, and the final norm with the output layer are
// units; if tied, embedding and final norm are one unit, "root", used first and last.
func (l Llama) Model() *Model {
	l = l.part()
	m := &Model{Name: cmp.Or(l.Name, "Llama"), Width: l.Width, Vocab: l.Vocab, Context: l.Context, Lookup: true, Blocks: l.Layers, QKV: l.columns(), Heads: l.Heads, Head: l.Head, Rotated: true}
	if x := l.Experts; x.Count > 0 {
		m.Active = float64(x.Router.TopK) / float64(x.Count)
	}
	if l.Scaling.Kind == device.RopeLong {
		m.LongFrom = l.Scaling.Context
	}
	words, part := l.Cut.vocab(weight("model.embed_tokens.weight", initStd, l.Vocab, l.Width))
	e := embedding{params: []shard.Param{words}, part: part, shared: l.Tied, padded: l.Padded, pad: l.Pad, drop: l.Dropout.Embed}
	if l.Gemma {
		e.scale = float32(math.Sqrt(float64(l.Width)))
	}
	if l.Factors.Embed != 0 {
		e.scale = float32(l.Factors.Embed)
	}
	h := head{part: part, eps: float32(l.Eps), plus: l.plus(), cap: float32(l.CapLogits), scale: float32(l.Factors.Logits)}
	if !l.Tied {
		out, _ := l.Cut.vocab(weight("lm_head.weight", initStd, l.Vocab, l.Width))
		h.params = []shard.Param{out}
	}
	m.around(l.Cut, e, h, []shard.Param{l.gain("model.norm.weight", l.Width)}, func() {
		for i := range l.Layers {
			m.addBlock(fmt.Sprintf("layers.%d", i), l.block(i), l.Cut)
		}
	})
	return m
}

// part returns the shape of this rank's part of each block.
func (l Llama) part() Llama {
	if l.Cut.some() && l.HeadNorm == AllHeads {
		panic("nn: a norm of all heads together cannot be divided")
	}
	l.Head = l.head()
	l.Heads, l.KV, l.FFN = l.Cut.narrow(l.Heads, "heads"), l.Cut.narrow(l.KV, "heads of keys and values"), l.Cut.narrow(l.FFN, "columns of the hidden layer")
	l.Experts.FFN, l.Experts.Shared = l.Cut.narrow(l.Experts.FFN, "columns of an expert"), l.Cut.narrow(l.Experts.Shared, "columns of the shared expert")
	return l
}

// fused is a matrix parameter with the linear layers whose weights are consecutive rows of it: one
// layer or, with Llama.Fused, several.
type fused struct {
	name  string
	in    int
	bias  bool
	parts []part
	inner bool // see linear
}

// part is a layer with the width of its output.
type part struct {
	layer *linear
	out   int
}

// outs lists the widths of the layers' outputs, and out returns their sum.
func (f fused) outs() (all []int) {
	for _, p := range f.parts {
		all = append(all, p.out)
	}
	return all
}

func (f fused) out() (n int) {
	for _, p := range f.parts {
		n += p.out
	}
	return n
}

// whole returns the widths of its input and output over all ranks.
func (f fused) whole(c Cut) (in, out int) {
	in, out = f.in, f.out()
	switch {
	case !c.some():
	case f.inner:
		in *= c.Count
	default:
		out *= c.Count
	}
	return in, out
}

// divide returns this rank's part of a parameter of the layers with whole dimensions; outs and ins are
// the dimensions of their outputs and inputs, or negative if there are none.
func (f fused) divide(c Cut, p shard.Param, outs, ins int) shard.Param {
	switch {
	case f.inner && ins >= 0:
		return c.part(p, ins, f.in)
	case !f.inner && outs >= 0:
		return c.part(p, outs, f.outs()...)
	}
	return p
}

// cut gives each layer its rows of a parameter.
func (f fused) cut(all rows, give func(l *linear, r rows)) {
	for _, p := range f.parts {
		all.hi = all.lo + p.out
		give(p.layer, all)
		all.lo = all.hi
	}
}

// linears lists the matrices of attention and of the MLP, in order.
func (b *llamaBlock) linears() (attn, mlp []fused) {
	l, c, a, k := b.l, b.l.Width, b.l.queries(), b.l.keys()
	columns := func(name string, bias bool, parts ...part) fused {
		return fused{name: name, in: c, bias: bias, parts: parts}
	}
	q, key, value := part{&b.qkv[0], a}, part{&b.qkv[1], k}, part{&b.qkv[2], k}
	attn = []fused{columns("self_attn.q_proj", l.BiasQKV, q), columns("self_attn.k_proj", l.BiasQKV, key), columns("self_attn.v_proj", l.BiasQKV, value)}
	if l.Fused {
		attn = []fused{columns("self_attn.qkv_proj", l.BiasQKV, q, key, value)}
	}
	attn = append(attn, fused{"self_attn.o_proj", a, l.BiasOut, []part{{&b.o, c}}, true})
	f, names := b.ffn(), l.mlpNames(b.layer)
	if f == 0 {
		return attn, nil
	}
	gate, up := part{&b.gate, f}, part{&b.up, f}
	if names.Up == "" {
		mlp = []fused{columns(names.Gate, l.BiasMLP, gate, up)}
	} else {
		mlp = []fused{columns(names.Gate, l.BiasMLP, gate), columns(names.Up, l.BiasMLP, up)}
	}
	return attn, append(mlp, fused{names.Down, f, l.BiasMLP, []part{{&b.down, c}}, true})
}

// mlpNames returns the names of the MLP or the shared expert of a layer.
func (l Llama) mlpNames(layer int) MLPNames {
	switch {
	case l.Experts.In(layer):
		return l.Experts.Names.Shared
	case l.Fused:
		return MLPNames{Gate: "mlp.gate_up_proj", Down: "mlp.down_proj"}
	}
	return MLPNames{"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
}

// normNames are the names of the norms before and after each half of a block, without "_layernorm";
// "post_attention" has two meanings.
var normNames = [...]struct{ attn, mlp [2]string }{
	NormBefore: {[2]string{"input", ""}, [2]string{"post_attention", ""}},
	NormAfter:  {[2]string{"", "post_attention"}, [2]string{"", "post_feedforward"}},
	NormBoth:   {[2]string{"input", "post_attention"}, [2]string{"pre_feedforward", "post_feedforward"}},
}

// plus returns the constant added to the weight of a norm.
func (l Llama) plus() float32 {
	if l.Gemma {
		return 1
	}
	return 0
}

// gain returns the weight of a norm, initialized such that the norm multiplies by 1.
func (l Llama) gain(name string, n int) shard.Param {
	p := gain(name, n)
	p.Init.Mean -= l.plus()
	return p
}

// block returns layer i.
func (l Llama) block(i int) *llamaBlock {
	b, prefix := &llamaBlock{l: l, layer: i}, fmt.Sprintf("model.layers.%d.", i)
	b.attn.site, b.mlp.site = placeAttn, placeMLP
	norm := func(name string) (r rows) {
		if name != "" {
			r = b.add(l.gain(prefix+name+"_layernorm.weight", l.Width))
		}
		return r
	}
	attn, mlp := b.linears()
	weights := func(all []fused) {
		for _, f := range all {
			in, out := f.whole(l.Cut)
			p := f.divide(l.Cut, weight(prefix+f.name+".weight", initStd, out, in), 0, 1)
			f.cut(b.add(p), func(l *linear, r rows) { l.weight, l.inner = r, f.inner })
		}
	}
	names := normNames[l.Norms]
	b.attn.before = norm(names.attn[0])
	weights(attn)
	b.attn.after = norm(names.attn[1])
	b.mlp.before = norm(names.mlp[0])
	weights(mlp)
	b.mlp.after = norm(names.mlp[1])
	all := append(attn, mlp...)
	for _, f := range all {
		if f.bias {
			_, out := f.whole(l.Cut)
			f.cut(b.add(f.divide(l.Cut, bias(prefix+f.name+".bias", out), 0, -1)), func(l *linear, r rows) { l.bias = r })
		}
	}
	if l.HeadNorm != NoHeadNorm {
		q, k := l.queries(), l.keys()
		if l.HeadNorm == EachHead {
			q, k = l.head(), l.head()
		}
		b.normQ, b.normK = b.add(l.gain(prefix+"self_attn.q_norm.weight", q)), b.add(l.gain(prefix+"self_attn.k_norm.weight", k))
	}
	if l.Experts.In(i) {
		b.addExperts(prefix)
	}
	for k, f := range all {
		f.name = prefix + f.name
		l.LoRA.attach(&b.params, f, l.Cut, i*adaptersPerBlock+k)
	}
	if l.Experts.In(i) {
		b.attachExperts(prefix, 3*i)
	}
	return b
}

// head returns the width D of a head, queries and keys the widths of all query and key heads, and
// columns the width of queries, keys and values together.
func (l Llama) head() int    { return cmp.Or(l.Head, l.Width/l.Heads) }
func (l Llama) queries() int { return l.head() * l.Heads }
func (l Llama) keys() int    { return l.head() * l.KV }
func (l Llama) columns() int { return l.queries() + 2*l.keys() }

// kind returns the kind of a layer.
func (l Llama) kind(layer int) byte {
	if l.Layout == "" {
		return Full
	}
	return l.Layout[layer%len(l.Layout)]
}
