package cpu

import "unsafe"

// The arguments of functions in assembly that have many; they get a pointer. The
// generator reads this file. A worker has one of each, so that nothing is
// allocated, and is filled in field by field: a struct that is copied is read in
// wider pieces than it was just written in, which waits until all stores before
// it, those of the last tile among them, have reached the cache.

// tile is a tile of C: rows by cols elements, at most mr by nr of the
// instruction set. k is in words, strides in floats. See tileFunc.
type tile struct {
	k          int
	a, b, base unsafe.Pointer
	ldb        int
	c          unsafe.Pointer
	ldc        int
	rows, cols int
}

// tileRow is n whole tiles side by side; see rowFunc.
type tileRow struct {
	k         int            // words
	a         unsafe.Pointer // mr rows
	row, step int            // bytes from a row to the next, and from unit words of k to the next
	next, b   unsafe.Pointer // the rows of A of the next call; n panels of B
	panel     int            // bytes from a panel of B to the next
	bias, c   unsafe.Pointer
	ld, n     int // elements from a row of C to the next; tiles
	add       int
	stage     unsafe.Pointer // room for two tiles
}

// rule is n elements, a positive multiple of 16, of what an update rule works on;
// see ruleFunc. What it does not have is nil.
type rule struct {
	w, p, g, m, v unsafe.Pointer
	k             unsafe.Pointer // constants, 16 times each
	n, kind       int            // of elements; device.DType of p: F32, BF16 or F16
}

// microTile is a tile of a product of attention; see microFunc.
type microTile struct {
	k                     int
	a, b, c               unsafe.Pointer
	ai, ak, ldb, ldc, add int
}

// softmaxRows is rows of scores; see onlineSoftmaxFunc.
type softmaxRows struct {
	s            unsafe.Pointer
	ld, rows     int
	n, most, end int // elements the first row sees; any row at most; are set at least
	m, l, shrink unsafe.Pointer
}

// softmaxGradRows is rows of scores and of their gradients; see softmaxGradFunc.
type softmaxGradRows struct {
	p, ds        unsafe.Pointer
	ld, rows     int
	n, most, end int // as in softmaxRows
	lse, delta   unsafe.Pointer
}

// normGradRow is a row of n elements, a positive multiple of 16; see normGradFunc.
type normGradRow struct {
	dx, dy, x, w unsafe.Pointer
	n            int
	m, r, g, gn  float32
	add          int
}

// columnGrads is rows of some columns; see normColumnsFunc.
type columnGrads struct {
	dw, db, dy, x   unsafe.Pointer
	lddy, ldx, rows int
	mean, rstd      unsafe.Pointer
}

// callArgs is a worker's.
type callArgs struct {
	tile tile
	row  tileRow
	rule rule

	micro       microTile
	softmax     softmaxRows
	softmaxGrad softmaxGradRows
	normGrad    normGradRow
	columns     columnGrads
}
