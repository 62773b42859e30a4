package cpu

import (
	"sync/atomic"
	"unsafe"

	"zeroth/device"
)

// Sums down the columns of a matrix go by chunks of chunkCols columns. Rows are
// added in groups of groupLen whose sums are then added up: always the same
// order, and more accurate in float32 than one long chain.
const (
	chunkCols = 64 // a multiple of every normISA's columns
	groupLen  = 64
)

func chunks(cols int) int { return ceil(cols, chunkCols) }

// columnSums is where n sums are added up: sum itself, cleared, or mem if
// functions would write more columns than it has.
func columnSums(mem, sum []float32, columns int) []float32 {
	if len(sum) < columns {
		sum = mem[:columns]
	}
	clear(sum)
	return sum
}

// columnBlock is elements (row, col) to (row+rows, col+n) of m for a function
// over columns columns: in place if direct is set and n is columns, else
// converted into mem (rows, columns).
func columnBlock(mem []float32, m *device.Mat, row, col, rows, n, columns int, direct bool) (at unsafe.Pointer, ld int, kind device.DType) {
	if direct && n == columns {
		return m.Buf.Slice(row*m.Ld+col, m.Buf.N).Ptr, m.Ld, m.Buf.Type
	}
	for i := range rows {
		from := (row+i)*m.Ld + col
		load(mem[i*columns:][:n], m.Buf.Slice(from, from+n))
	}
	return unsafe.Pointer(&mem[0]), columns, device.F32
}

// SumRows sets db[j] (float32) to the sum over i of dy[i][j].
func (q *Queue) SumRows(db device.Buffer, dy device.Mat) {
	wantMat("sum of rows", dy, dy.Rows, dy.Cols)
	wantLen("sum of rows", db, device.F32, dy.Cols)
	t := q.issue("sum of rows")
	t.b[0], t.m[0] = db, dy
	q.kernel(t, runSumRows, chunks(dy.Cols), rowGrain(dy.Rows*chunkCols))
}

func runSumRows(t *args, w *worker, lo, hi int) {
	dy, db, isa := &t.m[0], t.b[0].F32(), &bestVec.normISA
	columns, direct := isa.columns, isa.sumColumns[dy.Buf.Type] != nil
	mem := w.floats((groupLen + 1) * columns)
	c, c1 := lo*chunkCols, min(hi*chunkCols, dy.Cols)
	if direct { // whole rows of a group, as they lie in memory
		whole := c + (c1-c)/columns*columns
		clear(db[c:whole])
		for r := 0; r < dy.Rows; r += groupLen {
			for at := c; at < whole; at += columns {
				x := dy.Buf.Slice(r*dy.Ld+at, dy.Buf.N)
				isa.sumColumns[x.Type](floatPtr(db, at), x.Ptr, dy.Ld, min(groupLen, dy.Rows-r))
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
			isa.sumColumns[kind](floatPtr(sum, 0), x, ld, rows)
		}
		copy(db[c:c+n], sum)
	}
}

// Sum adds the sum of x (float32) to acc, a device.Exact, by the order in which
// device sums blocks.
func (q *Queue) Sum(acc, x device.Buffer) {
	q.exact("sum", runSum, acc, x)
}

// SumSquares adds the sum of the squares of x (float32) to acc, a device.Exact,
// by the order in which device sums blocks.
func (q *Queue) SumSquares(acc, x device.Buffer) {
	q.exact("sum of squares", runSumSquares, acc, x)
}

// exact issues a sum whose pieces are the blocks of x. It depends neither on
// workers nor on how x is cut, as long as cuts are between blocks.
func (q *Queue) exact(name string, run runFunc, acc, x device.Buffer) {
	wantLen(name, acc, device.I64, device.ExactLen)
	wantLen(name, x, device.F32, x.N)
	t := q.issue(name)
	t.b[0], t.b[1] = acc, x
	q.kernel(t, run, ceil(x.N, device.ExactBlock), pieceWork/device.ExactBlock)
}

// addShared adds a worker's part of a sum to the accumulator it shares with others.
func addShared(acc device.Buffer, own *device.Exact) {
	own.Carry()
	to := device.ExactAt(acc, 0)
	for i, x := range own {
		if x != 0 {
			atomic.AddInt64(&to[i], x)
		}
	}
}

// blockRange is the elements of blocks [lo, hi).
func blockRange(x device.Buffer, lo, hi int) []float32 {
	return x.F32()[lo*device.ExactBlock : min(hi*device.ExactBlock, x.N)]
}

// lastBlock is what is left of a vector, filled up with zeros.
func lastBlock(x []float32) (b [device.ExactBlock]float32) {
	copy(b[:], x)
	return b
}

func runSum(t *args, _ *worker, lo, hi int) {
	var sum device.Exact
	x := blockRange(t.b[1], lo, hi)
	for ; len(x) >= device.ExactBlock; x = x[device.ExactBlock:] {
		sum.Add(device.BlockSum((*[device.ExactBlock]float32)(x)))
	}
	last := lastBlock(x)
	sum.Add(device.BlockSum(&last))
	addShared(t.b[0], &sum)
}

// squaresAtOnce is the number of blocks given to one call of assembly.
const squaresAtOnce = 128

// squareWindow is where one call of assembly adds most sums of blocks: a number
// of 117 bits and more in units of 2^32^limb of a device.Exact, that is, the sum
// over its lanes of [0][l] + [1][l]*2^32 + [2][l]*2^64. Sums that begin outside,
// 0 and what is not finite are left to the caller, one by one.
type squareWindow [3][8]uint64

func runSumSquares(t *args, w *worker, lo, hi int) {
	var sum device.Exact
	window := &w.window
	odd := unsafe.Slice((*float64)(unsafe.Pointer(&w.floats(2 * squaresAtOnce)[0])), squaresAtOnce)
	limb := 0
	x := blockRange(t.b[1], lo, hi)
	for len(x) >= device.ExactBlock {
		n := min(squaresAtOnce, len(x)/device.ExactBlock)
		left := bestVec.sumSquares(unsafe.Pointer(&odd[0]), floatPtr(x, 0), n, unsafe.Pointer(window), device.ExactExponent(limb))
		sum.AddLanes(limb, (*[3][8]uint64)(window))
		for _, s := range odd[:left] {
			sum.Add(s)
			if s != 0 {
				limb = device.ExactLimb(s)
			}
		}
		x = x[n*device.ExactBlock:]
	}
	last := lastBlock(x)
	sum.Add(device.BlockSquares(&last))
	addShared(t.b[0], &sum)
}
