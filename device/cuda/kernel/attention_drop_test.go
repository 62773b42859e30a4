//go:build cuda

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu"
)

// TestDropoutMatchesCPU determines from o, dq, dk and dv of every kernel which probabilities were
// kept, and checks that package cpu keeps the same ones.
func TestDropoutMatchesCPU(t *testing.T) {
	e := started(t)[0]
	for _, on := range []struct {
		typ   device.DType
		width int
	}{
		{device.F32, 40}, {device.F32, 100}, {device.F32, 130},
		{device.BF16, 32}, {device.BF16, 64}, {device.BF16, 88}, {device.F16, 64},
	} {
		t.Run(fmt.Sprintf("%v D%d", on.typ, on.width), func(t *testing.T) {
			a := device.Attn{B: 2, T: 70, H: 2, KV: 2, D: on.width, Scale: 0.5, Drop: half}
			a.Drop.Drop = device.DropOf(0.3)
			q := cpu.NewHost(2).NewQueue("oracle")
			defer q.Close()
			e.reset()
			bench := func() *bench { return &bench{e: e, rng: rand.New(rand.NewPCG(1, 1))} }
			want := keptBy(t, bench(), onCPU{q}, q.Wait, on.typ, a)["o"]
			for what, kept := range keptBy(t, bench(), &Ops{To: e, Weigh: true}, func() error { return e.err }, on.typ, a) {
				for i := range want {
					if kept[i] != want[i] {
						t.Fatalf("%s: query %d, key %d of head %d: kept %v by the GPU, %v by the CPU", what, i/a.T%a.T, i%a.T, i/a.T/a.T, kept[i], want[i])
					}
				}
			}
		})
	}
}

// keptBy uses equal scores, so that the probabilities of query t are 1/(t+1), and powers of 2 in
// one operand of each product: position i has 2^(i/D) in column i%D. So a result is the sum of
// the powers of the kept positions. It returns one mask (B*H, T, T) per result.
func keptBy(t *testing.T, b *bench, ops operations, wait func() error, typ device.DType, a device.Attn) map[string][]bool {
	t.Helper()
	mat := func(f func(t, c int) float64) device.Mat {
		m := b.aligned("", typ, a.B*a.T, a.H*a.D, 0)
		return m.fill(func(i int) float64 { return f(i/m.Cols%a.T, i%a.D) }).Mat
	}
	zero := func(t, c int) float64 { return 0 }
	first := func(t, c int) float64 { return float64(1 - min(c, 1)) }
	power := func(t, c int) float64 {
		if t%a.D != c {
			return 0
		}
		return math.Exp2(float64(t / a.D))
	}
	times := func(t, c int) float64 { return power(t, c) * float64(t+1) }
	out := func() *operand { return b.aligned("", typ, a.B*a.T, a.H*a.D, math.NaN()) }
	lse, delta := b.make("lse", device.F32, 1, a.B*a.H*a.T).Buf, b.make("delta", device.F32, 1, a.B*a.H*a.T).Buf
	o, dq, dk, dv, rest := out(), out(), out(), out(), out()
	ops.Attention(o.Mat, lse, mat(zero), mat(zero), mat(power), a)
	none, ones := mat(zero), mat(first)
	ops.AttentionGrad(dq.Mat, rest.Mat, rest.Mat, delta, ones, none, lse, none, mat(power), ones, a) // delta is 0 where o is 0
	ops.AttentionGrad(rest.Mat, dk.Mat, rest.Mat, delta, ones, none, lse, mat(times), none, ones, a)
	ops.AttentionGrad(rest.Mat, rest.Mat, dv.Mat, delta, mat(times), none, lse, none, none, none, a)
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	all, scale := map[string][]bool{}, float64(a.Drop.Scale())
	for what, m := range map[string]*operand{"o": o, "dq": dq, "dk": dk, "dv": dv} {
		kept := make([]bool, a.B*a.H*a.T*a.T)
		for i := range kept {
			query, key, head := i/a.T%a.T, i%a.T, i/a.T/a.T
			row, col, by := query, key, float64(query+1)/scale
			if what == "dk" || what == "dv" {
				row, col, by = key, query, 1/scale
			}
			if what == "dq" || what == "dk" {
				by /= float64(a.Scale)
			}
			sum := math.Round(m.at(((head/a.H*a.T+row)*a.H+head%a.H)*a.D+col%a.D) * by)
			kept[i] = key <= query && int(sum)>>(col/a.D)&1 == 1
		}
		all[what] = kept
	}
	return all
}
