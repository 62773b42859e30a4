package kernel

import (
	"fmt"
	"math"

	"zeroth/device"
)

// Attention processes blocks of query positions against blocks of key positions, so that the
// current data stays in cache, and keeps for each query the largest score so far and the sum of
// exponentials relative to it (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv
// 2205.14135). Keys after the last query of a tile of a few rows are skipped; within the tile,
// elements of invisible keys are zeroed.
//
// Letters: B sequences, T positions, H query heads, KV key and value heads, D head width, Dp that
// width padded to whole vectors, Q, K, V, O their matrices, S scores, P probabilities, M and L the
// running maximum and sum.
//
// Block boundaries are at multiples of every tile and vector, and each block is computed as a
// whole, so the bits depend only on the instruction set.
//
// If everything is bf16 and hardware multiplies tiles of bf16, the products of attention use them;
// see attention_tiles.go.
const (
	queryBlock = 64  // positions; a multiple of every tile's rows
	keyBlock   = 128 // positions, forward; a multiple of queryBlock
	gradBlock  = 64  // query and key positions, backward
	rowUnit    = 16  // rows in working space are padded to this many elements
)

// AttnRows panics unless the matrices are (B*positions, heads*D).
func AttnRows(op string, a *device.Attn, positions, heads int, ms ...*device.Mat) {
	for _, m := range ms {
		WantMat(op, a.B*positions, heads*a.D, *m)
	}
}

// WantAttn panics unless the sizes in a are valid and lse is (B, H, T) float32.
func WantAttn(op string, a *device.Attn, lse device.Buffer) {
	if a.B < 0 || a.T < 0 || a.Past < 0 || a.Window < 0 || a.KV < 1 || a.H%a.KV != 0 || a.D < 1 {
		panic(fmt.Sprintf("cpu: %s of B %d, T %d after %d, H %d, KV %d, D %d", op, a.B, a.T, a.Past, a.H, a.KV, a.D))
	}
	WantLen(op, device.F32, a.B*a.H*a.T, lse)
}

// starts returns the part of Start for sequence b of T positions, or nil if it is empty.
func starts(start *device.Buffer, b, T int) []int32 {
	if start.N == 0 {
		return nil
	}
	return start.I32()[b*T:][:T]
}

// take returns the next n elements of mem.
func take(mem *[]float32, n int) []float32 {
	x := (*mem)[:n:n]
	*mem = (*mem)[n:]
	return x
}

// padded returns n rounded up to a multiple of unit.
func padded(n, unit int) int { return Ceil(n, unit) * unit }

// loadRows copies n rows of D elements of m, starting at (row, col), to the rows of dst, which
// are ld apart, multiplying by scale.
func (s *attnISA) loadRows(dst []float32, ld int, m *device.Mat, row, col, n, D int, scale float32) {
	part := m.Buf.Slice(row*m.Ld+col, (row+n-1)*m.Ld+col+D)
	whole := D / rowUnit * rowUnit
	if whole > 0 {
		s.load[part.Type](FloatPtr(dst, 0), part.Ptr, ld, m.Ld, n, whole, scale)
	}
	for i := 0; whole < D && i < n; i++ {
		x := dst[i*ld+whole:][:D-whole]
		Load(x, part.Slice(i*m.Ld+whole, i*m.Ld+D))
		for j := range x {
			x[j] *= scale
		}
	}
}

// storeRows multiplies n rows of D elements, ld apart, by scale and writes them to m, starting at
// (row, col). It may modify src.
func (s *attnISA) storeRows(m *device.Mat, row, col int, src []float32, ld, n, D int, scale float32) {
	part := m.Buf.Slice(row*m.Ld+col, (row+n-1)*m.Ld+col+D)
	whole := D / rowUnit * rowUnit
	if whole > 0 {
		s.store[part.Type](part.Ptr, FloatPtr(src, 0), m.Ld, ld, n, whole, scale)
	}
	for i := 0; whole < D && i < n; i++ {
		x := src[i*ld+whole:][:D-whole]
		for j := range x {
			x[j] *= scale
		}
		Store(part.Slice(i*m.Ld+whole, i*m.Ld+D), x)
	}
}

// panels transposes rows of k elements, ld apart, into panels of 2 lanes columns, (k, 2 lanes)
// each.
func (s *attnISA) panels(dst, rows []float32, ld, n, k int) {
	for i := 0; i < n; i += s.Lanes {
		panel := i / (2 * s.Lanes) * (2 * s.Lanes)
		s.trans(FloatPtr(dst, panel*k+i-panel), FloatPtr(rows, i*ld), ld, k, min(s.Lanes, n-i))
	}
}

// scores sets c (nq, nk), with rows ldc apart, to a·b for visible keys. a contains rows of k
// elements, ld apart, and b panels. The first query sees the first n keys. The caller owns t, as
// in all calls of assembly.
func (s *attnISA) scores(t *MicroTile, c []float32, ldc int, a []float32, ld int, b []float32, nq, nk, n, k int) {
	width := 2 * s.Lanes
	t.K, t.Ai, t.Ak, t.Ldb, t.Ldc, t.Add = k, ld, 1, width, ldc, 0
	for j := 0; j < nk; j += width {
		t.B = FloatPtr(b, j*k)
		for i := max(0, j-n+1) / s.Rows * s.Rows; i < nq; i += s.Rows {
			t.A, t.C = FloatPtr(a, i*ld), FloatPtr(c, i*ldc+j)
			see := min(nk, n+i+s.Rows-1) - j
			s.Micro[min(2, Ceil(see, s.Lanes))](t)
		}
	}
}

// pvProduct sets c (nq, n) to p·b for visible keys, or adds to it. The rows of p (nq, nk) are ldp
// apart, and the rows of b (nk, n) and c are ld apart. It multiplies probabilities by values and,
// in the backward pass, gradients of scores by keys.
func (s *attnISA) pvProduct(t *MicroTile, c, p []float32, ldp int, b []float32, ld, nq, nk, see, n, add int) {
	t.Ai, t.Ak, t.Ldb, t.Ldc, t.Add = ldp, 1, ld, ld, add
	for j := 0; j < n; j += 2 * s.Lanes {
		micro := s.Micro[min(2, Ceil(n-j, s.Lanes))]
		t.B = FloatPtr(b, j)
		for i := 0; i < nq; i += s.Rows {
			t.K, t.A, t.C = min(nk, see+i+s.Rows-1), FloatPtr(p, i*ldp), FloatPtr(c, i*ld+j)
			micro(t)
		}
	}
}

// QueryBlocks returns the number of blocks of positions that contain queries.
func QueryBlocks(a *device.Attn) int {
	if a.T == 0 {
		return 0
	}
	return Ceil(a.Keys(), queryBlock) - a.Past/queryBlock
}

// RunAttention computes query blocks: piece ((b*H)+h)*blocks + block.
func RunAttention(t *Args, w *Worker, lo, hi int) {
	a, n := &t.Attn, QueryBlocks(&t.Attn)
	f := newAttnForward(t, w)
	for i := lo; i < hi; i++ {
		begin := (a.Past/queryBlock + i%n) * queryBlock
		f.block(i/n/a.H, i/n%a.H, max(begin, a.Past), min(begin+queryBlock, a.Keys()))
	}
}

// attnForward contains a worker's working space.
type attnForward struct {
	t            *Args
	args         *callArgs
	isa          *VecISA
	Dp           int
	Q, O         []float32 // (queryBlock, Dp); Q times Scale
	V            []float32 // (Keys, Dp)
	Kt           []float32 // panels of 2 lanes keys
	S            []float32 // (queryBlock, keyBlock): scores, then exponentials
	M, L, shrink []float32 // (queryBlock), (queryBlock, lanes), (queryBlock)
	head, packed int       // the key head whose first packed keys and values are in Kt and V
	start        []int32   // (T) of the sequence, or nil
	drop         scoreDrop

	tiles tileForward // if used, replaces Q, V and Kt
}

func newAttnForward(t *Args, w *Worker) attnForward {
	a := &t.Attn
	f := attnForward{t: t, args: &w.args, isa: BestVec, Dp: padded(a.D, rowUnit), head: -1, drop: newScoreDrop(t, w)}
	if tilesFor(t.M[:4]) {
		f.useTiles(w)
		return f
	}
	keys := padded(a.Keys(), 2*f.isa.Lanes)
	mem := w.Floats(2*queryBlock*f.Dp + keys*(a.D+f.Dp) + queryBlock*(keyBlock+2+f.isa.Lanes) + Edge)
	f.Q, f.O = take(&mem, queryBlock*f.Dp), take(&mem, queryBlock*f.Dp)
	f.V, f.Kt = take(&mem, keys*f.Dp), take(&mem, keys*a.D)
	f.S, f.L = take(&mem, queryBlock*keyBlock), take(&mem, queryBlock*f.isa.Lanes)
	f.M, f.shrink = take(&mem, queryBlock), take(&mem, queryBlock)
	return f
}

// pack prepares the first n keys and values of key head kv of sequence b.
func (f *attnForward) pack(b, kv, n int) {
	a := &f.t.Attn
	if head := b*a.KV + kv; head != f.head {
		f.head, f.packed = head, 0
	}
	for ; f.packed < n; f.packed += keyBlock {
		nk, first := min(keyBlock, a.Keys()-f.packed), b*a.Keys()
		if f.tiles.use {
			f.tiles.pack(f.t, first, kv*a.D, f.packed, nk)
			continue
		}
		V := f.V[f.packed*f.Dp:]
		f.isa.loadRows(V, f.Dp, &f.t.M[2], first+f.packed, kv*a.D, nk, a.D, 1)
		f.isa.panels(f.Kt[f.packed*a.D:], V, f.Dp, nk, a.D)
		f.isa.loadRows(V, f.Dp, &f.t.M[3], first+f.packed, kv*a.D, nk, a.D, 1)
	}
}

// block computes head h of sequence b for positions [q0, end) of one block.
func (f *attnForward) block(b, h, q0, end int) {
	a, at, nq := &f.t.Attn, q0-f.t.Attn.Past, end-q0
	lse, row := f.t.B[0].F32()[((b*a.H)+h)*a.T+at:], b*a.T+at
	f.start = starts(&f.t.B[1], b, a.T)
	f.drop.row = a.DropRow(b, h, at)
	f.pack(b, h/(a.H/a.KV), end)
	if f.tiles.use {
		f.tiles.queries(f.t, row, h*a.D, nq)
	} else {
		f.isa.loadRows(f.Q, f.Dp, &f.t.M[1], row, h*a.D, nq, a.D, a.Scale)
	}
	clear(f.L)
	fill(f.M, negInf)
	first := a.First(at, f.start) / keyBlock * keyBlock
	for k0 := first; k0 <= q0; k0 += keyBlock {
		f.keys(q0, k0, nq, k0 > first)
	}
	for i := range nq {
		var sum float32
		for _, x := range f.L[i*f.isa.Lanes:][:f.isa.Lanes] {
			sum += x
		}
		lse[i] = f.M[i] + float32(math.Log(float64(sum)))
		f.isa.scale(FloatPtr(f.O, i*f.Dp), f.Dp, 1/sum)
	}
	f.isa.storeRows(&f.t.M[0], row, h*a.D, f.O, f.Dp, nq, a.D, 1)
}

// unseen is the score of a key before a query's window or document: so low that its exponential is
// 0 compared with that of any visible key, including the query's own.
const unseen = -1e30

// hide sets scores (nq, ·), with rows ld apart, to unseen for keys before a query's window or
// document. The first query is at position q0, the first key at k0.
func hide(a *device.Attn, start []int32, s []float32, ld, q0, k0, nq, nk int) {
	for i := range nq {
		row := s[i*ld:][:nk]
		for j := range min(nk, max(0, a.First(q0-a.Past+i, start)-k0)) {
			row[j] = unseen
		}
	}
}

// keys processes the keys and values from position k0 on. more reports whether earlier ones were
// processed.
func (f *attnForward) keys(q0, k0, nq int, more bool) {
	a, isa := &f.t.Attn, f.isa
	nk, see, add := min(keyBlock, q0+nq-k0), q0-k0+1, 0
	if f.tiles.use {
		f.tiles.scores(f, k0, nq, nk, see)
	} else {
		isa.scores(&f.args.micro, f.S, keyBlock, f.Q, f.Dp, f.Kt[k0*a.D:], nq, nk, see, a.D)
	}
	if a.Cap > 0 {
		capScores(f.S, nil, keyBlock, nq, nk, see, a.Cap)
	}
	hide(a, f.start, f.S, keyBlock, q0, k0, nq, nk)
	r := &f.args.softmax
	r.Ld, r.Most = keyBlock, nk
	for i := 0; i < nq; i += isa.Rows {
		end := min(nk, see+i+isa.Rows-1)
		if f.tiles.use {
			end = 32 * tilesSeen(i, nk, see)
		}
		r.S, r.Rows, r.N, r.End = FloatPtr(f.S, i*keyBlock), min(isa.Rows, nq-i), see+i, end
		r.M, r.L, r.Shrink = FloatPtr(f.M, i), FloatPtr(f.L, i*isa.Lanes), FloatPtr(f.shrink, i)
		isa.online(r)
	}
	if f.drop.w != nil { // sums include dropped elements
		f.drop.mask(f.drop.row, k0, keyBlock, nq, nk, see)
		f.drop.apply(f.S, keyBlock, nq, nk, see)
	}
	if more {
		add = 1
		for i, s := range f.shrink[:nq] {
			if s != 1 {
				isa.scale(FloatPtr(f.O, i*f.Dp), f.Dp, s)
			}
		}
	}
	if f.tiles.use {
		f.tiles.pvProduct(f, k0, nq, nk, see, add)
		return
	}
	isa.pvProduct(&f.args.micro, f.O, f.S, keyBlock, f.V[k0*f.Dp:], f.Dp, nq, nk, see, f.Dp, add)
}
