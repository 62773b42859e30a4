package kernel

import "unsafe"

// The arguments of functions in assembly that have many; they get a pointer. The
// generator reads this file. A worker has one of each, so that nothing is
// allocated, and is filled in field by field: a struct that is copied is read in
// wider pieces than it was just written in, which waits until all stores before
// it, those of the last tile among them, have reached the cache.

// Tile is a tile of C: rows by cols elements, at most mr by nr of the
// instruction set. k is in words, strides in floats. See tileFunc.
type Tile struct {
	K          int
	A, B, Base unsafe.Pointer
	Ldb        int
	C          unsafe.Pointer
	Ldc        int
	Rows, Cols int
}

// TileRow is n whole tiles side by side; see RowFunc.
type TileRow struct {
	K         int            // words
	A         unsafe.Pointer // mr rows
	Row, Step int            // bytes from a row to the next, and from unit words of k to the next
	Next, B   unsafe.Pointer // the rows of A of the next call; n panels of B
	Panel     int            // bytes from a panel of B to the next
	Bias, C   unsafe.Pointer
	Ld, N     int // elements from a row of C to the next; tiles
	Add       int
	Stage     unsafe.Pointer // room for two tiles
}

// Chain is four rows of A, and of sums, by n columns of B, a positive multiple of those
// that the function has; k is in words, at least 1. See chainFunc.
type Chain struct {
	Y, A       [4]unsafe.Pointer
	B          unsafe.Pointer
	Ldb, Panel int // words from a row of B to the next, and from so many columns to the next
	K, N       int
}

// Dots is m rows of A by 32 of B, along k words of both, a positive multiple of 16. See
// dotsFunc.
type Dots struct {
	Y, A, B       unsafe.Pointer
	Ldy, Lda, Ldb int // bytes from a row to the next
	M, K          int
	Missing       int // of the first 16 words of rows of B, which begin at the others: they count as 0
	Next          int // bytes from B to what is fetched meanwhile: as many as are read
}

// Rule is n elements, a positive multiple of 16, of what an update rule works on;
// see RuleFunc. What it does not have is nil.
type Rule struct {
	W, P, G, M, V unsafe.Pointer
	K             unsafe.Pointer // constants, 16 times each
	N, Kind       int            // of elements; device.DType of p: F32, BF16 or F16
}

// MicroTile is a tile of a product of attention; see microFunc.
type MicroTile struct {
	K                     int
	A, B, C               unsafe.Pointer
	Ai, Ak, Ldb, Ldc, Add int
}

// SoftmaxRows is rows of scores; see onlineSoftmaxFunc.
type SoftmaxRows struct {
	S            unsafe.Pointer
	Ld, Rows     int
	N, Most, End int // elements the first row sees; any row at most; are set at least
	M, L, Shrink unsafe.Pointer
}

// SoftmaxGradRows is rows of scores and of their gradients; see softmaxGradFunc.
type SoftmaxGradRows struct {
	P, Ds        unsafe.Pointer
	Ld, Rows     int
	N, Most, End int // as in SoftmaxRows
	Lse, Delta   unsafe.Pointer
}

// NormGradRow is a row of n elements, a positive multiple of 16; see normGradFunc.
type NormGradRow struct {
	Dx, Dy, X, W unsafe.Pointer
	N            int
	M, R, G, Gn  float32
	Add          int
}

// ColumnGrads is rows of some columns; see normColumnsFunc.
type ColumnGrads struct {
	Dw, Db, Dy, X   unsafe.Pointer
	Lddy, Ldx, Rows int
	Mean, Rstd      unsafe.Pointer
}

// DropBits is so many words of 64 columns each, from group Group of eight on, of a
// row that drops Drop of 65536; see dropISA.
type DropBits struct {
	Keys              unsafe.Pointer // (10, 2) uint32: Philox's
	Keep              unsafe.Pointer // (Words) uint64: set
	Words, Group, Row int
	Place, Drop       int
}

// callArgs is a worker's.
type callArgs struct {
	tile  Tile
	row   TileRow
	chain Chain
	dots  Dots
	rule  Rule

	micro       MicroTile
	softmax     SoftmaxRows
	softmaxGrad SoftmaxGradRows
	normGrad    NormGradRow
	columns     ColumnGrads
	drop        DropBits
}
