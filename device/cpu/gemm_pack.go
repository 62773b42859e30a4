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
	pair   int // elements of k in a word: 1, or 2 if both operands must be bf16
	unit   int // words of k that a panel is filled up to with zeros
	// padded: panels of A keep mr elements a row even where fewer rows are left.
	padded bool
	a, b   packing
	tile   []tileFunc // by number of rows, 1..mr
	whole  bool       // tiles are whole: mr rows and nr columns
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

// gemmScratch is a worker's share of its scratch memory.
type gemmScratch struct {
	a     []float32 // packed panels of A
	sums  []float32 // (rows, subMax)
	edge  []float32 // a whole tile of which only a part lies inside C
	stage []float32 // a panel widened to float32 before it is transposed
}

// memory is the worker's work space; asking again gives the same.
func (g *gemm) memory(w *worker) gemmScratch {
	const a, sums = mcMax*kcMax + edge, mcMax * subMax
	tile := g.isa.mr * g.isa.nr
	s := w.floats(a + sums + tile + g.isa.nr*kcMax)
	return gemmScratch{s[:a], s[a:][:sums], s[a+sums:][:tile], s[a+sums+tile:]}
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
		g.pack(w, &g.isa.b, panel[g.isa.nr:], g.isa.nr, g.b, !g.b.Trans, j, width)
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
		g.pack(w, &g.isa.a, a[(p-lo)*g.words()*g.isa.mr:], stride, g.a, g.a.Trans, i, rows)
	}
}

// words is the length of a packed lane of a whole block.
func (g *gemm) words() int { return g.wordsOf(g.kc()) }

func (g *gemm) wordsOf(k int) int { return ceil(ceil(k, g.isa.pair), g.isa.unit) * g.isa.unit }

// pack packs lanes [lane, lane+width) of x for the k of the block. The lanes
// are columns as stored if side is set, else rows.
func (g *gemm) pack(w *worker, how *packing, dst []float32, stride int, x device.Mat, side bool, lane, width int) {
	k := g.p1 - g.p0
	if k == 0 {
		return
	}
	if side {
		g.packSide(how, dst, stride, x, lane, width)
	} else {
		g.packApart(w, how, dst, stride, x, lane, width)
	}
	if !how.tiles {
		clear(dst[ceil(k, g.isa.pair)*stride : g.wordsOf(k)*stride])
	}
}

// at is where lane i of a panel starts.
func (how *packing) at(i int) int {
	if how.tiles {
		return 16 * i
	}
	return i
}

func (g *gemm) packApart(w *worker, how *packing, dst []float32, stride int, x device.Mat, lane, width int) {
	k := g.p1 - g.p0
	src, ld, t := x.Buf.Slice(lane*x.Ld+g.p0, x.Buf.N), x.Ld, x.Buf.Type
	if t > device.F16 || how.apart[t] == nil {
		src, ld, t = g.widen(w, src, ld, width), k, device.F32
	}
	for i := 0; i < width; i += how.apartLanes {
		n := min(how.apartLanes, width-i)
		how.apart[t](unsafe.Pointer(&dst[how.at(i)]), src.Slice(i*ld, src.N).Ptr, ld, k, n, stride)
	}
}

func (g *gemm) packSide(how *packing, dst []float32, stride int, x device.Mat, lane, width int) {
	t, k := x.Buf.Type, g.p1-g.p0
	if t <= device.F16 && how.side[t] != nil {
		src := x.Buf.Slice(g.p0*x.Ld+lane, x.Buf.N)
		for i := 0; i < width; i += how.sideLanes {
			n := min(how.sideLanes, width-i)
			how.side[t](unsafe.Pointer(&dst[how.at(i)]), src.Slice(i, src.N).Ptr, x.Ld, k, n, stride)
		}
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
