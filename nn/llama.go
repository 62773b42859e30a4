package nn

import (
	"cmp"
	"fmt"
	"math"

	"zeroth/device"
	"zeroth/shard"
)

// Llama is the shape of a Llama model (Touvron et al., arXiv 2302.13971; with
// grouped queries as in arXiv 2307.09288): RMSNorm before each half of a block,
// rotary positions, SwiGLU, no biases; and of the families that are made of the same
// parts. The fields after Pad are zero in Llama. Parameter names, shapes and
// initialisation are Hugging Face's.
type Llama struct {
	Name                          string // of the family, for people; empty is Llama
	Layers, Width, Context, Vocab int
	Heads, KV                     int // query heads; key and value heads. KV divides Heads
	Head                          int // width of a head, even; 0: Width/Heads
	FFN                           int // width of the hidden layer
	Eps                           float32
	Theta                         float64 // of the rotary positions
	Scaling                       device.RopeScaling
	Turned                        int  // elements of a head that turn, see device.Rope; 0: all
	Tied                          bool // the output layer is the token embedding
	Padded                        bool // looking up the token Pad gives its embedding no gradient, as PyTorch's
	Pad                           int  // nn.Embedding(padding_idx=Pad) has it; as an output layer it has one

	BiasQKV, BiasOut, BiasMLP bool     // of queries, keys and values (Qwen2, arXiv 2407.10671); of what attention puts out; of the MLP
	HeadNorm                  HeadNorm // of queries and keys, before they are turned
	Norms                     Norms    // of each half of a block
	Fused                     bool     // queries, keys and values are one matrix, gate and up are one (Phi-3, arXiv 2404.14219)
	Layout                    string   // what each layer is, as Layers lists it; empty: all are Full
	Window                    int      // positions that a Windowed layer sees
	LocalTheta                float64  // of a Windowed layer's positions, which are not scaled; 0: Theta, scaled
	Scale                     float64  // of scores is Scale^-1/2; 0 is the width of a head
	CapScores, CapLogits      float64  // x is c tanh(x/c) with this c (Gemma 2, arXiv 2408.00118); 0: it stays x
	LoRA                      LoRA
	Dropout                   Dropout
	Gemma                     bool // norms multiply by 1 + weight, embeddings by the root of Width, the gate's GELU not SiLU (Gemma, arXiv 2403.08295)
}

// What a layer is, a letter each, again and again if there are more layers: one that sees all positions before, one that sees
// a window of them, one that sees all and has no positions (SmolLM3).
const (
	Full     = 'f'
	Windowed = 'w'
	Unturned = 'u'
)

// String says of what.
func (n HeadNorm) String() string {
	return [...]string{"none", "of each head", "of all heads together"}[n]
}

// Norms is where the norms of a block's halves are.
type Norms uint8

// Before each half; after it (OLMo 2, arXiv 2501.00656); both (Gemma 2).
const (
	NormBefore Norms = iota
	NormAfter
	NormBoth
)

// String says where, of each half of a block.
func (n Norms) String() string { return [...]string{"before", "after", "before and after"}[n] }

// HeadNorm is an RMSNorm of queries and keys.
type HeadNorm uint8

// None of them; of each head, with one weight for all heads (Qwen3, arXiv
// 2505.09388); of all heads of a position together (OLMo 2).
const (
	NoHeadNorm HeadNorm = iota
	EachHead
	AllHeads
)

// Model lists the modules. Embedding, every block, and final norm with output
// layer are units; tied, embedding and final norm are one unit, "root", used
// first and last.
func (l Llama) Model() *Model {
	m := &Model{Name: cmp.Or(l.Name, "Llama"), Width: l.Width, Vocab: l.Vocab, Context: l.Context, Lookup: true, Blocks: l.Layers, QKV: l.columns()}
	if l.Scaling.Kind == device.RopeLong {
		m.LongFrom = l.Scaling.Context
	}
	first, last := []shard.Param{weight("model.embed_tokens.weight", initStd, l.Vocab, l.Width)}, []shard.Param{}
	front, back := "embed", "head"
	if l.Tied {
		first = append(first, l.gain("model.norm.weight", l.Width))
		last, front, back = first, "root", "root"
	} else {
		last = append(last, weight("lm_head.weight", initStd, l.Vocab, l.Width), l.gain("model.norm.weight", l.Width))
	}
	e := embedding{params: first, shared: l.Tied, padded: l.Padded, pad: l.Pad, drop: l.Dropout.Embed}
	if l.Gemma {
		e.scale = float32(math.Sqrt(float64(l.Width)))
	}
	m.add(front, e)
	for i := range l.Layers {
		m.add(fmt.Sprintf("layers.%d", i), l.block(i))
	}
	m.add(back, head{params: last, weight: 1, eps: l.Eps, plus: l.plus(), cap: float32(l.CapLogits)})
	return m
}

// A block's weights and biases. A linear layer's bias is biases after it, the two
// matrices of its adapter downs and ups.
const (
	before1 = iota // the norms of the first half, attention, and of the second
	after1
	before2
	after2
	normQ
	normK
	projQ
	projK
	projV
	projO
	projGate
	projUp
	projDown
	biases = iota - projQ
	downs  = 2 * biases
	ups    = 3 * biases
	pieces = projDown + ups + 1
)

// piece is rows [lo, hi) of a parameter; the zero piece is none.
type piece struct{ param, lo, hi int }

// of is the piece of w, which is a block's parameters or their gradients.
func (p piece) of(w []device.Buffer, params []shard.Param) device.Mat {
	cols := 1
	if shape := params[p.param].Shape; len(shape) == 2 {
		cols = shape[1]
	}
	return device.Matrix(w[p.param].Slice(p.lo*cols, p.hi*cols), p.hi-p.lo, cols)
}

// rows is the length of a piece: the width of what it puts out.
func (l Llama) rows(what int) int {
	if what >= projQ+downs && what < projQ+ups {
		return l.LoRA.Rank
	}
	if what >= projQ {
		what = projQ + (what-projQ)%biases
	}
	switch what {
	case projQ:
		return l.queries()
	case projK, projV:
		return l.head() * l.KV
	case projGate, projUp:
		return l.FFN
	case normQ, normK:
		if l.HeadNorm == EachHead {
			return l.head()
		}
		return l.rows(what - normQ + projQ)
	}
	return l.Width
}

// linear is a linear layer, or several in one matrix: (out, in), as in PyTorch's
// Linear.
type linear struct {
	name  string
	in    int
	bias  bool
	parts []int
}

// linears are a block's, in order.
func (l Llama) linears() []linear {
	c := l.Width
	all := []linear{
		{"self_attn.q_proj", c, l.BiasQKV, []int{projQ}}, {"self_attn.k_proj", c, l.BiasQKV, []int{projK}}, {"self_attn.v_proj", c, l.BiasQKV, []int{projV}},
		{"self_attn.o_proj", l.queries(), l.BiasOut, []int{projO}},
		{"mlp.gate_proj", c, l.BiasMLP, []int{projGate}}, {"mlp.up_proj", c, l.BiasMLP, []int{projUp}},
		{"mlp.down_proj", l.FFN, l.BiasMLP, []int{projDown}},
	}
	if l.Fused {
		qkv, gateUp := linear{"self_attn.qkv_proj", c, l.BiasQKV, []int{projQ, projK, projV}}, linear{"mlp.gate_up_proj", c, l.BiasMLP, []int{projGate, projUp}}
		all = []linear{qkv, all[3], gateUp, all[6]}
	}
	return all
}

// normNames are the norms' of a block's halves; one word has two meanings.
var normNames = [...][4]string{
	NormBefore: {before1: "input", before2: "post_attention"},
	NormAfter:  {after1: "post_attention", after2: "post_feedforward"},
	NormBoth:   {before1: "input", after1: "post_attention", before2: "pre_feedforward", after2: "post_feedforward"},
}

// plus is what is added to the weight of a norm.
func (l Llama) plus() float32 {
	if l.Gemma {
		return 1
	}
	return 0
}

// gain is the weight of a norm, which begins so that the norm multiplies by 1.
func (l Llama) gain(name string, n int) shard.Param {
	p := gain(name, n)
	p.Init.Mean -= l.plus()
	return p
}

// block lists the parameters of layer i.
func (l Llama) block(i int) llamaBlock {
	b, prefix := llamaBlock{l: l, layer: i}, fmt.Sprintf("model.layers.%d.", i)
	norm := func(what int) {
		if name := normNames[l.Norms][what]; name != "" {
			b.add(l.gain(prefix+name+"_layernorm.weight", l.Width), what)
		}
	}
	norm(before1)
	for _, x := range l.linears() {
		if x.parts[0] == projGate {
			norm(after1)
			norm(before2)
		}
		b.add(weight(prefix+x.name+".weight", initStd, b.length(x.parts), x.in), x.parts...)
	}
	norm(after2)
	for _, x := range l.linears() {
		if x.bias {
			own := make([]int, len(x.parts))
			for i, what := range x.parts {
				own[i] = what + biases
			}
			b.add(bias(prefix+x.name+".bias", b.length(x.parts)), own...)
		}
	}
	if l.HeadNorm != NoHeadNorm {
		b.add(l.gain(prefix+"self_attn.q_norm.weight", l.rows(normQ)), normQ)
		b.add(l.gain(prefix+"self_attn.k_norm.weight", l.rows(normK)), normK)
	}
	for _, x := range l.linears() {
		if l.LoRA.Targeted(prefix + x.name) {
			b.adapt(prefix, x)
		}
	}
	return b
}

// adapt lists the adapter of a linear layer. Layers in one matrix share the first
// half of it.
func (b *llamaBlock) adapt(prefix string, x linear) {
	down, up := b.l.LoRA.params(prefix+x.name, x.in, b.length(x.parts))
	own := make([]int, len(x.parts))
	for i, what := range x.parts {
		own[i] = what + ups
		b.at[what+downs] = piece{len(b.params), 0, b.l.LoRA.Rank}
	}
	b.params = append(b.params, down)
	b.add(up, own...)
}

// add lists a parameter that has some pieces, one after the other.
func (b *llamaBlock) add(p shard.Param, parts ...int) {
	at := 0
	for _, what := range parts {
		b.at[what] = piece{len(b.params), at, at + b.l.rows(what)}
		at = b.at[what].hi
	}
	b.params = append(b.params, p)
}

// length is that of several pieces together.
func (b *llamaBlock) length(parts []int) (n int) {
	for _, what := range parts {
		n += b.l.rows(what)
	}
	return n
}

// head is D, queries is the width of all queries, and columns that of queries, keys
// and values.
func (l Llama) head() int {
	if l.Head != 0 {
		return l.Head
	}
	return l.Width / l.Heads
}
func (l Llama) queries() int { return l.head() * l.Heads }
func (l Llama) columns() int { return l.head() * (l.Heads + 2*l.KV) }

// kind is what a layer is.
func (l Llama) kind(layer int) byte {
	if l.Layout == "" {
		return Full
	}
	return l.Layout[layer%len(l.Layout)]
}
