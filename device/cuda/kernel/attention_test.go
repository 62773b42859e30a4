//go:build cuda

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"zeroth/device"
	"zeroth/tests/nightly"
)

func itoa(n int) string { return strconv.Itoa(n) }

var attnShapes = []device.Attn{
	{B: 1, T: 1, H: 1, KV: 1, D: 1},
	{B: 2, T: 79, H: 4, KV: 2, D: 9},
	{B: 1, T: 64, H: 3, KV: 3, D: 16},
	{B: 3, T: 33, H: 5, KV: 1, D: 6},
	{B: 1, T: 130, H: 2, KV: 1, D: 64},
	{B: 1, T: 70, H: 1, KV: 1, D: 71},
	{B: 2, T: 65, H: 2, KV: 2, D: 128},
	{B: 1, T: 97, H: 2, KV: 1, D: 130},
	{B: 1, T: 33, H: 1, KV: 1, D: 256},
}

// attnOf returns the matrices of a shape. Half of the time, queries, keys and values are side by
// side in one matrix, as in modules. Some scores are far larger than others.
func (b *bench) attnOf(dt device.DType, a device.Attn) (q, k, v device.Mat) {
	std := 1.5 / math.Sqrt(math.Sqrt(float64(a.D))*float64(a.Scale))
	if a.Past == 0 && b.flip() {
		c, kv := a.H*a.D, a.KV*a.D
		m := b.mat("qkv", dt, a.B*a.T, c+2*kv, std).Mat
		return m.Columns(0, c), m.Columns(c, c+kv), m.Columns(c+kv, c+2*kv)
	}
	q = b.mat("q", dt, a.B*a.T, a.H*a.D, std).Mat
	k = b.mat("k", dt, a.B*a.Keys(), a.KV*a.D, std).Mat
	return q, k, b.mat("v", dt, a.B*a.Keys(), a.KV*a.D, 1).Mat
}

// half drops probabilities with an exact scale, since a single weight has no gradient.
var half = device.Dropout{Seed: 1<<40 + 9, Site: 1<<31 | 2, Drop: device.DropOf(0.5), Row: 1<<33 - 20}

// eachAttn runs f with every shape and type, and with random shapes, some with dropout.
func eachAttn(t *testing.T, past bool, f func(b *bench, dt device.DType, a device.Attn) func(q operations)) {
	rng := rand.New(rand.NewPCG(5, 6))
	shapes := attnShapes
	for range times(10) {
		kv := 1 + rng.IntN(2)
		shapes = append(shapes, device.Attn{B: 1 + rng.IntN(2), T: 1 + rng.IntN(100), H: kv * (1 + rng.IntN(3)), KV: kv, D: 1 + rng.IntN(90)})
	}
	for i, a := range shapes {
		a.Scale = float32(1 / math.Sqrt(float64(a.D)))
		if i%2 == 1 {
			a.Window = 2 + rng.IntN(a.T+5) // the gradient of a query that sees only one key is 0, up to rounding
		}
		if i%4 > 1 {
			a.Cap = 2 + float32(i%5)
		}
		if i%8 == 0 || i%8 == 3 || i%8 == 5 {
			a.Drop = half
		}
		if past {
			a.Past = rng.IntN(3) * rng.IntN(90)
		}
		for j, dt := range anyFloat {
			if !nightly.All() && j != i%3 {
				continue
			}
			t.Run(fmt.Sprintf("%v B%d T%d+%d of %d H%d/%d D%d cap %.1f drops %v", dt, a.B, a.Past, a.T, a.Window, a.H, a.KV, a.D, a.Cap, a.Drop.Drop > 0), func(t *testing.T) {
				check(t, uint64(i), func(b *bench) func(operations) { return f(b, dt, a) })
			})
		}
	}
}

// rounded returns the maximum difference between a sum with weights rounded to dt by tensor cores
// and one with exact weights.
func rounded(dt device.DType) float64 { return max(1e-5, epsilon(dt)) }

// gradTolerance bounds the error of attention's gradients, since o and ds are rounded to the
// type and dropout scales values and their rounding errors. It allows for elements several
// standard deviations away.
func gradTolerance(dt device.DType, a device.Attn) float64 {
	tol := map[device.DType]float64{device.F32: 3e-5, device.F16: 6e-3, device.BF16: 4e-2}[dt]
	if a.Drop.Drop > 0 {
		tol *= float64(a.Drop.Scale())
	}
	return tol
}

func TestAttention(t *testing.T) {
	eachAttn(t, true, func(b *bench, dt device.DType, a device.Attn) func(operations) {
		a.Start = b.starts(a.B, a.T, a.Past)
		qm, k, v := b.attnOf(dt, a)
		o, lse := b.make("o", dt, a.B*a.T, a.H*a.D).near(rounded(dt)), b.make("lse", device.F32, 1, a.B*a.H*a.T).near(2e-6)
		return func(q operations) { q.Attention(o.Mat, lse.Buf, qm, k, v, a) }
	})
}

// TestAttentionGrad uses lse and o from the forward pass on the same device.
func TestAttentionGrad(t *testing.T) {
	eachAttn(t, true, func(b *bench, dt device.DType, a device.Attn) func(operations) {
		a.Start = b.starts(a.B, a.T, a.Past)
		qm, k, v := b.attnOf(dt, a)
		rows, c, kv := a.B*a.T, a.H*a.D, a.KV*a.D
		o, do := b.make("o", dt, rows, c).near(rounded(dt)), b.mat("do", dt, rows, c, 1)
		lse, delta := b.make("lse", device.F32, 1, a.B*a.H*a.T).near(2e-6), b.make("delta", device.F32, 1, a.B*a.H*a.T)
		to := dt // for gradients of keys and values: partial sums if other positions see them too
		if a.Past > 0 {
			to = device.F32
		}
		dq, dk, dv := b.make("dq", dt, rows, c), b.make("dk", to, a.B*a.Keys(), kv), b.make("dv", to, a.B*a.Keys(), kv)
		tol := gradTolerance(dt, a)
		for _, g := range []*operand{delta, dq, dk, dv} {
			g.near(tol)
		}
		return func(q operations) {
			q.Attention(o.Mat, lse.Buf, qm, k, v, a)
			q.AttentionGrad(dq.Mat, dk.Mat, dv.Mat, delta.Buf, do.Mat, o.Mat, lse.Buf, qm, k, v, a)
		}
	})
}

// TestAttentionOfAGrowingCache checks that computing positions one after the other is
// bit-identical to computing all at once: tiles of keys begin at the same positions.
func TestAttentionOfAGrowingCache(t *testing.T) {
	e := started(t)[0]
	e.reset()
	b := &bench{e: e, rng: rand.New(rand.NewPCG(9, 9))}
	whole := device.Attn{B: 1, T: 77, H: 2, KV: 1, D: 20, Scale: 0.2, Window: 40}
	q, k, v := b.attnOf(device.F32, whole)
	all, lse := b.make("o", device.F32, 77, 40), b.make("lse", device.F32, 1, 154)
	step, lse1 := b.make("o", device.F32, 77, 40), b.make("lse", device.F32, 1, 2)
	o := &Ops{To: e, Weigh: true}
	o.Attention(all.Mat, lse.Buf, q, k, v, whole)
	for t := range 77 {
		one := whole
		one.T, one.Past = 1, t
		o.Attention(step.RowRange(t, t+1), lse1.Buf, q.RowRange(t, t+1), k.RowRange(0, t+1), v.RowRange(0, t+1), one)
	}
	if e.err != nil {
		t.Fatal(e.err)
	}
	for i := range 77 * 40 {
		if all.at(i) != step.at(i) {
			t.Fatalf("element %d: %g with all positions at once, %g one by one", i, all.at(i), step.at(i))
		}
	}
}
