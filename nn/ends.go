package nn

import (
	"fmt"
	"slices"

	"zeroth/device"
	"zeroth/shard"
)

// Code shared by all families: declarations of parameters, and both ends of the trunk.

const initStd = 0.02 // Hugging Face's initializer_range

func weight(name string, std float32, shape ...int) shard.Param {
	return shard.Param{Name: name, Shape: shape, Group: shard.Decayed, Init: shard.Init{Std: std}}
}

func gain(name string, n int) shard.Param {
	return shard.Param{Name: name, Shape: []int{n}, Init: shard.Init{Mean: 1}}
}

func bias(name string, n int) shard.Param { return shard.Param{Name: name, Shape: []int{n}} }

// add adds a module that uses some units; a single one has all of its parameters.
func (m *Model) add(mod Module, uses ...Use) {
	if len(uses) == 1 {
		uses[0].Params, uses[0].At = len(mod.Params()), nil
	}
	m.Modules, m.Uses = append(m.Modules, mod), append(m.Uses, uses)
}

// addBlock adds a block. Experts form a separate unit, and so do float32 parameters, trained and
// frozen ones, and with tensor parallelism those that every rank has whole, also of experts.
func (m *Model) addBlock(unit string, block Module, cut Cut) {
	uses := []Use{{Unit: unit}, {Unit: wholeUnit(unit)}, {Unit: unit + " (experts)"}, {Unit: unit + " (router)"}, {Unit: unit + " (correction)"}, {Unit: wholeUnit(unit + " (experts)")}}
	for i, p := range block.Params() {
		to := &uses[0]
		switch {
		case p.Expert && cut.some() && p.Cut.Full == nil:
			to = &uses[5]
		case p.Expert:
			to = &uses[2]
		case p.Single && p.Frozen:
			to = &uses[4]
		case p.Single:
			to = &uses[3]
		case cut.some() && p.Cut.Full == nil:
			to = &uses[1]
		}
		to.Params, to.At = to.Params+1, append(to.At, i)
	}
	m.add(block, slices.DeleteFunc(uses, func(u Use) bool { return u.Params == 0 })...)
}

// wholeUnit names the unit of a module's undivided parameters with tensor parallelism.
func wholeUnit(unit string) string { return unit + " (whole)" }

// around adds e, the modules added by blocks, and h with the final norm. If the head shares the
// embedding's matrix, that is in a unit used by both, together with positions and norm; with tensor
// parallelism, positions and norm have separate units.
func (m *Model) around(cut Cut, e embedding, h head, norm []shard.Param, blocks func()) {
	front, back := []Use{{Unit: "embed"}}, []Use{{Unit: "head"}}
	if e.shared {
		front[0].Unit, back[0].Unit = "root", "root"
	}
	switch {
	case cut.some():
		if e.shared {
			h.params = e.params[:1]
		}
		front[0].Params, front[0].At, back[0].Params, back[0].At = 1, []int{table}, 1, []int{table}
		if e.positions {
			front = append(front, Use{Unit: wholeUnit("embed"), Params: 1, At: []int{positions}})
		}
		last := Use{Unit: wholeUnit("head"), Params: len(norm)}
		for i := range norm {
			last.At = append(last.At, 1+i)
		}
		back = append(back, last)
	case e.shared:
		e.params = append(e.params, norm...)
		h.params = e.params[:len(e.params)-len(norm)]
	}
	h.weight = len(h.params)
	h.params = slices.Concat(h.params, norm)
	if len(norm) > 1 {
		h.bias = h.weight + 1
	}
	m.add(e, front...)
	blocks()
	m.add(h, back...)
}

// matrix views the elements of a matrix parameter, or of its gradient.
func matrix(b device.Buffer, p shard.Param) device.Mat {
	return device.Matrix(b, p.Shape[0], p.Shape[1])
}

// The indices of parameters in the units of both ends.
const (
	table     = 0 // (V, C): the token embedding, the output layer, or both
	positions = 1 // (Context, C), of an embedding with learned positions
)

// embedding computes table[token], plus positions[t] if it has them.
type embedding struct {
	params    []shard.Param
	positions bool
	part      device.Vocab // the part of the vocabulary in the table
	shared    bool         // its unit is also the head's, whose Backward comes first
	padded    bool         // looking up the token pad gives its row no gradient
	pad       int
	scale     float32 // factor of the embeddings; 0 means 1
	drop      float64 // dropout probability of the output
}

func (e embedding) Params() []shard.Param { return e.params }

func (e embedding) Forward(q Ops, mem Scratch, w []device.Buffer, bt *Batch, _, y device.Buffer, _ *Saved) {
	p := pass{q: q, mem: mem, w: w, bt: bt}
	words, places := e.tables(w)
	if !bt.first() {
		places = device.Mat{} // only one rank adds them to the sum
	}
	p.summed(device.Matrix(y, bt.Held(), words.Cols), false, func(all device.Mat, _ bool) {
		for i := range bt.parts() {
			one, lo, hi := bt.part(i)
			q.Embed(all.RowRange(lo, hi), words, places.RowRange(min(one.past(), places.Rows), places.Rows), e.part, bt.Input.Slice(lo, hi), one.T, one.Start)
		}
	})
	if e.scale != 0 {
		q.Scale(y, e.scale)
	}
	bt.drop(q, y, y, device.Buffer{}, e.drop, placeEmbed, words.Cols)
}

func (e embedding) Backward(q Ops, mem Scratch, _, dw []device.Buffer, bt *Batch, _, d device.Buffer, _ *Saved) {
	if dw[table].N == 0 && (!e.positions || dw[positions].N == 0) {
		return // frozen
	}
	defer mem.Release(mem.Mark())
	p := pass{q: q, mem: mem, dw: dw, bt: bt}
	words, places := e.gradients(mem, dw)
	bt.drop(q, d, d, device.Buffer{}, e.drop, placeEmbed, words.Cols)
	if e.scale != 0 {
		q.Scale(d, e.scale)
	}
	if bt.Tensor != nil && places.Rows > 0 && (e.shared || !bt.first()) {
		q.Zero(places.Buf) // only the first rank has their gradient, in a separate unit
	}
	if !bt.first() {
		places = device.Mat{}
	}
	all := p.whole(device.Matrix(d, bt.Held(), words.Cols))
	grad := func() { q.EmbedGrad(words, places, all, e.part, bt.Input, bt.T, bt.Start, e.shared) }
	pad, has := 0, e.padded && dw[table].N > 0
	if has {
		pad, has = e.part.Index(e.pad, words.Rows)
	}
	if !has {
		grad()
		return
	}
	row, before := words.RowRange(pad, pad+1).Buf, mem.Take(device.F32, words.Cols)
	if e.shared {
		q.Cast(before, row) // the head's gradient
	} else {
		q.Zero(before)
	}
	grad()
	q.Cast(row, before)
}

// tables returns the two matrices among a unit's parameters or gradients.
func (e embedding) tables(w []device.Buffer) (words, places device.Mat) {
	if e.positions {
		places = matrix(w[positions], e.params[positions])
	}
	return matrix(w[table], e.params[table]), places
}

// gradients returns the gradients of the two matrices. A frozen table's gradient goes to working
// space; that of frozen positions is not computed.
func (e embedding) gradients(mem Scratch, dw []device.Buffer) (words, places device.Mat) {
	if e.positions && dw[positions].N > 0 {
		places = matrix(dw[positions], e.params[positions])
	}
	return matrix(wanted(mem, dw[table], e.params[table].Numel()), e.params[table]), places
}

// wanted returns dw or, if it is empty because the parameter is frozen, working space for n
// elements that a kernel computes anyway.
func wanted(mem Scratch, dw device.Buffer, n int) device.Buffer {
	if dw.N > 0 {
		return dw
	}
	return mem.Take(device.F32, n)
}

// shifted returns w plus a number, in new memory unless that is 0.
func shifted(q Ops, mem Scratch, w device.Buffer, plus float32) device.Buffer {
	if plus == 0 {
		return w
	}
	v := mem.Take(device.F32, w.N)
	q.AddScalar(v, w, plus)
	return v
}

// head computes the final norm, the output layer and the loss.
type head struct {
	params []shard.Param
	part   device.Vocab // the part of the vocabulary in the table
	weight int          // index of the norm's weight
	bias   int          // index of its bias; 0 means RMSNorm
	eps    float32
	plus   float32 // added to the norm's weight
	cap    float32 // of logits, see Llama.CapLogits; 0: none
	scale  float32 // factor of the logits, applied to the norm's output; 0 means 1
}

func (h head) Params() []shard.Param { return h.params }

func (h head) norm(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x device.Buffer, s *Saved) device.Mat {
	r, c := bt.Held(), h.params[table].Shape[1]
	n := &s.norm
	n.rstd, n.y = mem.Keep(device.F32, r), mem.Keep(bt.Compute, r*c)
	norm, xm := device.Matrix(n.y, r, c), device.Matrix(x, r, c)
	if h.bias == 0 {
		defer mem.Release(mem.Mark())
		q.RMSNorm(norm, n.rstd, xm, shifted(q, mem, w[h.weight], h.plus), h.eps)
	} else {
		n.mean = mem.Keep(device.F32, r)
		q.LayerNorm(norm, n.mean, n.rstd, xm, w[h.weight], w[h.bias], h.eps)
	}
	if h.scale != 0 {
		q.Scale(norm.Buf, h.scale)
	}
	return norm
}

// normGrad sets d to the gradient of the norm's input x.
func (h head) normGrad(q Ops, mem Scratch, w, dw []device.Buffer, d, dnorm, x device.Mat, s *Saved) {
	gain := wanted(mem, dw[h.weight], d.Cols)
	if h.bias == 0 {
		q.RMSNormGrad(d, gain, dnorm, x, shifted(q, mem, w[h.weight], h.plus), s.norm.rstd, false)
	} else {
		q.LayerNormGrad(d, gain, wanted(mem, dw[h.bias], d.Cols), dnorm, x, w[h.weight], s.norm.mean, s.norm.rstd, false)
	}
}

func (h head) Forward(q Ops, mem Scratch, w []device.Buffer, bt *Batch, x, _ device.Buffer, s *Saved) {
	if s != nil {
		h.norm(q, mem, w, bt, x, s)
		return
	}
	defer mem.Release(mem.Mark())
	norm, out := h.norm(q, mem, w, bt, x, new(Saved)), matrix(w[table], h.params[table])
	if bt.Logits.N > 0 {
		last := device.Matrix(mem.Take(bt.Compute, bt.parts()*norm.Cols), bt.parts(), norm.Cols)
		for i := range bt.parts() {
			_, _, hi := bt.part(i)
			q.Cast(last.RowRange(i, i+1).Buf, norm.RowRange(hi-1, hi).Buf)
		}
		q.MatMul(device.Matrix(bt.Logits, bt.parts(), out.Rows), last, out.T(), device.Buffer{}, false)
		if h.cap > 0 {
			q.Scale(bt.Logits, 1/h.cap)
			q.Activate(bt.Logits, bt.Logits, device.Tanh)
			q.Scale(bt.Logits, h.cap)
		}
		return
	}
	p := pass{q: q, mem: mem, w: w, bt: bt}
	h.eachChunk(p, p.whole(norm), h.padded(p, out), func(logits device.Mat, lo, hi int) { h.loss(p, logits, lo, hi, false) })
}

// loss computes the losses of positions [lo, hi) from their logits, and with grad replaces these by
// their gradient.
func (h head) loss(p pass, logits device.Mat, lo, hi int, grad bool) {
	losses, target := p.bt.Loss.Slice(lo, hi), p.bt.Target.Slice(lo, hi)
	logits = logits.Columns(0, h.params[table].Shape[0])
	switch t := p.bt.Tensor; {
	case t != nil:
		defer p.mem.Release(p.mem.Mark())
		const each = 3 // values of CrossEntropyPart per row
		n := each * (hi - lo)
		all := p.mem.Take(device.F32, t.Size()*n)
		own := all.Slice(t.Rank()*n, (t.Rank()+1)*n)
		p.q.CrossEntropyPart(own, logits, h.part, target, h.cap)
		t.Gather(all, own)
		p.q.CrossEntropyMerge(losses, all, logits, h.part, target, p.bt.Scale, h.cap, grad)
	case grad:
		p.q.CrossEntropyGrad(losses, logits, target, p.bt.Scale, h.cap)
	default:
		p.q.CrossEntropy(losses, logits, target, h.cap)
	}
}

func (h head) Backward(q Ops, mem Scratch, w, dw []device.Buffer, bt *Batch, x, d device.Buffer, s *Saved) {
	defer mem.Release(mem.Mark())
	out := matrix(w[table], h.params[table])
	p, r, c := pass{q: q, mem: mem, w: w, dw: dw, bt: bt}, bt.Held(), out.Cols
	norm, dnorm := p.whole(device.Matrix(s.norm.y, r, c)), device.Matrix(mem.Take(bt.Compute, r*c), r, c)
	p.summed(dnorm, false, func(all device.Mat, _ bool) {
		defer mem.Release(mem.Mark())
		var grad device.Mat
		if dw[table].N > 0 {
			grad = matrix(dw[table], h.params[table])
		}
		if padded := h.padded(p, out); padded.Rows > out.Rows {
			out = padded
			if dw[table].N > 0 {
				grad = device.Matrix(mem.Take(dw[table].Type, padded.Rows*c), padded.Rows, c)
				defer func() { q.Cast(dw[table], grad.Buf.Slice(0, dw[table].N)) }()
			}
		}
		h.eachChunk(p, norm, out, func(logits device.Mat, lo, hi int) {
			h.loss(p, logits, lo, hi, true)
			if dw[table].N > 0 {
				q.MatMul(grad, logits.T(), norm.RowRange(lo, hi), device.Buffer{}, lo > 0)
			}
			q.MatMul(all.RowRange(lo, hi), logits, out, device.Buffer{}, false)
		})
	})
	if h.scale != 0 {
		q.Scale(dnorm.Buf, h.scale)
	}
	h.normGrad(q, mem, w, dw, device.Matrix(d, r, c), dnorm, device.Matrix(x, r, c), s)
	for i := range dw {
		if i != table && i != h.weight && i != h.bias && dw[i].N > 0 {
			q.Zero(dw[i]) // another module's parameter, which adds its gradient to zero
		}
	}
}

// most returns the maximum number of rows of the output layer on any rank; every rank allocates
// memory for that many.
func (h head) most() int { return h.params[table].Reserved() / h.params[table].Shape[1] }

// padded returns the output layer's matrix out, or, if bt.Pad does not divide every rank's rows, a
// copy with rows of zeros appended: GPUs multiply unaligned rows of logits at a fraction of their
// speed.
func (h head) padded(p pass, out device.Mat) device.Mat {
	all, ranks, pad := max(h.part.Size, out.Rows), 1, p.bt.Pad
	if p.bt.Tensor != nil {
		ranks = p.bt.Tensor.Size()
	}
	if pad < 2 || all%(pad*ranks) == 0 {
		return out
	}
	rows := (h.most() + pad - 1) / pad * pad
	copied := device.Matrix(p.mem.Take(out.Buf.Type, rows*out.Cols), rows, out.Cols)
	p.q.Cast(copied.RowRange(0, out.Rows).Buf, out.Buf)
	p.q.Zero(copied.RowRange(out.Rows, rows).Buf)
	return copied
}

// eachChunk calls f with the logits norm·tableᵀ of positions [lo, hi), chunk by chunk, in the same
// memory.
func (h head) eachChunk(p pass, norm, table device.Mat, f func(logits device.Mat, lo, hi int)) {
	q, mem, bt := p.q, p.mem, p.bt
	defer mem.Release(mem.Mark())
	chunk := min(bt.Chunk, bt.Rows())
	if chunk < 1 {
		panic(fmt.Sprintf("nn: logits of %d positions at a time", chunk))
	}
	logitsBuf := mem.TakeFor(Logits, bt.Compute, chunk*max(table.Rows, h.most()))
	for lo := 0; lo < bt.Rows(); lo += chunk {
		hi := min(lo+chunk, bt.Rows())
		logits := device.Matrix(logitsBuf.Slice(0, (hi-lo)*table.Rows), hi-lo, table.Rows)
		q.MatMul(logits, norm.RowRange(lo, hi), table.T(), device.Buffer{}, false)
		f(logits, lo, hi)
	}
}
