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
// memory); then each takes groups of columns of B, packs them into panels of nr
// columns of its own, which stay in its cache, and multiplies panel by panel: a
// tile of mr by nr sums stays in registers while the inner loop runs down k. So
// what is packed of B, mostly weights, never leaves the cache of who packed it,
// C is written a few rows at a time, and workers wait for each other only
// between blocks of k.
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
	stripMax = 2 << 20 // elements of the float32 strip behind such a C
	edge     = 16      // words a packing routine may write past its panel
	rowsOnce = 32      // rows of B that are packed for all panels of a group before the next
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
	g.ends()
	for more := true; more; more = g.next() {
		q.phase(t, runPack, g.panels, 1, g.workers)
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

	j0, j1 int // columns of C and B; all of them unless C needs a strip
	i0, i1 int // rows of C and A
	p0, p1 int // the k block
	panels int // of rows

	groups, splits int // pieces of work: groups of columns by parts of the rows

	packed []float32 // panels of the block of A
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

func (g *gemm) kc() int { return cut(g.k, g.isa.kc, max(8, g.isa.pair*g.isa.unit)) }

// nc is the number of columns computed before going on to the next rows.
func (g *gemm) nc() int {
	if g.stripped() {
		return cut(g.n, ncMax, g.isa.nr)
	}
	return g.n
}

// direct is whether tiles are written to C itself.
func (g *gemm) direct() bool { return g.c.Buf.Type == device.F32 }

// stripped is whether sums wait in a strip for the next block of k.
func (g *gemm) stripped() bool { return !g.direct() && g.k > g.kc() }

// blockRows is the number of rows of a block of A, of whole panels.
func (g *gemm) blockRows() int {
	panels := aMax / g.slot()
	if g.stripped() {
		panels = min(panels, stripMax/g.nc()/g.isa.mr)
	}
	return max(1, panels) * g.isa.mr
}

// ends sets where the block that begins at (i0, j0), at p0 in k, ends, and what
// workers take of it. A product begins at 0; the blocks of k come innermost.
func (g *gemm) ends() {
	g.j1 = min(g.n, g.j0+g.nc())
	g.i1 = min(g.m, g.i0+g.blockRows())
	g.p1 = min(g.k, g.p0+g.kc())
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

// panelRow is the first row of panel p. Panels share the rows evenly, unless
// tiles are whole.
func (g *gemm) panelRow(p int) int {
	if g.isa.whole {
		return min(g.i1, g.i0+p*g.isa.mr)
	}
	return g.i0 + p*(g.i1-g.i0)/g.panels
}

// share sets the pieces of work that workers take; it never changes what is
// computed. A piece packs its group of columns, so rows are parted only where
// there are fewer groups than workers want.
func (g *gemm) share() {
	columns, most := g.columnPanels(), max(1, min(groupMax, groupAll/g.words())/g.isa.nr)
	g.groups, g.splits = ceil(columns, most), 1
	if g.workers > 1 {
		even := ceil(g.groups, g.workers) * g.workers
		g.groups = min(columns, max(even, min(2*g.workers, columns/2)))
		if g.groups < 2*g.workers {
			g.splits = max(1, min(g.panels/2, ceil(4*g.workers, g.groups)))
		}
	}
}

// groupPanels is the number of panels of the largest group.
func (g *gemm) groupPanels() int { return ceil(g.columnPanels(), g.groups) }

// slot is from one packed panel of A to the next: workers pack them at the same
// time, so none may write into its neighbour's.
func (g *gemm) slot() int { return g.words()*g.isa.mr + edge }

// panelLen is the length of a packed panel of B: a row of bias and rows of words.
func (g *gemm) panelLen() int { return (1 + g.words()) * g.isa.nr }

func runPack(t *task, w *worker, lo, hi int)  { t.gemm.packA(w, lo, hi) }
func runTiles(t *task, w *worker, lo, hi int) { t.gemm.pieces(w, lo, hi) }

// pieces computes pieces [lo, hi) of the block: piece g*splits+r is column
// group g by part r of the rows.
func (g *gemm) pieces(w *worker, lo, hi int) {
	columns, mem := g.columnPanels(), g.memory(w)
	packed := -1
	for piece := lo; piece < hi; piece++ {
		group, part := piece/g.splits, piece%g.splits
		s0, s1 := group*columns/g.groups, (group+1)*columns/g.groups
		if packed != group {
			g.packB(w, mem, s0, s1)
			packed = group
		}
		for p := part * g.panels / g.splits; p < (part+1)*g.panels/g.splits; p++ {
			g.rowPanel(mem, p, s0, s1)
		}
	}
}

// sums is where the tiles of a row panel are summed: element (0, j) of it is at
// p[j-j0].
type sums struct {
	p      unsafe.Pointer
	ld, j0 int
}

func (s sums) at(j int) unsafe.Pointer { return unsafe.Add(s.p, (j-s.j0)*4) }

// rowPanel computes row panel p by column panels [s0, s1), which are packed.
func (g *gemm) rowPanel(mem gemmScratch, p, s0, s1 int) {
	mr, nr := g.isa.mr, g.isa.nr
	i, k := g.panelRow(p), g.wordsOf(g.p1-g.p0)
	rows := g.panelRow(p+1) - i
	a := unsafe.Pointer(&g.packed[p*g.slot()])
	full := rows
	if g.isa.whole {
		full = mr
	}
	stage := sums{unsafe.Pointer(&mem.tile[0]), nr, 0}
	var acc sums // where the blocks of k add up
	switch {
	case g.direct():
		acc = sums{g.c.Buf.Slice(i*g.c.Ld, g.c.Buf.N).Ptr, g.c.Ld, 0}
	case g.stripped():
		acc = sums{unsafe.Pointer(&g.strip[(i-g.i0)*g.nc()]), g.nc(), g.j0}
	}
	for s := s0 + g.whole(mem, acc, a, k, i, rows, s0, s1); s < s1; s++ {
		j := g.j0 + s*nr
		cols := min(nr, g.j1-j)
		panel := mem.b[(s-s0)*g.panelLen():]
		c := device.Buffer{}
		if !g.direct() {
			c = g.c.Buf.Slice(i*g.c.Ld+j, g.c.Buf.N)
		}
		// The tile goes through the stage if it is rounded, or whole and only a part of it counts.
		staged := !g.direct() && g.last() || g.isa.whole && (rows < mr || cols < nr)
		base, ldb := unsafe.Pointer(&panel[0]), 0
		switch stage.j0 = j; {
		case !g.first() && staged && g.isa.whole:
			g.isa.move(stage.p, nr, acc.at(j), acc.ld, rows, cols)
			base, ldb = stage.p, nr
		case !g.first():
			base, ldb = acc.at(j), acc.ld
		case g.add && g.direct() && !staged:
			base, ldb = acc.at(j), acc.ld
		case g.add && g.direct():
			g.isa.move(stage.p, nr, acc.at(j), acc.ld, rows, cols)
			base, ldb = stage.p, nr
		case g.add && !g.late():
			g.isa.widen(stage.p, nr, c, g.c.Ld, rows, cols)
			base, ldb = stage.p, nr
		}
		out := acc
		if staged {
			out = stage
		}
		g.isa.tile[full](k, a, unsafe.Pointer(&panel[nr]), base, ldb, out.at(j), out.ld, cols)
		if g.last() && g.add && !g.late() && g.bias.N != 0 { // the sums did not begin with it
			addRows(out.at(j), out.ld, unsafe.Pointer(&panel[0]), 0, rows, cols)
		}
		switch {
		case staged && !g.direct() && g.last():
			g.finish(mem, c, stage.p, nr, rows, cols)
		case staged:
			g.isa.move(acc.at(j), acc.ld, stage.p, nr, rows, cols)
		}
	}
}

// late is whether the old C is added in the end, on the way to C, not to begin
// with. Which it is depends on the instruction set and the type of C alone.
func (g *gemm) late() bool { return g.isa.whole && !g.direct() }

// whole computes the tiles of a row panel that lie whole in C in one go, where
// the instruction set can, and returns how many these are.
func (g *gemm) whole(mem gemmScratch, acc sums, a unsafe.Pointer, k, i, rows, s0, s1 int) int {
	n, nr := s1-s0, g.isa.nr
	if g.j0+s1*nr > g.j1 {
		n--
	}
	if n == 0 || rows < g.isa.mr || g.isa.row == nil || g.add && g.bias.N != 0 && g.direct() {
		return 0
	}
	rounded := !g.direct() && !g.stripped() // on the way out of registers
	if rounded && g.c.Buf.Type != device.BF16 {
		return 0
	}
	b, step, j := unsafe.Pointer(&mem.b[nr]), 4*g.panelLen(), g.j0+s0*nr
	at, add := i*g.c.Ld+j, 0
	if g.bias.N == 0 {
		add = addNone
	}
	if rounded {
		if g.add {
			add |= addOld
		}
		g.isa.row[device.BF16](k, a, b, step, g.c.Buf.Slice(at, g.c.Buf.N).Ptr, g.c.Ld, n, add, unsafe.Pointer(&mem.tile[0]))
		return n
	}
	if !g.first() || g.add && g.direct() {
		add = addOld
	}
	g.isa.row[device.F32](k, a, b, step, acc.at(j), acc.ld, n, add, nil)
	for s := 0; s < n && g.last() && !g.direct(); s++ {
		g.finish(mem, g.c.Buf.Slice(at+s*nr, g.c.Buf.N), acc.at(j+s*nr), acc.ld, rows, nr)
	}
	return n
}

// finish rounds a tile of sums to C, plus the old C if it is added late.
func (g *gemm) finish(mem gemmScratch, c device.Buffer, p unsafe.Pointer, ld, rows, cols int) {
	if g.add && g.late() {
		old, nr := unsafe.Pointer(&mem.tile[g.isa.mr*g.isa.nr]), g.isa.nr
		g.isa.widen(old, nr, c, g.c.Ld, rows, cols)
		addRows(p, ld, old, nr, rows, cols)
	}
	g.isa.round(c, g.c.Ld, p, ld, rows, cols)
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
