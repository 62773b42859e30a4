package kernel

import (
	"fmt"
	"math"
	"unsafe"

	"zeroth/device"
)

// Operations of a mixture of experts; see nn.Ops. The sizes of groups are known on the GPU only, so
// grids are for the worst case, and blocks without work end at once.

var (
	routeKernel        = entryOf("route")
	routeGradKernel    = entryOf("route_grad")
	balanceKernel      = entryOf("balance")
	balanceTotalKernel = entryOf("balance_total")
	balanceGradKernel  = entryOf("balance_grad")
	sortKernel         = entryOf("sort_pairs")
	gatherKernel       = entryOf("gather_rows")
	sumGroupsKernel    = entryOf("sum_groups")
	gateRowsKernel     = entryOf("gate_rows")
	gateRowsGradKernel = entryOf("gate_rows_grad")
	groupsMulKernel    = entryOf("groups_mul")
	groupsGradKernel   = entryOf("groups_grad")
)

// router passes experts.cu's Router.
func (l list) router(r *device.Router) list {
	to := l.slot(36)
	bit := func(x bool) uint32 {
		if x {
			return 1
		}
		return 0
	}
	for i, word := range [...]uint32{uint32(r.Score), uint32(r.TopK), bit(r.Bias), uint32(max(1, r.Groups)), uint32(r.TopGroups), uint32(r.GroupBest),
		bit(r.Normalize), math.Float32bits(r.Floor), math.Float32bits(r.Scale)} {
		put32(unsafe.Add(to, 4*i), word)
	}
	return l.then()
}

func wantRoute(op string, r *device.Router, logits *device.Mat, experts *device.Buffer, weights ...*device.Buffer) {
	wantLogits(op, r, logits)
	wantLen(op, device.I32, logits.Rows*r.TopK, experts)
	wantLen(op, device.F32, logits.Rows*r.TopK, weights...)
}

func wantLogits(op string, r *device.Router, logits *device.Mat) {
	r.Check(op, logits.Cols)
	wantMat(op, logits.Rows, logits.Cols, logits)
	if logits.Buf.Type != device.F32 {
		panic(fmt.Sprintf("cuda: %s of logits of %v, want fp32", op, logits.Buf.Type))
	}
}

// Route selects each row's experts and their weights.
func (o *Ops) Route(experts, weights device.Buffer, logits device.Mat, bias device.Buffer, r device.Router) {
	wantRoute("route", &r, &logits, &experts, &weights)
	if r.Bias {
		wantVec("route", logits.Cols, &bias)
	}
	l := o.begin(routeKernel).ptr(&experts).ptr(&weights).ptr(&logits.Buf).i32(logits.Ld).vec(&bias).i32(logits.Rows).i32(logits.Cols).router(&r)
	o.run(l, rowBlocks(logits.Rows), 1, 1, o.plus(o.over(20+2*r.TopK, &logits), &experts, &weights))
}

// RouteGrad sets dlogits to the gradient of Route's logits.
func (o *Ops) RouteGrad(dlogits, logits device.Mat, experts, weights, dweights device.Buffer, r device.Router) {
	const op = "route gradient"
	wantRoute(op, &r, &logits, &experts, &weights, &dweights)
	wantMat(op, logits.Rows, logits.Cols, &dlogits)
	l := o.begin(routeGradKernel).mat(&dlogits).ptr(&logits.Buf).i32(logits.Ld).ptr(&experts).ptr(&weights).ptr(&dweights).i32(logits.Rows).i32(logits.Cols).router(&r)
	o.run(l, rowBlocks(logits.Rows), 1, 1, o.plus(o.over(40+2*r.TopK, &logits, &dlogits), &experts, &weights, &dweights))
}

// Balance sets the statistics of rows for the balancing loss.
func (o *Ops) Balance(stats, logits device.Mat, target device.Buffer, k int) {
	const op = "balance"
	wantLogits(op, &device.Router{TopK: k}, &logits)
	wantLen(op, device.I32, logits.Rows, &target)
	wantMat(op, logits.Rows, 2*logits.Cols, &stats)
	if stats.Buf.Type != device.F32 {
		panic(fmt.Sprintf("cuda: %s in %v, want fp32", op, stats.Buf.Type))
	}
	l := o.begin(balanceKernel).mat(&stats).ptr(&logits.Buf).i32(logits.Ld).ptr(&target).i32(logits.Rows).i32(logits.Cols).i32(k)
	o.run(l, rowBlocks(logits.Rows), 1, 1, o.plus(o.over(20+k, &logits, &stats), &target))
}

// BalanceTotal computes the balancing loss from sums of statistics.
func (o *Ops) BalanceTotal(sums, loss device.Buffer, k int) {
	const op = "balance of all rows"
	device.Router{TopK: k}.Check(op, sums.N/2)
	wantLen(op, device.F32, sums.N/2*2, &sums)
	wantLen(op, device.F32, 1, &loss)
	o.run(o.begin(balanceTotalKernel).ptr(&sums).ptr(&loss).i32(sums.N/2).i32(k), 1, 1, 1, o.passes(4, &sums, &sums))
}

// BalanceGrad adds the gradient of the balancing loss to dlogits.
func (o *Ops) BalanceGrad(dlogits, logits device.Mat, target, slopes device.Buffer, scale float32) {
	const op = "balance gradient"
	wantLogits(op, &device.Router{TopK: 1}, &logits)
	wantLen(op, device.I32, logits.Rows, &target)
	wantMat(op, logits.Rows, logits.Cols, &dlogits)
	wantLen(op, device.F32, logits.Cols, &slopes)
	l := o.begin(balanceGradKernel).mat(&dlogits).ptr(&logits.Buf).i32(logits.Ld).ptr(&target).ptr(&slopes).i32(logits.Rows).i32(logits.Cols).f32(scale)
	o.run(l, rowBlocks(logits.Rows), 1, 1, o.plus(o.over(60, &logits, &dlogits, &dlogits), &target, &slopes))
}

// Sort orders pairs by expert.
func (o *Ops) Sort(order, at, offsets, experts device.Buffer, first int) {
	wantLen("sort", device.I32, experts.N, &order, &at, &experts)
	wantLen("sort", device.I32, max(2, offsets.N), &offsets)
	l := o.begin(sortKernel).ptr(&order).ptr(&at).ptr(&offsets).ptr(&experts).i32(experts.N).i32(offsets.N - 1).i32(first)
	o.run(l, offsets.N-1, 1, 1, o.passes(2*offsets.N, &order, &at, &offsets, &experts))
}

// pairs returns the number of pairs of each row.
func pairsOf(op string, pairs, rows int) int {
	if rows < 0 || pairs > 0 && (rows == 0 || pairs%rows != 0) {
		panic(fmt.Sprintf("cuda: %s of %d pairs of %d rows", op, pairs, rows))
	}
	return pairs / max(1, rows)
}

// GatherRows copies the rows of sorted pairs.
func (o *Ops) GatherRows(y, x device.Mat, order device.Buffer) {
	const op = "gather of rows"
	k := pairsOf(op, order.N, x.Rows)
	wantMat(op, x.Rows, x.Cols, &x)
	wantMat(op, order.N, x.Cols, &y)
	wantLen(op, device.I32, order.N, &order)
	if y.Buf.Type != x.Buf.Type {
		panic(fmt.Sprintf("cuda: %s of %v to %v", op, x.Buf.Type, y.Buf.Type))
	}
	l := o.begin(gatherKernel).mat(&y).mat(&x).ptr(&order).i32(y.Rows).i32(y.Cols).i32(k)
	o.run(l, rowBlocks(y.Rows), 1, 1, o.plus(o.over(0, &y, &y), &order))
}

// SumGroups sums the rows of each row's pairs.
func (o *Ops) SumGroups(y, base, x device.Mat, at device.Buffer) {
	const op = "sum of groups"
	k := pairsOf(op, at.N, y.Rows)
	wantMat(op, y.Rows, y.Cols, &y)
	wantMat(op, at.N, y.Cols, &x)
	wantLen(op, device.I32, at.N, &at)
	cost := o.over(1, &x, &y)
	if base.Rows == 0 {
		base = device.Mat{}
	} else {
		wantMat(op, y.Rows, y.Cols, &base)
		cost.Bytes += o.over(1, &base).Bytes
	}
	l := o.begin(sumGroupsKernel).mat(&y).mat(&base).mat(&x).ptr(&at).i32(y.Rows).i32(y.Cols).i32(k)
	o.run(l, rowBlocks(y.Rows), 1, 1, o.plus(cost, &at))
}

// GateRows is Gate with factors of rows.
func (o *Ops) GateRows(y, gate, up device.Mat, f device.Activation, weights, order device.Buffer) {
	const op = "gate of rows"
	wantMat(op, order.N, y.Cols, &y, &gate, &up)
	wantLen(op, device.F32, order.N, &weights)
	wantLen(op, device.I32, order.N, &order)
	l := o.begin(gateRowsKernel).mat(&y).mat(&gate).mat(&up).ptr(&weights).ptr(&order).i32(y.Rows).i32(y.Cols).i32(int(f))
	o.run(l, rowBlocks(y.Rows), 1, 1, o.plus(o.over(21, &y, &gate, &up), &weights, &order))
}

// GateRowsGrad computes the gradients of GateRows.
func (o *Ops) GateRowsGrad(dgate, dup device.Mat, dweights device.Buffer, dy, gate, up device.Mat, f device.Activation, weights, order device.Buffer) {
	const op = "gradient of a gate of rows"
	wantMat(op, order.N, dy.Cols, &dgate, &dup, &dy, &gate, &up)
	wantLen(op, device.F32, order.N, &dweights, &weights)
	wantLen(op, device.I32, order.N, &order)
	wantApart(op, &dgate, &dup)
	l := o.begin(gateRowsGradKernel).mat(&dgate).mat(&dup).ptr(&dweights).mat(&dy).mat(&gate).mat(&up).ptr(&weights).ptr(&order).i32(dy.Rows).i32(dy.Cols).i32(int(f))
	o.run(l, rowBlocks(dy.Rows), 1, 1, o.plus(o.over(32, &dgate, &dup, &dy, &gate, &up), &dweights, &weights, &order))
}

// groupKernels are the kernels on tensor cores for one type: y = x·Wᵀ, dx = dy·W and dW = dyᵀ·x.
// Tiles of groupTile rows and columns take groupShared bytes; those of other kernels have coreTile.
type groupKernels struct{ nt, nn, tn *entry }

const (
	groupTile   = 128
	groupShared = 4 * 2 * groupTile * (32 + 8) * 2
	coreTile    = 64
)

var onGroups = [...]groupKernels{groupKernelsOf("bf16"), groupKernelsOf("f16")}

func groupKernelsOf(typ string) groupKernels {
	of := func(form string) *entry { return entryOf("groups_" + form + "_" + typ + "_128") }
	return groupKernels{of("nt"), of("nn"), of("tn")}
}

// tensorGroups returns the kernels for these operands, or nil: tensor cores multiply one 16-bit type
// in rows of whole words. The result, of that type or float32, is an operand, too.
func tensorGroups(m *device.MatGroup, x, y *device.Mat, result *device.Buffer) *groupKernels {
	typ := y.Buf.Type
	if typ != device.BF16 && typ != device.F16 || m.Stride%8 != 0 || m.Rows%8 != 0 || m.Cols%8 != 0 {
		return nil
	}
	for _, o := range [...]*device.Mat{&m.Mat, x, y} {
		if !lie(typ, o) && !(lie(device.F32, o) && o.Buf.Ptr == result.Ptr) {
			return nil
		}
	}
	return &onGroups[typ-device.BF16]
}

// MatMulGroups multiplies each group of rows of a by its matrix of b.
func (o *Ops) MatMulGroups(c, a device.Mat, b device.MatGroup, offsets device.Buffer, add bool) {
	const op = "matmul of groups"
	groups, trans := wantGroups(op, &b, &offsets), b.Trans
	K, N := b.Dims()
	wantMat(op, c.Rows, K, &a)
	wantMat(op, a.Rows, N, &c)
	cost := o.groupCost(&b, &c, &a, add)
	if ks := tensorGroups(&b, &c, &a, &c.Buf); ks != nil {
		e := ks.nn
		if trans {
			e = ks.nt
		}
		l := o.begin(e).groups(&c, &a, &b, &offsets, add)
		o.call.Shared = groupShared
		o.run(l, ceil(N, groupTile), c.Rows/groupTile+groups, 1, cost)
		return
	}
	l := o.begin(groupsMulKernel).groups(&c, &a, &b, &offsets, add).flag(trans)
	o.run(l, ceil(N, coreTile), c.Rows/coreTile+groups, 1, cost)
}

// WeightGradGroups computes the gradient of each group's matrix.
func (o *Ops) WeightGradGroups(dw device.MatGroup, dy, x device.Mat, offsets device.Buffer, add bool) {
	const op = "weight gradient of groups"
	groups := wantGroups(op, &dw, &offsets)
	if dw.Trans || dw.Buf.Type != device.F32 {
		panic(fmt.Sprintf("cuda: %s of %v, transposed: %v", op, dw.Buf.Type, dw.Trans))
	}
	wantMat(op, x.Rows, dw.Rows, &dy)
	wantMat(op, dy.Rows, dw.Cols, &x)
	e, tile, shared := groupsGradKernel, coreTile, uint32(0)
	if ks := tensorGroups(&dw, &dy, &x, &dw.Buf); ks != nil {
		e, tile, shared = ks.tn, groupTile, groupShared
	}
	l := o.begin(e).groups(&dy, &x, &dw, &offsets, add)
	o.call.Shared = shared
	o.run(l, ceil(dw.Cols, tile), ceil(dw.Rows, tile), groups, o.groupCost(&dw, &dy, &x, add))
}

// wantGroups panics unless there is a matrix for each group, and returns their number.
func wantGroups(op string, m *device.MatGroup, offsets *device.Buffer) int {
	wantLen(op, device.I32, max(2, offsets.N), offsets)
	wantFloat(op, &m.Buf)
	m.Check(op, offsets.N-1)
	return offsets.N - 1
}

// groups passes experts.cu's Groups.
func (l list) groups(x, y *device.Mat, m *device.MatGroup, offsets *device.Buffer, add bool) list {
	to := l.slot(80)
	for i, o := range [...]*device.Mat{x, y, &m.Mat} {
		putMat(unsafe.Add(to, 16*i), &o.Buf, o.Ld, 2)
	}
	put64(unsafe.Add(to, 48), uint64(m.Stride))
	put64(unsafe.Add(to, 56), begins(offsets))
	words := [...]int{offsets.N - 1, m.Rows, m.Cols, 0}
	if add {
		words[3] = 1
	}
	for i, w := range words {
		put32(unsafe.Add(to, 64+4*i), uint32(w))
	}
	return l.then()
}

// groupCost is the cost if all rows belong to groups.
func (o *Ops) groupCost(m *device.MatGroup, x, y *device.Mat, add bool) Cost {
	cost := o.plus(o.over(0, x, y), &m.Buf)
	if o.Weigh {
		cost.Flops = 2 * int64(x.Rows) * int64(m.Rows) * int64(m.Cols)
	}
	if add {
		cost.Bytes += o.over(0, x).Bytes
	}
	return cost
}
