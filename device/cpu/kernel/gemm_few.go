package kernel

import (
	"unsafe"

	"zeroth/device"
)

// A product with few rows, as in text generation, reads B once with little computation, so memory
// bandwidth is the limit, and packing B would take longer than the product. Here a worker goes
// through its columns of B in place, some words of k at a time or, without a routine for that,
// packs that many into its nearest cache. Sums stay in memory. An element of C is the same chain of
// multiply-adds as with tiles, broken at the same blocks of k, so its bits are the same.

const (
	FewRows  = 8       // maximum rows of A and C
	FewWhole = 1 << 18 // elements of B below which a single worker computes the product

	fewSpan  = 256 // columns of B processed at a time
	fewAdded = 4   // words of their rows at a time: the number of streams from memory
	fewDepth = 128 // words of k at a time when packing a panel of a transposed B

	dotsLanes = 32 // columns of a dotsFunc
	dotsWords = 16 // words of k that it processes at a time
)

// Few reports whether the product is computed by RunFew.
func (g *Gemm) Few() bool {
	there := g.ISA.chain != nil && (g.ISA.pair == 1 || g.dots() || !g.B.Trans && g.N%g.ISA.nr == 0)
	return there && g.M <= FewRows && g.K > 0 && g.K%g.ISA.pair == 0 && !g.A.Trans
}

// native reports whether x is stored in the instruction set's words.
func (g *Gemm) native(x device.Mat) bool {
	return g.ISA.pair == 2 || x.Buf.Type == device.F32
}

// dots reports whether the product uses a dotsFunc.
func (g *Gemm) dots() bool {
	return g.B.Trans && g.ISA.dots != nil && g.native(g.B) && g.N >= dotsLanes
}

// FewPieces returns the number of pieces of work, which are ranges of columns.
func (g *Gemm) FewPieces() int {
	if g.Workers == 1 {
		return 1
	}
	return min(2*g.Workers, Ceil(g.N, g.ISA.nr))
}

// fewColumn returns the first column of a piece.
func (g *Gemm) fewColumn(piece int) int {
	return min(g.N, piece*Ceil(g.N, g.ISA.nr)/g.FewPieces()*g.ISA.nr)
}

// RunFew computes pieces [lo, hi) of the columns.
func RunFew(t *Args, w *Worker, lo, hi int) {
	g := t.Gemm // a copy, with its own block of k
	g.few(w, lo, hi)
}

func (g *Gemm) few(w *Worker, lo, hi int) {
	step := fewSpan
	if g.B.Trans {
		step = g.ISA.nr
	}
	for j, end := g.fewColumn(lo), g.fewColumn(hi); j < end; j += step {
		g.fewColumns(w, j, min(end, j+step))
	}
}

// fewMem is a worker's memory for columns [j0, j1), in words.
type fewMem struct {
	j0, j1 int
	first  int       // first column of the sums: less than j0 at the end of a transposed B, whose last 32 columns are computed together
	lanes  int       // columns of sums, in whole panels
	depth  int       // words of k at a time
	sums   []float32 // (M, lanes): sums of a block of k
	total  []float32 // (M, lanes): sums of previous blocks, if C is not float32
	old    []float32 // (lanes): a row of C if C is not float32, or the bias
	a      []float32 // (M, depth): rows of A, if they cannot be read in place
	b      []float32 // panels of B (depth, nr), if they are packed
	wide   []float32 // (nr, depth): rows of B, if they are widened first
	args   *callArgs
}

// fewMemory returns the memory for columns [j0, j1).
func (g *Gemm) fewMemory(w *Worker, j0, j1 int) fewMem {
	nr := g.ISA.nr
	m := fewMem{j0: j0, j1: j1, first: j0, lanes: Ceil(j1-j0, nr) * nr, depth: fewAdded, args: &w.args}
	b, wide := m.depth*m.lanes+Edge, 0
	switch {
	case g.dots():
		m.first, m.depth, b = min(j0, g.N-dotsLanes), Ceil(g.kc/g.ISA.pair, dotsWords)*dotsWords, 0
	case g.B.Trans:
		m.depth = min(fewDepth, g.K/g.ISA.pair)
		b, wide = m.depth*m.lanes+Edge, nr*m.depth
	}
	free := w.Floats((2*g.M+1)*m.lanes + g.M*m.depth + b + wide)
	for _, x := range []struct {
		at *[]float32
		n  int
	}{{&m.sums, g.M * m.lanes}, {&m.total, g.M * m.lanes}, {&m.old, m.lanes}, {&m.a, g.M * m.depth}, {&m.b, b}, {&m.wide, wide}} {
		*x.at = take(&free, x.n)
	}
	return m
}

// fewColumns computes columns [j0, j1).
func (g *Gemm) fewColumns(w *Worker, j0, j1 int) {
	mem := g.fewMemory(w, j0, j1)
	for from := 0; from < g.K; from += g.kc {
		to := min(g.K, from+g.kc)
		clear(mem.sums)
		for g.p0 = from; g.p0 < to; g.p0 = g.p1 {
			g.p1 = min(to, g.p0+mem.depth*g.ISA.pair)
			if g.dots() {
				g.fewDots(&mem)
			} else {
				g.fewChain(&mem)
			}
		}
		for i := range g.M {
			g.fewTotal(&mem, i, from == 0, to == g.K)
		}
	}
}

// fewChain adds the block of k to the sums, with a chainFunc.
func (g *Gemm) fewChain(mem *fewMem) {
	nr, t := g.ISA.nr, &mem.args.chain
	if !g.B.Trans && g.native(g.B) && mem.j1-mem.j0 == mem.lanes {
		t.B, t.Ldb, t.Panel = g.B.Buf.Slice(g.p0*g.B.Ld+mem.j0, g.B.Buf.N).Ptr, g.B.Ld, nr/g.ISA.pair
	} else {
		t.B, t.Ldb, t.Panel = unsafe.Pointer(&mem.b[0]), nr, mem.depth*nr
		g.pack(GemmScratch{wide: mem.wide}, &g.ISA.b, mem.b, nr, t.Panel, g.B, !g.B.Trans, mem.j0, mem.j1-mem.j0)
	}
	t.K, t.N = (g.p1-g.p0)/g.ISA.pair, mem.lanes
	a, lda := g.fewA(mem, 0)
	for i := 0; i < g.M; i += len(t.A) {
		for r := range t.A {
			row := min(i+r, g.M-1)
			t.A[r], t.Y[r] = unsafe.Add(a, row*lda), unsafe.Pointer(&mem.sums[row*mem.lanes])
		}
		g.ISA.chain(t)
	}
}

// fewDots adds the block of k to the sums with a dotsFunc, which processes 16 words at a time. A
// shorter first group is padded in front with zeros, which do not change a sum that begins with
// 0.
func (g *Gemm) fewDots(mem *fewMem) {
	words := (g.p1 - g.p0) / g.ISA.pair
	zeros := Ceil(words, dotsWords)*dotsWords - words
	t, b := &mem.args.dots, g.B.Buf.Slice(mem.first*g.B.Ld+g.p0, g.B.Buf.N)
	t.Y, t.Ldy, t.M = unsafe.Pointer(&mem.sums[0]), 4*mem.lanes, g.M
	t.A, t.Lda = g.fewA(mem, zeros)
	t.B, t.Ldb = b.Ptr, g.B.Ld*b.Type.Size()
	t.Next = dotsLanes*t.Ldb + (dotsLanes-1)*4*g.p0/g.ISA.pair
	t.K, t.Missing = words+zeros, zeros
	if zeros > 0 {
		t.K = dotsWords
		g.ISA.dots(t)
		t.A, t.B = unsafe.Add(t.A, 4*dotsWords), unsafe.Add(t.B, 4*(dotsWords-zeros))
		t.K, t.Missing = words+zeros-dotsWords, 0
	}
	if t.K > 0 {
		g.ISA.dots(t)
	}
}

// fewA returns the block of k of A's rows, preceded by zeros zero words, and the row stride in
// bytes.
func (g *Gemm) fewA(mem *fewMem, zeros int) (a unsafe.Pointer, lda int) {
	from := g.A.Buf.Slice(g.p0, g.A.Buf.N)
	if zeros == 0 && g.native(g.A) {
		return from.Ptr, g.A.Ld * from.Type.Size()
	}
	k := g.p1 - g.p0
	for i := range g.M {
		to, row := mem.a[i*mem.depth:][:mem.depth], from.Slice(i*g.A.Ld, i*g.A.Ld+k)
		clear(to[:zeros])
		if g.native(g.A) {
			copy(raw(RawBuffer(row.Type, unsafe.Pointer(&to[zeros]), k)), raw(row))
		} else {
			Load(to[zeros:][:k], row)
		}
	}
	return unsafe.Pointer(&mem.a[0]), 4 * mem.depth
}

// fewTotal adds the sums of a block of k to row i of C, as prepareTile and finish do for tiles. If C is
// not float32, it accumulates in mem.total.
func (g *Gemm) fewTotal(mem *fewMem, i int, first, last bool) {
	j0, j1 := mem.j0, mem.j1
	row, sums := g.C.Buf.Slice(i*g.C.Ld+j0, i*g.C.Ld+j1), mem.sums[i*mem.lanes+j0-mem.first:]
	c, old := mem.total[i*mem.lanes:][:j1-j0], mem.old[:j1-j0]
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
			c[j] = 0 + sums[j] // like tiles: -0 becomes 0
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
