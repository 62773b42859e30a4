package cpu

import (
	"math/rand/v2"
	"testing"
	"time"

	"zeroth/device"
	"zeroth/nn"
	"zeroth/optim"
)

var _ optim.Ops = (*Queue)(nil)

// A queue implements all of nn.Ops except the matrix product, which has its own tests. If Queue
// has a method, it is shallower than the embedded one and hides it.
var _ nn.Ops = struct {
	*Queue
	elsewhere
}{}

type elsewhere struct{ matProduct }

type matProduct struct{}

func (matProduct) MatMul(c, a, b device.Mat, bias device.Buffer, add bool) {}

// call runs one kernel on operands of a given size.
type call struct {
	name  string
	run   func(q *Queue)
	elems int     // of the main operand
	bytes int     // that must be read or written at least once
	flops float64 // of matrix products inside; 0 if limited by memory
}

// calls returns calls of every kernel on rows × cols activations of type dt, vocab logits per
// row, and rows × cols elements of optimizer state.
func calls(dt device.DType, rows, cols, vocab int, a device.Attn) []call {
	rng := rand.New(rand.NewPCG(1, 2))
	f32, n, size := device.F32, rows*cols, dt.Size()
	mat := func(dt device.DType, r, c int) device.Mat { return newGuarded(dt, r, c, 0).normal(rng, 0, 1).Mat }
	vec := func(dt device.DType, n int) device.Buffer { return newVec(dt, n).normal(rng, 0, 1).Buf }
	x, y, z, logits := mat(dt, rows, cols), mat(dt, rows, cols), mat(dt, rows, cols), mat(dt, rows, vocab)
	wte, wpe, dwte, dwpe := mat(dt, vocab, cols), mat(dt, rows, cols), mat(f32, vocab, cols), mat(f32, rows, cols)
	ids := randomIDs(rng, rows, vocab).Buf
	w, b, dw, db, p := vec(dt, cols), vec(dt, cols), vec(f32, cols), vec(f32, cols), vec(dt, n)
	mean, rstd, loss := vec(f32, rows), vec(f32, rows), vec(f32, rows)
	m0, g0, m1, m2 := vec(f32, n), vec(f32, n), vec(f32, n), newVec(f32, n).fill(func(int) float64 { return 1 }).Buf
	m8, v8 := device.Narrow(make([]float32, n), device.Q8), device.Narrow(make([]float32, n), device.U8)
	exact := ofI64(make([]int64, device.ExactLen))
	at := newAttnBench(dt, a)
	turned, rope := mat(dt, a.B*a.T, a.H*a.D), device.Rope{T: a.T, D: a.D, Theta: 10000}
	attnElems, attnFlops := a.B*a.T*a.H*a.D, float64(a.B*a.H)*float64(a.T)*float64(a.T+1)/2*float64(a.D)
	return []call{
		{"zero", func(q *Queue) { q.Zero(y.Buf) }, n, n * size, 0},
		{"add", func(q *Queue) { q.AddTo(y.Buf, x.Buf, z.Buf) }, n, 3 * n * size, 0},
		{"scale", func(q *Queue) { q.Scale(m0, 1) }, n, 8 * n, 0},
		{"gelu", func(q *Queue) { q.Gelu(y.Buf, x.Buf) }, n, 2 * n * size, 0},
		{"gelu-grad", func(q *Queue) { q.GeluGrad(y.Buf, x.Buf, z.Buf) }, n, 3 * n * size, 0},
		{"sum-rows", func(q *Queue) { q.SumRows(db, x) }, n, n * size, 0},
		{"sum", func(q *Queue) { q.Sum(exact, g0) }, n, 4 * n, 0},
		{"sum-squares", func(q *Queue) { q.SumSquares(exact, g0) }, n, 4 * n, 0},
		{"layer-norm", func(q *Queue) { q.LayerNorm(y, mean, rstd, x, w, b, 1e-5) }, n, 2 * n * size, 0},
		{"layer-norm-grad", func(q *Queue) { q.LayerNormGrad(y, dw, db, z, x, w, mean, rstd, false) }, n, 3 * n * size, 0},
		{"rms-norm", func(q *Queue) { q.RMSNorm(y, rstd, x, w, 1e-5) }, n, 2 * n * size, 0},
		{"rms-norm-grad", func(q *Queue) { q.RMSNormGrad(y, dw, z, x, w, rstd, false) }, n, 3 * n * size, 0},
		{"rope", func(q *Queue) { q.Rope(turned, rope, false) }, turned.Rows * turned.Cols, 2 * turned.Rows * turned.Cols * size, 0},
		{"swiglu", func(q *Queue) { q.Gate(y, x, z, device.Silu) }, n, 3 * n * size, 0},
		{"swiglu-grad", func(q *Queue) { q.GateGrad(row(y.Buf), row(p), row(x.Buf), row(z.Buf), row(wpe.Buf), device.Silu) }, n, 5 * n * size, 0},
		{"dropout", func(q *Queue) { q.Dropout(y.Buf, x.Buf, z.Buf, device.Dropout{Drop: 6554, Cols: cols}) }, n, 3 * n * size, 0},
		{"embed", func(q *Queue) { q.Embed(y, wte, wpe, device.Vocab{}, ids, rows, device.Buffer{}) }, n, 3 * n * size, 0},
		{"embed-grad", func(q *Queue) { q.EmbedGrad(dwte, dwpe, x, device.Vocab{}, ids, rows, device.Buffer{}, false) }, n, 4*vocab*cols + 4*n + n*size, 0},
		{"cross-entropy", func(q *Queue) { q.CrossEntropy(loss, logits, ids, 0) }, rows * vocab, rows * vocab * size, 0},
		{"cross-entropy-grad", func(q *Queue) { q.CrossEntropyGrad(loss, logits, ids, 1, 0) }, rows * vocab, 2 * rows * vocab * size, 0},
		{"adamw", func(q *Queue) {
			q.AdamW(m0, p, g0, m1, m2, device.AdamW{GradScale: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Shrink: 1, Step: 1e-3, RootC2: 1})
		}, n, 28*n + n*size, 0},
		{"adamw8", func(q *Queue) {
			q.AdamW8(m0, p, g0, m8, v8, device.AdamW{GradScale: 1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Shrink: 1, Step: 1e-3, RootC2: 1})
		}, n, 12*n + n*size + 2*(m8.Bytes()+v8.Bytes()), 0},
		{"sgd", func(q *Queue) { q.SGD(m0, p, g0, m1, device.SGD{GradScale: 1, Momentum: 0.5, LR: 1e-3}) }, n, 20*n + n*size, 0},
		{"lion", func(q *Queue) {
			q.Lion(m0, p, g0, m1, device.Lion{GradScale: 1, Beta1: 0.9, Beta2: 0.99, Shrink: 1, LR: 1e-3})
		}, n, 20*n + n*size, 0},
		{"axpby", func(q *Queue) { q.Axpby(y.Buf, p, x.Buf, z.Buf, 0.5, 2) }, n, 4 * n * size, 0},
		{"normalize", func(q *Queue) { q.Normalize(y.Buf, exact, 1e-7) }, n, 3 * n * size, 0},
		{"attention", at.forward, attnElems, 4 * attnElems * size, 4 * attnFlops},
		{"attention-grad", at.backward, attnElems, 8 * attnElems * size, 10 * attnFlops},
	}
}

// newAttnBench returns operands without an oracle.
func newAttnBench(dt device.DType, a device.Attn) *attnCase {
	rng := rand.New(rand.NewPCG(3, 4))
	wide := func() *guarded { return newMat(dt, a.B*a.T, a.H*a.D).normal(rng, 0, 1) }
	slim := func() *guarded { return newMat(dt, a.B*a.T, a.KV*a.D).normal(rng, 0, 1) }
	c := &attnCase{a: a, q: wide(), do: wide(), o: wide(), dq: wide(), k: slim(), v: slim(), dk: slim(), dv: slim()}
	c.lse = newVec(device.F32, a.B*a.H*a.T).normal(rng, 5, 1)
	c.delta = newVec(device.F32, a.B*a.H*a.T).normal(rng, 0, 1)
	return c
}

func TestKernelsAllocateNothing(t *testing.T) {
	eachType(t, func(t *testing.T, dt device.DType) {
		for _, workers := range []int{1, 2} {
			q := queueOf(t, workers)
			for _, c := range calls(dt, 65, 66, 67, device.Attn{B: 1, T: 65, H: 2, KV: 1, D: 8, Scale: 0.3}) {
				once := func() {
					c.run(q)
					if err := q.Wait(); err != nil {
						t.Fatal(err)
					}
				}
				for range 3 {
					once() // scratch grows to its final size
				}
				if n := testing.AllocsPerRun(20, once); n != 0 {
					t.Errorf("%s with %d workers: %g allocations a call", c.name, workers, n)
				}
			}
		}
	})
}

// TestKernelsDoNothingOnNothing calls every kernel with no rows.
func TestKernelsDoNothingOnNothing(t *testing.T) {
	q := queueOf(t, 2)
	for _, c := range calls(device.BF16, 0, 3, 5, device.Attn{T: 4, H: 2, KV: 1, D: 8}) {
		if c.name == "embed" || c.name == "embed-grad" {
			continue // a sequence has at least one position
		}
		c.run(q)
	}
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
}

// copySpeed returns the bytes read and written per second by copies of 32 MiB on q, the fastest
// of five runs.
func copySpeed(b *testing.B, q *Queue) float64 {
	const n = 32 << 20
	dst, src := device.OfF32(make([]float32, n/4)), device.OfF32(make([]float32, n/4))
	for i := range src.N {
		src.F32()[i] = 1 // otherwise all pages map to the same zero page
	}
	best := time.Duration(1 << 62)
	for range 5 {
		start := time.Now()
		q.Copy(dst, src)
		if err := q.Wait(); err != nil {
			b.Fatal(err)
		}
		best = min(best, time.Since(start))
	}
	return 2 * n / best.Seconds()
}

// BenchmarkKernels reports, for one worker, nanoseconds per element and memory traffic relative to
// copying; attention reports GFLOP/s.
func BenchmarkKernels(b *testing.B) {
	for _, dt := range []device.DType{device.F32, device.BF16} {
		q := queueOf(b, 1)
		limit := copySpeed(b, q)
		for _, c := range calls(dt, 1024, 768, 2048, device.Attn{B: 2, T: 256, H: 6, KV: 6, D: 64, Scale: 0.125}) {
			b.Run(c.name+"/"+dt.String(), func(b *testing.B) {
				for b.Loop() {
					c.run(q)
					if err := q.Wait(); err != nil {
						b.Fatal(err)
					}
				}
				each := b.Elapsed().Seconds() / float64(b.N)
				b.ReportMetric(each*1e9/float64(c.elems), "ns/elem")
				if c.flops > 0 {
					b.ReportMetric(c.flops/each/1e9, "GFLOP/s")
					return
				}
				b.ReportMetric(float64(c.bytes)/each/1e9, "GB/s")
				b.ReportMetric(float64(c.bytes)/each/limit, "of-copy")
			})
		}
	}
}
