package kernel

import (
	"unsafe"

	"zeroth/device"
)

// A product of few rows, such as a model that generates has, reads B once and
// does little with it, so the memory's rate is the limit, and packing B into
// memory would take longer than the product. Here a worker goes through its
// columns of B where they lie, some rows of k at a time; rows of a transposed B
// are transposed into its nearest cache. An element of C is the chain of
// multiply-adds that it is by panels, broken at the same blocks of k: its bits
// are the same.

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
	f32 := g.C.Buf.Type == device.F32 && g.A.Buf.Type == device.F32 && g.B.Buf.Type == device.F32 && (g.Bias.N == 0 || g.Bias.Type == device.F32)
	return f32 && g.ISA.chain != nil && g.M <= FewRows && g.K > 0 && !g.A.Trans && (g.B.Trans || g.N%fewLanes == 0)
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

// fewSpan computes columns [j0, j1).
func (g *Gemm) fewSpan(w *Worker, j0, j1 int) {
	lanes, depth := Ceil(j1-j0, fewLanes)*fewLanes, fewAdded
	if g.B.Trans {
		depth = fewDepth
	}
	mem := w.Floats(g.M*lanes + fewLanes*min(depth, g.K) + Edge)
	sums := take(&mem, g.M*lanes)
	for p0 := 0; p0 < g.K; p0 += g.kc {
		p1 := min(g.K, p0+g.kc)
		clear(sums)
		for p := p0; p < p1; p += depth {
			g.fewRows(sums, lanes, mem, j0, j1, p, min(p1, p+depth))
		}
		for i := range g.M {
			g.fewTotal(g.C.Buf.Slice(i*g.C.Ld+j0, i*g.C.Ld+j1).F32(), sums[i*lanes:], j0, p0 == 0, p1 == g.K)
		}
	}
}

// fewRows adds rows [p0, p1) of B to the sums of columns [j0, j1).
func (g *Gemm) fewRows(sums []float32, lanes int, mem []float32, j0, j1, p0, p1 int) {
	var b unsafe.Pointer
	ldb, k := g.B.Ld, p1-p0
	if g.B.Trans {
		how := &g.ISA.b
		for j := j0; j < j1; j += how.transLanes {
			src := g.B.Buf.Slice(j*g.B.Ld+p0, g.B.Buf.N).Ptr
			how.trans[device.F32](unsafe.Pointer(&mem[j-j0]), src, g.B.Ld, k, min(how.transLanes, j1-j), fewLanes)
		}
		b, ldb = unsafe.Pointer(&mem[0]), fewLanes
	} else {
		b = g.B.Buf.Slice(p0*g.B.Ld+j0, g.B.Buf.N).Ptr
	}
	for i := range g.M {
		a := g.A.Buf.Slice(i*g.A.Ld+p0, g.A.Buf.N).Ptr
		g.ISA.chain(unsafe.Pointer(&sums[i*lanes]), a, b, ldb, k, lanes)
	}
}

// fewTotal adds the sums of a block of k to a row of C from column j0 on, as place
// and finish do for tiles.
func (g *Gemm) fewTotal(c, sums []float32, j0 int, first, last bool) {
	var bias []float32
	if g.Bias.N != 0 {
		bias = g.Bias.Slice(j0, j0+len(c)).F32()
	}
	switch {
	case !first || g.add:
		for j := range c {
			c[j] += sums[j]
		}
	case bias != nil:
		for j := range c {
			c[j] = bias[j] + sums[j]
		}
	default:
		for j := range c {
			c[j] = 0 + sums[j] // as tiles do: -0 becomes 0
		}
	}
	if last && g.add && bias != nil {
		for j := range c {
			c[j] += bias[j]
		}
	}
}
