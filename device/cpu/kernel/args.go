package kernel

import "unsafe"

// Arguments of assembly functions with many parameters, passed by pointer. The generator reads this
// file. Each worker has one of each, to avoid allocations, filled in field by field: copying a
// struct would read it in wider pieces than it was just written, which stalls until all previous
// stores, including those of the last tile, have reached the cache.

// Tile is a tile of C: rows by cols elements, at most mr by nr of the instruction set. k is in
// words, strides in floats. See tileFunc.
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
	Ld, N     int // elements from a row of C to the next; number of tiles
	Add       int
	Stage     unsafe.Pointer // memory for two tiles
	Ahead     unsafe.Pointer // 512 bytes to prefetch with every unit words of k, or nil
	Stride    int            // bytes from them to the next
}

// Chain is a product of four rows of A by n columns of B, added to four rows of sums; n is a
// positive multiple of the function's columns, and k, in words, at least 1. See chainFunc.
type Chain struct {
	Y, A       [4]unsafe.Pointer
	B          unsafe.Pointer
	Ldb, Panel int // words from a row of B to the next, and from a panel of columns to the next
	K, N       int
}

// Dots is a product of m rows of A by 32 rows of B, along k words of both, a positive multiple of
// 16. See dotsFunc.
type Dots struct {
	Y, A, B       unsafe.Pointer
	Ldy, Lda, Ldb int // bytes from a row to the next
	M, K          int
	Missing       int // number of the first 16 words of B's rows that are absent and count as 0
	Next          int // bytes from B to the data to prefetch, of the size that is read
}

// Rule is the n elements of an update rule, a positive multiple of 16; see RuleFunc. Unused
// operands are nil.
type Rule struct {
	W, P, G, M, V unsafe.Pointer
	K             unsafe.Pointer // constants, 16 copies of each
	N, Kind       int            // number of elements; device.DType of p: F32, BF16 or F16
}

// MicroTile is a tile of a product in attention; see microFunc.
type MicroTile struct {
	K                     int
	A, B, C               unsafe.Pointer
	Ai, Ak, Ldb, Ldc, Add int
}

// SoftmaxRows is rows of scores; see onlineSoftmaxFunc.
type SoftmaxRows struct {
	S            unsafe.Pointer
	Ld, Rows     int
	N, Most, End int // elements visible to the first row; maximum for any row; elements set at least
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

// DropBits requests the mask of Words words of 64 columns each, from group Group of eight columns
// on, in a row that drops Drop of 65536; see dropISA.
type DropBits struct {
	Keys              unsafe.Pointer // (10, 2) uint32: Philox's
	Keep              unsafe.Pointer // (Words) uint64: result
	Words, Group, Row int
	Place, Drop       int
}

// callArgs are a worker's argument structs.
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
