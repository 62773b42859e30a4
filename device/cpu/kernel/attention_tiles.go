package kernel

import (
	"slices"
	"unsafe"

	"zeroth/device"
)

// Attention of bf16 on hardware tiles: its products have bf16 operands and float32 sums, like the
// model's matrix products. So probabilities and their gradients are rounded to bf16 before further
// products, as in FlashAttention-2 (Dao, arXiv 2307.08691); scores, exponentials, maxima and sums
// are float32. Scale is applied to scores and to results.
//
// Operands are packed like those of a matrix product: panels of 32 rows of A or 32 columns of B,
// without bias. W is D rounded up to a multiple of 32, and words = W/2 words of two elements.

// tilesFor reports whether products of these matrices use hardware tiles.
func tilesFor(ms []device.Mat) bool {
	return BestBF16 != nil && BestBF16.Narrow != nil &&
		!slices.ContainsFunc(ms, func(m device.Mat) bool { return m.Buf.Type != device.BF16 })
}

// tilesSeen returns the number of tiles of 32 keys, out of nk keys, that are visible to the tile
// of 32 queries containing query i. Query 0 sees see keys.
func tilesSeen(i, nk, see int) int { return Ceil(min(nk, see+i&^31+31), 32) }

// rowAt returns the address of element (row, col) of m.
func rowAt(m *device.Mat, row, col int) unsafe.Pointer {
	return m.Buf.Slice(row*m.Ld+col, m.Buf.N).Ptr
}

// tileShape contains the parameters common to both directions.
type tileShape struct {
	use        bool
	isa        *ISA
	D, W       int
	words      int
	keyPanel   int // floats of a panel of 32 keys by W
	acrossEach int // floats of a panel that has the head's columns
	row        *TileRow
}

func newTileShape(w *Worker, D, across int) tileShape {
	W := padded(D, 32)
	return tileShape{use: true, isa: BestBF16, D: D, W: W, words: W / 2, keyPanel: W / 2 * 32, acrossEach: across / 2 * 32, row: &w.args.row}
}

// acrossAll returns the floats of the panels for across rows of W columns.
func (s *tileShape) acrossAll() int { return s.W / 32 * s.acrossEach }

// rows packs n rows of D as panels of A.
func (s *tileShape) rows(dst []float32, m *device.Mat, row, col, n int) {
	for i := 0; i < n; i += 32 {
		s.isa.a.trans[device.BF16](FloatPtr(dst, i*s.words), rowAt(m, row+i, col), m.Ld, s.D, min(32, n-i), 32)
	}
}

// columns packs n rows of D as the columns of panels of B, 32 per panel.
func (s *tileShape) columns(dst []float32, m *device.Mat, row, col, n int) {
	for j := 0; j < n; j += 32 {
		panel := dst[j/32*s.keyPanel:][:s.keyPanel]
		clear(panel[Ceil(s.D, 2)*32:])
		for i := j; i < min(n, j+32); i += 16 {
			s.isa.b.trans[device.BF16](FloatPtr(panel, i-j), rowAt(m, row+i, col), m.Ld, s.D, min(16, n-i), 32)
		}
	}
}

// below packs n <= across rows of D as panels of B with 32 columns of D each; missing rows are
// zero.
func (s *tileShape) below(dst []float32, m *device.Mat, row, col, n int) {
	for j := 0; j < s.W; j += 32 {
		panel := dst[j/32*s.acrossEach:][:s.acrossEach]
		s.isa.b.copy[device.BF16](FloatPtr(panel, 0), rowAt(m, row, col+j), m.Ld, n, min(32, s.D-j), 32, s.acrossEach)
		clear(panel[Ceil(n, 2)*32:])
	}
}

// multiply sets n tiles of 32 columns side by side, ld apart, to the product of a panel of A of
// words words by panels of B, or adds it with add.
func (s *tileShape) multiply(c []float32, ld int, a, b []float32, words, panel, n, add int) {
	how := AddNone
	if add != 0 {
		how = AddOld
	}
	A := FloatPtr(a, 0)
	r := s.row
	r.K, r.A, r.Row, r.Step, r.Next = words, A, tilesOfA.row, tilesOfA.step, A
	r.B, r.Panel, r.C, r.Ld, r.N, r.Add, r.Ahead = FloatPtr(b, 0), 4*panel, FloatPtr(c, 0), ld, n, how, nil
	s.isa.Row[device.F32](r)
}

// tileForward contains a worker's packed operands.
type tileForward struct {
	tileShape
	K, V []float32 // panels: keys as columns; blocks of keyBlock values as rows
	Q, P []float32 // panels of A: queries; the exponentials of 32 queries
}

func (f *attnForward) useTiles(w *Worker) {
	s := newTileShape(w, f.t.Attn.D, keyBlock)
	keys := padded(f.t.Attn.Keys(), keyBlock)
	k, v := keys/32*s.keyPanel, keys/keyBlock*s.acrossAll()
	mem := w.Floats(k + v + queryBlock*(s.words+s.W) + 32*keyBlock/2 + queryBlock*(keyBlock+2+f.isa.Lanes))
	f.tiles.tileShape, f.Dp = s, s.W
	f.tiles.K, f.tiles.V = take(&mem, k), take(&mem, v)
	f.tiles.Q, f.O = take(&mem, queryBlock*s.words), take(&mem, queryBlock*s.W)
	f.tiles.P, f.S = take(&mem, 32*keyBlock/2), take(&mem, queryBlock*keyBlock)
	f.L, f.M, f.shrink = take(&mem, queryBlock*f.isa.Lanes), take(&mem, queryBlock), take(&mem, queryBlock)
}

// pack packs nk keys and values from position k0 of the sequence that begins at row first.
func (x *tileForward) pack(t *Args, first, col, k0, nk int) {
	x.columns(x.K[k0/32*x.keyPanel:], &t.M[2], first+k0, col, nk)
	x.below(x.V[k0/keyBlock*x.acrossAll():], &t.M[3], first+k0, col, nk)
}

func (x *tileForward) queries(t *Args, row, col, n int) { x.rows(x.Q, &t.M[1], row, col, n) }

// scores sets S for keys from k0 on, for tiles with any visible element.
func (x *tileForward) scores(f *attnForward, k0, nq, nk, see int) {
	for i := 0; i < nq; i += 32 {
		S := f.S[i*keyBlock:]
		x.multiply(S, keyBlock, x.Q[i*x.words:], x.K[k0/32*x.keyPanel:], x.words, x.keyPanel, tilesSeen(i, nk, see), 0)
		f.isa.Times[device.F32](FloatPtr(S, 0), FloatPtr(S, 0), FloatPtr(S, 0), 32*keyBlock, f.t.Attn.Scale)
	}
}

// pvProduct sets O to S times the values from k0 on, or adds it.
func (x *tileForward) pvProduct(f *attnForward, k0, nq, nk, see, add int) {
	for i := 0; i < nq; i += 32 {
		n := tilesSeen(i, nk, see)
		x.isa.Narrow(FloatPtr(x.P, 0), FloatPtr(f.S, i*keyBlock), keyBlock, 32*n)
		x.multiply(f.O[i*x.W:], x.W, x.P, x.V[k0/keyBlock*x.acrossAll():], 16*n, x.acrossEach, x.W/32, add)
	}
}

// tileBackward contains a worker's packed operands.
type tileBackward struct {
	tileShape
	Kt, Vt     []float32 // panels: keys and values as columns
	K          []float32 // blocks of gradBlock keys as rows
	Q, dO      []float32 // panels of A
	Qb, dOb    []float32 // the same as rows of panels of B
	half       []float32 // (gradBlock, gradBlock) in bf16
	transposed []float32 // panels of A: the transpose of half
	dS         []float32 // panels of A
}

func (f *attnBackward) useTiles(w *Worker) {
	const square = gradBlock * gradBlock
	s := newTileShape(w, f.t.Attn.D, gradBlock)
	T := padded(f.t.Attn.Keys(), gradBlock)
	whole, panels, blocks, part := T*s.W, T/32*s.keyPanel, T/gradBlock*s.acrossAll(), gradBlock*s.W
	mem := w.Floats(2*whole + 2*panels + blocks + 3*part + 2*gradBlock*s.words + 2*s.acrossAll() + 3*square + 3*square/2)
	x := &f.tiles
	x.tileShape, f.Dp = s, s.W
	f.dK, f.dV = take(&mem, whole), take(&mem, whole)
	x.Kt, x.Vt, x.K = take(&mem, panels), take(&mem, panels), take(&mem, blocks)
	f.Q, f.dO, f.dQ = take(&mem, part), take(&mem, part), take(&mem, part)
	x.Q, x.dO = take(&mem, gradBlock*s.words), take(&mem, gradBlock*s.words)
	x.Qb, x.dOb = take(&mem, s.acrossAll()), take(&mem, s.acrossAll())
	f.P, f.dS, f.slopes = take(&mem, square), take(&mem, square), take(&mem, square)
	x.half, x.transposed, x.dS = take(&mem, square/2), take(&mem, square/2), take(&mem, square/2)
}

// pack packs the head's keys and values.
func (x *tileBackward) pack(f *attnBackward) {
	T, m := f.t.Attn.Keys(), &f.t.M
	x.columns(x.Kt, &m[6], f.keys, f.shared, T)
	x.columns(x.Vt, &m[7], f.keys, f.shared, T)
	for k0 := 0; k0 < T; k0 += gradBlock {
		x.below(x.K[k0/gradBlock*x.acrossAll():], &m[6], f.keys+k0, f.shared, min(gradBlock, T-k0))
	}
}

// queries packs n queries and the gradients of their outputs.
func (x *tileBackward) queries(f *attnBackward, row, n int) {
	q, do := &f.t.M[5], &f.t.M[3]
	x.rows(x.Q, q, row, f.head, n)
	x.rows(x.dO, do, row, f.head, n)
	x.below(x.Qb, q, row, f.head, n)
	x.below(x.dOb, do, row, f.head, n)
}

// scores sets P to the scaled scores and dS to do·v.
func (x *tileBackward) scores(f *attnBackward, k0, nq, nk, see int) {
	keys := k0 / 32 * x.keyPanel
	for i := 0; i < nq; i += 32 {
		n, P := tilesSeen(i, nk, see), f.P[i*gradBlock:]
		x.multiply(P, gradBlock, x.Q[i*x.words:], x.Kt[keys:], x.words, x.keyPanel, n, 0)
		x.multiply(f.dS[i*gradBlock:], gradBlock, x.dO[i*x.words:], x.Vt[keys:], x.words, x.keyPanel, n, 0)
		f.isa.Times[device.F32](FloatPtr(P, 0), FloatPtr(P, 0), FloatPtr(P, 0), 32*gradBlock, f.t.Attn.Scale)
	}
}

// gradients adds the contributions of P and dS of nq queries to dV, dK and dQ.
func (x *tileBackward) gradients(f *attnBackward, k0, nq, add, addQ int) {
	clear(f.P[nq*gradBlock:])
	clear(f.dS[nq*gradBlock:])
	x.spread(f.dV[k0*x.W:], f.P, x.dOb, add)
	x.spread(f.dK[k0*x.W:], f.dS, x.Qb, add)
	for i := 0; i < nq; i += 32 {
		x.isa.Narrow(FloatPtr(x.dS, 0), FloatPtr(f.dS, i*gradBlock), gradBlock, gradBlock)
		x.multiply(f.dQ[i*x.W:], x.W, x.dS, x.K[k0/gradBlock*x.acrossAll():], gradBlock/2, x.acrossEach, x.W/32, addQ)
	}
}

// spread sets c (gradBlock, W) to the transpose of p (gradBlock, gradBlock) times b, or adds it.
func (x *tileBackward) spread(c, p, b []float32, add int) {
	half := RawBuffer(device.BF16, FloatPtr(x.half, 0), gradBlock*gradBlock)
	Store(half, p[:gradBlock*gradBlock])
	for j := 0; j < gradBlock; j += 32 {
		panel := x.transposed[j*gradBlock/2:]
		x.isa.a.copy[device.BF16](FloatPtr(panel, 0), half.Slice(j, half.N).Ptr, gradBlock, gradBlock, 32, 32, 0)
		x.multiply(c[j*x.W:], x.W, panel, b, gradBlock/2, x.acrossEach, x.W/32, add)
	}
}
