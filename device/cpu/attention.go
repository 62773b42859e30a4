package cpu

import (
	"fmt"
	"math"

	"zeroth/device"
)

// Attention works on blocks of query positions against blocks of key
// positions, so that all it touches at a time is in cache, and keeps for each
// query the largest score so far and the sum of exponentials relative to it
// (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135).
// Nothing is computed for keys after the last query of a tile of a few rows;
// within the tile, what a query does not see is zeroed.
//
// Letters: B sequences, T positions, H query heads, KV key and value heads, D
// head width, Dp that width padded to whole vectors, Q, K, V, O their
// matrices, S scores, P probabilities, M and L the running maximum and sum.
//
// Block borders lie at multiples of every tile and vector, and each of them is
// computed whole, so bits depend on the instruction set alone.
//
// Where everything is bf16 and tiles of bf16 are multiplied by hardware, so are
// the products of attention; see attention_tiles.go.
const (
	queryBlock = 64  // positions; a multiple of every tile's rows
	keyBlock   = 128 // positions, forward; a multiple of queryBlock
	gradBlock  = 64  // query and key positions, backward
	rowUnit    = 16  // elements that rows in work space are padded to
)

// attnRows panics unless the matrices are (B*positions, heads*D).
func attnRows(op string, a *device.Attn, positions, heads int, ms ...*device.Mat) {
	for _, m := range ms {
		wantMat(op, *m, a.B*positions, heads*a.D)
	}
}

func wantAttn(op string, a *device.Attn, lse device.Buffer) {
	if a.B < 0 || a.T < 0 || a.Past < 0 || a.KV < 1 || a.H%a.KV != 0 || a.D < 1 {
		panic(fmt.Sprintf("cpu: %s of B %d, T %d after %d, H %d, KV %d, D %d", op, a.B, a.T, a.Past, a.H, a.KV, a.D))
	}
	wantLen(op, lse, device.F32, a.B*a.H*a.T)
}

// Attention sets o = softmax(Scale q·k)·v for each head, each position seeing
// itself and those before it; lse (B, H, T) float32 receives the logarithm of
// the sum of the exponentials of each position's scores. Values at positions a
// query does not see must be finite.
func (q *Queue) Attention(o device.Mat, lse device.Buffer, qm, k, v device.Mat, a device.Attn) {
	wantAttn("attention", &a, lse)
	attnRows("attention", &a, a.T, a.H, &o, &qm)
	attnRows("attention", &a, a.Keys(), a.KV, &k, &v)
	t := q.issue("attention")
	t.m[0], t.m[1], t.m[2], t.m[3] = o, qm, k, v
	t.b[0], t.attn = lse, a
	q.kernel(t, runAttention, a.B*a.H*queryBlocks(&a), 1)
}

// take cuts the next n elements off mem.
func take(mem *[]float32, n int) []float32 {
	x := (*mem)[:n:n]
	*mem = (*mem)[n:]
	return x
}

// padded is n rounded up to a multiple of unit.
func padded(n, unit int) int { return ceil(n, unit) * unit }

// loadRows reads n rows of D elements from (row, col) of m on into rows of dst,
// ld apart, and multiplies them by scale.
func (s *attnISA) loadRows(dst []float32, ld int, m *device.Mat, row, col, n, D int, scale float32) {
	part := m.Buf.Slice(row*m.Ld+col, (row+n-1)*m.Ld+col+D)
	whole := D / rowUnit * rowUnit
	if whole > 0 {
		s.load[part.Type](floatPtr(dst, 0), part.Ptr, ld, m.Ld, n, whole, scale)
	}
	for i := 0; whole < D && i < n; i++ {
		x := dst[i*ld+whole:][:D-whole]
		load(x, part.Slice(i*m.Ld+whole, i*m.Ld+D))
		for j := range x {
			x[j] *= scale
		}
	}
}

// storeRows multiplies n rows of D elements, ld apart, by scale and writes
// them to m from (row, col) on; src is work space that may be changed.
func (s *attnISA) storeRows(m *device.Mat, row, col int, src []float32, ld, n, D int, scale float32) {
	part := m.Buf.Slice(row*m.Ld+col, (row+n-1)*m.Ld+col+D)
	whole := D / rowUnit * rowUnit
	if whole > 0 {
		s.store[part.Type](part.Ptr, floatPtr(src, 0), m.Ld, ld, n, whole, scale)
	}
	for i := 0; whole < D && i < n; i++ {
		x := src[i*ld+whole:][:D-whole]
		for j := range x {
			x[j] *= scale
		}
		store(part.Slice(i*m.Ld+whole, i*m.Ld+D), x)
	}
}

// panels is the transpose of rows, k elements each, ld apart: panels of 2
// lanes columns, (k, 2 lanes) each.
func (s *attnISA) panels(dst, rows []float32, ld, n, k int) {
	for i := 0; i < n; i += s.lanes {
		panel := i / (2 * s.lanes) * (2 * s.lanes)
		s.trans(floatPtr(dst, panel*k+i-panel), floatPtr(rows, i*ld), ld, k, min(s.lanes, n-i))
	}
}

// scores sets c (nq, nk), rows ldc apart, to a·b for what queries see: a is
// rows of k elements, ld apart, b panels. The first query sees the first n keys.
// t is the caller's, as of all that call assembly.
func (s *attnISA) scores(t *microTile, c []float32, ldc int, a []float32, ld int, b []float32, nq, nk, n, k int) {
	width := 2 * s.lanes
	t.k, t.ai, t.ak, t.ldb, t.ldc, t.add = k, ld, 1, width, ldc, 0
	for j := 0; j < nk; j += width {
		t.b = floatPtr(b, j*k)
		for i := max(0, j-n+1) / s.rows * s.rows; i < nq; i += s.rows {
			t.a, t.c = floatPtr(a, i*ld), floatPtr(c, i*ldc+j)
			see := min(nk, n+i+s.rows-1) - j
			s.micro[min(2, ceil(see, s.lanes))](t)
		}
	}
}

// pvProduct sets c (nq, n), or adds to it, to p·b for what queries see: p (nq, nk)
// is rows ldp apart, b (nk, n) and c rows ld apart. It is probabilities by values
// and, backward, the gradients of scores by keys.
func (s *attnISA) pvProduct(t *microTile, c, p []float32, ldp int, b []float32, ld, nq, nk, see, n, add int) {
	t.ai, t.ak, t.ldb, t.ldc, t.add = ldp, 1, ld, ld, add
	for j := 0; j < n; j += 2 * s.lanes {
		micro := s.micro[min(2, ceil(n-j, s.lanes))]
		t.b = floatPtr(b, j)
		for i := 0; i < nq; i += s.rows {
			t.k, t.a, t.c = min(nk, see+i+s.rows-1), floatPtr(p, i*ldp), floatPtr(c, i*ld+j)
			micro(t)
		}
	}
}

// queryBlocks is how many blocks of positions have queries.
func queryBlocks(a *device.Attn) int {
	if a.T == 0 {
		return 0
	}
	return ceil(a.Keys(), queryBlock) - a.Past/queryBlock
}

// runAttention computes query blocks: piece ((b*H)+h)*blocks + block.
func runAttention(t *args, w *worker, lo, hi int) {
	a, n := &t.attn, queryBlocks(&t.attn)
	f := newAttnForward(t, w)
	for i := lo; i < hi; i++ {
		begin := (a.Past/queryBlock + i%n) * queryBlock
		f.block(i/n/a.H, i/n%a.H, max(begin, a.Past), min(begin+queryBlock, a.Keys()))
	}
}

// attnForward is the work space of one worker.
type attnForward struct {
	t            *args
	args         *callArgs
	isa          *vecISA
	Dp           int
	Q, O         []float32 // (queryBlock, Dp); Q times Scale
	V            []float32 // (Keys, Dp)
	Kt           []float32 // panels of 2 lanes keys
	S            []float32 // (queryBlock, keyBlock): scores, then exponentials
	M, L, shrink []float32 // (queryBlock), (queryBlock, lanes), (queryBlock)
	head, packed int       // the head whose first packed keys and values are in Kt and V

	tiles tileForward // if in use, what takes the place of Q, V and Kt
}

func newAttnForward(t *args, w *worker) attnForward {
	a := &t.attn
	f := attnForward{t: t, args: &w.args, isa: bestVec, Dp: padded(a.D, rowUnit), head: -1}
	if tilesFor(t.m[:4]) {
		f.useTiles(w)
		return f
	}
	keys := padded(a.Keys(), 2*f.isa.lanes)
	mem := w.floats(2*queryBlock*f.Dp + keys*(a.D+f.Dp) + queryBlock*(keyBlock+2+f.isa.lanes) + edge)
	f.Q, f.O = take(&mem, queryBlock*f.Dp), take(&mem, queryBlock*f.Dp)
	f.V, f.Kt = take(&mem, keys*f.Dp), take(&mem, keys*a.D)
	f.S, f.L = take(&mem, queryBlock*keyBlock), take(&mem, queryBlock*f.isa.lanes)
	f.M, f.shrink = take(&mem, queryBlock), take(&mem, queryBlock)
	return f
}

// pack makes the first n keys and values of key head kv of sequence b ready.
func (f *attnForward) pack(b, kv, n int) {
	a := &f.t.attn
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
		f.isa.loadRows(V, f.Dp, &f.t.m[2], first+f.packed, kv*a.D, nk, a.D, 1)
		f.isa.panels(f.Kt[f.packed*a.D:], V, f.Dp, nk, a.D)
		f.isa.loadRows(V, f.Dp, &f.t.m[3], first+f.packed, kv*a.D, nk, a.D, 1)
	}
}

// block computes head h of sequence b for positions [q0, end) of one block.
func (f *attnForward) block(b, h, q0, end int) {
	a, at, nq := &f.t.attn, q0-f.t.attn.Past, end-q0
	lse, row := f.t.b[0].F32()[((b*a.H)+h)*a.T+at:], b*a.T+at
	f.pack(b, h/(a.H/a.KV), end)
	if f.tiles.use {
		f.tiles.queries(f.t, row, h*a.D, nq)
	} else {
		f.isa.loadRows(f.Q, f.Dp, &f.t.m[1], row, h*a.D, nq, a.D, a.Scale)
	}
	clear(f.L)
	for i := range f.M {
		f.M[i] = negInf
	}
	for k0 := 0; k0 <= q0; k0 += keyBlock {
		f.keys(q0, k0, nq)
	}
	for i := range nq {
		var sum float32
		for _, x := range f.L[i*f.isa.lanes:][:f.isa.lanes] {
			sum += x
		}
		lse[i] = f.M[i] + float32(math.Log(float64(sum)))
		f.isa.scale(floatPtr(f.O, i*f.Dp), f.Dp, 1/sum)
	}
	f.isa.storeRows(&f.t.m[0], row, h*a.D, f.O, f.Dp, nq, a.D, 1)
}

// keys goes on to the keys and values from position k0 on.
func (f *attnForward) keys(q0, k0, nq int) {
	a, isa := &f.t.attn, f.isa
	nk, see, add := min(keyBlock, q0+nq-k0), q0-k0+1, 0
	if f.tiles.use {
		f.tiles.scores(f, k0, nq, nk, see)
	} else {
		isa.scores(&f.args.micro, f.S, keyBlock, f.Q, f.Dp, f.Kt[k0*a.D:], nq, nk, see, a.D)
	}
	r := &f.args.softmax
	r.ld, r.most = keyBlock, nk
	for i := 0; i < nq; i += isa.rows {
		end := min(nk, see+i+isa.rows-1)
		if f.tiles.use {
			end = 32 * tilesSeen(i, nk, see)
		}
		r.s, r.rows, r.n, r.end = floatPtr(f.S, i*keyBlock), min(isa.rows, nq-i), see+i, end
		r.m, r.l, r.shrink = floatPtr(f.M, i), floatPtr(f.L, i*isa.lanes), floatPtr(f.shrink, i)
		isa.online(r)
	}
	if k0 > 0 {
		add = 1
		for i, s := range f.shrink[:nq] {
			if s != 1 {
				isa.scale(floatPtr(f.O, i*f.Dp), f.Dp, s)
			}
		}
	}
	if f.tiles.use {
		f.tiles.pvProduct(f, k0, nq, nk, see, add)
		return
	}
	isa.pvProduct(&f.args.micro, f.O, f.S, keyBlock, f.V[k0*f.Dp:], f.Dp, nq, nk, see, f.Dp, add)
}
