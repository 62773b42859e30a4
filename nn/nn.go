// Package nn contains modules that compute with parameters passed to them.
//
// A module owns only its configuration: parameters, gradients and memory are arguments of each
// call, and views of them must not be retained. So a schedule can place a module's parameters
// anywhere, for the duration of one call, without hooks or wrappers.
//
// A module of the trunk maps a residual stream (B, T, C) to another of the same shape. Forward
// writes it to y; Backward replaces the gradient of y by the gradient of x.
package nn

import (
	"zeroth/data"
	"zeroth/device"
	"zeroth/shard"
)

// Ops are the kernels that modules need. All matrices and vectors may be of any float type, with
// sums in float32, unless a comment says otherwise. They are implemented by queues: a call issues
// work and returns.
type Ops interface {
	// Do runs f on the host, after all work issued before and before work issued later; its error
	// sticks. See OnHost.
	Do(f func() error)

	Zero(b device.Buffer)
	Cast(dst, src device.Buffer) // any float type to any, rounded to nearest even

	// MatMul sets c = a·b, plus bias in every row if bias is not empty, plus the old c if add is
	// set. c must not be transposed.
	MatMul(c, a, b device.Mat, bias device.Buffer, add bool)
	// SumRows sets db[j] = sum over i of dy[i][j]; db is float32.
	SumRows(db device.Buffer, dy device.Mat)

	// The following operations are fused if the queue supports it, else composed of their parts,
	// whose bits they have on the CPU (see device.MatMulOnto). Matrices of equal shape must have no
	// gaps.

	// MatMulOnto sets y = x + a·b, plus bias: Cast, MatMul with add.
	MatMulOnto(y, x, a, b device.Mat, bias device.Buffer)
	// MatMulActivate sets x = a·b, plus bias, and y = f(x): MatMul, Activate.
	MatMulActivate(y, x, a, b device.Mat, bias device.Buffer, f device.Activation)
	// MatMulActivateGrad sets dx = (a·b) * f'(x): MatMul, ActivateGrad.
	MatMulActivateGrad(dx, a, b, x device.Mat, f device.Activation)
	// WeightGrad sets dw = dyᵀ·x, (out, in) or with dw transposed (in, out), and db, which may be
	// empty, to the sum of the rows of dy, both float32: MatMul, SumRows.
	WeightGrad(dw device.Mat, db device.Buffer, dy, x device.Mat)

	// Embed sets y[i] = wte[ids[i]] + wpe[p], where the position p is i mod T, minus start[i] if
	// given; wpe and start (see device.Starts) may be empty. If wte is part of the vocabulary,
	// other ids count as 0.
	Embed(y, wte, wpe device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer)
	// EmbedGrad sets dwte and dwpe (float32; dwpe may be empty) to the gradients of Embed, or adds
	// to them with add.
	EmbedGrad(dwte, dwpe, dy device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer, add bool)

	// LayerNorm normalizes the rows of x: y = (x-mean)*rstd*w + b; mean and rstd are float32, one
	// per row.
	LayerNorm(y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32)
	// LayerNormGrad sets dx to the gradient of x (or, with add, adds to dx) and overwrites dw and
	// db (float32).
	LayerNormGrad(dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool)

	// RMSNorm normalizes the rows of x: y = x*rstd*w with rstd = 1/sqrt(average(x^2) + eps),
	// float32, one per row.
	RMSNorm(y device.Mat, rstd device.Buffer, x device.Mat, w device.Buffer, eps float32)
	// RMSNormGrad sets dx to the gradient of x (or, with add, adds to dx) and overwrites dw
	// (float32). dx may be dy or x.
	RMSNormGrad(dx device.Mat, dw device.Buffer, dy, x device.Mat, w, rstd device.Buffer, add bool)

	// Rope rotates the heads of x (B*T, heads*D) in place by their positions, or with inverse back,
	// which is also the gradient.
	Rope(x device.Mat, r device.Rope, inverse bool)

	// Gate sets y = f(gate) * up: SwiGLU with SiLU, GeGLU with GELU (Shazeer, arXiv 2002.05202).
	// GateGrad sets dgate = dy * up * f'(gate) and dup = dy * f(gate). Results may be operands.
	Gate(y, gate, up device.Mat, f device.Activation)
	GateGrad(dgate, dup, dy, gate, up device.Mat, f device.Activation)

	// The following operations are a mixture of experts, see device.MatGroup, for R rows of K
	// experts each. Sort leaves out experts of other ranks, so there are P <= R*K sorted pairs, and
	// matrices of sorted pairs have R*K rows, of which those from P on are neither read nor written.

	// Route sets experts (R, K) int32, ascending in each row, and weights (R, K) float32 from logits
	// (R, E) float32. bias (E) is the correction of the router, or empty.
	Route(experts, weights device.Buffer, logits device.Mat, bias device.Buffer, r device.Router)
	// RouteGrad sets dlogits (R, E) to the gradient of logits, given dweights (R, K) float32.
	RouteGrad(dlogits, logits device.Mat, experts, weights, dweights device.Buffer, r device.Router)
	// Balance sets row i of stats (R, 2E) float32 to 1 for each of the k largest logits (R, E) float32 and
	// 0 for the others, followed by the softmax of the logits; to zeros if target[i] is data.Padding.
	// The balancing loss is E times the sum over experts of f*p, where f, a constant, is the part of all
	// rows for which an expert is among the k, and p its mean softmax over these rows. BalanceTotal adds it
	// to loss (1) float32, given the sums (2E) float32 of all rows of stats, and replaces their first half
	// by slopes. BalanceGrad adds the gradient of scale times the loss to dlogits, given the slopes (E).
	Balance(stats, logits device.Mat, target device.Buffer, k int)
	BalanceTotal(sums, loss device.Buffer, k int)
	BalanceGrad(dlogits, logits device.Mat, target, slopes device.Buffer, scale float32)
	// Sort orders the pairs whose expert is at least first and less than first plus the number of
	// groups, by expert and then by pair: order (R*K) int32 gives the pair of each sorted one and
	// then -1; at (R*K) int32 the sorted place of each pair, or -1 if its expert is another's;
	// offsets (groups+1) int32 the first place of each group, and P.
	Sort(order, at, offsets, experts device.Buffer, first int)
	// GatherRows sets row i of y (R*K, C) to the row of x (R, C) of the pair order[i], unless that
	// is -1; equal types.
	GatherRows(y, x device.Mat, order device.Buffer)
	// SumGroups sets each row of y (R, C) to the sum of the rows of x (R*K, C) of its pairs, in
	// ascending order of experts, plus that of base, if base has rows, rounded once. y may be base.
	SumGroups(y, base, x device.Mat, at device.Buffer)
	// MatMulGroups sets rows [offsets[g], offsets[g+1]) of c to those of a times matrix g of b, plus
	// the old ones if add is set.
	MatMulGroups(c, a device.Mat, b device.MatGroup, offsets device.Buffer, add bool)
	// WeightGradGroups sets matrix g of dw (float32, not transposed) to dyᵀ·x over the rows of group
	// g, plus the old one if add is set.
	WeightGradGroups(dw device.MatGroup, dy, x device.Mat, offsets device.Buffer, add bool)
	// GateRows is Gate with factors: row i is multiplied by weights[order[i]], float32, before it is
	// rounded.
	GateRows(y, gate, up device.Mat, f device.Activation, weights, order device.Buffer)
	// GateRowsGrad sets dgate and dup to the gradients of GateRows, and dweights[order[i]], float32,
	// to the sum over row i of dy * f(gate) * up. Results may be operands. Other elements of dweights
	// do not change.
	GateRowsGrad(dgate, dup device.Mat, dweights device.Buffer, dy, gate, up device.Mat, f device.Activation, weights, order device.Buffer)

	Activate(y, x device.Buffer, f device.Activation)          // y may be x
	ActivateGrad(dx, x, dy device.Buffer, f device.Activation) // dx = dy*f'(x); dx may be dy

	CopyBlock(dst, src device.Mat)           // equal shapes and types; either may be part of a matrix
	AddTo(y, a, b device.Buffer)             // y = a + b; y may be one of them
	Mul(y, a, b device.Buffer)               // y = a * b; y may be one of them
	AddScalar(y, x device.Buffer, s float32) // y = x + s; y may be x
	Scale(x device.Buffer, s float32)        // x = x * s
	// Dropout sets y to the kept elements of x, scaled, plus add if that is not empty; y may be x
	// or add.
	Dropout(y, x, add device.Buffer, d device.Dropout)

	// Attention computes causal softmax(scale q·k)·v; lse (B, H, T) float32 receives the
	// log-sum-exp of each score row. No T×T matrix is stored.
	Attention(o device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn)
	// AttentionGrad overwrites dq, dk, dv; delta (B, H, T) float32 is working space. Gradients of
	// keys to which no query attends are 0.
	AttentionGrad(dq, dk, dv device.Mat, delta device.Buffer, do, o device.Mat, lse device.Buffer, q, k, v device.Mat, a device.Attn)

	// CrossEntropy sets loss[i] (float32, nats) to -log softmax(logits[i])[target[i]]. With a cap
	// above 0, a logit x counts as cap tanh(x/cap).
	CrossEntropy(loss device.Buffer, logits device.Mat, target device.Buffer, cap float32)
	// CrossEntropyGrad also replaces logits[i] by its gradient, without a cap
	// scale*(softmax(logits[i]) - onehot(target[i])).
	CrossEntropyGrad(loss device.Buffer, logits device.Mat, target device.Buffer, scale, cap float32)
	// CrossEntropyPart sets stats (Rows, 3) float32 to the contributions of logits for part of the
	// vocabulary to the loss. CrossEntropyMerge sets losses from the stats of all parts in order,
	// (parts, Rows, 3); with grad it replaces a part's logits by their gradient.
	CrossEntropyPart(stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, cap float32)
	CrossEntropyMerge(loss, stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, scale, cap float32, grad bool)
}

// Logits is the purpose passed to TakeFor for logits.
const Logits = "logits"

// Scratch is last-in-first-out memory. Data saved by a forward pass is allocated with Keep: it may
// be in separate memory and remains until the backward pass.
type Scratch interface {
	Take(t device.DType, n int) device.Buffer
	TakeFor(what string, t device.DType, n int) device.Buffer // Take with a purpose, shown in plans
	Keep(t device.DType, n int) device.Buffer                 // for Saved; equals Take in passes that save nothing
	Mark() int                                                // the current height
	Release(to int)                                           // frees everything taken above a mark
}

// Batch is the input of a forward pass: B samples of T positions. Of tokens, a sample is a sequence of
// T ids and, for each position, the id that follows it. A sample of other data has other fields, and
// its positions are the rows of the residual stream that it has in the trunk: 1 for an image.
type Batch struct {
	B, T      int
	Fields    []device.Buffer // as the data lists them: (B*Len) int32 or float32
	Input     device.Buffer   // the field data.Input: (B*T) int32
	Target    device.Buffer   // the field data.Target: (B*T) int32
	Start     device.Buffer   // the field data.Start: starts of documents, see device.Starts; empty: one per sequence
	Loss      device.Buffer   // (B*T) float32, nats; written by the last module
	Metrics   []device.Buffer // (B*T) float32 of each of Model.Metrics; written by the last module together with Loss
	Scale     float32         // of the loss in Backward: 1/(positions summed over) × loss scale
	Chunk     int             // positions whose logits are held at once
	MLPChunk  int             // positions whose hidden layer is held at once, and in Backward computed again; 0: all
	Pad       int             // rows of logits are padded with zeros to a multiple of Pad; 0 disables padding
	Compute   device.DType    // of the residual stream and all activations
	Drops     Drops           // of a training pass; the zero Drops drop nothing
	Longest   int             // tokens of the longest sequence or document, by which LongRoPE chooses its factors; 0: as many as a sequence has positions
	Tensor    Group           // the ranks that divide matrices, see Cut; nil: none
	Experts   Group           // the ranks that divide experts, each together with those of Tensor; nil: none
	Context   Group           // the ranks that divide positions, see Chunks; nil: none
	Recompute Recompute       // which activations a training pass does not save
	Balance   Balance         // of a training pass with a balancing loss; the zero Balance is none
	Later     *Later          // where a Splitter's Backward records deferred weight gradients; nil: it computes them
	Again     func(done bool) // called before and after what Backward computes again; may be nil
	lo, hi    int             // the rows that a chunk has of those that this rank holds; hi 0: all

	// Forward passes without Saved may process pieces of sequences with different lengths,
	// concatenated: B is 1 and T the sum of the lengths. Rows do not depend on other sequences. If
	// Logits is not empty, it receives the logits of the last row of each sequence, and no losses
	// are written.
	Sequences []Sequence
	Logits    device.Buffer // (Sequences, Vocab) float32
}

// SetField makes v a field.
func (b *Batch) SetField(i int, name string, v device.Buffer) {
	for len(b.Fields) <= i {
		b.Fields = append(b.Fields, device.Buffer{})
	}
	b.Fields[i] = v
	switch name {
	case data.Input:
		b.Input = v
	case data.Target:
		b.Target = v
	case data.Start:
		b.Start = v
	}
}

// Sequence is a piece of a sequence: T positions after Past others. Cache contains, for each of
// Model.Blocks, queries, keys and values at every position, (Context, QKV) in the compute dtype.
// Earlier passes have written the first Past of them; this one writes those of the piece. It may be
// nil if Past is 0.
type Sequence struct {
	Past, T int
	Cache   []device.Buffer
}

// parts returns the number of parts in which attention and positions are computed.
func (b *Batch) parts() int {
	if b.Context != nil {
		return b.B
	}
	return max(1, len(b.Sequences))
}

// part returns sequence i as a separate batch, and its rows in b; without Sequences and Context,
// all of b.
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

// past returns the number of positions before those of each sequence of b, which is a part.
func (b *Batch) past() int {
	if len(b.Sequences) == 0 {
		return 0
	}
	return b.Sequences[0].Past
}

// seen returns the queries, keys and values of all positions of a part, given the new ones, which
// it copies to the cache if there is one.
func (b *Batch) seen(q Ops, layer int, qkv device.Mat) device.Mat {
	if len(b.Sequences) == 0 || b.Sequences[0].Cache == nil {
		return qkv
	}
	keys := b.past() + b.T
	all := device.Matrix(b.Sequences[0].Cache[layer].Slice(0, keys*qkv.Cols), keys, qkv.Cols)
	q.Cast(all.RowRange(b.past(), keys).Buf, qkv.Buf)
	return all
}

// Rows returns the number of positions, in a chunk those of all ranks that divide matrices.
func (b *Batch) Rows() int {
	switch {
	case b.hi == 0:
		return b.B * b.T
	case b.Tensor != nil:
		return (b.hi - b.lo) * b.Tensor.Size()
	}
	return b.hi - b.lo
}

// Saved holds the activations that a Forward keeps for its Backward. The memory belongs to the
// Scratch that allocated it; Backward may overwrite it. R is the number of positions (in the
// residual stream and in norms Batch.Held), A the width of all queries, K that of all keys, F that
// of the hidden layer.
type Saved struct {
	Own [2]device.Buffer // for modules of other packages

	norm      savedNorm     // of the head
	attn, mlp savedHalf     // of a block
	qkv       device.Buffer // (R, A+2K): queries and keys as used by attention, and values
	raw       device.Buffer // (R, A+K): queries and keys before a HeadNorm
	rstdQK    device.Buffer // (heads, or 2, R) float32, of a HeadNorm
	lse       device.Buffer // (B, H, T) float32: the log-sum-exp of attention's scores
	o         device.Buffer // (R, A): the output of attention
	x2        device.Buffer // (R, C): the residual stream between the halves
	hidden    device.Buffer // (R, F): the hidden layer before activation; in gated MLPs 2 (R, F) or (R, 2F), see gated
	act       device.Buffer // (R, F): the input of the last linear layer
	mix       savedMix      // of a layer with experts
}

// savedNorm is the saved state of a norm.
type savedNorm struct {
	mean device.Buffer // (R) float32; empty for RMSNorm
	rstd device.Buffer // (R) float32
	y    device.Buffer // (R, C): its output
}

// savedHalf is the saved state of the norms before and after one half of a block.
type savedHalf struct {
	before savedNorm
	out    device.Buffer // (R, C): the input of the norm after
	rstd   device.Buffer // (R) float32, of the norm after
}

// Module is one step of a model. Params lists the parameters of the units that the module uses, see
// ParamIndices: modules that share a unit list all of it, and w and dw have the same order. In dw, frozen
// parameters are empty; their gradients are not wanted.
type Module interface {
	Params() []shard.Param
	// Forward reads x and writes y, both (B*T, C) in the compute dtype. It allocates what Backward
	// needs from mem and stores it in s; if s is nil, nothing is kept and all memory is released.
	Forward(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, y device.Buffer, s *Saved)
	// Backward replaces d, the gradient of y, by the gradient of x, and overwrites every dw
	// (float32) with its gradient. If several modules share a unit, the last in forward order
	// overwrites, with zero for parameters that it does not use, and the others add. It releases
	// the memory that it took.
	Backward(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, s *Saved)
}

// Splitter is a Module whose Backward can defer weight gradients: it records them in Batch.Later,
// and keeps their operands.
type Splitter interface {
	Module
	// Defers reports whether the gradient of a parameter is deferred.
	Defers(param int) bool
}

// Predictor is a last Module that can return what it predicts, see job.Predict.
type Predictor interface {
	Module
	// Predictions returns the number of predictions at each position.
	Predictions() int
	// Predict writes the predictions, (B*T, Predictions) float32, to y. It keeps no memory.
	Predict(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, y device.Buffer)
}

// Later contains deferred weight gradients, in order.
type Later struct{ grads []weightGrad }

type weightGrad struct {
	dw    device.Mat
	db    device.Buffer
	dy, x device.Mat
}

// Len returns the number of deferred gradients.
func (l *Later) Len() int { return len(l.grads) }

// Compute issues gradients [lo, hi).
func (l *Later) Compute(q Ops, lo, hi int) {
	for _, g := range l.grads[lo:hi] {
		q.WeightGrad(g.dw, g.db, g.dy, g.x)
	}
}

// Clear removes all.
func (l *Later) Clear() { clear(l.grads); l.grads = l.grads[:0] }

// keep returns m or, if the pass defers gradients, a copy that remains, unless they are computed
// from the gathered rows of all ranks.
func (p pass) keep(m device.Mat) device.Mat {
	if p.bt.Later == nil || p.bt.Tensor != nil {
		return m
	}
	kept := device.Matrix(p.mem.Keep(m.Buf.Type, m.Rows*m.Cols), m.Rows, m.Cols)
	p.q.Cast(kept.Buf, m.Buf)
	return kept
}

// operand returns memory for the gradient of a linear layer's output; if the pass defers gradients,
// it remains until they are computed.
func (p pass) operand(rows, cols int) device.Mat {
	take := p.mem.Take
	if p.bt.Later != nil {
		take = p.mem.Keep
	}
	return device.Matrix(take(p.bt.Compute, rows*cols), rows, cols)
}

// spent returns memory to overwrite after the last use of m: m itself or, if the pass defers
// gradients, which may need m, other memory.
func (p pass) spent(m device.Mat) device.Mat {
	if p.bt.Later == nil {
		return m
	}
	return device.Matrix(p.mem.Take(m.Buf.Type, m.Rows*m.Cols), m.Rows, m.Cols)
}

// Model is a list of modules in forward order: the first reads bt.Input (its x is empty), the last
// writes bt.Loss (its y is empty). In training, the last module's Backward, which immediately
// follows its Forward, computes the loss, so that a chunk of logits is computed once, replaced by
// its gradient in place, and never saved. That Backward writes d without reading it.
type Model struct {
	Name    string // of the family, for messages: "GPT-2"
	Width   int    // C of the residual stream
	Vocab   int
	Context int  // maximum T
	Lookup  bool // the first module only looks up its parameters: its Backward does not read them
	Blocks  int  // number of blocks with attention
	QKV     int  // columns of queries, keys and values together, per block
	// If positive: in sequences of more positions, all positions are rotated differently
	// (LongRoPE), which invalidates what was cached while the sequence was shorter.
	LongFrom int
	// Of attention, for the work space of its kernels; zero in a model without it: the heads of a
	// block and the width of each, and whether queries and keys are rotated.
	Heads, Head int
	Rotated     bool
	Active      float64  // the part of its experts that processes a row; 0 without experts
	Metrics     []string // names of what the last module measures in addition to the loss, such as accuracy; reported as means over the positions with a loss
	Modules     []Module
	Uses        [][]Use // the units that each module uses, in the order of its parameters

	Before, After bool // this is a Part: modules of the whole model precede or follow these
}

// Part returns the modules in ascending ranges [lo, hi) as a separate model.
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

// Use is a unit used by a module and how many of the module's parameters it contains: all of the
// unit's, which are the same in every module that uses it.
type Use struct {
	Unit   string
	Params int
	At     []int // their indices; nil: those after the previous uses
}

// ParamIndices returns, for each use, the indices of its parameters in the module's.
func ParamIndices(uses []Use) (places [][]int) {
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

// Unit is a set of parameters that are gathered, reduced and updated together.
type Unit struct {
	Name        string
	Params      []shard.Param
	First, Last int // first and last module that uses it
}

// Units returns the model's units in order of first use.
func (m *Model) Units() (all []Unit) {
	at := map[string]int{}
	for i, mod := range m.Modules {
		params := mod.Params()
		places := ParamIndices(m.Uses[i])
		for k, use := range m.Uses[i] {
			own := make([]shard.Param, 0, len(places[k]))
			for _, p := range places[k] {
				own = append(own, params[p])
			}
			j, ok := at[use.Unit]
			if !ok {
				j = len(all)
				at[use.Unit] = j
				all = append(all, Unit{Name: use.Unit, Params: own, First: i})
			}
			all[j].Last = i
		}
	}
	return all
}
