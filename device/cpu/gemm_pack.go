package cpu

import (
	"unsafe"

	"zeroth/device"
)

// isa is what one instruction set contributes to a product. A panel is packed
// in words of 32 bits: a float32, or two neighbours in k as bf16.
type isa struct {
	name   string
	mr, nr int
	kc     int // elements of k in a block
	pair   int // elements of k in a word: 1, or 2 if both operands must be bf16
	unit   int // words of k that a panel is filled up to with zeros
	// padded: panels of A keep mr elements a row even where fewer rows are left.
	padded bool
	a, b   packing
	tile   []tileFunc // by number of rows, 1..mr
	whole  bool       // tiles are whole: mr rows and nr columns
	moves  *moves     // nil: in Go
	row    []rowFunc  // of C of F32 and of BF16, or nil
	// narrow packs 32 rows of k floats, a multiple of 32, ld apart, as a panel of
	// A of bf16; subnormals may become zero. nil if row is.
	narrow func(dst, src unsafe.Pointer, ld, k int)
	peak   Peak // of multiply-adds, however long
}

// packing is how panels are packed, by type of the source: F32, BF16, F16. A
// type without an entry is widened to float32 first.
//
// side packs lanes that lie side by side, apart those that lie ld apart, at
// most lanes a call: dst[p*stride+i] becomes src[p*ld+i] or src[i*ld+p] for
// p < k, i < width. They may also write what follows a row of dst, up to edge
// words, and go through rows in order.
type packing struct {
	side, apart           [3]packFunc
	sideLanes, apartLanes int
	// tiles: the panel is in tiles of AMX instead: lane i starts at dst[16*i].
	tiles bool
}

// packFunc takes k and width >= 1; ld is in elements of the source, stride in words.
type packFunc func(dst, src unsafe.Pointer, ld, k, width, stride int)

// tileFunc sets c[i*ldc+j] = base[i*ldb+j] + sum over p < k of
// a[p*rows+i] * b[p*nr+j] for j < cols; k in words, strides in floats.
type tileFunc func(k int, a, b, base unsafe.Pointer, ldb int, c unsafe.Pointer, ldc, cols int)

// rowFunc computes n whole tiles side by side, from a panel of A and n panels of
// B that are step bytes apart, each led by its bias, with which the sums begin.
// With addNone they begin with nothing instead. With addOld sums of float32
// begin with the old C, and to sums of bf16 it is added before they are rounded.
// stage is room for two tiles.
type rowFunc func(k int, a, b unsafe.Pointer, step int, c unsafe.Pointer, ld, n, add int, stage unsafe.Pointer)

// What add of a rowFunc may have set.
const (
	addOld  = 1
	addNone = 2
)

// gemmScratch is a worker's share of its scratch memory.
type gemmScratch struct {
	b    []float32 // packed panels of B
	tile []float32 // two tiles on their way to C
}

// memory is the worker's work space; asking again gives the same.
func (g *gemm) memory(w *worker) gemmScratch {
	b, tile := g.groupPanels()*g.panelLen()+edge, 2*g.isa.mr*g.isa.nr
	s := w.floats(b + tile + g.widened())
	return gemmScratch{s[tile:][:b], s[:tile]}
}

// stage is the worker's room for a panel that is widened before it is packed.
func (g *gemm) stage(w *worker) []float32 {
	b, tile := g.groupPanels()*g.panelLen()+edge, 2*g.isa.mr*g.isa.nr
	return w.floats(b + tile + g.widened())[b+tile:]
}

// widened is the elements of a panel that has to be widened first.
func (g *gemm) widened() int {
	needs := func(how *packing, x device.Mat, side bool) bool {
		return !side && how.native(&how.apart, x.Buf.Type) == nil
	}
	if needs(&g.isa.a, g.a, g.a.Trans) || needs(&g.isa.b, g.b, !g.b.Trans) {
		return max(g.isa.mr, g.isa.nr) * g.kc()
	}
	return 0
}

// packB packs column panels [lo, hi) of the block of B into the worker's
// memory, each led by its part of the bias, zero if there is none.
func (g *gemm) packB(w *worker, mem gemmScratch, lo, hi int) {
	nr := g.isa.nr
	for s := lo; s < hi; s++ {
		j := g.j0 + s*nr
		width := min(nr, g.j1-j)
		panel := mem.b[(s-lo)*g.panelLen():]
		head := panel[:nr]
		clear(head)
		if g.bias.N != 0 {
			load(head[:width], g.bias.Slice(j, j+width))
		}
		if g.b.Trans {
			g.pack(w, &g.isa.b, panel[nr:], nr, g.b, false, j, width, g.p0, g.p1)
		}
	}
	if g.b.Trans {
		return
	}
	// Rows of B lie apart, and of each a panel needs only a little: what is
	// next to it is fetched with it and is wanted for the next panel.
	for p0 := g.p0; p0 < g.p1; p0 += rowsOnce {
		p1 := min(g.p1, p0+rowsOnce)
		for s := lo; s < hi; s++ {
			j := g.j0 + s*nr
			panel := mem.b[(s-lo)*g.panelLen()+nr:][(p0-g.p0)/g.isa.pair*nr:]
			g.pack(w, &g.isa.b, panel, nr, g.b, true, j, min(nr, g.j1-j), p0, p1)
		}
	}
}

// packA packs row panels [lo, hi) of the block of A.
func (g *gemm) packA(w *worker, lo, hi int) {
	for p := lo; p < hi; p++ {
		i := g.panelRow(p)
		rows := g.panelRow(p+1) - i
		stride := rows
		if g.isa.padded {
			stride = g.isa.mr
		}
		g.pack(w, &g.isa.a, g.packed[p*g.slot():], stride, g.a, g.a.Trans, i, rows, g.p0, g.p1)
	}
}

// words is the length of a packed lane of a whole block.
func (g *gemm) words() int { return g.wordsOf(g.kc()) }

func (g *gemm) wordsOf(k int) int { return ceil(ceil(k, g.isa.pair), g.isa.unit) * g.isa.unit }

// pack packs lanes [lane, lane+width) of x for k from p0 to p1. The lanes are
// columns as stored if side is set, else rows. At the end of the block of k the
// panel is filled up with zeros.
func (g *gemm) pack(w *worker, how *packing, dst []float32, stride int, x device.Mat, side bool, lane, width, p0, p1 int) {
	if p0 == p1 {
		return
	}
	if side {
		g.packSide(how, dst, stride, x, lane, width, p0, p1)
	} else {
		g.packApart(w, how, dst, stride, x, lane, width, p0, p1)
	}
	if k := p1 - p0; !how.tiles && p1 == g.p1 {
		clear(dst[ceil(k, g.isa.pair)*stride : (g.wordsOf(g.p1-g.p0)-(p0-g.p0)/g.isa.pair)*stride])
	}
}

// at is where lane i of a panel starts.
func (how *packing) at(i int) int {
	if how.tiles {
		return 16 * i
	}
	return i
}

// native is the routine of fs for a type, or nil.
func (how *packing) native(fs *[3]packFunc, t device.DType) packFunc {
	if t > device.F16 {
		return nil
	}
	return fs[t]
}

func (g *gemm) packApart(w *worker, how *packing, dst []float32, stride int, x device.Mat, lane, width, p0, p1 int) {
	k := p1 - p0
	src, ld := x.Buf.Slice(lane*x.Ld+p0, x.Buf.N), x.Ld
	f := how.native(&how.apart, src.Type)
	if f == nil {
		f, src, ld = how.apart[device.F32], g.widen(w, src, ld, width, k), k
	}
	for i := 0; i < width; i += how.apartLanes {
		n := min(how.apartLanes, width-i)
		f(unsafe.Pointer(&dst[how.at(i)]), src.Slice(i*ld, src.N).Ptr, ld, k, n, stride)
	}
}

func (g *gemm) packSide(how *packing, dst []float32, stride int, x device.Mat, lane, width, p0, p1 int) {
	if f := how.native(&how.side, x.Buf.Type); f != nil {
		src := x.Buf.Slice(p0*x.Ld+lane, x.Buf.N)
		for i := 0; i < width; i += how.sideLanes {
			n := min(how.sideLanes, width-i)
			f(unsafe.Pointer(&dst[how.at(i)]), src.Slice(i, src.N).Ptr, x.Ld, p1-p0, n, stride)
		}
		return
	}
	for p := range p1 - p0 {
		at := (p0+p)*x.Ld + lane
		load(dst[p*stride:][:width], x.Buf.Slice(at, at+width))
	}
}

// widen is rows of k elements of src, ld apart, as float32 without gaps.
func (g *gemm) widen(w *worker, src device.Buffer, ld, rows, k int) device.Buffer {
	stage := g.stage(w)[:rows*k]
	for i := range rows {
		load(stage[i*k:][:k], src.Slice(i*ld, i*ld+k))
	}
	return device.OfF32(stage)
}
