package kernel

import (
	"unsafe"

	"zeroth/device"
)

// ISA contains an instruction set's functions for products. A panel is packed in words of 32 bits:
// a float32, or two bf16 adjacent in k.
type ISA struct {
	Name   string
	MR, nr int
	KC     int // elements of k in a block
	pair   int // elements of k in a word: 1, or 2 if both operands must be bf16
	unit   int // panels are padded with zeros to multiples of this many words of k
	a, b   packing
	tile   tileFunc
	chain  chainFunc // for few rows, or nil
	dots   dotsFunc  // for few rows and a transposed B of the instruction set's words, or nil
	moves  *moves    // nil: in Go
	Row    []RowFunc // for C of F32 and of BF16; replaces tile if not nil
	fence  func()    // makes what was written past the caches visible to other workers; nil: it is not supported
	// Narrow packs 32 rows of k floats, a multiple of 32, ld apart, as a panel of A of bf16;
	// subnormals may become zero. It is nil if Row is.
	Narrow func(dst, src unsafe.Pointer, ld, k int)
	peak   Peak // rate of multiply-adds
}

// packing contains the functions that pack panels, by type of the source: F32, BF16, F16. A type
// without an entry is widened to float32 first.
type packing struct {
	copy       [3]packCopyFunc
	trans      [3]packTransFunc
	transLanes int // maximum lanes per call
	// tiles reports whether the panel consists of AMX tiles, which the functions pad with zeros.
	tiles bool
}

// packCopyFunc packs lanes that are adjacent in memory, by copying: lane i of panel s, which begins
// panel words after the previous one, is column s*stride+i of the source and becomes
// dst[s*panel+p*stride+i] = src[p*ld+s*stride+i], p < k. It processes rows in order and may also
// write up to Edge words after a row of dst. k and width >= 1; ld is in elements of the source,
// stride and panel in words. With several panels, the stride is the instruction set's lanes.
type packCopyFunc func(dst, src unsafe.Pointer, ld, k, width, stride, panel int)

// packTransFunc packs lanes that are ld elements apart, by transposing: dst[p*stride+i] becomes
// src[i*ld+p].
type packTransFunc func(dst, src unsafe.Pointer, ld, k, width, stride int)

// tileFunc sets c[i*ldc+j] = base[i*ldb+j] + sum over p < k of a[p*mr+i] * b[p*nr+j] for i < rows
// and j < cols.
type tileFunc func(t *Tile)

// chainFunc adds k words of four rows of A times B to sums: y[i][j] += a[i][p] *
// b[j/nr*panel+p*ldb+j%nr] for j < n, with multiply-adds in the order of p; a row of words of pairs
// is two of bf16. Rows may coincide. It prefetches the data eight rows of B ahead.
type chainFunc func(t *Chain)

// dotsFunc is like chainFunc with a transposed B: y[i][j] += a[i][p] * b[j][p], j < 32.
type dotsFunc func(t *Dots)

// RowFunc computes n whole tiles side by side from mr rows of A and n panels of B, which are
// panel bytes apart. Words p to p+unit of row i of A begin at a + i*row + p/unit*step bytes. Sums
// begin with the bias, or with 0 if AddNone is set. With AddOld, sums of float32 begin with the
// old C; sums of bf16 get it added before they are rounded. RowFunc prefetches the rows of A at
// next, and with every unit words of k the 512 bytes ahead, stride bytes after the previous ones.
// stage is memory for two tiles.
type RowFunc func(r *TileRow)

// Flags of Add in TileRow.
const (
	AddOld  = 1
	AddNone = 2
	pastAll = 4 // with AddNone: C, of float32 and at a multiple of 64 bytes like its rows, is written past the caches
)

// GemmScratch divides a worker's scratch memory.
type GemmScratch struct {
	tile []float32 // two tiles on the way to C
	B    []float32 // packed panels of B
	bias []float32 // bias of the columns in B, zero if there is none
	wide []float32 // a panel that is widened before it is packed
	args *callArgs
}

func (m *GemmScratch) biasOf(j int) unsafe.Pointer { return unsafe.Pointer(&m.bias[j]) }

// Memory returns the worker's working space; repeated calls return the same.
func (g *Gemm) Memory(w *Worker) GemmScratch { return g.memoryIn(w.Floats(g.memoryLen()), w) }

func (g *Gemm) memoryLen() int {
	return 2*g.ISA.MR*g.ISA.nr + g.groupPanels()*(g.panelLen()+g.ISA.nr) + Edge + g.widened()
}

func (g *Gemm) memoryIn(s []float32, w *Worker) GemmScratch {
	tile, b, bias := 2*g.ISA.MR*g.ISA.nr, g.groupPanels()*g.panelLen()+Edge, g.groupPanels()*g.ISA.nr
	return GemmScratch{take(&s, tile), take(&s, b), take(&s, bias), s, &w.args}
}

// widened returns the number of elements of a panel that must be widened before packing, or 0.
func (g *Gemm) widened() int {
	needs := func(how *packing, x device.Mat, side bool) bool {
		return !side && native(&how.trans, x.Buf.Type) == nil
	}
	if needs(&g.ISA.a, g.A, g.A.Trans) || needs(&g.ISA.b, g.B, !g.B.Trans) {
		return max(g.ISA.MR, g.ISA.nr) * g.kc
	}
	return 0
}

// PackB packs column panels [lo, hi) of the block of B and of the bias into the worker's memory.
func (g *Gemm) PackB(mem GemmScratch, lo, hi int) {
	nr := g.ISA.nr
	j, width := g.j0+lo*nr, min(hi*nr, g.j1-g.j0)-lo*nr
	clear(mem.bias)
	if g.Bias.N != 0 {
		Load(mem.bias[:width], g.Bias.Slice(j, j+width))
	}
	g.pack(mem, &g.ISA.b, mem.B, nr, g.panelLen(), g.B, !g.B.Trans, j, width)
}

// PackA packs row panels [lo, hi) of the block of A.
func (g *Gemm) PackA(mem GemmScratch, lo, hi int) {
	for p := lo; p < hi; p++ {
		i := g.panelRow(p)
		g.pack(mem, &g.ISA.a, g.Packed[p*g.Slot():], g.ISA.MR, g.Slot(), g.A, g.A.Trans, i, g.panelRow(p+1)-i)
	}
}

func (g *Gemm) wordsOf(k int) int { return Ceil(Ceil(k, g.ISA.pair), g.ISA.unit) * g.ISA.unit }

// pack packs lanes [lane, lane+width) of x, restricted to the block's k, into panels of lanes
// lanes, panel words apart. Lanes are the stored columns if side is set, else the rows.
// Incomplete words are padded with zeros.
func (g *Gemm) pack(mem GemmScratch, how *packing, dst []float32, lanes, panel int, x device.Mat, side bool, lane, width int) {
	k := g.p1 - g.p0
	if k == 0 {
		return
	}
	if side {
		g.packCopy(how, dst, lanes, panel, x, lane, width)
	}
	for i := 0; i < width; i += lanes {
		to := dst[i/lanes*panel:]
		if !side {
			g.packTrans(mem, how, to, lanes, x, lane+i, min(lanes, width-i))
		}
		if !how.tiles {
			clear(to[Ceil(k, g.ISA.pair)*lanes : g.wordsOf(k)*lanes])
		}
	}
}

// native returns the function of fs for a type, or nil.
func native[F packCopyFunc | packTransFunc](fs *[3]F, t device.DType) F {
	if t > device.F16 {
		return nil
	}
	return fs[t]
}

func (g *Gemm) packTrans(mem GemmScratch, how *packing, dst []float32, lanes int, x device.Mat, lane, width int) {
	k := g.p1 - g.p0
	src, ld := x.Buf.Slice(lane*x.Ld+g.p0, x.Buf.N), x.Ld
	f := native(&how.trans, src.Type)
	if f == nil {
		for i := range width {
			Load(mem.wide[i*k:][:k], src.Slice(i*ld, i*ld+k))
		}
		f, src, ld = how.trans[device.F32], device.OfF32(mem.wide), k
	}
	for i := 0; i < width; i += how.transLanes {
		f(unsafe.Pointer(&dst[i]), src.Slice(i*ld, src.N).Ptr, ld, k, min(how.transLanes, width-i), lanes)
	}
}

func (g *Gemm) packCopy(how *packing, dst []float32, lanes, panel int, x device.Mat, lane, width int) {
	if f := native(&how.copy, x.Buf.Type); f != nil {
		f(unsafe.Pointer(&dst[0]), x.Buf.Slice(g.p0*x.Ld+lane, x.Buf.N).Ptr, x.Ld, g.p1-g.p0, width, lanes, panel)
		return
	}
	var all []uint16
	var widen func(dst []float32, src []uint16)
	switch x.Buf.Type { // a few elements at a time, Load would spend its time on slices of buffers
	case device.BF16:
		all, widen = x.Buf.U16(), bf16ToF32
	case device.F16:
		all, widen = x.Buf.U16(), f16ToF32
	}
	for p := range g.p1 - g.p0 {
		row := (g.p0+p)*x.Ld + lane
		for i := 0; i < width; i += lanes {
			n := min(lanes, width-i)
			if to := dst[i/lanes*panel+p*lanes:][:n]; widen != nil {
				widen(to, all[row+i:row+i+n])
			} else {
				Load(to, x.Buf.Slice(row+i, row+i+n))
			}
		}
	}
}
