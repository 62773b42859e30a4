package cpu

import (
	"unsafe"

	"zeroth/device"
)

// isa is what one instruction set contributes to a product.
type isa struct {
	name   string
	mr, nr int
	lanes  int // widest panel one call of trans packs
	// padded: panels of A keep mr elements a row even where fewer rows are left.
	padded bool
	// copy packs lanes that lie side by side, trans lanes that lie ld apart, by
	// type of the source: dst[p*stride+i] becomes src[p*ld+i] or src[i*ld+p]
	// for p < k, i < width. They may also write what follows a row of dst, up
	// to edge floats, and go through rows in order. A type without an entry is
	// widened to float32 first.
	copy, trans [3]packFunc // F32, BF16, F16
	tile        []tileFunc  // by number of rows, 1..mr
}

// packFunc takes k and width >= 1; ld is in elements of the source, stride in floats.
type packFunc func(dst, src unsafe.Pointer, ld, k, width, stride int)

// tileFunc sets c[i*ldc+j] = base[i*ldb+j] + sum over p < k of
// a[p*rows+i] * b[p*nr+j] for j < cols; strides in floats.
type tileFunc func(k int, a, b, base unsafe.Pointer, ldb int, c unsafe.Pointer, ldc, cols int)

// gemmScratch is a worker's share of its scratch memory.
type gemmScratch struct {
	a     []float32 // packed panels of A
	sums  []float32 // (rows, subMax)
	stage []float32 // a panel widened to float32 before it is transposed
}

// memory is the worker's work space; asking again gives the same.
func (g *gemm) memory(w *worker) gemmScratch {
	const a, sums = mcMax*kcMax + edge, mcMax * subMax
	s := w.floats(a + sums + g.isa.nr*kcMax)
	return gemmScratch{s[:a], s[a : a+sums], s[a+sums:]}
}

// packB packs column panels [lo, hi) of the block of B, each led by its part
// of the bias, zero if there is none.
func (g *gemm) packB(w *worker, lo, hi int) {
	for s := lo; s < hi; s++ {
		j := g.j0 + s*g.isa.nr
		width := min(g.isa.nr, g.j1-j)
		panel := g.packed[s*g.panelLen():]
		head := panel[:g.isa.nr]
		clear(head)
		if g.bias.N != 0 {
			load(head[:width], g.bias.Slice(j, j+width))
		}
		g.pack(w, panel[g.isa.nr:], g.isa.nr, g.b, !g.b.Trans, j, width)
	}
}

// packA packs row panels [lo, hi) of the block of A into the worker's memory.
func (g *gemm) packA(w *worker, lo, hi int) {
	a := g.memory(w).a
	for p := lo; p < hi; p++ {
		i := g.panelRow(p)
		rows := g.panelRow(p+1) - i
		stride := rows
		if g.isa.padded {
			stride = g.isa.mr
		}
		g.pack(w, a[(p-lo)*g.kc()*g.isa.mr:], stride, g.a, g.a.Trans, i, rows)
	}
}

// pack packs lanes [lane, lane+width) of x for k in [p0, p1): dst[(p-p0)*stride+i].
// The lanes are columns as stored if side is set, else rows.
func (g *gemm) pack(w *worker, dst []float32, stride int, x device.Mat, side bool, lane, width int) {
	k := g.p1 - g.p0
	if k == 0 {
		return
	}
	if side {
		g.packSide(dst, stride, x, lane, width)
		return
	}
	src, ld, t := x.Buf.Slice(lane*x.Ld+g.p0, x.Buf.N), x.Ld, x.Buf.Type
	if t > device.F16 || g.isa.trans[t] == nil {
		src, ld, t = g.widen(w, src, ld, width), k, device.F32
	}
	for i := 0; i < width; i += g.isa.lanes {
		n := min(g.isa.lanes, width-i)
		g.isa.trans[t](unsafe.Pointer(&dst[i]), src.Slice(i*ld, src.N).Ptr, ld, k, n, stride)
	}
}

// packSide packs lanes that lie side by side.
func (g *gemm) packSide(dst []float32, stride int, x device.Mat, lane, width int) {
	t, k := x.Buf.Type, g.p1-g.p0
	if t <= device.F16 && g.isa.copy[t] != nil {
		src := x.Buf.Slice(g.p0*x.Ld+lane, x.Buf.N)
		g.isa.copy[t](unsafe.Pointer(&dst[0]), src.Ptr, x.Ld, k, width, stride)
		return
	}
	for p := range k {
		at := (g.p0+p)*x.Ld + lane
		load(dst[p*stride:][:width], x.Buf.Slice(at, at+width))
	}
}

// widen is rows of k elements of src, ld apart, as float32 without gaps.
func (g *gemm) widen(w *worker, src device.Buffer, ld, rows int) device.Buffer {
	k := g.p1 - g.p0
	stage := g.memory(w).stage[:rows*k]
	for i := range rows {
		load(stage[i*k:][:k], src.Slice(i*ld, i*ld+k))
	}
	return device.OfF32(stage)
}
