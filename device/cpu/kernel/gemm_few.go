package kernel

import (
	"unsafe"

	"zeroth/device"
)

// A product of few rows, such as a model that generates has, reads B once and
// does little with it, so the memory's rate is the limit, and packing B into
// memory would take longer than the product. Here a worker goes through its
// columns of B where they lie, some rows of k at a time; rows of a transposed B
// are transposed into its nearest cache, and bf16 is widened into it. An element of
// C is the chain of multiply-adds that it is by panels, broken at the same blocks of
// k: its bits are the same.

const (
	FewRows  = 4       // of A and C at most
	FewWhole = 1 << 18 // elements of B below which waking a worker does not pay

	fewSpan  = 1024 // columns of B gone through at a time
	fewAdded = 8    // rows of B that are added at a time: so many streams from memory
	fewLanes = 32   // columns of a transposed B at a time
	fewDepth = 128  // of k that are transposed at a time
)

// Few is whether the product is computed so.
func (g *Gemm) Few() bool {
	for _, t := range [...]device.DType{g.C.Buf.Type, g.A.Buf.Type, g.B.Buf.Type, g.Bias.Type} {
		if t != device.F32 && t != device.BF16 {
			return false
		}
	}
	straight := g.B.Trans && g.ISA.b.trans[g.B.Buf.Type] != nil || !g.B.Trans && g.N%fewLanes == 0
	return g.ISA.chain != nil && g.ISA.pair == 1 && g.M <= FewRows && g.K > 0 && !g.A.Trans && straight
}

// FewPieces is the pieces of work, of columns.
func (g *Gemm) FewPieces() int {
	if g.Workers == 1 {
		return 1
	}
	return min(2*g.Workers, Ceil(g.N, fewLanes))
}

// fewColumn is the first column of a piece.
func (g *Gemm) fewColumn(piece int) int {
	return min(g.N, piece*Ceil(g.N, fewLanes)/g.FewPieces()*fewLanes)
}

// RunFew computes pieces [lo, hi) of the columns.
func RunFew(t *Args, w *Worker, lo, hi int) {
	g := &t.Gemm
	step := fewSpan
	if g.B.Trans {
		step = fewLanes
	}
	for j, end := g.fewColumn(lo), g.fewColumn(hi); j < end; j += step {
		g.fewSpan(w, j, min(end, j+step))
	}
}

// fewMem is a worker's memory for a span of columns, all float32.
type fewMem struct {
	sums  []float32 // (M, lanes): of a block of k
	total []float32 // (M, lanes): of those before, where C is not float32
	old   []float32 // (lanes): a row of such a C, or the bias
	a     []float32 // (M, depth): rows of A, where they are widened
	b     []float32 // (depth, lanes): rows of B, where they are widened or transposed
}

// fewSpan computes columns [j0, j1).
func (g *Gemm) fewSpan(w *Worker, j0, j1 int) {
	lanes, depth := Ceil(j1-j0, fewLanes)*fewLanes, fewAdded
	if g.B.Trans {
		depth = fewDepth
	}
	depth = min(depth, g.K)
	free := w.Floats((2*g.M+1)*lanes + g.M*depth + depth*lanes + 5*Edge)
	mem := fewMem{take(&free, g.M*lanes), take(&free, g.M*lanes), take(&free, lanes), take(&free, g.M*depth), take(&free, depth*lanes)}
	for p0 := 0; p0 < g.K; p0 += g.kc {
		p1 := min(g.K, p0+g.kc)
		clear(mem.sums)
		for p := p0; p < p1; p += depth {
			g.fewRows(&mem, lanes, j0, j1, p, min(p1, p+depth))
		}
		for i := range g.M {
			g.fewTotal(&mem, i, lanes, j0, j1, p0 == 0, p1 == g.K)
		}
	}
}

// fewRows adds rows [p0, p1) of B to the sums of columns [j0, j1).
func (g *Gemm) fewRows(mem *fewMem, lanes, j0, j1, p0, p1 int) {
	var b unsafe.Pointer
	ldb, k := g.B.Ld, p1-p0
	switch {
	case g.B.Trans:
		how := &g.ISA.b
		for j := j0; j < j1; j += how.transLanes {
			src := g.B.Buf.Slice(j*g.B.Ld+p0, g.B.Buf.N).Ptr
			how.trans[g.B.Buf.Type](unsafe.Pointer(&mem.b[j-j0]), src, g.B.Ld, k, min(how.transLanes, j1-j), lanes)
		}
		b, ldb = unsafe.Pointer(&mem.b[0]), lanes
	case g.B.Buf.Type == device.F32:
		b = g.B.Buf.Slice(p0*g.B.Ld+j0, g.B.Buf.N).Ptr
	default:
		b, ldb = unsafe.Pointer(&mem.b[0]), lanes
		for p := range k {
			Load(mem.b[p*lanes:][:j1-j0], g.B.Buf.Slice((p0+p)*g.B.Ld+j0, (p0+p)*g.B.Ld+j1))
		}
	}
	for i := range g.M {
		from := g.A.Buf.Slice(i*g.A.Ld+p0, i*g.A.Ld+p1)
		a := from.Ptr
		if from.Type != device.F32 {
			a = unsafe.Pointer(&mem.a[i*k])
			Load(mem.a[i*k:][:k], from)
		}
		g.ISA.chain(unsafe.Pointer(&mem.sums[i*lanes]), a, b, ldb, k, lanes)
	}
}

// fewTotal adds the sums of a block of k to columns [j0, j1) of row i of C, as place
// and finish do for tiles: of a C that is not float32 by way of the total.
func (g *Gemm) fewTotal(mem *fewMem, i, lanes, j0, j1 int, first, last bool) {
	row, sums := g.C.Buf.Slice(i*g.C.Ld+j0, i*g.C.Ld+j1), mem.sums[i*lanes:]
	c, old := mem.total[i*lanes:][:j1-j0], mem.old[:j1-j0]
	if g.direct() {
		c = row.F32()
	}
	var bias []float32
	if g.Bias.N != 0 {
		bias = old
		Load(bias, g.Bias.Slice(j0, j1))
	}
	switch {
	case !first || g.add && g.direct():
		addAll(c, sums[:len(c)])
	case bias != nil:
		for j := range c {
			c[j] = bias[j] + sums[j]
		}
	default:
		for j := range c {
			c[j] = 0 + sums[j] // as tiles do: -0 becomes 0
		}
	}
	switch {
	case !last:
	case g.direct():
		if g.add && bias != nil {
			addAll(c, bias)
		}
	default:
		if g.add {
			Load(old, row)
			addAll(c, old)
		}
		Store(row, c)
	}
}

func addAll(x, y []float32) {
	for j, v := range y {
		x[j] += v
	}
}
