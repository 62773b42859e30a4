package cpu

import (
	"math"
	"unsafe"

	"zeroth/device"
)

// LayerNorm normalises the rows of x: y = (x-mean)*rstd*w + b with rstd =
// 1/sqrt(variance + eps). mean and rstd (float32) receive one element a row;
// w and b have one a column. y may be x.
func (q *Queue) LayerNorm(y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32) {
	wantMat("layer norm", x, x.Rows, x.Cols)
	wantMat("layer norm", y, x.Rows, x.Cols)
	wantLen("layer norm", mean, device.F32, x.Rows)
	wantLen("layer norm", rstd, device.F32, x.Rows)
	wantVec("layer norm", w, x.Cols)
	wantVec("layer norm", b, x.Cols)
	t := q.issue("layer norm")
	t.m[0], t.m[1] = y, x
	t.b[0], t.b[1], t.b[2], t.b[3] = mean, rstd, w, b
	t.f[0] = eps
	q.kernel(t, runLayerNorm, x.Rows, rowGrain(x.Cols))
}

func runLayerNorm(t *args, work *worker, lo, hi int) {
	ym, xm, n := &t.m[0], &t.m[1], t.m[1].Cols
	mean, rstd := t.b[0].F32(), t.b[1].F32()
	np := padded(n, rowUnit)
	mem := work.floats(4 * np)
	w, b := take(&mem, np), take(&mem, np)
	load(w[:n], t.b[2])
	load(b[:n], t.b[3])
	rows := normRows{isa: &bestVec.normISA, n: n, np: np, direct: directRows(n, ym, xm)}
	for i := lo; i < hi; i++ {
		x, kind := rows.read(mem, xm, i)
		m := rows.isa.sum[kind](x, np) / float32(n)
		if !rows.direct {
			fill(mem[n:np], m)
		}
		r := float32(1 / math.Sqrt(float64(rows.isa.squares[kind](x, np, m)/float32(n)+t.f[0])))
		mean[i], rstd[i] = m, r
		y := rows.room(mem[np:], ym, i)
		rows.isa.norm[kind](y, x, floatPtr(w, 0), floatPtr(b, 0), np, m, r)
		rows.write(ym, i, mem[np:])
	}
}

// directRows is whether functions work on the rows of matrices where they lie:
// of one type that the instruction set reads, n elements a whole number of
// vectors.
func directRows(n int, ms ...*device.Mat) bool {
	kind := ms[0].Buf.Type
	for _, m := range ms {
		if m.Buf.Type != kind {
			return false
		}
	}
	return n%rowUnit == 0 && bestVec.norm[kind] != nil
}

// normRows is how rows of n elements are read and written: in place if direct
// is set, else by way of np float32, the last of them 0.
type normRows struct {
	isa    *normISA
	n, np  int
	direct bool
}

func (rows *normRows) read(mem []float32, m *device.Mat, i int) (unsafe.Pointer, device.DType) {
	row := rowOf(m, i, rows.n)
	if rows.direct {
		return row.Ptr, row.Type
	}
	load(mem[:rows.n], row)
	clear(mem[rows.n:rows.np])
	return unsafe.Pointer(&mem[0]), device.F32
}

// room is where the row is computed, and write puts it where it belongs.
func (rows *normRows) room(mem []float32, m *device.Mat, i int) unsafe.Pointer {
	if rows.direct {
		return rowOf(m, i, rows.n).Ptr
	}
	return unsafe.Pointer(&mem[0])
}

func (rows *normRows) write(m *device.Mat, i int, mem []float32) {
	if !rows.direct {
		store(rowOf(m, i, rows.n), mem[:rows.n])
	}
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}

// LayerNormGrad is the gradient of LayerNorm: with n = (x-mean)*rstd and
// g = dy*w, a row's
//
//	dx = rstd * (g - average(g) - n*average(g*n)),
//
// added to dx if add is set; dw = sum of dy*n and db = sum of dy over the rows
// (float32, overwritten). dx may be dy.
func (q *Queue) LayerNormGrad(dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool) {
	for _, m := range [3]device.Mat{dx, dy, x} {
		wantMat("layer norm gradient", m, x.Rows, x.Cols)
	}
	wantLen("layer norm gradient", dw, device.F32, x.Cols)
	wantLen("layer norm gradient", db, device.F32, x.Cols)
	wantLen("layer norm gradient", mean, device.F32, x.Rows)
	wantLen("layer norm gradient", rstd, device.F32, x.Rows)
	wantVec("layer norm gradient", w, x.Cols)

	t := q.issue("layer norm gradient of w, b") // first: dx may be dy
	t.m[0], t.m[1] = dy, x
	t.b[0], t.b[1], t.b[2], t.b[3] = dw, db, mean, rstd
	q.kernel(t, runLayerNormGradW, chunks(x.Cols), rowGrain(x.Rows*chunkCols))

	t = q.issue("layer norm gradient of x")
	t.m[0], t.m[1], t.m[2] = dx, dy, x
	t.b[0], t.b[1], t.b[2] = w, mean, rstd
	t.add = add
	q.kernel(t, runLayerNormGradX, x.Rows, rowGrain(x.Cols))
}

// runLayerNormGradW sums down chunks of columns; see sum.go.
func runLayerNormGradW(t *args, work *worker, lo, hi int) {
	c := newNormColumns(work, &t.m[0], &t.m[1])
	c.chunks(lo, hi, t.b[0].F32(), t.b[1].F32(), t.b[2].F32(), t.b[3].F32())
}

// normColumns is a worker's sums down the columns of dy and x.
type normColumns struct {
	isa            *normISA
	dy, x          *device.Mat
	direct         bool
	sumW, sumB     []float32 // (columns)
	blockD, blockX []float32 // (groupLen, columns)
	zeros          []float32 // (groupLen)
	args           *columnGrads
}

func newNormColumns(work *worker, dy, x *device.Mat) normColumns {
	c := normColumns{isa: &bestVec.normISA, dy: dy, x: x, args: &work.args.columns}
	c.direct = dy.Buf.Type == x.Buf.Type && c.isa.normColumns[x.Buf.Type] != nil
	columns := c.isa.columns
	mem := work.floats((2*groupLen+2)*columns + groupLen)
	c.sumW, c.sumB = take(&mem, columns), take(&mem, columns)
	c.blockD, c.blockX = take(&mem, groupLen*columns), take(&mem, groupLen*columns)
	c.zeros = take(&mem, groupLen)
	clear(c.zeros)
	return c
}

// chunks sets chunks [lo, hi) of dw to the sums of dy*(x-mean)*rstd, and of db to
// those of dy. db nil is not wanted, mean nil is zeros.
func (c *normColumns) chunks(lo, hi int, dw, db, mean, rstd []float32) {
	columns := c.isa.columns
	at, c1 := lo*chunkCols, min(hi*chunkCols, c.x.Cols)
	if c.direct {
		at = c.whole(at, c1, dw, db, mean, rstd)
	}
	for ; at < c1; at += columns {
		n := min(columns, c1-at)
		sumW, sumB := columnSums(c.sumW, dw[at:at+n], columns), c.sumB
		if db != nil {
			sumB = columnSums(c.sumB, db[at:at+n], columns)
		}
		for r := 0; r < c.x.Rows; r += groupLen {
			rows, means := min(groupLen, c.x.Rows-r), c.zeros
			if mean != nil {
				means = mean[r:]
			}
			d, ldd, kind := columnBlock(c.blockD, c.dy, r, at, rows, n, columns, c.direct)
			x, ldx, _ := columnBlock(c.blockX, c.x, r, at, rows, n, columns, c.direct)
			a := c.args
			a.dw, a.db, a.dy, a.x = floatPtr(sumW, 0), floatPtr(sumB, 0), d, x
			a.lddy, a.ldx, a.rows = ldd, ldx, rows
			a.mean, a.rstd = floatPtr(means, 0), floatPtr(rstd, r)
			c.isa.normColumns[kind](a)
		}
		copy(dw[at:at+n], sumW)
		if db != nil {
			copy(db[at:at+n], sumB)
		}
	}
}

// whole does so for columns from at on, as many as go without a rest, and returns
// where that ends: whole rows of a group, as they lie in memory.
func (c *normColumns) whole(at, end int, dw, db, mean, rstd []float32) int {
	columns, x, dy := c.isa.columns, c.x, c.dy
	end = at + (end-at)/columns*columns
	clear(dw[at:end])
	if db != nil {
		clear(db[at:end])
	}
	for r := 0; r < x.Rows; r += groupLen {
		a, means := c.args, c.zeros
		if mean != nil {
			means = mean[r:]
		}
		a.lddy, a.ldx, a.rows = dy.Ld, x.Ld, min(groupLen, x.Rows-r)
		a.mean, a.rstd = floatPtr(means, 0), floatPtr(rstd, r)
		for col := at; col < end; col += columns {
			a.dw, a.db = floatPtr(dw, col), floatPtr(c.sumB, 0)
			if db != nil {
				a.db = floatPtr(db, col)
			}
			a.dy = dy.Buf.Slice(r*dy.Ld+col, dy.Buf.N).Ptr
			a.x = x.Buf.Slice(r*x.Ld+col, x.Buf.N).Ptr
			c.isa.normColumns[dy.Buf.Type](a)
		}
	}
	return end
}

func runLayerNormGradX(t *args, work *worker, lo, hi int) {
	runNormGrad(t, work, lo, hi, t.b[1].F32(), t.b[2].F32())
}

// runNormGrad is dx of rows [lo, hi); mean nil stands for RMSNorm, whose rows
// have no mean and whose gradient none taken off.
func runNormGrad(t *args, work *worker, lo, hi int, mean, rstd []float32) {
	dxm, dym, xm, n := &t.m[0], &t.m[1], &t.m[2], t.m[2].Cols
	np, a := padded(n, rowUnit), &work.args.normGrad
	mem := work.floats(4*np + 2)
	w, sums := take(&mem, np), take(&mem, 2)
	load(w[:n], t.b[0])
	clear(w[n:])
	a.w, a.n, a.add = floatPtr(w, 0), np, 0
	if t.add {
		a.add = 1
	}
	rows := normRows{isa: &bestVec.normISA, n: n, np: np, direct: directRows(n, dxm, dym, xm)}
	for i := lo; i < hi; i++ {
		dy, kind := rows.read(mem, dym, i)
		x, _ := rows.read(mem[np:], xm, i)
		if t.add {
			rows.read(mem[2*np:], dxm, i)
		}
		a.m, a.g, a.r = 0, 0, rstd[i]
		if mean != nil {
			a.m = mean[i]
		}
		rows.isa.sums[kind](floatPtr(sums, 0), dy, x, a.w, np, a.m)
		if mean != nil {
			a.g = sums[0] / float32(n)
		}
		a.gn = sums[1] * a.r / float32(n) * a.r
		a.dx, a.dy, a.x = rows.room(mem[2*np:], dxm, i), dy, x
		rows.isa.grad[kind](a)
		rows.write(dxm, i, mem[2*np:])
	}
}
