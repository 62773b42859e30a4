package cpu

import (
	"fmt"
	"math"

	"zeroth/device"
)

// Attention works on blocks of attnBlock query positions against blocks of as
// many key positions, so that all it touches at a time is in cache, and keeps
// for each query the largest score so far and the sum of exponentials relative
// to it (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv
// 2205.14135). Key blocks after the query block are skipped. Letters: B
// sequences, T positions, H query heads, KV key and value heads, D head width,
// Q, K, V, O their matrices, S scores, P probabilities, M and L the running
// maximum and sum.
const attnBlock = 32 // positions

// attnRows panics unless m is (B*T, heads*D).
func attnRows(op string, a *device.Attn, heads int, ms ...*device.Mat) {
	for _, m := range ms {
		wantMat(op, *m, a.B*a.T, heads*a.D)
	}
}

func wantAttn(op string, a *device.Attn, lse device.Buffer) {
	if a.B < 0 || a.T < 0 || a.KV < 1 || a.H%a.KV != 0 || a.D < 1 {
		panic(fmt.Sprintf("cpu: %s of B %d, T %d, H %d, KV %d, D %d", op, a.B, a.T, a.H, a.KV, a.D))
	}
	wantLen(op, lse, device.F32, a.B*a.H*a.T)
}

// Attention sets o = softmax(Scale q·k)·v for each head, each position seeing
// itself and those before it; lse (B, H, T) float32 receives the logarithm of
// the sum of the exponentials of each position's scores. Values at positions a
// query does not see must be finite.
func (q *Queue) Attention(o device.Mat, lse device.Buffer, qm, k, v device.Mat, a device.Attn) {
	wantAttn("attention", &a, lse)
	attnRows("attention", &a, a.H, &o, &qm)
	attnRows("attention", &a, a.KV, &k, &v)
	t := q.issue("attention")
	t.m[0], t.m[1], t.m[2], t.m[3] = o, qm, k, v
	t.b[0], t.attn = lse, a
	q.kernel(t, runAttention, a.B*a.H*attnBlocks(a.T), 1)
}

func attnBlocks(T int) int { return (T + attnBlock - 1) / attnBlock }

// take cuts the next n elements off mem.
func take(mem *[]float32, n int) []float32 {
	x := (*mem)[:n:n]
	*mem = (*mem)[n:]
	return x
}

// loadBlock reads n rows of D elements from (row, col) of m on and multiplies
// them by scale.
func loadBlock(dst []float32, m *device.Mat, row, col, n, D int, scale float32) {
	for i := range n {
		load(dst[i*D:][:D], m.Buf.Slice((row+i)*m.Ld+col, (row+i)*m.Ld+col+D))
	}
	if scale != 1 {
		for i := range dst[:n*D] {
			dst[i] *= scale
		}
	}
}

// storeBlock multiplies n rows of D elements by scale and writes them to m
// from (row, col) on.
func storeBlock(m *device.Mat, row, col int, src []float32, n, D int, scale float32) {
	for i := range n {
		x := src[i*D:][:D]
		if scale != 1 {
			for j := range x {
				x[j] *= scale
			}
		}
		store(m.Buf.Slice((row+i)*m.Ld+col, (row+i)*m.Ld+col+D), x)
	}
}

// transpose sets dst (D, n), rows attnBlock apart, to src (n, D) transposed.
func transpose(dst, src []float32, n, D int) {
	for i := range n {
		for j, x := range src[i*D:][:D] {
			dst[j*attnBlock+i] = x
		}
	}
}

// runAttention computes query blocks: piece ((b*H)+h)*attnBlocks + block.
func runAttention(t *task, w *worker, lo, hi int) {
	a, n := &t.attn, attnBlocks(t.attn.T)
	f := attnForward{t: t}
	mem := w.floats((4*a.D + attnBlock + 2) * attnBlock)
	f.Q, f.O, f.V, f.Kt = take(&mem, attnBlock*a.D), take(&mem, attnBlock*a.D), take(&mem, attnBlock*a.D), take(&mem, attnBlock*a.D)
	f.S, f.M, f.L = take(&mem, attnBlock*attnBlock), take(&mem, attnBlock), take(&mem, attnBlock)
	for i := lo; i < hi; i++ {
		f.block(i/n/a.H, i/n%a.H, i%n*attnBlock)
	}
}

// attnForward is the work space of one worker.
type attnForward struct {
	t       *task
	Q, O, V []float32 // (attnBlock, D)
	Kt      []float32 // (D, attnBlock)
	S       []float32 // (attnBlock, attnBlock): scores, then exponentials
	M, L    []float32 // (attnBlock)
}

// block computes head h of sequence b for the queries from q0 on.
func (f *attnForward) block(b, h, q0 int) {
	a, o, lse := &f.t.attn, &f.t.m[0], f.t.b[0].F32()
	nq, first := min(attnBlock, a.T-q0), b*a.T
	loadBlock(f.Q, &f.t.m[1], first+q0, h*a.D, nq, a.D, a.Scale)
	clear(f.O)
	for i := range nq {
		f.M[i], f.L[i] = float32(math.Inf(-1)), 0
	}
	for k0 := 0; k0 <= q0; k0 += attnBlock {
		f.keys(first, h/(a.H/a.KV)*a.D, q0, k0, nq)
	}
	for i := range nq {
		lse[(b*a.H+h)*a.T+q0+i] = f.M[i] + float32(math.Log(float64(f.L[i])))
		storeBlock(o, first+q0+i, h*a.D, f.O[i*a.D:], 1, a.D, 1/f.L[i])
	}
}

// keys goes on to the keys and values from position k0 on; col is their
// head's first column.
func (f *attnForward) keys(first, col, q0, k0, nq int) {
	a := &f.t.attn
	nk := min(attnBlock, a.T-k0)
	loadBlock(f.V, &f.t.m[2], first+k0, col, nk, a.D, 1)
	transpose(f.Kt, f.V, nk, a.D)
	loadBlock(f.V, &f.t.m[3], first+k0, col, nk, a.D, 1)
	clear(f.S)
	panelMul(panelOf(f.S, attnBlock), panelOf(f.Q, a.D), panelOf(f.Kt, attnBlock), nq, nk, a.D)
	for i := range nq {
		f.soften(i, min(nk, q0+i-k0+1))
	}
	panelMul(panelOf(f.O, a.D), panelOf(f.S, attnBlock), panelOf(f.V, a.D), nq, a.D, nk)
}

// soften turns the first n scores of row i, those it may see, into
// exponentials and the rest into zeros, and brings the row's running sum and
// output to the new maximum.
func (f *attnForward) soften(i, n int) {
	s, D := f.S[i*attnBlock:][:attnBlock], f.t.attn.D
	top := max(f.M[i], largest(s[:n]))
	if shrink := exp32(f.M[i] - top); shrink != 1 {
		f.L[i] *= shrink
		for j := range f.O[i*D:][:D] {
			f.O[i*D+j] *= shrink
		}
	}
	f.M[i] = top
	f.L[i] += expSum(s[:n], s[:n], top)
	clear(s[n:])
}
