package kernel

import (
	"math"
	"unsafe"

	"zeroth/device"
)

// RunNorm normalizes rows [lo, hi) and stores their mean and rstd. Without a mean, as in RMS norm, it
// counts as 0, and so does a missing bias.
func RunNorm(t *Args, work *Worker, lo, hi int) {
	ym, xm, n := &t.M[0], &t.M[1], t.M[1].Cols
	mean, rstd := optional(&t.B[0]), t.B[1].F32()
	np := padded(n, rowUnit)
	mem := work.Floats(4 * np)
	w, b := take(&mem, np), take(&mem, np)
	Load(w[:n], t.B[2])
	if clear(b); t.B[3].N > 0 {
		Load(b[:n], t.B[3])
	}
	rows := normRows{isa: &BestVec.normISA, n: n, np: np, direct: directRows(n, ym, xm)}
	for i := lo; i < hi; i++ {
		x, kind := rows.read(mem, xm, i)
		m := float32(0)
		if mean != nil {
			m = rows.isa.sum[kind](x, np) / float32(n)
			mean[i] = m
		}
		if !rows.direct {
			fill(mem[n:np], m)
		}
		r := float32(1 / math.Sqrt(float64(rows.isa.squares[kind](x, np, m)/float32(n)+t.F)))
		rstd[i] = r
		y := rows.rowMemory(mem[np:], ym, i)
		rows.isa.norm[kind](y, x, FloatPtr(w, 0), FloatPtr(b, 0), np, m, r)
		rows.write(ym, i, mem[np:])
	}
}

// optional returns the elements of a buffer, or nil if it is empty.
func optional(b *device.Buffer) []float32 {
	if b.N == 0 {
		return nil
	}
	return b.F32()
}

// directRows reports whether the functions can work on the matrices' rows in place: the matrices
// have one type that the instruction set supports, and n is a multiple of the vector length.
func directRows(n int, ms ...*device.Mat) bool {
	kind := ms[0].Buf.Type
	for _, m := range ms {
		if m.Buf.Type != kind {
			return false
		}
	}
	return n%rowUnit == 0 && BestVec.norm[kind] != nil
}

// normRows describes how rows of n elements are accessed: in place if direct is set, else through
// np float32 elements padded with 0.
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
	Load(mem[:rows.n], row)
	clear(mem[rows.n:rows.np])
	return unsafe.Pointer(&mem[0]), device.F32
}

// rowMemory returns the memory in which the row is computed; write then stores it.
func (rows *normRows) rowMemory(mem []float32, m *device.Mat, i int) unsafe.Pointer {
	if rows.direct {
		return rowOf(m, i, rows.n).Ptr
	}
	return unsafe.Pointer(&mem[0])
}

func (rows *normRows) write(m *device.Mat, i int, mem []float32) {
	if !rows.direct {
		Store(rowOf(m, i, rows.n), mem[:rows.n])
	}
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}

// RunNormGradW sums chunks of columns; see sum.go.
func RunNormGradW(t *Args, work *Worker, lo, hi int) {
	c := newNormColumns(work, &t.M[0], &t.M[1])
	c.chunks(lo, hi, t.B[0].F32(), optional(&t.B[1]), optional(&t.B[2]), t.B[3].F32())
}

// normColumns contains a worker's sums over the columns of dy and x.
type normColumns struct {
	isa            *normISA
	dy, x          *device.Mat
	direct         bool
	sumW, sumB     []float32 // (columns)
	blockD, blockX []float32 // (groupLen, columns)
	zeros          []float32 // (groupLen)
	args           *ColumnGrads
}

func newNormColumns(work *Worker, dy, x *device.Mat) normColumns {
	c := normColumns{isa: &BestVec.normISA, dy: dy, x: x, args: &work.args.columns}
	c.direct = dy.Buf.Type == x.Buf.Type && c.isa.normColumns[x.Buf.Type] != nil
	columns := c.isa.columns
	mem := work.Floats((2*groupLen+2)*columns + groupLen)
	c.sumW, c.sumB = take(&mem, columns), take(&mem, columns)
	c.blockD, c.blockX = take(&mem, groupLen*columns), take(&mem, groupLen*columns)
	c.zeros = take(&mem, groupLen)
	clear(c.zeros)
	return c
}

// chunks sets chunks [lo, hi) of dw to the sums of dy*(x-mean)*rstd, and of db to the sums of
// dy. db may be nil; a nil mean counts as zeros.
func (c *normColumns) chunks(lo, hi int, dw, db, mean, rstd []float32) {
	columns := c.isa.columns
	at, c1 := lo*ChunkCols, min(hi*ChunkCols, c.x.Cols)
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
			a.Dw, a.Db, a.Dy, a.X = FloatPtr(sumW, 0), FloatPtr(sumB, 0), d, x
			a.Lddy, a.Ldx, a.Rows = ldd, ldx, rows
			a.Mean, a.Rstd = FloatPtr(means, 0), FloatPtr(rstd, r)
			c.isa.normColumns[kind](a)
		}
		copy(dw[at:at+n], sumW)
		if db != nil {
			copy(db[at:at+n], sumB)
		}
	}
}

// whole processes the whole vectors of columns from at on in place, for a whole group of rows,
// and returns the end of the processed columns.
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
		a.Lddy, a.Ldx, a.Rows = dy.Ld, x.Ld, min(groupLen, x.Rows-r)
		a.Mean, a.Rstd = FloatPtr(means, 0), FloatPtr(rstd, r)
		for col := at; col < end; col += columns {
			a.Dw, a.Db = FloatPtr(dw, col), FloatPtr(c.sumB, 0)
			if db != nil {
				a.Db = FloatPtr(db, col)
			}
			a.Dy = dy.Buf.Slice(r*dy.Ld+col, dy.Buf.N).Ptr
			a.X = x.Buf.Slice(r*x.Ld+col, x.Buf.N).Ptr
			c.isa.normColumns[dy.Buf.Type](a)
		}
	}
	return end
}

// RunNormGradX computes dx of rows [lo, hi), without a mean as in RMS norm.
func RunNormGradX(t *Args, work *Worker, lo, hi int) {
	mean, rstd := optional(&t.B[1]), t.B[2].F32()
	dxm, dym, xm, n := &t.M[0], &t.M[1], &t.M[2], t.M[2].Cols
	np, a := padded(n, rowUnit), &work.args.normGrad
	mem := work.Floats(4*np + 2)
	w, sums := take(&mem, np), take(&mem, 2)
	Load(w[:n], t.B[0])
	clear(w[n:])
	a.W, a.N, a.Add = FloatPtr(w, 0), np, 0
	if t.Add {
		a.Add = 1
	}
	rows := normRows{isa: &BestVec.normISA, n: n, np: np, direct: directRows(n, dxm, dym, xm)}
	for i := lo; i < hi; i++ {
		dy, kind := rows.read(mem, dym, i)
		x, _ := rows.read(mem[np:], xm, i)
		if t.Add {
			rows.read(mem[2*np:], dxm, i)
		}
		a.M, a.G, a.R = 0, 0, rstd[i]
		if mean != nil {
			a.M = mean[i]
		}
		rows.isa.sums[kind](FloatPtr(sums, 0), dy, x, a.W, np, a.M)
		if mean != nil {
			a.G = sums[0] / float32(n)
		}
		a.Gn = sums[1] * a.R / float32(n) * a.R
		a.Dx, a.Dy, a.X = rows.rowMemory(mem[2*np:], dxm, i), dy, x
		rows.isa.grad[kind](a)
		rows.write(dxm, i, mem[2*np:])
	}
}
