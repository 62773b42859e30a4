package cpu

import (
	"fmt"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// Operations of a mixture of experts; see nn.Ops.

// Route selects each row's experts and their weights.
func (q *Queue) Route(experts, weights device.Buffer, logits device.Mat, bias device.Buffer, r device.Router) {
	const op = "route"
	r.Check(op, logits.Cols)
	kernel.WantRows(op, logits, device.F32)
	kernel.WantLen(op, device.I32, logits.Rows*r.TopK, experts)
	kernel.WantLen(op, device.F32, logits.Rows*r.TopK, weights)
	if r.Bias {
		kernel.WantVec(op, bias, logits.Cols)
	}
	t := q.issue(op)
	t.M[0], t.B[0], t.B[1], t.B[2], t.Router = logits, experts, weights, bias, r
	q.kernel(t, kernel.RunRoute, logits.Rows, kernel.RowGrain(8*logits.Cols))
}

// RouteGrad sets dlogits to the gradient of Route's logits.
func (q *Queue) RouteGrad(dlogits, logits device.Mat, experts, weights, dweights device.Buffer, r device.Router) {
	const op = "route gradient"
	r.Check(op, logits.Cols)
	kernel.WantRows(op, logits, device.F32)
	kernel.WantMat(op, logits.Rows, logits.Cols, dlogits)
	kernel.WantLen(op, device.I32, logits.Rows*r.TopK, experts)
	kernel.WantLen(op, device.F32, logits.Rows*r.TopK, weights, dweights)
	t := q.issue(op)
	t.M[0], t.M[1], t.B[0], t.B[1], t.B[2], t.Router = dlogits, logits, experts, weights, dweights, r
	q.kernel(t, kernel.RunRouteGrad, logits.Rows, kernel.RowGrain(8*logits.Cols))
}

// Balance sets the statistics of rows for the balancing loss.
func (q *Queue) Balance(stats, logits device.Mat, target device.Buffer, k int) {
	const op = "balance"
	device.Router{TopK: k}.Check(op, logits.Cols)
	kernel.WantRows(op, stats, device.F32)
	kernel.WantMat(op, logits.Rows, 2*logits.Cols, stats)
	t := q.balance(op, stats, logits, target)
	t.T = k
	q.kernel(t, kernel.RunBalance, logits.Rows, kernel.RowGrain(8*logits.Cols))
}

// BalanceTotal computes the balancing loss from sums of statistics.
func (q *Queue) BalanceTotal(sums, loss device.Buffer, k int) {
	const op = "balance of all rows"
	device.Router{TopK: k}.Check(op, sums.N/2)
	kernel.WantLen(op, device.F32, sums.N/2*2, sums)
	kernel.WantLen(op, device.F32, 1, loss)
	t := q.issue(op)
	t.B[0], t.B[1], t.T = sums, loss, k
	q.kernel(t, kernel.RunBalanceTotal, 1, 1)
}

// BalanceGrad adds the gradient of the balancing loss to dlogits.
func (q *Queue) BalanceGrad(dlogits, logits device.Mat, target, slopes device.Buffer, scale float32) {
	const op = "balance gradient"
	kernel.WantMat(op, logits.Rows, logits.Cols, dlogits)
	kernel.WantLen(op, device.F32, logits.Cols, slopes)
	t := q.balance(op, dlogits, logits, target)
	t.B[1], t.F = slopes, scale
	q.kernel(t, kernel.RunBalanceGrad, logits.Rows, kernel.RowGrain(8*logits.Cols))
}

func (q *Queue) balance(op string, to, logits device.Mat, target device.Buffer) *task {
	kernel.WantRows(op, logits, device.F32)
	kernel.WantLen(op, device.I32, logits.Rows, target)
	t := q.issue(op)
	t.M[0], t.M[1], t.B[0] = to, logits, target
	return t
}

// Sort orders pairs by expert.
func (q *Queue) Sort(order, at, offsets, experts device.Buffer, first int) {
	const op = "sort"
	kernel.WantLen(op, device.I32, experts.N, order, at, experts)
	kernel.WantLen(op, device.I32, max(2, offsets.N), offsets)
	t := q.issue(op)
	t.B[0], t.B[1], t.B[2], t.B[3], t.T = order, at, offsets, experts, first
	q.kernel(t, kernel.RunSort, 1, 1)
}

// GatherRows copies the rows of sorted pairs.
func (q *Queue) GatherRows(y, x device.Mat, order device.Buffer) {
	const op = "gather of rows"
	wantPairs(op, order.N, x.Rows)
	kernel.WantMat(op, x.Rows, x.Cols, x)
	kernel.WantMat(op, order.N, x.Cols, y)
	kernel.WantLen(op, device.I32, order.N, order)
	if y.Buf.Type != x.Buf.Type {
		panic(fmt.Sprintf("cpu: %s of %v to %v", op, x.Buf.Type, y.Buf.Type))
	}
	t := q.issue(op)
	t.M[0], t.M[1], t.B[0] = y, x, order
	q.kernel(t, kernel.RunGather, y.Rows, kernel.RowGrain(y.Cols))
}

// SumGroups sums the rows of each row's pairs.
func (q *Queue) SumGroups(y, base, x device.Mat, at device.Buffer) {
	const op = "sum of groups"
	wantPairs(op, at.N, y.Rows)
	kernel.WantMat(op, y.Rows, y.Cols, y)
	kernel.WantMat(op, at.N, y.Cols, x)
	kernel.WantLen(op, device.I32, at.N, at)
	if base.Rows > 0 {
		kernel.WantMat(op, y.Rows, y.Cols, base)
	}
	t := q.issue(op)
	t.M[0], t.M[1], t.M[2], t.B[0] = y, base, x, at
	q.kernel(t, kernel.RunSumGroups, y.Rows, kernel.RowGrain(y.Cols))
}

// wantPairs panics unless there are equally many pairs for each row.
func wantPairs(op string, pairs, rows int) {
	if rows < 0 || pairs > 0 && (rows == 0 || pairs%rows != 0) {
		panic(fmt.Sprintf("cpu: %s of %d pairs of %d rows", op, pairs, rows))
	}
}

// GateRows is Gate with factors of rows.
func (q *Queue) GateRows(y, gate, up device.Mat, f device.Activation, weights, order device.Buffer) {
	q.gateRows("gate of rows", kernel.RunGateRows, device.Buffer{}, f, weights, order, y, gate, up)
}

// GateRowsGrad computes the gradients of GateRows.
func (q *Queue) GateRowsGrad(dgate, dup device.Mat, dweights device.Buffer, dy, gate, up device.Mat, f device.Activation, weights, order device.Buffer) {
	const op = "gradient of a gate of rows"
	wantApart(op, dgate, dup)
	kernel.WantLen(op, device.F32, order.N, dweights)
	q.gateRows(op, kernel.RunGateRowsGrad, dweights, f, weights, order, dgate, dup, dy, gate, up)
}

func (q *Queue) gateRows(op string, run kernel.RunFunc, dweights device.Buffer, f device.Activation, weights, order device.Buffer, ms ...device.Mat) {
	kernel.WantMat(op, order.N, ms[0].Cols, ms...)
	kernel.WantLen(op, device.I32, order.N, order)
	kernel.WantLen(op, device.F32, order.N, weights)
	t := q.issue(op)
	copy(t.M[:], ms)
	t.B[0], t.B[1], t.B[2], t.T = weights, order, dweights, int(f)
	q.kernel(t, run, order.N, kernel.RowGrain(ms[0].Cols))
}

// MatMulGroups multiplies each group of rows of a by its matrix of b.
func (q *Queue) MatMulGroups(c, a device.Mat, b device.MatGroup, offsets device.Buffer, add bool) {
	const op = "matmul of groups"
	b.Check(op, offsets.N-1)
	rows, cols := b.Dims()
	kernel.WantMat(op, c.Rows, rows, a)
	kernel.WantMat(op, a.Rows, cols, c)
	q.groups(op, kernel.GroupMatMul, c, a, b, offsets, add)
}

// WeightGradGroups computes the gradient of each group's matrix.
func (q *Queue) WeightGradGroups(dw device.MatGroup, dy, x device.Mat, offsets device.Buffer, add bool) {
	const op = "weight gradient of groups"
	dw.Check(op, offsets.N-1)
	kernel.WantMat(op, x.Rows, dw.Rows, dy)
	kernel.WantMat(op, dy.Rows, dw.Cols, x)
	if dw.Trans || dw.Buf.Type != device.F32 {
		panic(fmt.Sprintf("cpu: %s of %v, transposed: %v", op, dw.Buf.Type, dw.Trans))
	}
	q.groups(op, kernel.GroupWeightGrad, dy, x, dw, offsets, add)
}

func (q *Queue) groups(op string, of kernel.GroupGemm, x, y device.Mat, m device.MatGroup, offsets device.Buffer, add bool) {
	kernel.WantLen(op, device.I32, max(2, offsets.N), offsets)
	t := q.issue(op)
	t.M[0], t.M[1], t.M[2], t.B[0], t.Stride, t.Add, t.Group = x, y, m.Mat, offsets, m.Stride, add, of
	t.phases = runGroups
	q.commit()
}

// runGroups computes the products of large groups one after the other, on all workers, and those of
// small ones at the same time, unless there are fewer of these than workers.
func runGroups(t *task, q *Queue) {
	groups, workers, small := t.B[0].N-1, len(q.pool.workers)+1, 0
	for g := range groups {
		if t.GroupLen(g) < kernel.GroupRows {
			small++
		}
	}
	apart := small >= workers
	for g := range groups {
		if apart && t.GroupLen(g) < kernel.GroupRows {
			continue
		}
		var has bool
		if t.Gemm, has = t.Group(&t.Args, g); has {
			runProduct(t, q)
		}
	}
	if apart {
		q.phase(t, kernel.RunGroups, groups, 1, workers)
	}
}
