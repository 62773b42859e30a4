package kernel

import (
	"sync/atomic"
	"unsafe"

	"zeroth/device"
)

// Sums over the columns of a matrix are computed in chunks of ChunkCols columns. Rows are summed
// in groups of groupLen, and the groups' sums are then added. The order is always the same, and
// in float32 it is more accurate than one long chain.
const (
	ChunkCols = 64 // a multiple of every normISA's columns
	groupLen  = 64
)

// Chunks returns the number of chunks of columns.
func Chunks(cols int) int { return Ceil(cols, ChunkCols) }

// columnSums returns memory for accumulating n sums: sum, cleared, or mem if the functions would
// write more columns than sum has.
func columnSums(mem, sum []float32, columns int) []float32 {
	if len(sum) < columns {
		sum = mem[:columns]
	}
	clear(sum)
	return sum
}

// columnBlock returns elements (row, col) to (row+rows, col+n) of m for a function that processes
// columns columns: in place if direct is set and n equals columns, else converted in mem (rows,
// columns).
func columnBlock(mem []float32, m *device.Mat, row, col, rows, n, columns int, direct bool) (at unsafe.Pointer, ld int, kind device.DType) {
	if direct && n == columns {
		return m.Buf.Slice(row*m.Ld+col, m.Buf.N).Ptr, m.Ld, m.Buf.Type
	}
	for i := range rows {
		from := (row+i)*m.Ld + col
		Load(mem[i*columns:][:n], m.Buf.Slice(from, from+n))
	}
	return unsafe.Pointer(&mem[0]), columns, device.F32
}

// RunSumRows sums chunks [lo, hi) of columns.
func RunSumRows(t *Args, w *Worker, lo, hi int) {
	dy, db, isa := &t.M[0], t.B[0].F32(), &BestVec.normISA
	columns, direct := isa.columns, isa.sumColumns[dy.Buf.Type] != nil
	mem := w.Floats((groupLen + 1) * columns)
	c, c1 := lo*ChunkCols, min(hi*ChunkCols, dy.Cols)
	if direct { // whole rows of a group, in place
		whole := c + (c1-c)/columns*columns
		clear(db[c:whole])
		for r := 0; r < dy.Rows; r += groupLen {
			for at := c; at < whole; at += columns {
				x := dy.Buf.Slice(r*dy.Ld+at, dy.Buf.N)
				isa.sumColumns[x.Type](FloatPtr(db, at), x.Ptr, dy.Ld, min(groupLen, dy.Rows-r))
			}
		}
		c = whole
	}
	for ; c < c1; c += columns {
		n := min(columns, c1-c)
		sum := columnSums(mem, db[c:c+n], columns)
		for r := 0; r < dy.Rows; r += groupLen {
			rows := min(groupLen, dy.Rows-r)
			x, ld, kind := columnBlock(mem[columns:], dy, r, c, rows, n, columns, direct)
			isa.sumColumns[kind](FloatPtr(sum, 0), x, ld, rows)
		}
		copy(db[c:c+n], sum)
	}
}

// addShared adds a worker's partial sum to the shared accumulator.
func addShared(acc device.Buffer, own *device.Exact) {
	own.Carry()
	to := device.ExactAt(acc, 0)
	for i, x := range own {
		if x != 0 {
			atomic.AddInt64(&to[i], x)
		}
	}
}

// blockRange returns the elements of blocks [lo, hi).
func blockRange(x device.Buffer, lo, hi int) []float32 {
	return x.F32()[lo*device.ExactBlock : min(hi*device.ExactBlock, x.N)]
}

// LastBlock returns the incomplete last block of a vector, padded with zeros.
func LastBlock(x []float32) (b [device.ExactBlock]float32) {
	copy(b[:], x)
	return b
}

// RunSum adds blocks [lo, hi) to the exact sum.
func RunSum(t *Args, _ *Worker, lo, hi int) {
	var sum device.Exact
	x := blockRange(t.B[1], lo, hi)
	for ; len(x) >= device.ExactBlock; x = x[device.ExactBlock:] {
		sum.Add(device.BlockSum((*[device.ExactBlock]float32)(x)))
	}
	last := LastBlock(x)
	sum.Add(device.BlockSum(&last))
	addShared(t.B[0], &sum)
}

// SquaresAtOnce is the number of blocks passed to one call of assembly.
const SquaresAtOnce = 128

// squareWindow accumulates most block sums in one call of assembly. It has at least 117 bits in
// units of 2^32^limb of a device.Exact: the value is the sum over its lanes l of [0][l] +
// [1][l]*2^32 + [2][l]*2^64. The caller individually adds sums outside that range, zeros and
// values that are not finite.
type squareWindow [3][8]uint64

// RunSumSquares adds the squares of blocks [lo, hi) to the exact sum.
func RunSumSquares(t *Args, w *Worker, lo, hi int) {
	var sum device.Exact
	window := &w.window
	odd := unsafe.Slice((*float64)(unsafe.Pointer(&w.Floats(2 * SquaresAtOnce)[0])), SquaresAtOnce)
	limb := 0
	x := blockRange(t.B[1], lo, hi)
	for len(x) >= device.ExactBlock {
		n := min(SquaresAtOnce, len(x)/device.ExactBlock)
		left := BestVec.sumSquares(unsafe.Pointer(&odd[0]), FloatPtr(x, 0), n, unsafe.Pointer(window), device.ExactExponent(limb))
		sum.AddLanes(limb, (*[3][8]uint64)(window))
		for _, s := range odd[:left] {
			sum.Add(s)
			if s != 0 {
				limb = device.ExactLimb(s)
			}
		}
		x = x[n*device.ExactBlock:]
	}
	last := LastBlock(x)
	sum.Add(device.BlockSquares(&last))
	addShared(t.B[0], &sum)
}
