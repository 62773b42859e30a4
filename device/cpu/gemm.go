package cpu

import (
	"fmt"
	"unsafe"

	"zeroth/device"
)

// Matrix multiplication after Goto and van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication" (2008), and BLIS, with the roles of
// the operands exchanged.
//
// Letters: C (m, n) = A (m, k) · B (k, n). k is cut into blocks. For each the
// workers first pack A into panels of mr rows that they share (in the device's
// memory); AMX reads rows of A where they lie instead, if they lie whole and one
// after the other. Then each takes groups of columns of B, packs them into panels
// of nr columns of its own, which stay in its cache, and multiplies panel by
// panel: a tile of mr by nr sums stays in registers while the inner loop runs
// down k. So what is packed of B, mostly weights, never leaves the cache of who
// packed it, C is written a few rows at a time, and workers wait for each other
// only between blocks of k.
//
// One element of C is one chain of multiply-adds in the order of k, broken
// only at the borders of k blocks, which depend on k alone. So its bits
// depend neither on the number of workers nor on the other rows and columns.
// Sums are float32; a C of another type is rounded once, at the end.

const (
	kcF32    = 512     // k of a block of float32
	kcBF16   = 4096    // of bf16 by AMX, at most
	ncMax    = 3072    // columns of a block if C is not float32 and k has several blocks
	groupMax = 256     // columns a worker packs at a time
	groupAll = 1 << 18 // words of them
	aMax     = 3 << 19 // words of the packed block of A
	accMax   = 2 << 20 // elements of the float32 sums behind such a C
	edge     = 16      // words a packing routine may write past its panel
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

// runGemm computes the blocks one after the other. A block of A that has to be
// packed is a phase of its own: when all of it is packed the workers multiply.
func runGemm(t *task, q *Queue) {
	g, mem := &t.gemm, q.products
	mem.mu.Lock()
	defer mem.mu.Unlock()
	mem.need(g)
	g.workers = len(q.pool.workers) + 1
	if g.m*g.n*g.k <= wholeMax {
		g.workers = 1
	}
	g.ends()
	for more := true; more; more = g.next() {
		if !g.inPlace {
			q.phase(t, runPack, g.panels, 1, g.workers)
		}
		mem.blocks++
		g.block = mem.blocks
		q.phase(t, runTiles, g.groups*g.splits, 1, g.workers)
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
	inPlace bool // rows of A are read where they lie, not packed
	kc      int  // elements of k in a block, but the last
	words   int  // length of a packed lane of such a block

	j0, j1 int // columns of C and B; all of them unless C needs an accumulator
	i0, i1 int // rows of C and A
	p0, p1 int // the k block
	panels int // of rows

	groups, splits int    // pieces of work: groups of columns by parts of the rows
	block          uint64 // its number among the device's

	packed []float32 // panels of the block of A
	acc    []float32 // rows i0..i1 by columns j0..j1 in float32, if C is of another type and k has several blocks
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
	g := gemm{isa: best, c: c, a: a, b: b, bias: bias, add: add, m: m, n: n, k: k}
	unit := best.pair * best.unit
	g.kc = cut(k, best.kc, max(8, unit))
	g.words = g.wordsOf(g.kc)
	g.inPlace = best.row != nil && !a.Trans && k > 0 && k%unit == 0 && m%best.mr == 0
	return g
}

// cut is the length of the pieces, a multiple of unit, that cut n into as few
// equal pieces of at most most elements as possible.
func cut(n, most, unit int) int {
	pieces := max(1, ceil(n, most))
	return max(unit, ceil(ceil(n, pieces), unit)*unit)
}

func ceil(a, b int) int { return (a + b - 1) / b }

// nc is the number of columns computed before going on to the next rows.
func (g *gemm) nc() int {
	if g.accumulates() {
		return cut(g.n, ncMax, g.isa.nr)
	}
	return g.n
}

// direct is whether tiles are written to C itself.
func (g *gemm) direct() bool { return g.c.Buf.Type == device.F32 }

// accumulates is whether sums wait in an accumulator for the next block of k.
func (g *gemm) accumulates() bool { return !g.direct() && g.k > g.kc }

// blockRows is the number of rows of a block of A, of whole panels.
func (g *gemm) blockRows() int {
	panels := aMax / g.slot()
	if g.inPlace {
		panels = ceil(g.m, g.isa.mr)
	}
	if g.accumulates() {
		panels = min(panels, accMax/g.nc()/g.isa.mr)
	}
	return max(1, panels) * g.isa.mr
}

// ends sets where the block that begins at (i0, j0), at p0 in k, ends, and what
// workers take of it. A product begins at 0; the blocks of k come innermost.
func (g *gemm) ends() {
	g.j1 = min(g.n, g.j0+g.nc())
	g.i1 = min(g.m, g.i0+g.blockRows())
	g.p1 = min(g.k, g.p0+g.kc)
	g.panels = ceil(g.i1-g.i0, g.isa.mr)
	g.share()
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

// panelRow is the first row of panel p. All have mr rows but the last, or, unless
// tiles are whole, the last two, which share theirs evenly: a tile of a few rows
// waits for its own sums.
func (g *gemm) panelRow(p int) int {
	row := g.i0 + p*g.isa.mr
	if p > 0 && p == g.panels-1 && g.isa.row == nil {
		row -= (row + g.isa.mr - g.i1) / 2
	}
	return min(g.i1, row)
}

// share sets the pieces of work that workers take, two each or more; it never
// changes what is computed. Whoever takes a piece packs its group of columns, so
// rows are parted only where there are few columns: rows of fewer than four
// tiles would cost more than packing twice.
func (g *gemm) share() {
	columns, most := g.columnPanels(), max(1, min(groupMax, groupAll/g.words)/g.isa.nr)
	g.groups, g.splits = ceil(columns, most), 1
	if g.workers == 1 {
		return
	}
	if wide := min(2*g.workers, columns/4/g.workers*g.workers); wide > 0 {
		g.groups = max(wide, ceil(g.groups, g.workers)*g.workers)
	}
	g.splits = max(1, min(g.panels/2, ceil(2*g.workers, g.groups)))
}

// piece is the group and the part of the rows that are piece p. As many groups
// as there are workers come side by side, so that as long as workers are equally
// fast each stays with a group.
func (g *gemm) piece(p int) (group, part int) {
	first := p / (g.workers * g.splits) * g.workers
	beside := min(g.workers, g.groups-first)
	p -= first * g.splits
	return first + p%beside, p / beside
}

// groupPanels is the number of panels of the largest group.
func (g *gemm) groupPanels() int { return ceil(g.columnPanels(), g.groups) }

// slot is from one packed panel of A to the next: workers pack them at the same
// time, so none may write into its neighbour's.
func (g *gemm) slot() int { return g.words*g.isa.mr + edge }

// panelLen is the length of a packed panel of B.
func (g *gemm) panelLen() int { return g.words * g.isa.nr }

func runPack(t *args, w *worker, lo, hi int)  { t.gemm.packA(t.gemm.memory(w), lo, hi) }
func runTiles(t *args, w *worker, lo, hi int) { t.gemm.pieces(w, lo, hi) }

// columnGroup is a group of columns of a block.
type columnGroup struct {
	block uint64
	group int
}

// pieces computes pieces [lo, hi) of the block.
func (g *gemm) pieces(w *worker, lo, hi int) {
	columns, mem := g.columnPanels(), g.memory(w)
	for piece := lo; piece < hi; piece++ {
		group, part := g.piece(piece)
		s0, s1 := group*columns/g.groups, (group+1)*columns/g.groups
		if now := (columnGroup{g.block, group}); w.packed != now {
			g.packB(mem, s0, s1)
			w.packed = now
		}
		for p := part * g.panels / g.splits; p < (part+1)*g.panels/g.splits; p++ {
			g.rowPanel(&mem, p, s0, s1)
		}
	}
}

// rowsOfA are mr rows of the block of A for a rowFunc.
type rowsOfA struct {
	p         unsafe.Pointer
	row, step int
}

// tilesOfA are its steps where A is packed in tiles of AMX.
var tilesOfA = rowsOfA{row: 64, step: 2048}

// rowsOf is row panel p of the block.
func (g *gemm) rowsOf(p int) rowsOfA {
	if g.inPlace {
		at := g.panelRow(p)*g.a.Ld + g.p0
		return rowsOfA{g.a.Buf.Slice(at, g.a.Buf.N).Ptr, g.a.Ld * g.a.Buf.Type.Size(), 4 * g.isa.unit}
	}
	return rowsOfA{unsafe.Pointer(&g.packed[p*g.slot()]), tilesOfA.row, tilesOfA.step}
}

// sums is where tiles are summed: element (0, j) of a row panel is at p[j-j0].
type sums struct {
	p      unsafe.Pointer
	ld, j0 int
}

func (s sums) at(j int) unsafe.Pointer { return unsafe.Add(s.p, (j-s.j0)*4) }

// total is where the blocks of k add up for the rows from i on: in C, in the
// accumulator, or, with one block and a C of another type, nowhere: p is nil.
func (g *gemm) total(i int) sums {
	switch {
	case g.direct():
		return sums{g.c.Buf.Slice(i*g.c.Ld, g.c.Buf.N).Ptr, g.c.Ld, 0}
	case g.accumulates():
		return sums{unsafe.Pointer(&g.acc[(i-g.i0)*g.nc()]), g.nc(), g.j0}
	}
	return sums{}
}

// rowPanel computes row panel p by column panels [s0, s1), which are packed:
//
//	       nr      nr    rest
//	   +-------+-------+----+
//	mr | whole | whole | cut|   panel p; the last panel of a block may have
//	   +-------+-------+----+   fewer rows, and then all its tiles are cut
//	     s0      ..     s1-1
//
// An instruction set with a rowFunc computes the whole tiles of the panel in one
// go; others, and what is cut, go tile by tile.
func (g *gemm) rowPanel(mem *gemmScratch, p, s0, s1 int) {
	s := s0
	if g.isa.row != nil && g.panelRow(p)+g.isa.mr <= g.i1 {
		s += g.wholeTiles(mem, p, s0, s1)
	}
	t, a, total := &mem.args.tile, g.rowsOf(p), g.total(g.panelRow(p))
	t.k, t.a, t.rows = g.wordsOf(g.p1-g.p0), a.p, g.panelRow(p+1)-g.panelRow(p)
	for ; s < s1; s++ {
		t.b = unsafe.Pointer(&mem.b[(s-s0)*g.panelLen()])
		g.place(mem, t, total, s, s-s0)
		if g.isa.row == nil {
			g.isa.tile(t)
		} else {
			g.tileByRow(mem, t, a)
		}
		if g.last() {
			g.finish(mem, t, p, s, s-s0)
		}
	}
}

// place sets where the sums of the tile of column panel s, the nth of its group,
// begin and where they go: to the total of its row panel, or, where there is none,
// to the worker's memory. They begin with what is there, or with the bias.
func (g *gemm) place(mem *gemmScratch, t *tile, total sums, s, n int) {
	j, nr := g.j0+s*g.isa.nr, g.isa.nr
	t.cols = min(nr, g.j1-j)
	t.c, t.ldc = unsafe.Pointer(&mem.tile[0]), nr
	if total.p != nil {
		t.c, t.ldc = total.at(j), total.ld
	}
	t.base, t.ldb = mem.biasOf(n*nr), 0
	if g.addsOld() {
		t.base, t.ldb = t.c, t.ldc
	}
}

// addsOld is whether sums begin with what is where they go.
func (g *gemm) addsOld() bool { return !g.first() || g.add && g.direct() }

// tileByRow computes a tile of some rows of A in the worker's memory, for a
// rowFunc has only whole ones.
func (g *gemm) tileByRow(mem *gemmScratch, t *tile, a rowsOfA) {
	nr, r := g.isa.nr, &mem.args.row
	whole := unsafe.Pointer(&mem.tile[g.isa.mr*nr])
	g.isa.move(whole, nr, t.base, t.ldb, t.rows, t.cols)
	r.k, r.a, r.row, r.step, r.next = t.k, a.p, a.row, a.step, a.p
	r.b, r.c, r.ld, r.n, r.add = t.b, whole, nr, 1, addOld
	g.isa.row[device.F32](r)
	g.isa.move(t.c, t.ldc, whole, nr, t.rows, t.cols)
}

// wholeTiles computes the tiles of row panel p that lie whole in C in one go,
// where the instruction set can, and returns how many these are.
func (g *gemm) wholeTiles(mem *gemmScratch, p, s0, s1 int) int {
	nr, n := g.isa.nr, s1-s0
	if g.j0+s1*nr > g.j1 {
		n--
	}
	i, j := g.panelRow(p), g.j0+s0*nr
	a, total := g.rowsOf(p), g.total(i)
	if n == 0 || total.p == nil && g.c.Buf.Type != device.BF16 {
		return 0
	}
	r := &mem.args.row
	r.k, r.a, r.row, r.step, r.next = g.wordsOf(g.p1-g.p0), a.p, a.row, a.step, g.rowsOf((p+1)%g.panels).p
	r.b, r.panel, r.bias, r.n, r.add = unsafe.Pointer(&mem.b[0]), 4*g.panelLen(), mem.biasOf(0), n, 0
	if g.bias.N == 0 {
		r.add = addNone
	}
	if total.p == nil { // rounded on the way out of registers
		if g.add {
			r.add |= addOld
		}
		r.c, r.ld = g.c.Buf.Slice(i*g.c.Ld+j, g.c.Buf.N).Ptr, g.c.Ld
		r.stage = unsafe.Pointer(&mem.tile[0])
		g.isa.row[device.BF16](r)
		return n
	}
	if g.addsOld() {
		r.add = addOld
	}
	r.c, r.ld = total.at(j), total.ld
	g.isa.row[device.F32](r)
	t := &mem.args.tile
	t.rows = g.isa.mr
	for s := s0; s < s0+n && g.last(); s++ {
		g.place(mem, t, total, s, s-s0)
		g.finish(mem, t, p, s, s-s0)
	}
	return n
}

// finish makes of a tile of sums the result: to sums in C itself that began with
// the old C it adds the bias, if there is one; others it rounds, with the old C if
// that is added. The tile is where place put it.
func (g *gemm) finish(mem *gemmScratch, t *tile, p, s, n int) {
	nr := g.isa.nr
	if g.direct() {
		if g.add && g.bias.N != 0 {
			addRows(t.c, t.ldc, mem.biasOf(n*nr), 0, t.rows, t.cols)
		}
		return
	}
	c := g.c.Buf.Slice(g.panelRow(p)*g.c.Ld+g.j0+s*nr, g.c.Buf.N)
	if g.add {
		old := unsafe.Pointer(&mem.tile[g.isa.mr*nr])
		g.isa.widen(old, nr, c, g.c.Ld, t.rows, t.cols)
		addRows(t.c, t.ldc, old, nr, t.rows, t.cols)
	}
	g.isa.round(c, g.c.Ld, t.c, t.ldc, t.rows, t.cols)
}

// addRows adds rows of cols floats to others; ldx and ldy are from one row to the
// next, 0 for one row to be added to all.
func addRows(x unsafe.Pointer, ldx int, y unsafe.Pointer, ldy, rows, cols int) {
	for i := range rows {
		to, from := floatsAt(unsafe.Add(x, 4*i*ldx), cols), floatsAt(unsafe.Add(y, 4*i*ldy), cols)
		for j, v := range from {
			to[j] += v
		}
	}
}
