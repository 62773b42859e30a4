package cpu

import (
	"sync"
	"unsafe"

	"zeroth/device"
)

// Sums down the columns of a matrix go by strips of stripLen columns. Rows are
// added in groups of groupLen whose sums are then added up: always the same
// order, and more accurate in float32 than one long chain.
const (
	stripLen = 64 // a multiple of every normISA's columns
	groupLen = 64
)

func strips(cols int) int { return ceil(cols, stripLen) }

// strip is the columns [lo, hi) of strip i.
func strip(i, cols int) (lo, hi int) { return i * stripLen, min((i+1)*stripLen, cols) }

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
	q.kernel(t, runSumRows, strips(dy.Cols), rowGrain(dy.Rows*stripLen))
}

func runSumRows(t *task, w *worker, lo, hi int) {
	dy, db, isa := &t.m[0], t.b[0].F32(), &bestVec.normISA
	columns, direct := isa.columns, isa.sumColumns[dy.Buf.Type] != nil
	mem := w.floats((groupLen + 1) * columns)
	for s := lo; s < hi; s++ {
		c0, c1 := strip(s, dy.Cols)
		for c := c0; c < c1; c += columns {
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
}

// Sum adds the sum of x (float32), taken in element order, to dst[0] (float64).
func (q *Queue) Sum(dst, x device.Buffer) {
	wantLen("sum", dst, device.F64, 1)
	wantLen("sum", x, device.F32, x.N)
	t := q.issue("sum")
	t.b[0], t.b[1] = dst, x
	q.kernel(t, runSum, 1, 1)
}

func runSum(t *task, _ *worker, _, _ int) {
	var sum float64
	for _, x := range t.b[1].F32() {
		sum += float64(x)
	}
	t.b[0].F64()[0] += sum
}

// squareBlock is the number of elements whose squares are summed in float64,
// in one order, before the sum goes into an exact accumulator. Shards are
// multiples of it, so the blocks are the same however a vector is sharded.
const squareBlock = 64

// SumSquares adds the sum of the squares of x (float32) to acc, an exact
// accumulator (float64, device.ExactLen elements). The result depends neither
// on workers nor on how x is cut, as long as cuts are at multiples of 64
// elements.
func (q *Queue) SumSquares(acc, x device.Buffer) {
	wantLen("sum of squares", acc, device.F64, device.ExactLen)
	wantLen("sum of squares", x, device.F32, x.N)
	t := q.issue("sum of squares")
	t.b[0], t.b[1] = acc, x
	q.kernel(t, runSumSquares, (x.N+squareBlock-1)/squareBlock, pieceWork/squareBlock)
}

// squaresAtOnce is the number of blocks given to one call of assembly.
const squaresAtOnce = 128

// squareWindow is where one call of assembly adds most sums of blocks: a number
// of 117 bits and more in units of 2^32^limb of an exact accumulator, that is,
// the sum over its lanes of [0][l] + [1][l]*2^32 + [2][l]*2^64. Sums that begin
// outside, 0 and what is not finite are left to the caller, one by one.
type squareWindow [3][8]uint64

// exactMerging is held by the worker that adds its part to an accumulator.
var exactMerging sync.Mutex

func runSumSquares(t *task, w *worker, lo, hi int) {
	var terms device.ExactTerms
	window := &w.window
	odd := unsafe.Slice((*float64)(unsafe.Pointer(&w.floats(2 * squaresAtOnce)[0])), squaresAtOnce)
	limb := 0
	x := t.b[1].F32()
	x = x[lo*squareBlock : min(hi*squareBlock, len(x))]
	for len(x) >= squareBlock {
		n := min(squaresAtOnce, len(x)/squareBlock)
		left := bestVec.sumSquares(unsafe.Pointer(&odd[0]), floatPtr(x, 0), n, unsafe.Pointer(window), device.ExactExponent(limb))
		terms.AddLanes(limb, (*[3][8]uint64)(window))
		for _, s := range odd[:left] {
			terms.Add(s)
			if s != 0 {
				limb = device.ExactLimb(s)
			}
		}
		x = x[n*squareBlock:]
	}
	if len(x) > 0 {
		var last [squareBlock]float32
		copy(last[:], x)
		terms.Add(sumSquares(&last))
	}
	exactMerging.Lock()
	defer exactMerging.Unlock()
	terms.AddTo(t.b[0].F64())
}

// sumSquares adds up squares, each exact in float64, in eight lanes (lane i has
// elements i, i+8, ...) and then the lanes pairwise.
func sumSquares(x *[squareBlock]float32) float64 {
	var s [8]float64
	for i := 0; i < squareBlock; i += 8 {
		for l := range s {
			v := float64(x[i+l])
			s[l] += v * v
		}
	}
	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}
