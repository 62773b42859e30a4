package kernel

import (
	"fmt"

	"zeroth/device"
)

// WantRows panics unless m is a matrix of type t, not transposed.
func WantRows(op string, m device.Mat, t device.DType) {
	WantMat(op, m.Rows, m.Cols, m)
	if m.Buf.Type != t {
		panic(fmt.Sprintf("cpu: %s: a matrix of %v, want %v", op, m.Buf.Type, t))
	}
}

// RunSort orders all pairs by expert, on one worker.
func RunSort(t *Args, _ *Worker, _, _ int) {
	order, at, ends, experts := t.B[0].I32(), t.B[1].I32(), t.B[2].I32(), t.B[3].I32()
	groups := len(ends) - 1
	group := func(pair int) (g int, has bool) { g = int(experts[pair]) - t.T; return g, 0 <= g && g < groups }
	clear(ends)
	for i := range experts {
		if g, has := group(i); has {
			ends[g+1]++
		}
	}
	for g := range groups {
		ends[g+1] += ends[g]
	}
	sorted := int(ends[groups])
	for i := range experts { // advances each group's first place to its end
		at[i] = -1
		if g, has := group(i); has {
			at[i] = ends[g]
			order[at[i]] = int32(i)
			ends[g]++
		}
	}
	copy(ends[1:], ends[:groups])
	ends[0] = 0
	for i := range order[sorted:] {
		order[sorted+i] = -1
	}
}

// RunGather copies rows [lo, hi) of sorted pairs.
func RunGather(t *Args, _ *Worker, lo, hi int) {
	y, x, order := &t.M[0], &t.M[1], t.B[0].I32()
	k := len(order) / max(1, x.Rows)
	for i := lo; i < hi; i++ {
		if order[i] >= 0 {
			copy(rowOf(y, i, y.Cols).Raw(), rowOf(x, int(order[i])/k, y.Cols).Raw())
		}
	}
}

// RunSumGroups sums the pairs of rows [lo, hi).
func RunSumGroups(t *Args, w *Worker, lo, hi int) {
	y, base, x, at := &t.M[0], &t.M[1], &t.M[2], t.B[0].I32()
	k := len(at) / y.Rows
	for i := lo; i < hi; i++ {
		for from := 0; from < y.Cols; from += BlockLen {
			to := min(y.Cols, from+BlockLen)
			part := func(m *device.Mat, row int) device.Buffer { return m.Buf.Slice(row*m.Ld+from, row*m.Ld+to) }
			sum := intermediateF32(w, to-from, 0)
			clear(sum.F32())
			for first, places := true, at[i*k:(i+1)*k]; len(places) > 0; places = places[1:] {
				switch row := int(places[0]); {
				case row < 0:
				case first:
					Load(sum.F32(), part(x, row))
					first = false
				default:
					w.addRow(sum, sum, part(x, row))
				}
			}
			if base.Rows > 0 {
				w.addRow(sum, sum, part(base, i))
			}
			Store(part(y, i), sum.F32())
		}
	}
}

// intermediateF32 is intermediate for n <= BlockLen elements of float32.
func intermediateF32(w *Worker, n, i int) device.Buffer {
	return intermediate(w, device.Buffer{Type: device.F32, Host: true, N: n}, i)
}

// RunGateRows processes rows [lo, hi) of sorted pairs.
func RunGateRows(t *Args, w *Worker, lo, hi int) {
	f, weights, order := device.Activation(t.T), t.B[0].F32(), t.B[1].I32()
	of := Args{}
	for i := lo; i < hi && order[i] >= 0; i++ {
		by, blocks := weights[order[i]], Blocks(t.M[0].Cols)
		for b := i * blocks; b < (i+1)*blocks; b++ {
			t.blocks(&of, 3, b, b+1)
			y, gate, up := of.B[0], of.B[1], of.B[2]
			act := intermediateF32(w, y.N, 0)
			if f == device.Silu {
				of.run(w, &BestVec.Swiglu, act, gate, up)
			} else {
				of.run(w, activation(f), act, gate, gate)
				of.run(w, &Mul, act, act, up)
			}
			of.F = by
			of.run(w, &BestVec.Times, act, act, act)
			Store(y, act.F32())
		}
	}
}

// RunGateRowsGrad processes rows [lo, hi) of sorted pairs.
func RunGateRowsGrad(t *Args, w *Worker, lo, hi int) {
	weights, order, dweights := t.B[0].F32(), t.B[1].I32(), t.B[2].F32()
	of := Args{T: t.T}
	for i := lo; i < hi && order[i] >= 0; i++ {
		sum, blocks := float32(0), Blocks(t.M[0].Cols)
		for b := i * blocks; b < (i+1)*blocks; b++ {
			t.blocks(&of, 5, b, b+1)
			sum += of.gateRowsGrad(w, weights[order[i]])
		}
		dweights[order[i]] = sum
	}
}

// gateRowsGrad processes a block of the five operands of GateRowsGrad with the factor by, and returns
// the sum of its dy * f(gate) * up.
func (t *Args) gateRowsGrad(w *Worker, by float32) float32 {
	n := t.B[0].N
	x := t.wholeF32(w, 0, n)
	gateGrad(w, device.Activation(t.T), x)
	sum := BestVec.dot(x[1].Ptr, x[4].Ptr, x[1].N)
	for i, to := range t.B[:2] {
		BestVec.Times[device.F32](x[i].Ptr, x[i].Ptr, x[i].Ptr, x[i].N, by)
		Store(to, x[i].F32()[:n])
	}
	return sum
}

// gateGrad sets dgate and dup, the first of five float32 operands of whole vectors.
func gateGrad(w *Worker, f device.Activation, x [5]device.Buffer) {
	dgate, dup, dy, gate, up := x[0], x[1], x[2], x[3], x[4]
	if f == device.Silu {
		BestVec.swigluGrad[device.F32](dgate.Ptr, dup.Ptr, dy.Ptr, gate.Ptr, up.Ptr, dy.N)
		return
	}
	var of Args
	of.run(w, &Mul, dgate, dy, up)
	of.run(w, activationGrad(f), dgate, gate, dgate)
	of.run(w, activation(f), dup, gate, gate)
	of.run(w, &Mul, dup, dy, dup)
}

// GroupGemm returns the product of group g, and false if nothing is to be done.
type GroupGemm func(t *Args, g int) (Gemm, bool)

// GroupLen returns the number of rows of group g.
func (t *Args) GroupLen(g int) int { return int(t.B[0].I32()[g+1] - t.B[0].I32()[g]) }

// group returns the rows of group g of both operands, and its matrix.
func (t *Args) group(g int) (x, y, m device.Mat) {
	lo, hi := int(t.B[0].I32()[g]), int(t.B[0].I32()[g+1])
	return t.M[0].RowRange(lo, hi), t.M[1].RowRange(lo, hi), device.MatGroup{Mat: t.M[2], Stride: t.Stride}.At(g)
}

// GroupMatMul multiplies rows by the group's matrix.
func GroupMatMul(t *Args, g int) (Gemm, bool) {
	c, a, b := t.group(g)
	if c.Rows == 0 {
		return Gemm{}, false
	}
	return NewGemm(c, a, b, device.Buffer{}, t.Add), true
}

// GroupWeightGrad computes the gradient of the group's matrix: zeros, or nothing to add, without rows.
func GroupWeightGrad(t *Args, g int) (Gemm, bool) {
	dy, x, dw := t.group(g)
	if dy.Rows == 0 && t.Add {
		return Gemm{}, false
	}
	gemm := NewGemm(dw, dy.T(), x, device.Buffer{}, t.Add)
	gemm.stream = !t.Add && 4*t.Stride*(t.B[0].N-1) >= StreamMin
	return gemm, true
}

// RunGroups computes the products of those of groups [lo, hi) that have fewer than GroupRows rows.
func RunGroups(t *Args, w *Worker, lo, hi int) {
	for i := lo; i < hi; i++ {
		if t.GroupLen(i) >= GroupRows {
			continue
		}
		if g, has := t.Group(t, i); has {
			g.alone(w, t.next(i+1, hi))
		}
	}
}

// next returns the matrix B of the first of groups [lo, hi) with rows.
func (t *Args) next(lo, hi int) device.Mat {
	for i := lo; i < hi; i++ {
		if g, has := t.Group(t, i); has {
			return g.B
		}
	}
	return device.Mat{}
}
