package kernel

import (
	"fmt"
	"unsafe"

	"zeroth/device"
)

// Matrix multiplication after Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication" (2008), and BLIS, with the roles of the operands exchanged.
//
// Letters: C (m, n) = A (m, k) · B (k, n). k is cut into blocks. For each, the workers first pack A
// into panels of mr rows that they share (in the device's memory); AMX instead reads rows of A in
// place if they are contiguous and complete. Then each worker takes groups of columns of B, packs
// them into its own panels of nr columns, which stay in its cache, and multiplies panel by panel: a
// tile of mr by nr sums stays in registers while the inner loop runs along k. So packed B, mostly
// weights, never leaves the cache of the worker that packed it, C is written a few rows at a time,
// and workers synchronize only between blocks of k.
//
// An element of C is one chain of multiply-adds in the order of k, broken only at the boundaries of
// k blocks, which depend only on k. So its bits depend neither on the number of workers nor on the
// other rows and columns. Sums are float32; a C of another type is rounded once, at the end.

const (
	KcF32    = 512     // k of a block of float32
	KcBF16   = 4096    // maximum k of a block of bf16 with AMX
	NcMax    = 3072    // columns of a block if C is not float32 and k has several blocks
	GroupMax = 256     // columns that a worker packs at a time
	GroupAll = 1 << 18 // words of these columns
	AMax     = 3 << 19 // words of the packed block of A
	AccMax   = 2 << 20 // elements of the float32 sums for such a C
	Edge     = 16      // words that a packing routine may write past its panel

	aheadBytes = 512 // that a RowFunc prefetches at a time of B
)

// WholeMax is the number of multiply-adds below which a single worker computes the product.
const WholeMax = 1 << 20

// GroupRows is the number of rows below which a group's product is computed by a single worker, with
// at most OwnMax words of packed A and as many sums of its own: workers that share so few rows would
// wait for each other more often than compute.
const (
	GroupRows = 256
	OwnMax    = 1 << 18
)

// Gemm is a product and its current block.
type Gemm struct {
	ISA     *ISA
	C, A, B device.Mat
	Bias    device.Buffer
	add     bool
	stream  bool // C is written past the caches if it can be; not with add
	M, N, K int
	Workers int
	InPlace bool // rows of A are read in place, not packed
	kc      int  // elements of k in a block, except the last
	words   int  // length of a packed lane of such a block
	aMax    int  // words of the packed block of A: AMax or OwnMax
	accMax  int  // elements of Acc: AccMax or OwnMax

	j0, j1 int // columns of C and B: all, unless C needs an accumulator
	i0, i1 int // rows of C and A
	p0, p1 int // the k block
	Panels int // of rows

	Groups, Splits int    // pieces of work: groups of columns times parts of the rows
	Block          uint64 // its number on the device

	Packed []float32 // panels of the block of A
	ahead  ahead     // with alone
	Acc    []float32 // rows i0..i1 by columns j0..j1 in float32, if C has another type and k has several blocks
}

// NewGemm returns the product c = a·b + bias, added to the old c if add is set; bias may be empty.
// It panics if shapes or types do not fit.
func NewGemm(c, a, b device.Mat, bias device.Buffer, add bool) Gemm {
	m, k := a.Dims()
	kb, n := b.Dims()
	if cm, cn := c.Dims(); c.Trans || k != kb || cm != m || cn != n {
		panic(fmt.Sprintf("cpu: matmul of (%d, %d) = (%d, %d) by (%d, %d), result transposed: %v", cm, cn, m, k, kb, n, c.Trans))
	}
	if bias.N != 0 && bias.N != n {
		panic(fmt.Sprintf("cpu: matmul with a bias of %d elements for %d columns", bias.N, n))
	}
	for _, x := range [...]device.Mat{c, a, b} {
		MustFloat("matmul", x.Buf.Type)
		if x.Rows*x.Cols != 0 && (x.Ld < x.Cols || (x.Rows-1)*x.Ld+x.Cols > x.Buf.N) {
			panic(fmt.Sprintf("cpu: matmul of a matrix (%d, %d) with rows %d apart in %d elements", x.Rows, x.Cols, x.Ld, x.Buf.N))
		}
	}
	best := BestISA
	if BestBF16 != nil && a.Buf.Type == device.BF16 && b.Buf.Type == device.BF16 {
		best = BestBF16
	}
	g := Gemm{ISA: best, C: c, A: a, B: b, Bias: bias, add: add, M: m, N: n, K: k, aMax: AMax, accMax: AccMax}
	unit := best.pair * best.unit
	g.kc = Cut(k, best.KC, max(8, unit))
	g.words = g.wordsOf(g.kc)
	g.InPlace = best.Row != nil && !a.Trans && k > 0 && k%unit == 0 && m%best.MR == 0
	return g
}

// Cut returns the length of a piece, a multiple of unit, when n is divided into the fewest equal
// pieces of up to most elements.
func Cut(n, most, unit int) int {
	pieces := max(1, Ceil(n, most))
	return max(unit, Ceil(Ceil(n, pieces), unit)*unit)
}

// Ceil returns a/b rounded up.
func Ceil(a, b int) int { return (a + b - 1) / b }

// Nc returns the number of columns computed before the next rows.
func (g *Gemm) Nc() int {
	if g.Accumulates() {
		return Cut(g.N, NcMax, g.ISA.nr)
	}
	return g.N
}

// direct reports whether tiles are written directly to C.
func (g *Gemm) direct() bool { return g.C.Buf.Type == device.F32 }

// Accumulates reports whether sums are kept in an accumulator between blocks of k.
func (g *Gemm) Accumulates() bool { return !g.direct() && g.K > g.kc }

// BlockRows returns the number of rows of a block of A, in whole panels.
func (g *Gemm) BlockRows() int {
	panels := g.aMax / g.Slot()
	if g.InPlace {
		panels = Ceil(g.M, g.ISA.MR)
	}
	if g.Accumulates() {
		panels = min(panels, g.accMax/g.Nc()/g.ISA.MR)
	}
	return max(1, panels) * g.ISA.MR
}

// Ends sets the end of the block that begins at row i0, column j0 and element p0 of k, and
// divides the block into pieces of work. A product begins at 0; the blocks of k are innermost.
func (g *Gemm) Ends() {
	g.j1 = min(g.N, g.j0+g.Nc())
	g.i1 = min(g.M, g.i0+g.BlockRows())
	g.p1 = min(g.K, g.p0+g.kc)
	g.Panels = Ceil(g.i1-g.i0, g.ISA.MR)
	g.share()
}

// Next advances to the next block and reports whether there is one.
func (g *Gemm) Next() bool {
	if g.p0 = g.p1; g.p0 >= g.K {
		g.p0 = 0
		if g.i0 = g.i1; g.i0 >= g.M {
			g.i0 = 0
			if g.j0 = g.j1; g.j0 >= g.N {
				return false
			}
		}
	}
	g.Ends()
	return true
}

func (g *Gemm) first() bool { return g.p0 == 0 }
func (g *Gemm) last() bool  { return g.p1 == g.K }

// ColumnPanels returns the number of panels of nr columns in the block.
func (g *Gemm) ColumnPanels() int { return Ceil(g.j1-g.j0, g.ISA.nr) }

// panelRow returns the first row of panel p. All panels have mr rows except the last. Unless
// tiles must be whole, the last two share their rows evenly, since latency limits tiles with few
// rows.
func (g *Gemm) panelRow(p int) int {
	row := g.i0 + p*g.ISA.MR
	if p > 0 && p == g.Panels-1 && g.ISA.Row == nil {
		row -= (row + g.ISA.MR - g.i1) / 2
	}
	return min(g.i1, row)
}

// share chooses the pieces of work, at least two per worker; the choice never changes the result.
// The worker that takes a piece packs its group of columns, so rows are divided only if there are
// few columns and each part still has at least four tiles: otherwise packing twice costs more.
func (g *Gemm) share() {
	columns, most := g.ColumnPanels(), max(1, min(GroupMax, GroupAll/g.words)/g.ISA.nr)
	g.Groups, g.Splits = Ceil(columns, most), 1
	if g.Workers == 1 {
		return
	}
	if wide := min(2*g.Workers, columns/4/g.Workers*g.Workers); wide > 0 {
		g.Groups = max(wide, Ceil(g.Groups, g.Workers)*g.Workers)
	}
	g.Splits = max(1, min(g.Panels/2, Ceil(2*g.Workers, g.Groups)))
}

// piece returns the group and the part of the rows of piece p. Pieces are ordered so that workers
// of equal speed each stay with one group.
func (g *Gemm) piece(p int) (group, part int) {
	first := p / (g.Workers * g.Splits) * g.Workers
	concurrent := min(g.Workers, g.Groups-first)
	p -= first * g.Splits
	return first + p%concurrent, p / concurrent
}

// groupPanels returns the number of panels of the largest group.
func (g *Gemm) groupPanels() int { return Ceil(g.ColumnPanels(), g.Groups) }

// Slot returns the distance between packed panels of A: workers pack them concurrently, so none may
// write into the next.
func (g *Gemm) Slot() int { return g.words*g.ISA.MR + Edge }

// panelLen returns the length of a packed panel of B.
func (g *Gemm) panelLen() int { return g.words * g.ISA.nr }

// RunPack packs row panels [lo, hi) of the block of A.
func RunPack(t *Args, w *Worker, lo, hi int) { t.Gemm.PackA(t.Gemm.Memory(w), lo, hi) }

// RunTiles computes pieces [lo, hi) of the block.
func RunTiles(t *Args, w *Worker, lo, hi int) { t.Gemm.pieces(w, lo, hi) }

// Needs returns the lengths of Packed and Acc, 0 if they are not used.
func (g *Gemm) Needs() (packed, acc int) {
	rows := min(g.M, g.BlockRows())
	if !g.InPlace {
		packed = Ceil(rows, g.ISA.MR) * g.Slot()
	}
	if g.Accumulates() {
		acc = rows * g.Nc()
	}
	return packed, acc
}

// ahead locates what is prefetched next of a B: bytes of rows, stride bytes apart.
type ahead struct {
	b      device.Buffer
	stride int
}

// lookAhead prefetches B from column panel s on or, if there is none, from the beginning of next. It is a
// hint: what is prefetched need not be exactly what is packed next.
func (g *Gemm) lookAhead(s int, next device.Mat) {
	b, at := g.B, g.j0+s*g.ISA.nr
	if at >= g.j1 {
		b, at = next, 0
	}
	if b.Trans { // columns are stored one after the other
		g.ahead = ahead{b.Buf.Slice(at*b.Ld, b.Buf.N), aheadBytes}
	} else {
		g.ahead = ahead{b.Buf.Slice(min(at, b.Buf.N), b.Buf.N), b.Ld * b.Buf.Type.Size()}
	}
}

// take returns where n times aheadBytes begin and their stride, or nil if less is left.
func (a *ahead) take(n int) (unsafe.Pointer, int) {
	if a.stride == 0 || a.b.Bytes() < n*a.stride {
		return nil, 0
	}
	at := a.b.Ptr
	a.b = a.b.Slice(n*a.stride/a.b.Type.Size(), a.b.N)
	return at, a.stride
}

// alone computes the product on one worker, in its own memory, and prefetches the B of the next one.
func (g *Gemm) alone(w *Worker, next device.Mat) {
	g.Workers = 1
	if g.Few() {
		g.few(w, 0, 1)
		return
	}
	g.aMax, g.accMax = OwnMax, OwnMax
	packed, acc := g.Needs()
	g.Ends()
	for more := true; more; more = g.Next() {
		free := w.Floats(packed + acc + g.memoryLen())
		g.Packed, g.Acc = take(&free, packed), take(&free, acc)
		mem := g.memoryIn(free, w)
		if !g.InPlace {
			g.PackA(mem, 0, g.Panels)
		}
		columns := g.ColumnPanels()
		for i := range g.Groups {
			s0, s1 := i*columns/g.Groups, (i+1)*columns/g.Groups
			g.PackB(mem, s0, s1)
			g.lookAhead((i+1)*columns/g.Groups, next)
			for p := range g.Panels {
				g.RowPanel(&mem, p, s0, s1)
			}
		}
	}
	g.complete()
}

// complete makes what was written past the caches visible to other workers.
func (g *Gemm) complete() {
	if g.stream && g.ISA.fence != nil {
		g.ISA.fence()
	}
}

// columnGroup is a group of columns of a block.
type columnGroup struct {
	block uint64
	group int
}

// pieces computes pieces [lo, hi) of the block.
func (g *Gemm) pieces(w *Worker, lo, hi int) {
	columns, mem := g.ColumnPanels(), g.Memory(w)
	for piece := lo; piece < hi; piece++ {
		group, part := g.piece(piece)
		s0, s1 := group*columns/g.Groups, (group+1)*columns/g.Groups
		if now := (columnGroup{g.Block, group}); w.packed != now {
			g.PackB(mem, s0, s1)
			w.packed = now
		}
		for p := part * g.Panels / g.Splits; p < (part+1)*g.Panels/g.Splits; p++ {
			g.RowPanel(&mem, p, s0, s1)
		}
	}
	g.complete()
}

// rowsOfA locates mr rows of the block of A for a RowFunc.
type rowsOfA struct {
	p         unsafe.Pointer
	row, step int
}

// tilesOfA contains the strides of A packed in AMX tiles.
var tilesOfA = rowsOfA{row: 64, step: 2048}

// rowsOf returns row panel p of the block.
func (g *Gemm) rowsOf(p int) rowsOfA {
	if g.InPlace {
		at := g.panelRow(p)*g.A.Ld + g.p0
		return rowsOfA{g.A.Buf.Slice(at, g.A.Buf.N).Ptr, g.A.Ld * g.A.Buf.Type.Size(), 4 * g.ISA.unit}
	}
	return rowsOfA{unsafe.Pointer(&g.Packed[p*g.Slot()]), tilesOfA.row, tilesOfA.step}
}

// sums locates the sums of tiles: element (0, j) of a row panel is p[j-j0].
type sums struct {
	p      unsafe.Pointer
	ld, j0 int
}

func (s sums) at(j int) unsafe.Pointer { return unsafe.Add(s.p, (j-s.j0)*4) }

// total returns where the blocks of k are accumulated for the rows from i on: in C or in the
// accumulator. p is nil if nothing is accumulated, because C is not float32 and k has one block.
func (g *Gemm) total(i int) sums {
	switch {
	case g.direct():
		return sums{g.C.Buf.Slice(i*g.C.Ld, g.C.Buf.N).Ptr, g.C.Ld, 0}
	case g.Accumulates():
		return sums{unsafe.Pointer(&g.Acc[(i-g.i0)*g.Nc()]), g.Nc(), g.j0}
	}
	return sums{}
}

// RowPanel computes row panel p by column panels [s0, s1), which are packed:
//
//	       nr      nr    rest
//	   +-------+-------+----+
//	mr | whole | whole | cut|   panel p; the last panel of a block may have
//	   +-------+-------+----+   fewer rows, and then all its tiles are cut
//	     s0      ..     s1-1
//
// An instruction set with a RowFunc computes the whole tiles of the panel at once; others, and cut
// tiles, are computed tile by tile.
func (g *Gemm) RowPanel(mem *GemmScratch, p, s0, s1 int) {
	s := s0
	if g.ISA.Row != nil && g.panelRow(p)+g.ISA.MR <= g.i1 {
		s += g.wholeTiles(mem, p, s0, s1)
	}
	t, a, total := &mem.args.tile, g.rowsOf(p), g.total(g.panelRow(p))
	t.K, t.A, t.Rows = g.wordsOf(g.p1-g.p0), a.p, g.panelRow(p+1)-g.panelRow(p)
	for ; s < s1; s++ {
		t.B = unsafe.Pointer(&mem.B[(s-s0)*g.panelLen()])
		g.prepareTile(mem, t, total, s, s-s0)
		if g.ISA.Row == nil {
			g.ISA.tile(t)
		} else {
			g.tileByRow(mem, t, a)
		}
		if g.last() {
			g.finish(mem, t, p, s, s-s0)
		}
	}
}

// prepareTile sets the initial values and the destination of the sums for the nth tile of the group, in
// column panel s. The destination is the total of the row panel or, without one, the worker's
// memory. The sums begin with the old contents or with the bias.
func (g *Gemm) prepareTile(mem *GemmScratch, t *Tile, total sums, s, n int) {
	j, nr := g.j0+s*g.ISA.nr, g.ISA.nr
	t.Cols = min(nr, g.j1-j)
	t.C, t.Ldc = unsafe.Pointer(&mem.tile[0]), nr
	if total.p != nil {
		t.C, t.Ldc = total.at(j), total.ld
	}
	t.Base, t.Ldb = mem.biasOf(n*nr), 0
	if g.addsOld() {
		t.Base, t.Ldb = t.C, t.Ldc
	}
}

// addsOld reports whether sums begin with the old contents of their destination.
func (g *Gemm) addsOld() bool { return !g.first() || g.add && g.direct() }

// tileByRow computes a partial tile in the worker's memory, since a RowFunc computes only whole
// tiles.
func (g *Gemm) tileByRow(mem *GemmScratch, t *Tile, a rowsOfA) {
	nr, r := g.ISA.nr, &mem.args.row
	whole := unsafe.Pointer(&mem.tile[g.ISA.MR*nr])
	g.ISA.move(whole, nr, t.Base, t.Ldb, t.Rows, t.Cols)
	r.K, r.A, r.Row, r.Step, r.Next = t.K, a.p, a.row, a.step, a.p
	r.B, r.C, r.Ld, r.N, r.Add, r.Ahead = t.B, whole, nr, 1, AddOld, nil
	g.ISA.Row[device.F32](r)
	g.ISA.move(t.C, t.Ldc, whole, nr, t.Rows, t.Cols)
}

// wholeTiles computes the tiles of row panel p that lie entirely within C in one call, if the
// instruction set supports it, and returns their number.
func (g *Gemm) wholeTiles(mem *GemmScratch, p, s0, s1 int) int {
	nr, n := g.ISA.nr, s1-s0
	if g.j0+s1*nr > g.j1 {
		n--
	}
	i, j := g.panelRow(p), g.j0+s0*nr
	a, total := g.rowsOf(p), g.total(i)
	if n == 0 || total.p == nil && g.C.Buf.Type != device.BF16 {
		return 0
	}
	r := &mem.args.row
	r.K, r.A, r.Row, r.Step, r.Next = g.wordsOf(g.p1-g.p0), a.p, a.row, a.step, g.rowsOf((p+1)%g.Panels).p
	r.Ahead, r.Stride = g.ahead.take(n * r.K / g.ISA.unit)
	r.B, r.Panel, r.Bias, r.N, r.Add = unsafe.Pointer(&mem.B[0]), 4*g.panelLen(), mem.biasOf(0), n, 0
	if g.Bias.N == 0 {
		r.Add = AddNone
	}
	if total.p == nil { // rounded when stored from registers
		if g.add {
			r.Add |= AddOld
		}
		r.C, r.Ld = g.C.Buf.Slice(i*g.C.Ld+j, g.C.Buf.N).Ptr, g.C.Ld
		r.Stage = unsafe.Pointer(&mem.tile[0])
		g.ISA.Row[device.BF16](r)
		return n
	}
	if g.addsOld() {
		r.Add = AddOld
	}
	r.C, r.Ld = total.at(j), total.ld
	if g.stream && g.ISA.fence != nil && g.first() && g.last() && uintptr(r.C)%64 == 0 && r.Ld%16 == 0 {
		r.Stage, r.Add = unsafe.Pointer(&mem.tile[0]), r.Add|pastAll
	}
	g.ISA.Row[device.F32](r)
	t := &mem.args.tile
	t.Rows = g.ISA.MR
	for s := s0; s < s0+n && g.last(); s++ {
		g.prepareTile(mem, t, total, s, s-s0)
		g.finish(mem, t, p, s, s-s0)
	}
	return n
}

// finish completes a tile of sums prepared by prepareTile. If the sums are in C and began with its old
// contents, it adds the bias, if any. Otherwise it rounds the sums and stores them in C, adding
// the old contents if requested.
func (g *Gemm) finish(mem *GemmScratch, t *Tile, p, s, n int) {
	nr := g.ISA.nr
	if g.direct() {
		if g.add && g.Bias.N != 0 {
			addRows(t.C, t.Ldc, mem.biasOf(n*nr), 0, t.Rows, t.Cols)
		}
		return
	}
	c := g.C.Buf.Slice(g.panelRow(p)*g.C.Ld+g.j0+s*nr, g.C.Buf.N)
	if g.add {
		old := unsafe.Pointer(&mem.tile[g.ISA.MR*nr])
		g.ISA.widen(old, nr, c, g.C.Ld, t.Rows, t.Cols)
		addRows(t.C, t.Ldc, old, nr, t.Rows, t.Cols)
	}
	g.ISA.round(c, g.C.Ld, t.C, t.Ldc, t.Rows, t.Cols)
}

// addRows adds rows of cols floats of y to x. ldx and ldy are the row strides; ldy 0 adds the
// same row to all.
func addRows(x unsafe.Pointer, ldx int, y unsafe.Pointer, ldy, rows, cols int) {
	for i := range rows {
		to, from := FloatsAt(unsafe.Add(x, 4*i*ldx), cols), FloatsAt(unsafe.Add(y, 4*i*ldy), cols)
		for j, v := range from {
			to[j] += v
		}
	}
}
