package kernel

import (
	"fmt"

	"zeroth/device"
)

// LayerNorm normalises the rows of x: y = (x-mean)*rstd*w + b with rstd =
// 1/sqrt(variance + eps); y may be x.
func (o *Ops) LayerNorm(y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32) {
	wantLen("layer norm", device.F32, x.Rows, mean)
	wantVec("layer norm", x.Cols, b)
	o.norm("layer norm", y, mean, rstd, x, w, b, eps)
}

// RMSNorm scales the rows of x: y = x*rstd*w with rstd = 1/sqrt(average(x^2) +
// eps); y may be x.
func (o *Ops) RMSNorm(y device.Mat, rstd device.Buffer, x device.Mat, w device.Buffer, eps float32) {
	o.norm("rms norm", y, device.Buffer{}, rstd, x, w, device.Buffer{}, eps)
}

func (o *Ops) norm(op string, y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32) {
	wantMat(op, x.Rows, x.Cols, y, x)
	wantLen(op, device.F32, x.Rows, rstd)
	wantVec(op, x.Cols, w)
	o.begin("row_norm").mat(y).ptr(mean).ptr(rstd).mat(x).vec(w).vec(b).i32(x.Rows).i32(x.Cols).f32(eps)
	o.run(rowBlocks(x.Rows), 1, 1, over(8, y, x).plus(mean, rstd, w, b))
}

// LayerNormGrad sets dx to (or, with add, adds to dx) the gradient of x and
// overwrites dw and db (float32); dx may be dy.
func (o *Ops) LayerNormGrad(dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool) {
	wantLen("layer norm gradient", device.F32, x.Cols, db)
	wantLen("layer norm gradient", device.F32, x.Rows, mean)
	o.normGrad("layer norm gradient", dx, dw, db, dy, x, w, mean, rstd, add)
}

// RMSNormGrad sets dx to (or, with add, adds to dx) the gradient of x and
// overwrites dw (float32); dx may be dy or x.
func (o *Ops) RMSNormGrad(dx device.Mat, dw device.Buffer, dy, x device.Mat, w, rstd device.Buffer, add bool) {
	o.normGrad("rms norm gradient", dx, dw, device.Buffer{}, dy, x, w, device.Buffer{}, rstd, add)
}

func (o *Ops) normGrad(op string, dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool) {
	wantMat(op, x.Rows, x.Cols, dx, dy, x)
	wantLen(op, device.F32, x.Cols, dw)
	wantLen(op, device.F32, x.Rows, rstd)
	wantVec(op, x.Cols, w)
	o.columns(dw, db, dy, x, mean, rstd) // first: dx may be one of them
	o.begin("row_norm_grad").mat(dx).mat(dy).mat(x).vec(w).ptr(mean).ptr(rstd).i32(x.Rows).i32(x.Cols).flag(add)
	cost := over(14, dx, dy, x)
	if add {
		cost = over(15, dx, dx, dy, x)
	}
	o.run(rowBlocks(x.Rows), 1, 1, cost.plus(w, mean, rstd))
}

// SumRows sets db[j] (float32) to the sum over i of dy[i][j].
func (o *Ops) SumRows(db device.Buffer, dy device.Mat) {
	wantMat("sum of rows", dy.Rows, dy.Cols, dy)
	wantLen("sum of rows", device.F32, dy.Cols, db)
	o.columns(device.Buffer{}, db, dy, device.Mat{}, device.Buffer{}, device.Buffer{})
}

// Sums down columns are in two steps: of parts of the rows, and of these. How many
// parts there are depends on the matrix alone, so that every GPU has the same bits:
// enough blocks for any, and no more than the work space has room for.
const (
	colsBlock  = 128 // columns of a block
	partRows   = 64  // rows of a part at least
	mostParts  = 256
	sumsBlocks = 1024

	// WorkLen is the floats of Ops.Work: a block's sums for each of two results.
	WorkLen = 2 * sumsBlocks * colsBlock
)

// parts is how many parts the rows are cut into, and the rows of each.
func parts(rows, cols int) (count, each int) {
	most := min(mostParts, max(1, sumsBlocks/max(1, ceil(cols, colsBlock))))
	each = max(partRows, ceil(rows, most))
	return max(1, ceil(rows, each)), each
}

// columns sums dy into db, and dy*(x-mean)*rstd into dw, down the columns; what is
// empty is left out.
func (o *Ops) columns(dw, db device.Buffer, dy, x device.Mat, mean, rstd device.Buffer) {
	count, each := parts(dy.Rows, dy.Cols)
	toW, toB := dw, db
	if count > 1 {
		toW, toB = o.work(0, count*dw.N), o.work(count*dw.N, count*db.N)
	}
	cost := over(1, dy)
	if dw.N > 0 {
		cost = over(5, dy, x)
	}
	o.begin("columns").ptr(toW).ptr(toB).mat(dy).mat(x).ptr(mean).ptr(rstd).i32(dy.Rows).i32(dy.Cols).i32(each)
	o.run(ceil(dy.Cols, colsBlock), count, 1, cost.plus(mean, rstd, toW, toB))
	if count > 1 {
		o.sumParts(dw, toW, count)
		o.sumParts(db, toB, count)
	}
}

// sumParts adds up the parts of dst, if it is not empty.
func (o *Ops) sumParts(dst, from device.Buffer, count int) {
	o.begin("sum_parts").ptr(dst).ptr(from).i32(count).i32(dst.N)
	o.run(blocks(dst.N, 1), 1, 1, passes(count, dst, from))
}

// work is n floats of the work space.
func (o *Ops) work(at, n int) device.Buffer {
	if o.Work.Type != device.F32 || at+n > o.Work.N {
		panic(fmt.Sprintf("cuda: sums down columns need %d floats of work space, of %d; kernel.WorkLen is enough", at+n, o.Work.N))
	}
	return o.Work.Slice(at, at+n)
}
