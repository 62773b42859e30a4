// Package nn has modules that compute with parameters they are given.
//
// A module owns its configuration and nothing else: parameters, gradients and
// memory are arguments of each call, and views of them are not kept after it.
// So a schedule can put the parameters of a module anywhere, for as long as
// one call, without hooks or wrappers.
//
// A module of the trunk maps a residual stream (B, T, C) to another of the
// same shape. Forward writes it to y; Backward turns the gradient of y into
// the gradient of x in place.
package nn

import (
	"fmt"
	"slices"

	"zeroth/device"
	"zeroth/shard"
)

// Ops are the kernels modules need. All matrices and vectors may be of any
// float type, with sums in float32, unless a comment says otherwise. An
// implementation is a queue: a call issues work and returns.
type Ops interface {
	// Do runs f on the host after all that was issued before it, and before what is
	// issued later; its error sticks. See OnHost.
	Do(f func() error)

	Zero(b device.Buffer)
	Cast(dst, src device.Buffer) // any float type to any, rounded to nearest even

	// MatMul sets c = a·b, plus bias in every row if bias is not empty, plus
	// the old c if add is set. c is not transposed.
	MatMul(c, a, b device.Mat, bias device.Buffer, add bool)
	// SumRows sets db[j] = sum over i of dy[i][j]; db is float32.
	SumRows(db device.Buffer, dy device.Mat)

	// What follows is one pass where a queue can, else its parts, whose bits it has on
	// the CPU (see device.MatMulOnto). Matrices of one shape have no gaps.

	// MatMulOnto sets y = x + a·b, plus bias: Cast, MatMul with add.
	MatMulOnto(y, x, a, b device.Mat, bias device.Buffer)
	// MatMulActivate sets x = a·b, plus bias, and y = f(x): MatMul, Activate.
	MatMulActivate(y, x, a, b device.Mat, bias device.Buffer, f device.Activation)
	// MatMulActivateGrad sets dx = (a·b) * f'(x): MatMul, ActivateGrad.
	MatMulActivateGrad(dx, a, b, x device.Mat, f device.Activation)
	// WeightGrad sets dw = dyᵀ·x, (out, in) or with dw transposed (in, out), and db, which
	// may be empty, to the sum of the rows of dy, both float32: MatMul, SumRows.
	WeightGrad(dw device.Mat, db device.Buffer, dy, x device.Mat)

	// Embed sets y[i] = wte[ids[i]] + wpe[p] with p, the position, i mod T, or what that
	// is behind start[i]; wpe may be empty, and start (see device.Starts). wte may be part
	// of the vocabulary: other ids count as 0.
	Embed(y, wte, wpe device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer)
	// EmbedGrad sets dwte and dwpe (float32; dwpe may be empty) to, or with add
	// adds to them, the gradients of Embed.
	EmbedGrad(dwte, dwpe, dy device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer, add bool)

	// LayerNorm normalises the rows of x: y = (x-mean)*rstd*w + b; mean and
	// rstd are float32, one a row.
	LayerNorm(y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32)
	// LayerNormGrad sets dx to (or, with add, adds to dx) the gradient of x and
	// overwrites dw and db (float32).
	LayerNormGrad(dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool)

	// RMSNorm scales the rows of x: y = x*rstd*w with rstd = 1/sqrt(average(x^2)
	// + eps), float32, one a row.
	RMSNorm(y device.Mat, rstd device.Buffer, x device.Mat, w device.Buffer, eps float32)
	// RMSNormGrad sets dx to (or, with add, adds to dx) the gradient of x and
	// overwrites dw (float32). dx may be dy or x.
	RMSNormGrad(dx device.Mat, dw device.Buffer, dy, x device.Mat, w, rstd device.Buffer, add bool)

	// Rope turns the heads of x (B*T, heads*D) in place by their positions, or
	// with inverse back, which is also the gradient.
	Rope(x device.Mat, r device.Rope, inverse bool)

	// SwiGLU sets y = silu(gate) * up with silu(x) = x/(1 + e^-x).
	SwiGLU(y, gate, up device.Buffer)
	SwiGLUGrad(dgate, dup, dy, gate, up device.Buffer) // each result may be one of the inputs

	Activate(y, x device.Buffer, f device.Activation)          // y may be x
	ActivateGrad(dx, x, dy device.Buffer, f device.Activation) // dx = dy*f'(x) may be dy

	CopyBlock(dst, src device.Mat)           // of one shape and type; either may be part of a matrix
	AddTo(y, a, b device.Buffer)             // y = a + b may be one of them
	Mul(y, a, b device.Buffer)               // y = a * b may be one of them
	AddScalar(y, x device.Buffer, s float32) // y = x + s may be x
	Scale(x device.Buffer, s float32)        // x = x * s
	// Dropout sets y to what d keeps of x, scaled, plus add if that is not empty; y
	// may be x or add.
	Dropout(y, x, add device.Buffer, d device.Dropout)

	// Attention is causal softmax(scale q·k)·v; lse (B, H, T) float32 receives
	// the log-sum-exp of each score row. No T×T matrix is held.
	Attention(o device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn)
	// AttentionGrad overwrites dq, dk, dv; delta (B, H, T) float32 is work space. Gradients of
	// keys that no query sees are 0.
	AttentionGrad(dq, dk, dv device.Mat, delta device.Buffer, do, o device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn)

	// CrossEntropy sets loss[i] (float32, nats) to -log softmax(logits[i])[target[i]].
	// With a cap above 0 a logit x counts as cap tanh(x/cap).
	CrossEntropy(loss device.Buffer, logits device.Mat, target device.Buffer, cap float32)
	// CrossEntropyGrad does the same and replaces logits[i] by its gradient, without a
	// cap scale*(softmax(logits[i]) - onehot(target[i])).
	CrossEntropyGrad(loss device.Buffer, logits device.Mat, target device.Buffer, scale, cap float32)
	// CrossEntropyPart sets stats (Rows, 3) float32 to what logits of part of the vocabulary
	// contribute to the loss. CrossEntropyMerge sets losses from the stats of all parts, in
	// their order, (parts, Rows, 3); with grad it replaces a part's logits by their gradient.
	CrossEntropyPart(stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, cap float32)
	CrossEntropyMerge(loss, stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, scale, cap float32, grad bool)
}

// Logits is what TakeFor takes logits for.
const Logits = "logits"

// Scratch is last-in-first-out memory. What a forward pass saves is kept: it may be
// elsewhere than what is taken, and stays until the backward pass.
type Scratch interface {
	Take(t device.DType, n int) device.Buffer
	TakeFor(what string, t device.DType, n int) device.Buffer // Take, told apart in plans
	Keep(t device.DType, n int) device.Buffer                 // for Saved; of passes that save nothing it is Take
	Mark() int                                                // the height now
	Release(to int)                                           // gives back all that was taken above a mark
}

// Batch is what a forward pass is about: B sequences of T token ids and, for
// each position, the id that follows it.
type Batch struct {
	B, T    int
	Input   device.Buffer // (B*T) int32
	Target  device.Buffer // (B*T) int32
	Start   device.Buffer // where documents start, see device.Starts; empty: each sequence is one
	Loss    device.Buffer // (B*T) float32, nats; written by the last module
	Scale   float32       // of the loss in Backward: 1/(positions summed over) × loss scale
	Chunk   int           // positions whose logits are held at once
	Pad     int           // rows of logits are as long as a multiple of Pad, beyond the vocabulary 0; 0 pads nothing
	Compute device.DType  // of the residual stream and all activations
	Drops   Drops         // of a training pass; the zero Drops drop nothing
	Tensor  Group         // the ranks that matrices are divided over, see Cut; nil: they are whole
	Context Group         // the ranks that positions are divided over, see Chunks; nil: all are here
	Later   *Later        // where a Splitter's Backward notes gradients of weights; nil: it computes them

	// Forward passes without Saved may be over pieces of sequences of their own
	// lengths, row after row: B is 1 and T the sum of theirs. No row depends on
	// another sequence's. Where Logits is not empty, they are those of the last
	// row of each sequence, and no losses are written.
	Sequences []Sequence
	Logits    device.Buffer // (Sequences, Vocab) float32
}

// Sequence is a piece of one: T positions behind Past others. Cache is, for each of
// Model.Blocks, its queries, keys and values at every position, (Context, QKV) in the
// compute dtype. The first Past of them have been written by passes before; this one
// writes those of the piece. It may be nil if Past is 0.
type Sequence struct {
	Past, T int
	Cache   []device.Buffer
}

// parts is in how many parts attention and positions are computed.
func (b *Batch) parts() int {
	if b.Context != nil {
		return b.B
	}
	return max(1, len(b.Sequences))
}

// part is sequence i as a batch of its own, and which rows of b it is; without
// Sequences and Context all of b.
func (b *Batch) part(i int) (one Batch, lo, hi int) {
	switch {
	case b.Context != nil:
		one, lo, hi = *b, i*b.T, (i+1)*b.T
		one.B, one.Start = 1, b.Start.Slice(lo, hi)
		return one, lo, hi
	case len(b.Sequences) == 0:
		return *b, 0, b.Rows()
	}
	for _, s := range b.Sequences[:i] {
		lo += s.T
	}
	one = *b
	one.B, one.T, one.Sequences = 1, b.Sequences[i].T, b.Sequences[i:i+1]
	return one, lo, lo + one.T
}

// past is the positions before those of each sequence of b, which is a part.
func (b *Batch) past() int {
	if len(b.Sequences) == 0 {
		return 0
	}
	return b.Sequences[0].Past
}

// seen is the queries, keys and values of all positions of a part, of which qkv are
// the new ones: they are put into the cache, if there is one.
func (b *Batch) seen(q Ops, layer int, qkv device.Mat) device.Mat {
	if len(b.Sequences) == 0 || b.Sequences[0].Cache == nil {
		return qkv
	}
	keys := b.past() + b.T
	all := device.Matrix(b.Sequences[0].Cache[layer].Slice(0, keys*qkv.Cols), keys, qkv.Cols)
	q.Cast(all.RowRange(b.past(), keys).Buf, qkv.Buf)
	return all
}

// Rows is the number of positions.
func (b *Batch) Rows() int { return b.B * b.T }

// Saved holds the activations that a Forward keeps for its Backward. The memory belongs
// to the Scratch it was taken from; Backward may overwrite it. R is the number of
// positions, of which a rank has Batch.Held in the residual stream and in norms, A the width of all queries, K that of all keys, F that of the hidden layer.
type Saved struct {
	Own [2]device.Buffer // for modules of other packages

	norm      savedNorm     // the head's
	attn, mlp savedHalf     // of a block
	qkv       device.Buffer // (R, A+2K): queries and keys as attention reads them, values
	raw       device.Buffer // (R, A+K): queries and keys before a HeadNorm
	rstdQK    device.Buffer // (heads, or 2, R) float32, of a HeadNorm
	lse       device.Buffer // (B, H, T) float32: the log-sum-exp of attention's scores
	o         device.Buffer // (R, A): the output of attention
	x2        device.Buffer // (R, C): the residual stream between the halves
	hidden    device.Buffer // (R, F): the hidden layer, or SwiGLU's gate, before activation
	up        device.Buffer // (R, F): SwiGLU's other factor
	act       device.Buffer // (R, F): the input of the last linear layer
}

// savedNorm is what a norm saves.
type savedNorm struct {
	mean device.Buffer // (R) float32; empty for RMSNorm
	rstd device.Buffer // (R) float32
	y    device.Buffer // (R, C): its output
}

// savedHalf is what the norms of one half of a block save, before and after it.
type savedHalf struct {
	before savedNorm
	out    device.Buffer // (R, C): the input of the norm after
	rstd   device.Buffer // (R) float32, of the norm after
}

// Module is one step of a model. Params lists the parameters of the units the
// module uses, see Places: modules that share a unit list all of it, and
// w and dw follow the order. In dw what is frozen is empty, and its gradient not wanted.
type Module interface {
	Params() []shard.Param
	// Forward reads x and writes y, both (B*T, C) in the compute dtype. What
	// Backward needs it takes from mem and notes in s; with s nil nothing is
	// kept and all it took is given back.
	Forward(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, y device.Buffer, s *Saved)
	// Backward turns d, the gradient of y, into the gradient of x, and
	// overwrites every dw (float32) with its gradient. In a unit that several
	// modules share the last in forward order overwrites, with zero where it
	// does not use a parameter, and the others add. It gives back what it took.
	Backward(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, s *Saved)
}

// Splitter is a Module whose Backward can leave gradients of weights for later: it notes them
// in Batch.Later, and keeps what they are computed from.
type Splitter interface {
	Module
	// Leaves says whether the gradient of a parameter is among them.
	Leaves(param int) bool
}

// Later is gradients of weights that are to be computed, in order.
type Later struct{ grads []weightGrad }

type weightGrad struct {
	dw    device.Mat
	db    device.Buffer
	dy, x device.Mat
}

// Len returns how many there are.
func (l *Later) Len() int { return len(l.grads) }

// Compute issues gradients [lo, hi), in the reverse order of their modules.
func (l *Later) Compute(q Ops, lo, hi int) {
	for _, g := range l.grads[lo:hi] {
		q.WeightGrad(g.dw, g.db, g.dy, g.x)
	}
}

// Clear forgets all.
func (l *Later) Clear() { clear(l.grads); l.grads = l.grads[:0] }

// keep returns m, or where a pass leaves gradients for later a copy of it that stays, unless
// they are computed from all ranks' rows.
func (p pass) keep(m device.Mat) device.Mat {
	if p.bt.Later == nil || p.bt.Tensor != nil {
		return m
	}
	kept := device.Matrix(p.mem.Keep(m.Buf.Type, m.Rows*m.Cols), m.Rows, m.Cols)
	p.q.Cast(kept.Buf, m.Buf)
	return kept
}

// operand returns memory for the gradient of a linear layer's output: what gradients that
// are left for later are computed from stays.
func (p pass) operand(rows, cols int) device.Mat {
	take := p.mem.Take
	if p.bt.Later != nil {
		take = p.mem.Keep
	}
	return device.Matrix(take(p.bt.Compute, rows*cols), rows, cols)
}

// spent returns memory for a matrix like m that m's value is not needed for any more: m, or
// where a pass leaves gradients for later, which may need it, other memory.
func (p pass) spent(m device.Mat) device.Mat {
	if p.bt.Later == nil {
		return m
	}
	return device.Matrix(p.mem.Take(m.Buf.Type, m.Rows*m.Cols), m.Rows, m.Cols)
}

// Model is a list of modules in forward order: the first reads bt.Input (its x
// is empty), the last writes bt.Loss (its y is empty). In training the loss is
// written by the last module's Backward, which follows its Forward at once:
// so a chunk of logits is computed one time and turned into its gradient in
// place, and never saved. That Backward writes d without reading it.
type Model struct {
	Name    string // of the family, for people: "GPT-2"
	Width   int    // C of the residual stream
	Vocab   int
	Context int  // longest T
	Lookup  bool // the first module only looks its parameters up: its Backward does not read them
	Blocks  int  // that attend, each to the queries, keys and values
	QKV     int  // in so many columns
	// Above 0: in sequences of more positions, all positions turn otherwise (LongRoPE), so
	// what was cached of a sequence while it was shorter is of no use any more.
	LongFrom int
	Modules  []Module
	Uses     [][]Use // the units each module uses, in the order of its parameters

	Before, After bool // this is a Part: modules of the whole model come before these, or after
}

// Part returns the modules of some ranges [lo, hi), ascending, as a model of their own.
func (m *Model) Part(ranges ...[2]int) *Model {
	part := *m
	part.Modules, part.Uses = nil, nil
	for _, r := range ranges {
		part.Modules, part.Uses = append(part.Modules, m.Modules[r[0]:r[1]]...), append(part.Uses, m.Uses[r[0]:r[1]]...)
	}
	part.Before, part.After = ranges[0][0] > 0, ranges[len(ranges)-1][1] < len(m.Modules)
	part.Lookup = m.Lookup && !part.Before
	return &part
}

// Use is a unit and how many of a module's parameters it has, which are all of
// the unit's: they are the same in every module that uses it.
type Use struct {
	Unit   string
	Params int
	At     []int // which they are; nil: those that follow the uses before
}

// Places are which of a module's parameters each of its uses has.
func Places(uses []Use) (places [][]int) {
	next := 0
	for _, use := range uses {
		at := use.At
		if at == nil {
			at = make([]int, use.Params)
			for i := range at {
				at[i] = next + i
			}
			next += use.Params
		}
		places = append(places, at)
	}
	return places
}

// Unit is parameters that are gathered, reduced and updated together.
type Unit struct {
	Name        string
	Params      []shard.Param
	First, Last int // modules that use it
}

// Units are the model's, in order of first use.
func (m *Model) Units() (all []Unit) {
	at := map[string]int{}
	for i, mod := range m.Modules {
		params := mod.Params()
		of := make([]bool, len(params)) // a unit
		places := Places(m.Uses[i])
		for k, use := range m.Uses[i] {
			own := make([]shard.Param, 0, len(places[k]))
			for _, p := range places[k] {
				own, of[p] = append(own, params[p]), true
			}
			j, ok := at[use.Unit]
			if !ok {
				j = len(all)
				at[use.Unit] = j
				all = append(all, Unit{Name: use.Unit, Params: own, First: i})
			}
			if len(all[j].Params) != len(own) {
				panic(fmt.Sprintf("nn: unit %s has %d parameters in module %d and %d in module %d", use.Unit, len(all[j].Params), all[j].First, len(own), i))
			}
			all[j].Last = i
		}
		if first := slices.Index(of, false); first >= 0 {
			panic(fmt.Sprintf("nn: %d parameters of module %d, from %s on, are of no unit", len(params)-first, i, params[first].Name))
		}
	}
	return all
}
