package tests

import (
	"cmp"
	"slices"

	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/nn"
	"zeroth/optim"
	"zeroth/shard"
	"zeroth/zero"
)

// footprint contains the parameters of the closed forms for one rank's memory. They are
// independent of the allocating code and serve as its oracle; the program itself only counts.
// Symbols are as in the ZeRO paper and in Korthikanti et al., arXiv 2205.05198.
type footprint struct {
	Units    []unitSize // in order of first use
	Mesh     shard.Mesh // S × R
	Policy   fsdp.Policy
	DType    device.DType
	Vecs     [][]device.DType // K state vectors of each update rule
	Micro    int              // micro-batches per step
	Rows     int              // r = sequences × positions of a micro-batch
	Packed   bool             // sequences contain several documents
	Delayed  bool             // updates are delayed
	Peak     int              // peak activation bytes, from the model's closed form
	Work     int64            // bytes the device allocates for its kernels
	HostWork int64            // bytes the host allocates for its kernels, if something is offloaded

	Separate bool // the host cannot address the device's memory
	Offload  offloadSizes
}

// unitSize contains the properties of a unit that its memory depends on.
type unitSize struct {
	Numel  int        // including gaps between parameters
	Align  int        // shards are multiples of this; 0: fsdp.Align
	Shared bool       // several modules use it
	Lookup bool       // the first module uses it, only for lookups
	Beside bool       // its first module also uses the previous unit
	Frozen bool       // not trained
	Rule   int        // its update rule, an index of footprint.Vecs
	Matrix [2]int     // for whole-matrix updates: the sides, shorter first, of the matrix with the largest work space
	Mesh   shard.Mesh // the ranks that hold it; zero: those of all units
}

// Bytes returns the bytes of device memory that a rank allocates in each category, before its
// first step and for good. With Ψ the padded number of parameters, p bytes per parameter and 4
// per element of everything else:
//
//	                 stages 0, 1       stage 2            stage 3
//	params           pΨ                pΨ                 pΨ/S of units not shared and without a master copy
//	gathered         0                 0                  p × (slots + shared units)
//	unit_grads       4Ψ (+ slots, when micro-batches accumulate)
//	                                   4 × (slots + shared units)
//	grads            0                 4Ψ/S               4Ψ/S
//	master           4Ψ/S where p is not 4, or updates are delayed
//	optimizer        4KΨ/S; of states that are coded 260/256 KΨ/S
//	whole_updates    2 × slots × the longest unit with updates of whole matrices
//	                 + 4m² + 4mn + 192 of the matrix that needs most, m by n, m <= n
//
// S is 1 at stage 0. Slots are Prefetch+1 (parameters) or two (gradients; one without prefetch
// and at stages 0 and 1), which units use in turn; if modules have several units, each position
// has its own slots. A first unit that is only looked up takes the turn of the last. A frozen
// unit has only parameters. Offloaded parts are not included; see offloadSizes.
func (f footprint) Bytes() (b device.Bytes) {
	p := int64(f.DType.Size())
	whole, shared, slots := f.elements(func(unitSize) bool { return true }, f.Policy.ParamSlots())
	if f.Policy.KeepParams {
		b[device.Params] = p * whole
	} else {
		b[device.Gathered] = p * (shared + slots)
	}
	whole, shared, slots = f.elements(func(u unitSize) bool { return !u.Frozen }, f.Policy.GradSlots())
	switch {
	case f.Policy.KeepGrads && f.Micro == 1:
		b[device.UnitGrads] = 4 * whole
	case f.Policy.KeepGrads:
		b[device.UnitGrads] = 4 * (whole + shared + slots)
	default:
		b[device.UnitGrads] = 4 * (shared + slots)
	}
	f.addShards(&b)
	b[device.Activations] = int64(f.Peak)
	b[device.Workspace], b[device.Updates] = f.Work, f.updates()
	b[device.Inputs], b[device.Stats] = f.ids(), f.sums()+int64(4*f.Rows)
	if !f.apart() {
		b[device.Stats] += f.stats()
	}
	return b
}

// updates returns the bytes of whole-matrix updates: slots that units use in turn, in bf16, and
// work space.
func (f footprint) updates() int64 {
	longest, work := int64(0), 0
	for _, u := range f.Units {
		if u.Matrix == [2]int{} {
			continue
		}
		whole, _ := f.pad(u)
		m, n := u.Matrix[0], u.Matrix[1]
		longest, work = max(longest, whole), max(work, 2*rounded(2*m*m)+rounded(4*m*n)+192)
	}
	return 2*f.updateSlots()*longest + int64(work)
}

// updateSlots returns three, or one without prefetch or with fewer units.
func (f footprint) updateSlots() int64 {
	units := 0
	for _, u := range f.Units {
		if u.Matrix != [2]int{} {
			units++
		}
	}
	switch {
	case units == 0:
		return 0
	case units < 3 || f.Policy.Prefetch == 0:
		return 1
	}
	return 3
}

// elements returns the elements of the selected units: of all of them, of shared ones, and of n
// slots per position that the others use in turn.
func (f footprint) elements(of func(unitSize) bool, n int) (whole, shared, slots int64) {
	for _, u := range f.Units {
		if of(u) {
			all, _ := f.pad(u)
			whole += all
			if u.Shared {
				shared += all
			}
		}
	}
	for _, units := range turnsOf(f.Units, func(u unitSize) bool { return of(u) && !u.Shared }) {
		longest := make([]int64, n)
		for turn, i := range units {
			all, _ := f.pad(f.Units[i])
			at := slotOf(turn, len(units), n, f.Units[units[0]].Lookup)
			longest[at] = max(longest[at], all)
		}
		for _, l := range longest {
			slots += l
		}
	}
	return whole, shared, slots
}

// turnsOf groups the units that take turns in slots by their position among the units that their
// first step begins to use.
func turnsOf(units []unitSize, takes func(unitSize) bool) (turns [][]int) {
	at := 0
	for i, u := range units {
		if !u.Beside {
			at = 0
		}
		if !takes(u) {
			continue
		}
		if at == len(turns) {
			turns = append(turns, nil)
		}
		turns[at] = append(turns[at], i)
		at++
	}
	return turns
}

// slotOf returns which of n slots the unit with a given turn uses. A first unit that is only
// looked up has the turn of the last.
func slotOf(turn, turns, n int, lookup bool) int {
	if lookup && turns > 1 {
		if turn == 0 {
			turn = turns - 1
		}
		turn--
	}
	return turn % n
}

// ids, sums and stats return the bytes of token ids, of a rank's losses and squares, and of all
// ranks' statistics. Token ids are inputs, targets and, for packed sequences, the starts of
// documents.
func (f footprint) ids() int64 {
	each := 2
	if f.Packed {
		each = 3
	}
	return int64(each * 4 * min(2, f.Micro) * f.Rows)
}

func (f footprint) sums() int64  { return int64(8 * device.ExactLen * (1 + len(f.Units))) }
func (f footprint) stats() int64 { return int64(8 * (2*device.ExactLen + 5) * f.Mesh.World()) }

// apart reports whether host memory is counted separately from the device's: the host cannot
// address the device's memory, or something is offloaded.
func (f footprint) apart() bool { return f.Separate || f.offloads() }

// pad returns the padded lengths of a unit and of its shard.
func (f footprint) pad(u unitSize) (whole, part int64) { return u.Pad(f.Mesh) }

// Over returns the mesh that the unit is divided over: its own or, without one, the given mesh.
func (u unitSize) Over(mesh shard.Mesh) shard.Mesh {
	if u.Mesh != (shard.Mesh{}) {
		return u.Mesh
	}
	return mesh
}

// Pad returns the padded lengths of a unit and of its shard, given the mesh of all units.
func (u unitSize) Pad(mesh shard.Mesh) (whole, part int64) {
	mesh = u.Over(mesh)
	per := int64(mesh.Shard)
	step := per * int64(max(u.Align, fsdp.Align)*mesh.Replicate)
	whole = (int64(u.Numel) + step - 1) / step * step
	return whole, whole / per
}

// gpt2Activations returns the peak activation memory of a training step of a GPT-2 in bytes. With
// r rows, width c, e bytes per element, and everything rounded up to 64 bytes, a block saves
//
//	16·e·r·c (norms 2, qkv 3, attention 1, residual 1, their inputs; MLP 4+4)
//	+ 16·r (two norms) + 4·r·heads (log-sum-exp)
//
// on top of its input (e·r·c); what a level of zero.recompute loses is held by one block at a
// time. The peak is in the last block's backward pass or, with its chunk of logits, in the head's.
func gpt2Activations(g nn.GPT2, t device.DType, rows, chunk, mlpChunk int, level nn.Recompute) int {
	e, stat, inner := t.Size(), rounded(4*rows), g.Inner
	if inner == 0 {
		inner = 4 * g.Width
	}
	rc, rf, lse := rounded(e*rows*g.Width), rounded(e*rows*inner), rounded(4*rows*g.Heads)
	saved, mlp := 4*stat+4*rc+rounded(e*rows*3*g.Width)+lse+2*rf, rf
	if g.Dropout.Residual > 0 {
		mlp += rc // the gradient of what is added
	}
	if chunk == 0 {
		chunk = rows
	}
	head := 2*stat + 2*rc + rounded(e*min(chunk, rows)*g.Vocab)
	stream := rc * (g.Layers + 2) // every module's output, and the gradient
	lost := [...]int{0, 2*rc + rf, 2*rc + 2*rf, 3*rc + 2*rf + rounded(e*rows*3*g.Width), saved}[level-nn.RecomputeNone]
	if mlpChunk > 0 {
		saved, lost, mlp = saved-2*rf, lost-2*rf, 3*rounded(e*mlpChunk*inner)
	}
	work := max(mlp, rc+rounded(e*rows*3*g.Width)+lse)
	return stream + g.Layers*(saved-lost) + max(head, lost+work)
}

// llamaActivations is like gpt2Activations for a Llama with queries of width a, keys of width k
// and a hidden layer of width f. A block saves
//
//	e·r·(4·c + 2·a + 2·k + 3·f) (norms 2c, qkv a+2k, attention a, residual c; MLP 3f;
//	with the block's input, c) + 8·r (two norms) + 4·r·heads (log-sum-exp)
//
// and its backward pass needs the gradient of qkv and one number per head and row: all other
// gradients overwrite saved values. Norms of heads, norms after a half of the block, Gemma's gate
// and its norm weights add the terms below.
func llamaActivations(l nn.Llama, t device.DType, rows, chunk, mlpChunk int, level nn.Recompute) int {
	e, stat, d := t.Size(), rounded(4*rows), l.Head
	if d == 0 {
		d = l.Width / l.Heads
	}
	a, k := d*l.Heads, d*l.KV
	rc, rf, lse := rounded(e*rows*l.Width), rounded(e*rows*l.FFN), rounded(4*rows*l.Heads)
	qkv, gain, gainHead := rounded(e*rows*(a+2*k)), 0, 0
	if l.Gemma {
		gain, gainHead = rounded(4*l.Width), rounded(4*d)
	}
	saved := qkv + lse + rounded(e*rows*a) + rc + 3*rf
	norms, projected := 0, qkv+rc // activations lost with elementwise and with linear
	mlp, attention := 0, qkv+lse
	if a != l.Width {
		attention += rounded(e * rows * a)
	}
	if l.Norms != nn.NormAfter {
		norms = 2 * rc
		saved += 2 * (stat + rc)
		mlp, attention = mlp+gain, attention+gain
	}
	if l.Norms != nn.NormBefore {
		projected += stat + rc
		saved += 2 * (stat + rc)
		mlp, attention = mlp+gain, attention+gain
	}
	if l.Gate != nn.GateSilu {
		mlp += rf
	}
	switch l.HeadNorm {
	case nn.EachHead:
		saved += rounded(e*rows*(a+k)) + rounded(4*rows*(l.Heads+l.KV))
		projected += rounded(e*rows*(a+k)) + rounded(4*rows*(l.Heads+l.KV))
		attention += 2*gainHead + rounded(4*a) + rounded(4*k)
	case nn.AllHeads:
		saved += rounded(e*rows*(a+k)) + rounded(4*rows*2)
		projected += rounded(e*rows*(a+k)) + rounded(4*rows*2)
	}
	if mlpChunk > 0 {
		mlp += rounded(e*mlpChunk*2*l.FFN) + rounded(e*mlpChunk*l.FFN)
	}
	work := max(mlp, attention)
	if l.Dropout.Residual > 0 || l.Factors.Residual != 0 {
		work += rc // the gradient of what is added, without what was dropped, times the factor
	}
	head := stat + 2*rc + max(rounded(e*min(chunk, rows)*l.Vocab), gain)
	stream := rc * (l.Layers + 2) // every module's output, and the gradient
	lost := [...]int{0, norms + rf, norms + 3*rf, norms + 3*rf + projected, saved}[level-nn.RecomputeNone]
	if mlpChunk > 0 {
		saved, lost = saved-3*rf, lost-3*rf
	}
	return stream + l.Layers*(saved-lost) + max(head, lost+work)
}

// unitSizes returns a model's units in order of first use, as required by the update rules.
func unitSizes(m *nn.Model, rules []optim.Rule) (sizes []unitSize) {
	last, begin := -1, zero.Begin(rules)
	for _, u := range m.Units() {
		n := 0
		for _, p := range u.Params {
			n = (n+begin-1)/begin*begin + p.Numel()
		}
		sizes = append(sizes, unitSize{
			Numel: n, Align: begin, Shared: u.First != u.Last, Lookup: u.First == 0 && m.Lookup, Beside: u.First == last,
			Frozen: u.Params[0].Frozen, Rule: u.Params[0].Rule, Matrix: mostWork(u, rules),
		})
		last = u.First
	}
	return sizes
}

// mostWork returns the sides of the unit's matrix with the largest work space, for a rule that
// updates whole matrices.
func mostWork(u nn.Unit, rules []optim.Rule) (sides [2]int) {
	r, whole := rules[u.Params[0].Rule].(optim.Whole)
	if !whole || u.Params[0].Frozen {
		return sides
	}
	p := slices.MaxFunc(u.Params, func(a, b shard.Param) int {
		return cmp.Compare(r.Work(a.Shape[0], a.Shape[1]), r.Work(b.Shape[0], b.Shape[1]))
	})
	return [2]int{slices.Min(p.Shape), slices.Max(p.Shape)}
}

// rounded returns the bytes that the arena allocates for a request.
func rounded(bytes int) int { return (bytes + 63) / 64 * 64 }
