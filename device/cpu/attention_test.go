package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
	"zeroth/tests/nightly"
)

// attn64 computes attention by its definition, on dense matrices: q, o (B*T, H*D) and k, v (B*T,
// KV*D).
type attn64 struct {
	device.Attn
	q, k, v []float64
}

// at returns where head h of position t of sequence b begins, with heads heads.
func (a *attn64) at(b, t, h, heads int) int { return ((b*a.T+t)*heads + h) * a.D }

// score returns the score of a query and a key.
func (a *attn64) score(q, k []float64) float64 {
	x, c := float64(a.Scale)*dot(q, k), float64(a.Cap)
	if c > 0 {
		return c * math.Tanh(x/c)
	}
	return x
}

// slope returns the derivative of a cap, given its result.
func (a *attn64) slope(y float64) float64 {
	if a.Cap == 0 {
		return 1
	}
	y /= float64(a.Cap)
	return 1 - y*y
}

// row returns the probabilities of the keys visible to query t, and the log-sum-exp.
func (a *attn64) row(b, h, t int) (p []float64, lse float64) {
	kv, sum, first := h/(a.H/a.KV), 0.0, 0
	if a.Window > 0 {
		first = t - a.Window + 1
	}
	if a.Start.N > 0 {
		first = max(first, int(a.Start.I32()[b*a.T+t]))
	}
	for s := range t + 1 {
		if s < first {
			p = append(p, 0)
			continue
		}
		q, k := a.at(b, t, h, a.H), a.at(b, s, kv, a.KV)
		p = append(p, math.Exp(a.score(a.q[q:q+a.D], a.k[k:k+a.D])))
		sum += p[s]
	}
	for s := range p {
		p[s] /= sum
	}
	return p, math.Log(sum)
}

func (a *attn64) heads(f func(b, h, t int, p []float64, lse float64)) {
	for b := range a.B {
		for h := range a.H {
			for t := range a.T {
				p, lse := a.row(b, h, t)
				f(b, h, t, p, lse)
			}
		}
	}
}

func (a *attn64) forward() (o, lse []float64) {
	o = make([]float64, a.B*a.T*a.H*a.D)
	a.heads(func(b, h, t int, p []float64, l float64) {
		lse = append(lse, l)
		for s, ps := range p {
			ps *= a.kept(b, h, t, s)
			for d := range a.D {
				o[a.at(b, t, h, a.H)+d] += ps * a.v[a.at(b, s, h/(a.H/a.KV), a.KV)+d]
			}
		}
	})
	return o, lse
}

// backward computes the gradients from o as it was stored, rounded.
func (a *attn64) backward(do, o []float64) (dq, dk, dv, delta []float64) {
	dq, dk, dv = make([]float64, len(a.q)), make([]float64, len(a.k)), make([]float64, len(a.v))
	a.heads(func(b, h, t int, p []float64, _ float64) {
		q := a.at(b, t, h, a.H)
		sum := dot(do[q:q+a.D], o[q:q+a.D]) // of p times dp
		delta = append(delta, sum)
		for s := range p {
			k := a.at(b, s, h/(a.H/a.KV), a.KV)
			keep := a.kept(b, h, t, s)
			dp := keep * dot(do[q:q+a.D], a.v[k:k+a.D])
			ds := p[s] * (dp - sum) * float64(a.Scale) * a.slope(a.score(a.q[q:q+a.D], a.k[k:k+a.D]))
			for d := range a.D {
				dq[q+d] += ds * a.k[k+d]
				dk[k+d] += ds * a.q[q+d]
				dv[k+d] += keep * p[s] * do[q+d]
			}
		}
	})
	return dq, dk, dv, delta
}

// attnCase contains the operands of one call, with the expected outputs.
type attnCase struct {
	a                                              device.Attn
	q, k, v, do, o, lse, delta, dq, dk, dv         *guarded
	wantO, wantLse, wantDelta, wantQ, wantK, wantV []float64
}

// newAttnCase returns inputs in which some scores are far larger than others; o and lse are set for
// the backward pass if given, else poisoned.
func newAttnCase(dt device.DType, a device.Attn, given bool) *attnCase {
	rng := rand.New(rand.NewPCG(1, 2))
	rows, qc, kc := a.B*a.T, a.H*a.D, a.KV*a.D
	std := 1.5 / math.Sqrt(math.Sqrt(float64(a.D))*float64(a.Scale))
	c := &attnCase{a: a,
		q: newMat(dt, rows, qc).normal(rng, 0, std), k: newMat(dt, rows, kc).normal(rng, 0, std),
		v: newMat(dt, rows, kc).normal(rng, 0.3, 1), do: newMat(dt, rows, qc).normal(rng, 0, 1),
		o: newMat(dt, rows, qc), lse: newVec(device.F32, a.B*a.H*a.T), delta: newVec(device.F32, a.B*a.H*a.T),
		dq: newMat(dt, rows, qc), dk: newMat(dt, rows, kc), dv: newMat(dt, rows, kc)}
	w := attnOracle(dt, a, c)
	c.wantO, c.wantLse = w.o, w.lse
	if given {
		c.o.fill(func(i int) float64 { return c.wantO[i] })
		c.lse.fill(func(i int) float64 { return c.wantLse[i] })
		if w.q == nil {
			w.q, w.k, w.v, w.delta = (&attn64{a, c.q.values(), c.k.values(), c.v.values()}).backward(c.do.values(), c.o.values())
		}
		c.wantQ, c.wantK, c.wantV, c.wantDelta = w.q, w.k, w.v, w.delta
	}
	return c
}

// attnWant holds the oracle's results for one case. Those of the backward pass are computed on
// demand.
type attnWant struct{ o, lse, q, k, v, delta []float64 }

// attnWants caches the results of all cases: the oracle takes longer than the kernels under test,
// and the same cases are computed with several instruction sets and numbers of workers.
var attnWants = map[string]*attnWant{}

// attnOracle returns the oracle's results for a case. Its operands depend only on dt and a.
func attnOracle(dt device.DType, a device.Attn, c *attnCase) *attnWant {
	var starts []int32
	if a.Start.N > 0 {
		starts = a.Start.I32()
	}
	key := a
	key.Start = device.Buffer{}
	name := fmt.Sprint(dt, key, starts)
	if attnWants[name] == nil {
		o, lse := (&attn64{a, c.q.values(), c.k.values(), c.v.values()}).forward()
		attnWants[name] = &attnWant{o: o, lse: lse}
	}
	return attnWants[name]
}

func (c *attnCase) forward(q *Queue) {
	q.Attention(c.o.Mat, c.lse.Buf, c.q.Mat, c.k.Mat, c.v.Mat, c.a)
}

func (c *attnCase) backward(q *Queue) {
	q.AttentionGrad(c.dq.Mat, c.dk.Mat, c.dv.Mat, c.delta.Buf, c.do.Mat, c.o.Mat, c.lse.Buf, c.q.Mat, c.k.Mat, c.v.Mat, c.a)
}

var attnShapes = []device.Attn{
	{B: 1, T: 1, H: 1, KV: 1, D: 1, Scale: 1},
	{B: 2, T: 79, H: 4, KV: 2, D: 9, Scale: 0.3},
	{B: 1, T: 64, H: 3, KV: 3, D: 16, Scale: 0.25},
	{B: 3, T: 33, H: 5, KV: 1, D: 6, Scale: 1},
	{B: 1, T: 261, H: 2, KV: 1, D: 24, Scale: 0.2}, // several blocks of every kind
	{B: 1, T: 130, H: 1, KV: 1, D: 71, Scale: 0.1},
	{B: 1, T: 261, H: 2, KV: 1, D: 24, Scale: 0.2, Window: 2},
	{B: 2, T: 261, H: 2, KV: 2, D: 8, Scale: 0.3, Window: 70},
	{B: 1, T: 290, H: 4, KV: 2, D: 16, Scale: 0.3, Window: 129},
	{B: 1, T: 40, H: 1, KV: 1, D: 5, Scale: 0.4, Window: 40}, // all
	{B: 2, T: 79, H: 4, KV: 2, D: 9, Scale: 0.3, Cap: 2},
	{B: 1, T: 261, H: 2, KV: 1, D: 24, Scale: 0.2, Cap: 5, Window: 130},
}

// packed returns the shape with documents of random lengths, some of one position.
func packed(a device.Attn) device.Attn {
	a.Start = starts(rand.New(rand.NewPCG(uint64(a.T), uint64(a.D))), a.B, a.T).Buf
	return a
}

// starts draws the starts of documents in B sequences.
func starts(rng *rand.Rand, B, T int) *guarded {
	most, first := 1+rng.IntN(T), 0
	return newVec(device.I32, B*T).fill(func(i int) float64 {
		if at := i % T; at == 0 || rng.IntN(most) == 0 || rng.IntN(20) == 0 {
			first = at
		}
		return float64(first)
	})
}

// withVec runs f with each instruction set of this machine, without tiles.
func withVec(t *testing.T, f func(t *testing.T)) {
	defer func(old *kernel.VecISA, tiles *kernel.ISA) { kernel.BestVec, kernel.BestBF16 = old, tiles }(kernel.BestVec, kernel.BestBF16)
	kernel.BestBF16 = nil
	for _, s := range ends(kernel.VecISAs) {
		kernel.BestVec = s
		t.Run(s.Name, f)
	}
}

func TestAttention(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for i, a := range attnShapes {
				for j, a := range variants(a) {
					if dt != device.F32 && !nightly.Every(2, i+j+int(dt)) {
						continue // in one of the two 16-bit types
					}
					attention(t, dt, a, 4e-6) // an error of 5e-7, relative to the exponential, for a score of 10
				}
			}
		})
	})
}

// withTiles runs f with each kind of tiles of bf16.
func withTiles(t *testing.T, f func(t *testing.T)) {
	defer func(old *kernel.ISA) { kernel.BestBF16 = old }(kernel.BestBF16)
	for _, s := range ends(append(kernel.BF16ISAs[1:], emulatedBF16()...)) {
		if kernel.BestBF16 = s; s.Narrow != nil {
			t.Run(s.Name, f)
		}
	}
}

// TestAttentionOnTiles allows for probabilities and their gradients being rounded to bf16, whose
// unit is 2^-8, before further products.
func TestAttentionOnTiles(t *testing.T) {
	nightly.Long(t)
	withTiles(t, func(t *testing.T) {
		for _, a := range append(attnShapes, device.Attn{B: 1, T: 200, H: 2, KV: 2, D: 64, Scale: 0.125}) {
			for _, a := range variants(a) {
				attention(t, device.BF16, a, 0x1p-6)
				attentionGrad(t, device.BF16, a, 0x1p-5)
			}
		}
	})
}

func attention(t *testing.T, dt device.DType, a device.Attn, tol float64) {
	t.Helper()
	var c *attnCase
	out := onWorkers(t, func(q *Queue) []*guarded {
		c = newAttnCase(dt, a, false)
		c.forward(q)
		return []*guarded{c.o, c.lse}
	})
	if a.Drop.Drop > 0 {
		tol *= 2 // a quarter of the weights counts four times, but the rms of the outputs only doubles
	}
	near(t, "o", out[0], c.wantO, tol)
	near(t, "lse", out[1], c.wantLse, 1e-6)
}

func TestAttentionGrad(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for i, a := range attnShapes {
				for j, a := range variants(a) {
					if dt != device.F32 && !nightly.Every(2, i+j+int(dt)) {
						continue // in one of the two 16-bit types
					}
					attentionGrad(t, dt, a, 1e-5)
				}
			}
		})
	})
}

func attentionGrad(t *testing.T, dt device.DType, a device.Attn, tol float64) {
	t.Helper()
	var c *attnCase
	out := onWorkers(t, func(q *Queue) []*guarded {
		c = newAttnCase(dt, a, true)
		c.backward(q)
		return []*guarded{c.dq, c.dk, c.dv, c.delta}
	})
	near(t, "dq", out[0], c.wantQ, tol)
	near(t, "dk", out[1], c.wantK, tol)
	near(t, "dv", out[2], c.wantV, tol)
	near(t, "delta", out[3], c.wantDelta, 1e-6)
}

// TestAttentionAfterOthers checks that the bits of a position's results do not depend on how many
// previous positions are computed with it.
func TestAttentionAfterOthers(t *testing.T) {
	nightly.Long(t)
	for k, with := range []func(*testing.T, func(*testing.T)){withVec, withTiles} {
		with(t, func(t *testing.T) {
			eachType(t, func(t *testing.T, dt device.DType) {
				for i, a := range attnShapes {
					if !nightly.Every(2, i+k) {
						continue
					}
					a.B = 1
					attentionAfter(t, dt, a)
				}
			})
		})
	}
}

func attentionAfter(t *testing.T, dt device.DType, a device.Attn) {
	t.Helper()
	q, all := queueOf(t, 2), newAttnCase(dt, a, false)
	all.forward(q)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	o, lse := all.o.values(), all.lse.values()
	for past := 0; past < a.T; past += 1 + past {
		for _, n := range []int{1, 3, a.T} {
			part := a
			part.Past, part.T = past, min(n, a.T-past)
			part.B = 1
			out := onWorkers(t, func(q *Queue) []*guarded {
				got := []*guarded{newMat(dt, part.T, a.H*a.D), newVec(device.F32, a.H*part.T)}
				q.Attention(got[0].Mat, got[1].Buf, all.q.RowRange(past, past+part.T), all.k.RowRange(0, part.Keys()), all.v.RowRange(0, part.Keys()), part)
				return got
			})
			near(t, fmt.Sprintf("o of %d after %d", part.T, past), out[0], o[past*a.H*a.D:part.Keys()*a.H*a.D], 0)
			for i, x := range out[1].values() {
				if want := lse[i/part.T*a.T+past+i%part.T]; x != want {
					t.Fatalf("%+v: log-sum-exp %d is %g, %g among all", part, i, x, want)
				}
			}
		}
	}
}

func TestAttentionGradAgainstFiniteDifferences(t *testing.T) {
	nightly.Long(t)
	a := device.Attn{B: 1, T: 35, H: 2, KV: 1, D: 3, Scale: 0.7}
	for _, a := range variants(a) {
		finiteDifferences(t, newAttnCase(device.F32, a, false))
	}
}

func finiteDifferences(t *testing.T, c *attnCase) {
	t.Helper()
	q := queueOf(t, 1)
	c.forward(q)
	c.backward(q)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	oracle, do := attn64{c.a, c.q.values(), c.k.values(), c.v.values()}, c.do.values()
	loss := func() float64 { o, _ := oracle.forward(); return dot(do, o) }
	near(t, "dq", c.dq, slopes(oracle.q, loss), 1e-5)
	near(t, "dk", c.dk, slopes(oracle.k, loss), 1e-5)
	near(t, "dv", c.dv, slopes(oracle.v, loss), 1e-5)
}

// TestDocumentsAreAlone checks that a document's results and gradients have the same bits whatever
// other documents are in the sequence and, if it begins at a multiple of every block, as a separate
// sequence.
func TestDocumentsAreAlone(t *testing.T) {
	nightly.Long(t)
	for k, with := range []func(*testing.T, func(*testing.T)){withVec, withTiles} {
		with(t, func(t *testing.T) {
			eachType(t, func(t *testing.T, dt device.DType) {
				for i, begin := range []int{0, 5, 64, 128, 200, 63} {
					for j, window := range []int{0, 60} {
						if !nightly.Every(4, i+2*k+j) {
							continue
						}
						documentAlone(t, dt, device.Attn{B: 2, T: 290, H: 4, KV: 2, D: 24, Scale: 0.3, Window: window}, begin, begin+77)
					}
				}
			})
		})
	}
}

// documentAlone compares positions [lo, hi) of the second sequence, which are a document.
func documentAlone(t *testing.T, dt device.DType, a device.Attn, lo, hi int) {
	t.Helper()
	a.Start = newVec(device.I32, a.B*a.T).fill(func(i int) float64 {
		at := i % a.T
		if at >= hi {
			return float64(hi + (at-hi)/9*9)
		}
		return float64(at / max(1, lo) * lo)
	}).Buf
	q := queueOf(t, 2)
	run := func(c *attnCase) []*guarded {
		c.forward(q)
		c.backward(q)
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		return []*guarded{c.o, c.dq, c.dk, c.dv}
	}
	one, other := newAttnBench(dt, a), newAttnBench(dt, a)
	for _, m := range []*guarded{other.q, other.k, other.v, other.do} { // everything except the document changes
		old := m.values()
		m.fill(func(i int) float64 {
			if row := i / m.Cols; row < a.T+lo || row >= a.T+hi {
				return old[i]*-1.5 + 3
			}
			return old[i]
		})
	}
	got, want := run(one), run(other)
	same := func(what string, i, j int, x, y *guarded, from int) {
		t.Helper()
		xs, ys := x.values()[i*x.Cols:j*x.Cols], y.values()[from*y.Cols:]
		for k, v := range xs {
			if v != ys[k] {
				t.Fatalf("%s of window %d, document [%d, %d): (%d, %d) is %g and %g", what, a.Window, lo, hi, i+k/x.Cols, k%x.Cols, v, ys[k])
			}
		}
	}
	for i, what := range []string{"o", "dq", "dk", "dv"} {
		same(what+" beside others", a.T+lo, a.T+hi, got[i], want[i], a.T+lo)
	}
	if lo%128 > 0 {
		return
	}
	single := a
	single.B, single.T, single.Start = 1, hi-lo, device.Buffer{}
	alone := newAttnBench(dt, single)
	for i, m := range []*guarded{alone.q, alone.k, alone.v, alone.do} {
		all := []*guarded{one.q, one.k, one.v, one.do}[i].values()
		m.fill(func(k int) float64 { return all[(a.T+lo)*m.Cols+k] })
	}
	for i, x := range run(alone) {
		same([]string{"o", "dq", "dk", "dv"}[i]+" alone", a.T+lo, a.T+hi, got[i], x, 0)
	}
}

// TestAttentionOnPackedColumns uses q, k and v side by side in one matrix and their gradients in
// another, as in a fused projection.
func TestAttentionOnPackedColumns(t *testing.T) {
	eachType(t, func(t *testing.T, dt device.DType) {
		a := device.Attn{B: 2, T: 40, H: 2, KV: 1, D: 8, Scale: 0.35}
		c := newAttnCase(dt, a, true)
		qkv, dqkv := newMat(dt, a.B*a.T, 32), newMat(dt, a.B*a.T, 32)
		parts := [3]*guarded{c.q, c.k, c.v}
		qkv.fill(func(i int) float64 {
			j, first, heads := i%32, 0, 0
			switch {
			case j < 16:
				first, heads = 0, 16
			case j < 24:
				first, heads = 16, 8
			default:
				first, heads = 24, 8
			}
			return parts[max(0, first/8-1)].values()[i/32*heads+j-first]
		})
		q := queueOf(t, 2)
		c.forward(q)
		c.backward(q)
		o, lse, delta := newMat(dt, a.B*a.T, 16), newVec(device.F32, c.lse.Cols), newVec(device.F32, c.lse.Cols)
		Q, K, V := qkv.Columns(0, 16), qkv.Columns(16, 24), qkv.Columns(24, 32)
		q.Attention(o.Mat, lse.Buf, Q, K, V, a)
		q.AttentionGrad(dqkv.Columns(0, 16), dqkv.Columns(16, 24), dqkv.Columns(24, 32), delta.Buf, c.do.Mat, o.Mat, lse.Buf, Q, K, V, a)
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		dqkv.checkGuards(t)
		near(t, "o", o, c.o.values(), 0)
		got := dqkv.values()
		for i, want := range c.dk.values() {
			if x := got[i/8*32+16+i%8]; x != want {
				t.Fatalf("dk element %d is %g packed, %g apart", i, x, want)
			}
		}
		for i, want := range c.dq.values() {
			if x := got[i/16*32+i%16]; x != want {
				t.Fatalf("dq element %d is %g packed, %g apart", i, x, want)
			}
		}
		for i, want := range c.dv.values() {
			if x := got[i/8*32+24+i%8]; x != want {
				t.Fatalf("dv element %d is %g packed, %g apart", i, x, want)
			}
		}
	})
}

// TestAttentionWithScoresThatGrow makes each key score higher than the previous ones, so that the
// running maximum changes at every step.
func TestAttentionWithScoresThatGrow(t *testing.T) {
	withVec(t, func(t *testing.T) {
		a := device.Attn{B: 1, T: 300, H: 1, KV: 1, D: 1, Scale: 1}
		c := newAttnCase(device.F32, a, false)
		c.q.fill(func(int) float64 { return 1 })
		c.k.fill(func(i int) float64 { return float64(i) * 100 })
		q := queueOf(t, 1)
		c.forward(q)
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		near(t, "o", c.o, c.v.values(), 0) // each sees only itself
		near(t, "lse", c.lse, c.k.values(), 0)
	})
}

func TestAttentionRefuses(t *testing.T) {
	q := queueOf(t, 1)
	c := newAttnCase(device.F32, device.Attn{B: 1, T: 4, H: 3, KV: 3, D: 2, Scale: 1}, false)
	for _, a := range []device.Attn{
		{B: 1, T: 4, H: 3, KV: 2, D: 2}, {B: 1, T: 4, H: 3, KV: 0, D: 2}, {B: 1, T: 3, H: 3, KV: 3, D: 2},
		{B: 1, T: 4, H: 3, KV: 1, D: 2}, {B: 1, T: 4, H: 2, KV: 2, D: 3},
	} {
		c.a = a
		mustPanic(t, "attention of another shape", func() { c.forward(q) })
		mustPanic(t, "attention gradient of another shape", func() { c.backward(q) })
	}
}

// TestMicrokernel tests the microkernel's contract, including addition, and shapes that attention
// uses only on some instruction sets.
func TestMicrokernel(t *testing.T) {
	withVec(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(21, 22))
		for vectors := 1; vectors <= 2; vectors++ {
			for _, k := range []int{1, 2, 7, 40} {
				for _, add := range []int{0, 1} {
					rows, cols := kernel.BestVec.Rows, vectors*kernel.BestVec.Lanes
					a, b := newGuarded(device.F32, rows, k, 0).normal(rng, 0, 1), newMat(device.F32, k, cols).normal(rng, 0, 1)
					c := newMat(device.F32, rows, cols).normal(rng, 0, 1)
					as, bs, want := a.values(), b.values(), c.values()
					ai, ak := k, 1
					if add == 1 { // a is stored transposed
						ai, ak = 1, rows
					}
					for i := range rows {
						for j := range cols {
							sum := float64(add) * want[i*cols+j]
							for p := range k {
								sum += as[i*ai+p*ak] * bs[p*cols+j]
							}
							want[i*cols+j] = sum
						}
					}
					kernel.BestVec.Micro[vectors](&kernel.MicroTile{K: k, A: a.Buf.Ptr, B: b.Buf.Ptr, C: c.Buf.Ptr, Ai: ai, Ak: ak, Ldb: b.Ld, Ldc: c.Ld, Add: add})
					near(t, fmt.Sprintf("%d vectors, k %d, add %d", vectors, k, add), c, want, 1e-6)
					c.checkGuards(t)
				}
			}
		}
	})
}

// TestSoftmaxGradMasksHidden checks that invisible elements of a row become 0.
func TestSoftmaxGradMasksHidden(t *testing.T) {
	withVec(t, func(t *testing.T) {
		rows, ld := kernel.BestVec.Rows, 64
		for n := 1; n <= 40; n++ {
			most := 40
			end := min(most, n+rows-1)
			p, ds := newGuarded(device.F32, rows, ld, 0), newGuarded(device.F32, rows, ld, 0)
			p.fill(func(i int) float64 { return float64(i % 7) })
			ds.fill(func(i int) float64 { return float64(i % 5) })
			lse := newVec(device.F32, rows).fill(func(i int) float64 { return float64(3 + i) })
			delta := newVec(device.F32, rows).fill(func(i int) float64 { return float64(i) / 2 })
			kernel.BestVec.SoftmaxGrad(&kernel.SoftmaxGradRows{P: p.Buf.Ptr, Ds: ds.Buf.Ptr, Ld: ld, Rows: rows, N: n, Most: most, End: end, Lse: lse.Buf.Ptr, Delta: delta.Buf.Ptr})
			ps, dss := p.values(), ds.values()
			for i := range rows {
				for j := range end {
					at, e, d := i*ld+j, 0.0, 0.0
					if j < min(n+i, most) {
						e = math.Exp(float64(at%7) - float64(3+i))
						d = e * (float64(at%5) - float64(i)/2)
					}
					if math.Abs(ps[at]-e) > 1e-6*e || math.Abs(dss[at]-d) > 1e-6*math.Abs(d) {
						t.Fatalf("%d of %d seen: (%d, %d) is %g and %g, want %g and %g", n, most, i, j, ps[at], dss[at], e, d)
					}
				}
			}
			p.checkGuards(t)
			ds.checkGuards(t)
		}
	})
}
