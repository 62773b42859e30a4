package cpu

import (
	"fmt"
	"unsafe"

	"zeroth/device"
)

// Matrix multiplication after Goto and van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication" (2008), and BLIS.
//
// Letters: C (m, n) = A (m, k) · B (k, n). B is cut into blocks of at most
// kcMax by ncMax elements. The workers first pack a block into panels of nr
// columns that they share (in the device's memory); then each takes row blocks
// of A, packs them into panels of mr rows of its own and multiplies panel by
// panel: a tile of mr by nr sums stays in registers while the inner loop runs
// down k.
//
// One element of C is one chain of multiply-adds in the order of k, broken
// only at the borders of k blocks, which depend on k alone. So its bits
// depend neither on the number of workers nor on the other rows and columns.
// Sums are float32; a C of another type is rounded once, at the end.

const (
	kcMax    = 512     // k of a block
	ncMax    = 3072    // columns of a block
	mcMax    = 224     // rows of a block of A
	subMax   = 256     // columns that are rounded at a time when C is not float32
	stripMax = 2 << 20 // elements of the float32 strip behind such a C
	edge     = 16      // floats a packing routine may write past its panel
)

// MatMul sets c = a·b, plus bias in every row if bias is not empty, plus the
// old c if add is set. Every operand may be of any float type; c is not
// transposed and shares no memory with the others.
func (q *Queue) MatMul(c, a, b device.Mat, bias device.Buffer, add bool) {
	g := newGemm(c, a, b, bias, add)
	if g.m == 0 || g.n == 0 {
		return
	}
	t := q.issue("matmul")
	t.gemm, t.phases = g, runGemm
	q.commit()
}

// runGemm computes the blocks one after the other, each in two phases: the
// workers pack it, and when all of it is packed they multiply.
func runGemm(t *task, q *Queue) {
	g, mem := &t.gemm, q.products
	mem.mu.Lock()
	defer mem.mu.Unlock()
	mem.need(g)
	g.workers = len(q.crew.helpers) + 1
	if g.m*g.n*g.k <= wholeMax {
		g.workers = 1
	}
	for more := g.begin(); more; more = g.next() {
		q.phase(t, runPack, g.columnPanels(), 2, g.workers)
		rows, cols := g.pieces()
		q.phase(t, runTiles, rows*cols, 1, g.workers)
	}
}

// wholeMax is the number of multiply-adds below which waking a worker does not pay.
const wholeMax = 1 << 20

// gemm is one product and the block of it that is being computed.
type gemm struct {
	isa     *isa
	c, a, b device.Mat
	bias    device.Buffer
	add     bool
	m, n, k int
	workers int

	j0, j1 int // columns of C and B
	i0, i1 int // rows of C and A; all of them unless C needs a strip
	p0, p1 int // the k block

	packed []float32 // panels of the block of B
	strip  []float32 // rows i0..i1 by columns j0..j1 in float32, if C is of another type and k has several blocks
}

func newGemm(c, a, b device.Mat, bias device.Buffer, add bool) gemm {
	m, k := a.Dims()
	kb, n := b.Dims()
	if cm, cn := c.Dims(); c.Trans || k != kb || cm != m || cn != n {
		panic(fmt.Sprintf("cpu: matmul of (%d, %d) = (%d, %d) by (%d, %d), result transposed: %v", cm, cn, m, k, kb, n, c.Trans))
	}
	if bias.N != 0 && bias.N != n {
		panic(fmt.Sprintf("cpu: matmul with a bias of %d elements for %d columns", bias.N, n))
	}
	for _, x := range [...]device.Mat{c, a, b} {
		mustFloat("matmul", x.Buf.Type)
		if x.Rows*x.Cols != 0 && (x.Ld < x.Cols || (x.Rows-1)*x.Ld+x.Cols > x.Buf.N) {
			panic(fmt.Sprintf("cpu: matmul of a matrix (%d, %d) with rows %d apart in %d elements", x.Rows, x.Cols, x.Ld, x.Buf.N))
		}
	}
	best := bestISA
	if bestBF16 != nil && a.Buf.Type == device.BF16 && b.Buf.Type == device.BF16 {
		best = bestBF16
	}
	return gemm{isa: best, c: c, a: a, b: b, bias: bias, add: add, m: m, n: n, k: k}
}

// cut is the length of the pieces, a multiple of unit, that cut n into as few
// equal pieces of at most most elements as possible.
func cut(n, most, unit int) int {
	pieces := max(1, ceil(n, most))
	return max(unit, ceil(ceil(n, pieces), unit)*unit)
}

func ceil(a, b int) int { return (a + b - 1) / b }

func (g *gemm) kc() int { return cut(g.k, kcMax, 8) }
func (g *gemm) nc() int { return cut(g.n, ncMax, g.isa.nr) }

// direct is whether tiles are written to C itself.
func (g *gemm) direct() bool { return g.c.Buf.Type == device.F32 }

// stripRows is the number of rows computed before going on to the next columns.
func (g *gemm) stripRows() int {
	if g.direct() || g.k <= g.kc() {
		return g.m
	}
	return max(mcMax, stripMax/g.nc())
}

// begin sets the first block. The blocks of k come innermost.
func (g *gemm) begin() bool {
	g.j0, g.i0, g.p0 = 0, 0, 0
	g.ends()
	return true
}

func (g *gemm) ends() {
	g.j1 = min(g.n, g.j0+g.nc())
	g.i1 = min(g.m, g.i0+g.stripRows())
	g.p1 = min(g.k, g.p0+g.kc())
}

// next goes on to the next block and reports whether there is one.
func (g *gemm) next() bool {
	if g.p0 = g.p1; g.p0 >= g.k {
		g.p0 = 0
		if g.i0 = g.i1; g.i0 >= g.m {
			g.i0 = 0
			if g.j0 = g.j1; g.j0 >= g.n {
				return false
			}
		}
	}
	g.ends()
	return true
}

func (g *gemm) first() bool { return g.p0 == 0 }
func (g *gemm) last() bool  { return g.p1 == g.k }

// columnPanels is the number of panels of nr columns in the block.
func (g *gemm) columnPanels() int { return ceil(g.j1-g.j0, g.isa.nr) }

// rowPanels is the number of panels of at most mr rows in the block; they
// share the rows evenly.
func (g *gemm) rowPanels() int { return ceil(g.i1-g.i0, g.isa.mr) }

// panelRow is the first row of panel p.
func (g *gemm) panelRow(p int) int { return g.i0 + p*(g.i1-g.i0)/g.rowPanels() }

// pieces is the number of row blocks and column groups that workers take; it
// never changes what is computed.
func (g *gemm) pieces() (rows, cols int) {
	rows = ceil(g.rowPanels(), mcMax/g.isa.mr)
	if g.workers == 1 {
		return rows, 1
	}
	rows = max(rows, min(g.rowPanels()/4, 4*g.workers))
	return rows, max(1, min(ceil(4*g.workers, rows), g.columnPanels()/4))
}

// panelLen is the length of a packed panel of B: a row of bias and rows of words.
func (g *gemm) panelLen() int { return (1 + g.words()) * g.isa.nr }

func runPack(t *task, w *worker, lo, hi int)  { t.gemm.packB(w, lo, hi) }
func runTiles(t *task, w *worker, lo, hi int) { t.gemm.tiles(w, lo, hi) }

// tiles computes pieces [lo, hi) of the block: piece r*cols+c is row block r
// by column group c.
func (g *gemm) tiles(w *worker, lo, hi int) {
	rows, cols := g.pieces()
	p, s := g.rowPanels(), g.columnPanels()
	packed := -1
	for piece := lo; piece < hi; piece++ {
		r, c := piece/cols, piece%cols
		from, to := r*p/rows, (r+1)*p/rows
		if packed != r {
			g.packA(w, from, to)
			packed = r
		}
		g.piece(w, from, to, c*s/cols, (c+1)*s/cols)
	}
}

// piece computes row panels [p0, p1), which are packed, by column panels [s0, s1).
func (g *gemm) piece(w *worker, p0, p1, s0, s1 int) {
	step := max(1, subMax/g.isa.nr)
	for s := s0; s < s1; s += step {
		end := min(s+step, s1)
		acc := g.accumulator(w, p0, s)
		if !g.direct() && g.first() && g.add {
			g.eachRow(p0, p1, s, end, acc, func(acc []float32, c device.Buffer) { load(acc, c) })
		}
		for j := s; j < end; j++ {
			for p := p0; p < p1; p++ {
				g.tile(w, acc, p0, p, j)
			}
		}
		if g.last() && g.add && g.bias.N != 0 {
			g.addBias(p0, p1, s, end, acc)
		}
		if !g.direct() && g.last() {
			g.eachRow(p0, p1, s, end, acc, func(acc []float32, c device.Buffer) { store(c, acc) })
		}
	}
}

// sums is where tiles are summed: element (i, j) of C is at p[(i-i0)*ld + j-j0].
type sums struct {
	p      unsafe.Pointer
	ld     int
	i0, j0 int
}

func (s sums) at(i, j int) unsafe.Pointer { return unsafe.Add(s.p, ((i-s.i0)*s.ld+j-s.j0)*4) }

// accumulator is C itself, or the device's strip, or memory of the worker when
// row panel p0 and the next are finished at once.
func (g *gemm) accumulator(w *worker, p0, s int) sums {
	switch {
	case g.direct():
		return sums{g.c.Buf.Ptr, g.c.Ld, 0, 0}
	case g.first() && g.last():
		return sums{unsafe.Pointer(&g.memory(w).sums[0]), subMax, g.panelRow(p0), g.j0 + s*g.isa.nr}
	}
	return sums{unsafe.Pointer(&g.strip[0]), g.nc(), g.i0, g.j0}
}

// tile computes one tile, row panel p by column panel s; p0 is the first packed.
func (g *gemm) tile(w *worker, acc sums, p0, p, s int) {
	i, j := g.panelRow(p), g.j0+s*g.isa.nr
	rows, cols, k := g.panelRow(p+1)-i, min(g.isa.nr, g.j1-j), g.wordsOf(g.p1-g.p0)
	mem := g.memory(w)
	a := unsafe.Pointer(&mem.a[(p-p0)*g.words()*g.isa.mr])
	panel := g.packed[s*g.panelLen():]
	b := unsafe.Pointer(&panel[g.isa.nr])
	c := acc.at(i, j)
	base, ld := unsafe.Pointer(&panel[0]), 0
	if g.add || !g.first() {
		base, ld = c, acc.ld
	}
	if !g.isa.whole || rows == g.isa.mr && cols == g.isa.nr {
		g.isa.tile[rows](k, a, b, base, ld, c, acc.ld, cols)
		return
	}
	all, nr := unsafe.Pointer(&mem.edge[0]), g.isa.nr
	copyRows(all, nr, base, ld, rows, cols)
	g.isa.tile[g.isa.mr](k, a, b, all, nr, all, nr, nr)
	copyRows(c, acc.ld, all, nr, rows, cols)
}

// copyRows copies a matrix of floats; ldd and lds are from one row to the next.
func copyRows(dst unsafe.Pointer, ldd int, src unsafe.Pointer, lds int, rows, cols int) {
	d := unsafe.Slice((*float32)(dst), (rows-1)*ldd+cols)
	s := unsafe.Slice((*float32)(src), (rows-1)*lds+cols)
	for i := range rows {
		copy(d[i*ldd:][:cols], s[i*lds:])
	}
}

// eachRow calls f for the rows of row panels [p0, p1), cut to column panels [s0, s1).
func (g *gemm) eachRow(p0, p1, s0, s1 int, acc sums, f func(acc []float32, c device.Buffer)) {
	j0, j1 := g.j0+s0*g.isa.nr, min(g.j1, g.j0+s1*g.isa.nr)
	for i := g.panelRow(p0); i < g.panelRow(p1); i++ {
		f(unsafe.Slice((*float32)(acc.at(i, j0)), j1-j0), g.c.Buf.Slice(i*g.c.Ld+j0, i*g.c.Ld+j1))
	}
}

// addBias is for the rare product that adds to the old C and has a bias.
func (g *gemm) addBias(p0, p1, s0, s1 int, acc sums) {
	for s := s0; s < s1; s++ {
		bias := g.packed[s*g.panelLen():][:g.isa.nr]
		g.eachRow(p0, p1, s, s+1, acc, func(acc []float32, _ device.Buffer) {
			for j := range acc {
				acc[j] += bias[j]
			}
		})
	}
}
