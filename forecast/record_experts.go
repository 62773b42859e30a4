package forecast

import (
	"math"

	"zeroth/device"
)

// A mixture of experts. Only the device knows how many rows an expert has; the work recorded is that
// of equal shares.

func (r *recordedQueue) Route(experts, weights device.Buffer, logits device.Mat, bias device.Buffer, p device.Router) {
	r.experts = logits.Cols
	r.pass("route", logits.Rows, logits.Cols, experts, nil, bufs{dense(logits), weights}, func() { r.ops.Route(experts, weights, logits, bias, p) })
}

func (r *recordedQueue) RouteGrad(dlogits, logits device.Mat, experts, weights, dweights device.Buffer, p device.Router) {
	r.pass("route gradient", logits.Rows, logits.Cols, dense(dlogits), nil, bufs{dense(logits), experts, weights, dweights}, func() { r.ops.RouteGrad(dlogits, logits, experts, weights, dweights, p) })
}

func (r *recordedQueue) Balance(stats, logits device.Mat, target device.Buffer, k int) {
	r.pass("balance", logits.Rows, logits.Cols, dense(stats), nil, bufs{dense(logits), target}, func() { r.ops.Balance(stats, logits, target, k) })
}

func (r *recordedQueue) BalanceTotal(sums, loss device.Buffer, k int) {
	r.pass("balance of all rows", sums.N, 1, sums, nil, bufs{sums, loss}, func() { r.ops.BalanceTotal(sums, loss, k) })
}

func (r *recordedQueue) BalanceGrad(dlogits, logits device.Mat, target, slopes device.Buffer, scale float32) {
	r.pass("balance gradient", logits.Rows, logits.Cols, dense(dlogits), bufs{dense(logits)}, bufs{dense(dlogits), target, slopes}, func() { r.ops.BalanceGrad(dlogits, logits, target, slopes, scale) })
}

func (r *recordedQueue) Sort(order, at, offsets, experts device.Buffer, first int) {
	r.groups = offsets.N - 1
	r.pass("sort", order.N, r.groups, order, bufs{experts}, bufs{at, offsets}, func() { r.ops.Sort(order, at, offsets, experts, first) })
}

// sorted returns the part of a matrix of sorted pairs that has rows, if experts have equal shares.
func (r *recordedQueue) sorted(m device.Mat) device.Mat {
	m.Rows = int(math.Ceil(float64(m.Rows) * float64(r.groups) / float64(max(1, r.experts))))
	return m
}

func (r *recordedQueue) GatherRows(y, x device.Mat, order device.Buffer) {
	some := dense(r.sorted(y))
	r.pass("gather of rows", y.Rows, y.Cols, some, nil, bufs{some, order}, func() { r.ops.GatherRows(y, x, order) })
}

func (r *recordedQueue) SumGroups(y, base, x device.Mat, at device.Buffer) {
	r.pass("sum of groups", y.Rows, y.Cols, dense(y), nil, bufs{dense(r.sorted(x)), dense(base), at}, func() { r.ops.SumGroups(y, base, x, at) })
}

func (r *recordedQueue) MatMulGroups(c, a device.Mat, b device.MatGroup, offsets device.Buffer, add bool) {
	form, old := bit(b.Trans, 2)|bit(add, 4), bufs{}
	if add {
		old = bufs{dense(r.sorted(c))}
	}
	r.product("matmul of groups", form, r.sorted(c), r.sorted(a), b.Mat, r.others(b, old), func() { r.ops.MatMulGroups(c, a, b, offsets, add) })
}

func (r *recordedQueue) WeightGradGroups(dw device.MatGroup, dy, x device.Mat, offsets device.Buffer, add bool) {
	form, old := bit(add, 4), bufs{}
	if add {
		old = bufs{r.all(dw)}
	}
	r.product("weight gradient of groups", form, dw.Mat, r.sorted(dy).T(), r.sorted(x), r.others(dw, old), func() { r.ops.WeightGradGroups(dw, dy, x, offsets, add) })
}

// all returns the elements of all matrices of a group operand.
func (r *recordedQueue) all(m device.MatGroup) device.Buffer {
	return device.Buffer{Type: m.Buf.Type, N: r.groups * m.Rows * m.Cols}
}

// others adds the elements of all matrices but the first.
func (r *recordedQueue) others(m device.MatGroup, with bufs) bufs {
	rest := r.all(m)
	rest.N = max(0, rest.N-m.Rows*m.Cols)
	return append(with, rest)
}

func (r *recordedQueue) GateRows(y, gate, up device.Mat, f device.Activation, weights, order device.Buffer) {
	some := r.sorted(y)
	r.pass("gate of rows", y.Rows, y.Cols, dense(some), nil, bufs{dense(some), dense(some), order}, func() { r.ops.GateRows(y, gate, up, f, weights, order) })
}

func (r *recordedQueue) GateRowsGrad(dgate, dup device.Mat, dweights device.Buffer, dy, gate, up device.Mat, f device.Activation, weights, order device.Buffer) {
	some := dense(r.sorted(dy))
	r.pass("gradient of a gate of rows", dy.Rows, dy.Cols, some, nil, bufs{some, some, some, some, order}, func() { r.ops.GateRowsGrad(dgate, dup, dweights, dy, gate, up, f, weights, order) })
}
