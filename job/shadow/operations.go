package shadow

import (
	"reflect"
	"strings"

	"zeroth/device"
)

// operation is a call of a method of Kernels.
type operation struct {
	name    string
	method  any // a method expression of Kernels
	args    []any
	results []result
}

// result is a matrix that an operation writes. wider multiplies its bound; 0 is 1. dtype is the
// type of the operands, whose rounding also affects a float32 result.
type result struct {
	what  string
	mat   device.Mat
	wider float64
	dtype device.DType
}

// newOperation returns the call of a method with args. what is "name: results", where results name
// the first args; "-" stands for one that the operation only reads.
func newOperation(what string, method any, args ...any) operation {
	name, results, _ := strings.Cut(what, ": ")
	o := operation{name: name, method: method, args: args}
	for i, what := range strings.Fields(results) {
		if what == "-" {
			continue
		}
		o.results = append(o.results, result{what: what, mat: matrixOf(args[i])})
	}
	return o
}

// matrixOf returns an operand as a matrix: all elements of a buffer or of a group of matrices as a row.
func matrixOf(arg any) device.Mat {
	switch x := arg.(type) {
	case device.Mat:
		return x
	case device.MatGroup:
		return device.Matrix(x.Buf, 1, x.Buf.N)
	}
	b := arg.(device.Buffer)
	return device.Matrix(b, 1, b.N)
}

// issue calls the method of k with a view of the operands.
func (o *operation) issue(k Kernels, at *view) {
	in := []reflect.Value{reflect.ValueOf(k)}
	for _, arg := range o.args {
		switch x := arg.(type) {
		case device.Buffer:
			arg = at.buf(x)
		case device.Mat:
			arg = at.mat(x)
		case device.MatGroup:
			x.Mat = at.mat(x.Mat)
			arg = x
		case device.Rope:
			x.Start = at.buf(x.Start)
			arg = x
		case device.Attn:
			x.Start = at.buf(x.Start)
			arg = x
		}
		in = append(in, reflect.ValueOf(arg))
	}
	reflect.ValueOf(o.method).Call(in)
}

// op runs an operation and compares its results.
func (q *Queue) op(what string, method any, args ...any) { q.run(newOperation(what, method, args...)) }

// The methods of Kernels.

func (q *Queue) Zero(b device.Buffer)        { q.op("zero: b", Kernels.Zero, b) }
func (q *Queue) Cast(dst, src device.Buffer) { q.op("cast: dst", Kernels.Cast, dst, src) }

func (q *Queue) Decode(dst device.Mat, codes device.Buffer, code device.Code) {
	q.op("decode: dst", Kernels.Decode, dst, codes, code)
}

func (q *Queue) MatMul(c, a, b device.Mat, bias device.Buffer, add bool) {
	q.op("matmul: c", Kernels.MatMul, c, a, b, bias, add)
}

func (q *Queue) SumRows(db device.Buffer, dy device.Mat) {
	q.op("sum of rows: db", Kernels.SumRows, db, dy)
}

func (q *Queue) MatMulOnto(y, x, a, b device.Mat, bias device.Buffer) {
	q.op("matmul onto: y", Kernels.MatMulOnto, y, x, a, b, bias)
}

func (q *Queue) MatMulActivate(y, x, a, b device.Mat, bias device.Buffer, f device.Activation) {
	q.op("matmul, activation: y x", Kernels.MatMulActivate, y, x, a, b, bias, f)
}

func (q *Queue) MatMulActivateGrad(dx, a, b, x device.Mat, f device.Activation) {
	q.op("matmul, activation gradient: dx", Kernels.MatMulActivateGrad, dx, a, b, x, f)
}

func (q *Queue) WeightGrad(dw device.Mat, db device.Buffer, dy, x device.Mat) {
	q.op("weight gradient: dw db", Kernels.WeightGrad, dw, db, dy, x)
}

func (q *Queue) Embed(y, wte, wpe device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer) {
	q.op("embedding: y", Kernels.Embed, y, wte, wpe, part, ids, T, start)
}

func (q *Queue) EmbedGrad(dwte, dwpe, dy device.Mat, part device.Vocab, ids device.Buffer, T int, start device.Buffer, add bool) {
	q.op("embedding gradient: dwte dwpe", Kernels.EmbedGrad, dwte, dwpe, dy, part, ids, T, start, add)
}

func (q *Queue) LayerNorm(y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32) {
	q.op("layer norm: y mean rstd", Kernels.LayerNorm, y, mean, rstd, x, w, b, eps)
}

func (q *Queue) LayerNormGrad(dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool) {
	q.op("layer norm gradient: dx dw db", Kernels.LayerNormGrad, dx, dw, db, dy, x, w, mean, rstd, add)
}

func (q *Queue) RMSNorm(y device.Mat, rstd device.Buffer, x device.Mat, w device.Buffer, eps float32) {
	q.op("rms norm: y rstd", Kernels.RMSNorm, y, rstd, x, w, eps)
}

func (q *Queue) RMSNormGrad(dx device.Mat, dw device.Buffer, dy, x device.Mat, w, rstd device.Buffer, add bool) {
	q.op("rms norm gradient: dx dw", Kernels.RMSNormGrad, dx, dw, dy, x, w, rstd, add)
}

func (q *Queue) Rope(x device.Mat, r device.Rope, inverse bool) {
	q.op("rope: x", Kernels.Rope, x, r, inverse)
}
func (q *Queue) Gate(y, gate, up device.Mat, f device.Activation) {
	q.op("gate: y", Kernels.Gate, y, gate, up, f)
}

func (q *Queue) GateGrad(dgate, dup, dy, gate, up device.Mat, f device.Activation) {
	q.op("gate gradient: dgate dup", Kernels.GateGrad, dgate, dup, dy, gate, up, f)
}

func (q *Queue) Route(experts, weights device.Buffer, logits device.Mat, bias device.Buffer, r device.Router) {
	q.op("route: experts weights", Kernels.Route, experts, weights, logits, bias, r)
}

func (q *Queue) RouteGrad(dlogits, logits device.Mat, experts, weights, dweights device.Buffer, r device.Router) {
	q.op("route gradient: dlogits", Kernels.RouteGrad, dlogits, logits, experts, weights, dweights, r)
}

func (q *Queue) Balance(stats, logits device.Mat, target device.Buffer, k int) {
	q.op("balance: stats", Kernels.Balance, stats, logits, target, k)
}

func (q *Queue) BalanceTotal(sums, loss device.Buffer, k int) {
	q.op("balance of all rows: sums loss", Kernels.BalanceTotal, sums, loss, k)
}

func (q *Queue) BalanceGrad(dlogits, logits device.Mat, target, slopes device.Buffer, scale float32) {
	q.op("balance gradient: dlogits", Kernels.BalanceGrad, dlogits, logits, target, slopes, scale)
}

func (q *Queue) Sort(order, at, offsets, experts device.Buffer, first int) {
	q.op("sort: order at offsets", Kernels.Sort, order, at, offsets, experts, first)
}

func (q *Queue) GatherRows(y, x device.Mat, order device.Buffer) {
	q.op("gather of rows: y", Kernels.GatherRows, y, x, order)
}

func (q *Queue) SumGroups(y, base, x device.Mat, at device.Buffer) {
	q.op("sum of groups: y", Kernels.SumGroups, y, base, x, at)
}

func (q *Queue) MatMulGroups(c, a device.Mat, b device.MatGroup, offsets device.Buffer, add bool) {
	q.op("matmul of groups: c", Kernels.MatMulGroups, c, a, b, offsets, add)
}

func (q *Queue) WeightGradGroups(dw device.MatGroup, dy, x device.Mat, offsets device.Buffer, add bool) {
	q.op("weight gradient of groups: dw", Kernels.WeightGradGroups, dw, dy, x, offsets, add)
}

func (q *Queue) GateRows(y, gate, up device.Mat, f device.Activation, weights, order device.Buffer) {
	q.op("gate of rows: y", Kernels.GateRows, y, gate, up, f, weights, order)
}

func (q *Queue) GateRowsGrad(dgate, dup device.Mat, dweights device.Buffer, dy, gate, up device.Mat, f device.Activation, weights, order device.Buffer) {
	q.op("gradient of a gate of rows: dgate dup dweights", Kernels.GateRowsGrad, dgate, dup, dweights, dy, gate, up, f, weights, order)
}

func (q *Queue) Activate(y, x device.Buffer, f device.Activation) {
	q.op("activation: y", Kernels.Activate, y, x, f)
}

func (q *Queue) ActivateGrad(dx, x, dy device.Buffer, f device.Activation) {
	q.op("activation gradient: dx", Kernels.ActivateGrad, dx, x, dy, f)
}

func (q *Queue) AddTo(y, a, b device.Buffer) { q.op("add: y", Kernels.AddTo, y, a, b) }
func (q *Queue) Mul(y, a, b device.Buffer)   { q.op("multiply: y", Kernels.Mul, y, a, b) }
func (q *Queue) AddScalar(y, x device.Buffer, s float32) {
	q.op("add scalar: y", Kernels.AddScalar, y, x, s)
}
func (q *Queue) Scale(x device.Buffer, s float32) { q.op("scale: x", Kernels.Scale, x, s) }

func (q *Queue) Dropout(y, x, add device.Buffer, d device.Dropout) {
	q.op("dropout: y", Kernels.Dropout, y, x, add, d)
}

func (q *Queue) Attention(o device.Mat, lse device.Buffer, qm, k, v device.Mat, a device.Attn) {
	q.op("attention: o lse", Kernels.Attention, o, lse, qm, k, v, a)
}

func (q *Queue) CrossEntropy(loss device.Buffer, logits device.Mat, target device.Buffer, cap float32) {
	q.op("cross-entropy: loss", Kernels.CrossEntropy, loss, logits, target, cap)
}

func (q *Queue) CrossEntropyGrad(loss device.Buffer, logits device.Mat, target device.Buffer, scale, cap float32) {
	q.op("cross-entropy: loss logits", Kernels.CrossEntropyGrad, loss, logits, target, scale, cap)
}

func (q *Queue) CrossEntropyPart(stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, cap float32) {
	q.op("cross-entropy part: stats", Kernels.CrossEntropyPart, stats, logits, part, target, cap)
}

func (q *Queue) Sum(acc, x device.Buffer) { q.op("sum: acc", Kernels.Sum, acc, x) }
func (q *Queue) SumSquares(acc, x device.Buffer) {
	q.op("sum of squares: acc", Kernels.SumSquares, acc, x)
}

func (q *Queue) Axpby(y, p, a, b device.Buffer, alpha, beta float32) {
	q.op("axpby: y p", Kernels.Axpby, y, p, a, b, alpha, beta)
}

func (q *Queue) Normalize(x, acc device.Buffer, eps float32) {
	q.op("normalize: x acc", Kernels.Normalize, x, acc, eps)
}

func (q *Queue) CopyBlock(dst, src device.Mat) {
	q.op("copy of a block: dst", Kernels.CopyBlock, dst, src)
}

func (q *Queue) AdamW(w, p, g, m, v device.Buffer, a device.AdamW) {
	q.op("adamw: w p - m v", Kernels.AdamW, w, p, g, m, v, a)
}

func (q *Queue) AdamW8(w, p, g, m, v device.Buffer, a device.AdamW) {
	q.op("adamw in 8 bits: w p - m v", Kernels.AdamW8, w, p, g, m, v, a)
}

func (q *Queue) SGD(w, p, g, m device.Buffer, a device.SGD) {
	q.op("sgd: w p - m", Kernels.SGD, w, p, g, m, a)
}
func (q *Queue) Lion(w, p, g, m device.Buffer, a device.Lion) {
	q.op("lion: w p - m", Kernels.Lion, w, p, g, m, a)
}

func (q *Queue) AttentionGrad(dq, dk, dv device.Mat, delta device.Buffer, do, o device.Mat, lse device.Buffer, qm, k, v device.Mat, a device.Attn) {
	x := newOperation("attention gradient: dq dk dv delta", Kernels.AttentionGrad, dq, dk, dv, delta, do, o, lse, qm, k, v, a)
	for i := range 3 {
		x.results[i].dtype = qm.Buf.Type
		if a.Drop.Drop > 0 { // dropout scales rounded values
			x.results[i].wider = float64(a.Drop.Scale())
		}
	}
	q.run(x)
}

func (q *Queue) CrossEntropyMerge(loss, stats device.Buffer, logits device.Mat, part device.Vocab, target device.Buffer, scale, cap float32, grad bool) {
	what := "cross-entropy merge: loss"
	if grad {
		what += " - logits"
	}
	q.op(what, Kernels.CrossEntropyMerge, loss, stats, logits, part, target, scale, cap, grad)
}
