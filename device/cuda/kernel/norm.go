package kernel

import (
	"fmt"

	"zeroth/device"
)

var (
	rowNormKernel  = entryOf("row_norm")
	columnsKernel  = entryOf("columns")
	sumPartsKernel = entryOf("sum_parts")
)

// LayerNorm normalizes the rows of x: y = (x-mean)*rstd*w + b with rstd = 1/sqrt(variance + eps); y
// may be x.
func (o *Ops) LayerNorm(y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32) {
	wantLen("layer norm", device.F32, x.Rows, &mean)
	wantVec("layer norm", x.Cols, &b)
	o.norm("layer norm", y, mean, rstd, x, w, b, eps)
}

// RMSNorm normalizes the rows of x: y = x*rstd*w with rstd = 1/sqrt(average(x^2) + eps); y may be
// x.
func (o *Ops) RMSNorm(y device.Mat, rstd device.Buffer, x device.Mat, w device.Buffer, eps float32) {
	o.norm("rms norm", y, device.Buffer{}, rstd, x, w, device.Buffer{}, eps)
}

func (o *Ops) norm(op string, y device.Mat, mean, rstd device.Buffer, x device.Mat, w, b device.Buffer, eps float32) {
	wantMat(op, x.Rows, x.Cols, &y, &x)
	wantLen(op, device.F32, x.Rows, &rstd)
	wantVec(op, x.Cols, &w)
	l := o.begin(rowNormKernel).mat(&y).ptr(&mean).ptr(&rstd).mat(&x).vec(&w).vec(&b).i32(x.Rows).i32(x.Cols).f32(eps)
	o.run(l, rowBlocks(x.Rows), 1, 1, o.plus(o.over(8, &y, &x), &mean, &rstd, &w, &b))
}

// LayerNormGrad sets dx to the gradient of x or, with add, adds to dx, and overwrites dw and db
// (float32). dx may be dy.
func (o *Ops) LayerNormGrad(dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool) {
	wantLen("layer norm gradient", device.F32, x.Cols, &db)
	wantLen("layer norm gradient", device.F32, x.Rows, &mean)
	o.normGrad("layer norm gradient", dx, dw, db, dy, x, w, mean, rstd, add)
}

// RMSNormGrad sets dx to the gradient of x or, with add, adds to dx, and overwrites dw (float32).
// dx may be dy or x.
func (o *Ops) RMSNormGrad(dx device.Mat, dw device.Buffer, dy, x device.Mat, w, rstd device.Buffer, add bool) {
	o.normGrad("rms norm gradient", dx, dw, device.Buffer{}, dy, x, w, device.Buffer{}, rstd, add)
}

// MaxNorm is the maximum row width for the gradients of norms.
const MaxNorm = 64 * colsBlock

// normGrads lists the kernels with the width of their widest rows in blocks of columns. The narrow
// ones need rows of one type that consist of words of eight elements, and those of RMS no bias.
var normGrads = [...]struct {
	entry       *entry
	blocks      int
	narrow, rms bool
}{
	{entryOf("norm_grad_3"), 3, true, false}, {entryOf("norm_grad_4"), 4, true, false}, {entryOf("norm_grad_8"), 8, true, false}, {entryOf("norm_grad_rms_16"), 16, true, true},
	{entryOf("norm_grad_16"), 16, false, false}, {entryOf("norm_grad_32"), 32, false, false}, {entryOf("norm_grad_64"), 64, false, false},
}

// normGradKernel returns the kernel for rows of these matrices.
func normGradKernel(rms bool, w *device.Buffer, rows ...*device.Mat) *entry {
	cols := rows[0].Cols
	words := cols%8 == 0 && aligned(w, 0) == 2
	for _, m := range rows {
		words = words && m.Buf.Type == w.Type && aligned(&m.Buf, m.Ld) == 2
	}
	for _, k := range normGrads {
		if 0 < cols && cols <= k.blocks*colsBlock && (words || !k.narrow) && (rms || !k.rms) {
			return k.entry
		}
	}
	panic(fmt.Sprintf("cuda: gradients of a norm of %d elements; kernels have 1 to %d", cols, MaxNorm))
}

func (o *Ops) normGrad(op string, dx device.Mat, dw, db device.Buffer, dy, x device.Mat, w, mean, rstd device.Buffer, add bool) {
	wantMat(op, x.Rows, x.Cols, &dx, &dy, &x)
	wantLen(op, device.F32, x.Cols, &dw)
	wantLen(op, device.F32, x.Rows, &rstd)
	wantVec(op, x.Cols, &w)
	count, each := normParts(x.Rows, x.Cols)
	toW, toB := o.parts(count, dw, db)
	cost := o.over(21, &dx, &dy, &x)
	if add {
		cost = o.over(22, &dx, &dx, &dy, &x)
	}
	l := o.begin(normGradKernel(db.N == 0, &w, &dx, &dy, &x)).mat(&dx).mat(&dy).mat(&x).vec(&w).ptr(&mean).ptr(&rstd).ptr(&toW).ptr(&toB).i32(x.Rows).i32(x.Cols).i32(each).flag(add)
	o.run(l, count, 1, 1, o.plus(cost, &w, &mean, &rstd, &toW, &toB))
	o.sumParts(count, dw, toW, db, toB)
}

// SumRows sets db[j] (float32) to the sum over i of dy[i][j].
func (o *Ops) SumRows(db device.Buffer, dy device.Mat) {
	wantMat("sum of rows", dy.Rows, dy.Cols, &dy)
	wantLen("sum of rows", device.F32, dy.Cols, &db)
	count, each := columnParts(dy.Rows, dy.Cols)
	to, _ := o.parts(count, db, device.Buffer{})
	l := o.begin(columnsKernel).ptr(&to).mat(&dy).i32(dy.Rows).i32(dy.Cols).i32(each)
	o.run(l, ceil(dy.Cols, colsBlock), count, 1, o.plus(o.over(1, &dy), &to))
	o.sumParts(count, db, to, device.Buffer{}, device.Buffer{})
}

// Sums over columns have two steps: sums over parts of the rows, and the sums of these. The
// number of parts depends only on the matrix, so that every GPU gives the same bits. There are
// enough blocks for any GPU and at most as many as the working space holds.
const (
	colsBlock = 256 // columns per block of columns

	// WorkLen is the number of float32 elements in Ops.Work: partial sums for two results.
	WorkLen = 1 << 21
)

// partsOf divides rows into at most most parts of at least least rows. It returns the number of
// parts and the rows of each.
func partsOf(rows, most, least int) (count, each int) {
	each = max(least, ceil(rows, max(1, most)))
	return max(1, ceil(rows, each)), each
}

// normParts divides a matrix into parts of whole rows: four blocks for each multiprocessor of the
// largest GPUs.
func normParts(rows, cols int) (count, each int) {
	return partsOf(rows, min(512, WorkLen/(2*cols)), 32)
}

// columnParts divides a matrix into parts of blocks of columns, up to 1024 blocks together.
func columnParts(rows, cols int) (count, each int) {
	return partsOf(rows, min(256, 1024/max(1, ceil(cols, colsBlock)), WorkLen/max(1, cols)), 64)
}

// parts returns the memory for the parts of one or two results. If there is only one part, it is
// the result itself.
func (o *Ops) parts(count int, x, y device.Buffer) (ofX, ofY device.Buffer) {
	if count == 1 {
		return x, y
	}
	n := count * (x.N + y.N)
	if o.Work.Type != device.F32 || n > o.Work.N {
		panic(fmt.Sprintf("cuda: sums down columns need %d floats of work space, of %d; kernel.WorkLen is enough", n, o.Work.N))
	}
	return o.Work.Slice(0, count*x.N), o.Work.Slice(count*x.N, n)
}

// sumParts adds the parts of one or two results, unless there is only one.
func (o *Ops) sumParts(count int, x, ofX, y, ofY device.Buffer) {
	if count == 1 {
		return
	}
	results := 1
	if y.N > 0 {
		results = 2
	}
	l := o.begin(sumPartsKernel).ptr(&x).ptr(&ofX).ptr(&y).ptr(&ofY).i32(count).i32(x.N)
	o.run(l, ceil(x.N, 32), results, 1, o.plus(o.passes(count*results, &x, &ofX), &y, &ofY))
}
