package nn

import (
	"zeroth/device"
	"zeroth/shard"
)

// pass contains the arguments of a module's Forward or Backward except x, y, d and s. (With s
// included, a Forward that saves nothing would allocate its Saved on the heap.)
type pass struct {
	q     Ops
	mem   Scratch
	w, dw []device.Buffer // as in Module; dw is nil in Forward
	bt    *Batch
	more  bool // gradients of parameters are added to those of the rows before
}

// rows identifies rows [lo, hi) of one of a block's parameters; the zero rows mean none. A vector
// has one column. Rows of joined layers may go on in the parameters that follow.
type rows struct{ param, lo, hi, cols int }

func (r rows) exist() bool { return r.hi > 0 }

// of views the rows in w, which contains a block's parameters or their gradients.
func (r rows) of(w []device.Buffer) device.Mat {
	return device.Matrix(device.Neighbours(w[r.param:], r.hi*r.cols).Slice(r.lo*r.cols, r.hi*r.cols), r.hi-r.lo, r.cols)
}

// trained reports whether the gradient of the parameter is wanted.
func (r rows) trained(p pass) bool { return r.exist() && p.dw[r.param].N > 0 }

// gradient returns the buffer for a norm's gradient: working space if the norm is frozen, because
// its kernel computes the gradient anyway.
func (r rows) gradient(p pass) device.Buffer {
	if r.trained(p) {
		return r.of(p.dw).Buf
	}
	return p.mem.Take(device.F32, (r.hi-r.lo)*r.cols)
}

// params lists the parameters of a block in the order of its unit.
type params []shard.Param

func (l *params) Params() []shard.Param { return *l }

// add appends a parameter and returns all of its rows.
func (l *params) add(p shard.Param) rows {
	r := rows{param: len(*l), hi: p.Shape[0], cols: 1}
	if len(p.Shape) == 2 {
		r.cols = p.Shape[1]
	}
	*l = append(*l, p)
	return r
}

// linear locates the parameters of a linear layer in the block's list, including its bias and its
// LoRA adapter, either of which may be missing. Layers whose weights are rows of one parameter
// (Phi-3's qkv_proj) share the adapter's first matrix.
type linear struct {
	weight rows // (out, in); with conv (in, out), as in Hugging Face's Conv1D
	conv   bool
	inner  bool // with tensor parallelism it is divided by its inputs: its output is a partial sum
	bias   rows // (out)
	down   rows // (rank, in): the adapter's first matrix, lora_A
	up     rows // (out, rank): its second matrix, lora_B
	rank   int
	scale  float32 // of the adapter
	drop   inputDropout
}

// defers reports whether the layer's Backward may defer the gradient of a parameter of the block.
func (l *linear) defers(param int, of params) bool {
	return l.weight.exist() && !of[l.weight.param].Frozen && (param == l.weight.param || l.bias.exist() && param == l.bias.param)
}

// matrix returns the weight in w, or its gradient in dw, as an operand of (out, in).
func (l *linear) matrix(w []device.Buffer) device.Mat {
	m := l.weight.of(w)
	m.Trans = l.conv
	return m
}

// biasOf returns the bias in w, or its gradient in dw; empty if there is none.
func (l *linear) biasOf(w []device.Buffer) (b device.Buffer) {
	if l.bias.exist() && w[l.bias.param].N > 0 {
		b = l.bias.of(w).Buf
	}
	return b
}

// forward sets y = x·weightᵀ + bias + adapter(x).
func (l *linear) forward(p pass, y, x device.Mat) {
	bias := l.biasOf(p.w)
	if l.inner && !p.bt.first() {
		bias = device.Buffer{} // only one rank adds it to the sum
	}
	p.q.MatMul(y, x, l.matrix(p.w).T(), bias, false)
	l.adapt(p, y, x)
}

// forwardSummed sets y to this rank's rows of x·weightᵀ + bias + adapter(x).
func (l *linear) forwardSummed(p pass, y, x device.Mat) {
	p.summed(y, false, func(all device.Mat, _ bool) { l.forward(p, all, x) })
}

// forwardOnto sets y = res + x·weightᵀ + bias + adapter(x).
func (l *linear) forwardOnto(p pass, y, res, x device.Mat) {
	if p.bt.Tensor != nil {
		l.forwardSummed(p, y, x)
		p.q.AddTo(y.Buf, y.Buf, res.Buf)
		return
	}
	p.q.MatMulOnto(y, res, x, l.matrix(p.w).T(), l.biasOf(p.w))
	l.adapt(p, y, x)
}

// forwardActivate sets y = x·weightᵀ + bias + adapter(x), and act = f(y).
func (l *linear) forwardActivate(p pass, act, y, x device.Mat, f device.Activation) {
	if !l.up.exist() {
		p.q.MatMulActivate(act, y, x, l.matrix(p.w).T(), l.biasOf(p.w), f)
		return
	}
	l.forward(p, y, x)
	p.q.Activate(act.Buf, y.Buf, f)
}

// adapt adds adapter(x) to y.
func (l *linear) adapt(p pass, y, x device.Mat) {
	if !l.up.exist() {
		return
	}
	defer p.mem.Release(p.mem.Mark())
	p.q.MatMul(y, l.low(p, l.kept(p, x), l.down.of(p.w)), l.up.of(p.w).T(), device.Buffer{}, true)
}

// inputDropout is the dropout of an adapter's input: with a probability, at a place, from a column
// on if ranks divide the input's columns, and of rows that are some positions ahead of the rank's.
type inputDropout struct {
	p                   float64
	place, first, ahead int
}

// kept returns the adapter's input: x or, if the pass drops some of it, the kept elements, in new
// memory.
func (l *linear) kept(p pass, x device.Mat) device.Mat {
	if !p.bt.dropping(l.drop.p) {
		return x
	}
	y := device.Matrix(p.mem.Take(x.Buf.Type, x.Rows*x.Cols), x.Rows, x.Cols)
	l.drop.keep(p, y, x, device.Buffer{}, 1)
	return y
}

// keep sets y to the elements of x that the dropout keeps, plus add. All have some rows for each row of
// the batch or chunk, without gaps: those of each rank that divides matrices.
func (o inputDropout) keep(p pass, y, x device.Mat, add device.Buffer, each int) {
	d := p.bt.dropout(o.p, o.place, x.Cols, p.bt.Drops.Row+uint64(o.ahead))
	d.First = o.first
	n := p.bt.Held()
	parts := x.Rows / each / n
	all, size := p.bt.B*p.bt.T/parts, each*n*x.Cols
	for i := range parts {
		rows := func(b device.Buffer) device.Buffer { return b.Slice(min(b.N, i*size), min(b.N, (i+1)*size)) }
		p.bt.dropRows(p.q, rows(y.Buf), rows(x.Buf), rows(add), d, each, i*all+p.bt.lo, i*all+p.bt.lo+n)
	}
}

// low returns scale·x·aᵀ, (R, rank), in new memory.
func (l *linear) low(p pass, x, a device.Mat) device.Mat {
	u := device.Matrix(p.mem.Take(x.Buf.Type, x.Rows*l.rank), x.Rows, l.rank)
	p.q.MatMul(u, x, a.T(), device.Buffer{}, false)
	p.q.Scale(u.Buf, l.scale)
	return u
}

// paramGrads computes the gradients of the trained parameters from the output's gradient, dy, and
// the input, x.
func (l *linear) paramGrads(p pass, dy, x device.Mat) {
	db := l.biasOf(p.dw)
	if l.inner && !p.bt.first() && db.N > 0 {
		p.q.Zero(db) // it covers all rows; the first rank computes it
		db = device.Buffer{}
	}
	switch {
	case l.weight.trained(p) && p.bt.Later != nil:
		p.bt.Later.grads = append(p.bt.Later.grads, weightGrad{l.matrix(p.dw), db, dy, x})
	case l.weight.trained(p) && !p.more:
		p.q.WeightGrad(l.matrix(p.dw), db, dy, x)
	default:
		if l.weight.trained(p) {
			dw, a, b := device.GradOperands(l.matrix(p.dw), dy, x)
			p.q.MatMul(dw, a, b, device.Buffer{}, true)
		}
		p.biasGrad(db, dy)
	}
	if l.up.trained(p) {
		mark := p.mem.Mark()
		p.q.MatMul(l.up.of(p.dw), dy.T(), l.low(p, l.kept(p, x), l.down.of(p.w)), device.Buffer{}, p.more)
		p.mem.Release(mark)
	}
	if l.down.trained(p) { // layers that share it add, except the first
		mark := p.mem.Mark()
		p.q.MatMul(l.down.of(p.dw), l.low(p, dy, l.up.of(p.w).T()).T(), l.kept(p, x), device.Buffer{}, p.more || l.up.lo > 0)
		p.mem.Release(mark)
	}
}

// biasGrad computes the gradient of a bias, if it is not empty, from that of the output.
func (p pass) biasGrad(db device.Buffer, dy device.Mat) {
	switch {
	case db.N > 0 && p.more:
		mark := p.mem.Mark()
		sum := p.mem.Take(device.F32, db.N)
		p.q.SumRows(sum, dy)
		p.q.AddTo(db, db, sum)
		p.mem.Release(mark)
	case db.N > 0:
		p.q.SumRows(db, dy)
	}
}

// inputGrad sets dx to the gradient of the input or, with add, adds it to dx, given the gradient of
// the output, dy.
func (l *linear) inputGrad(p pass, dx, dy device.Mat, add bool) {
	p.q.MatMul(dx, dy, l.matrix(p.w), device.Buffer{}, add)
	if !l.up.exist() {
		return
	}
	defer p.mem.Release(p.mem.Mark())
	low := l.low(p, dy, l.up.of(p.w).T())
	if !p.bt.dropping(l.drop.p) {
		p.q.MatMul(dx, low, l.down.of(p.w), device.Buffer{}, true)
		return
	}
	of := device.Matrix(p.mem.Take(dx.Buf.Type, dx.Rows*dx.Cols), dx.Rows, dx.Cols)
	p.q.MatMul(of, low, l.down.of(p.w), device.Buffer{}, false)
	l.drop.keep(p, dx, of, dx.Buf, 1)
}

// activationInputGrad sets dx to the gradient of h if the layer's input is f(h).
func (l *linear) activationInputGrad(p pass, dx, dy, h device.Mat, f device.Activation) {
	if !l.up.exist() {
		p.q.MatMulActivateGrad(dx, dy, l.matrix(p.w), h, f)
		return
	}
	l.inputGrad(p, dx, dy, false)
	p.q.ActivateGrad(dx.Buf, h.Buf, dx.Buf, f)
}
