//go:build cuda

package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/tests/nightly"
)

// flashHeads contains the head widths and caps tested on tensor cores: the widest of each kernel, and
// narrower ones.
var flashHeads = []struct {
	width int
	cap   float32
}{{64, 0}, {96, 0}, {128, 0}, {256, 0}, {256, 4}, {128, 3}, {32, 0}, {8, 0}, {40, 0}, {80, 0}, {120, 0}, {136, 0}, {248, 30}, {24, 2}}

// aligned returns a matrix without gaps, as needed by tensor cores.
func (b *bench) aligned(what string, dt device.DType, rows, cols int, std float64) *operand {
	return b.makeWith(what, dt, rows, cols, 0, 0).fill(func(int) float64 { return std * b.rng.NormFloat64() })
}

// eachFlash runs f with shapes of every width and type for which a choice has kernels, with documents,
// windows, shared heads and positions before the first. Heads up to 64 run with and without dropout.
func eachFlash(t *testing.T, c Choice, f func(b *bench, dt device.DType, a device.Attn) func(q operations)) {
	rng := rand.New(rand.NewPCG(11, 12))
	for i := range 4 * len(flashHeads) {
		width, top, dt, drops := flashHeads[i/4].width, flashHeads[i/4].cap, []device.DType{device.BF16, device.F16}[i%2], i/2%2 == 1
		canDrop := width <= 64 && top == 0
		if c == WGMMA && (drops || top > 0 || width > 128 || 64 < width && width <= 96) {
			continue
		}
		if narrow := i/4 > 5; (!drops || canDrop) && (!narrow || nightly.All() && (!canDrop || drops == ((i/4+i)%2 == 1))) {
			kv := 1 + rng.IntN(2)
			a := device.Attn{B: 1 + rng.IntN(2), T: 1 + rng.IntN(160), H: kv * (1 + rng.IntN(2)), KV: kv, D: width, Scale: float32(1 / math.Sqrt(float64(width))), Cap: top}
			if rng.IntN(2) == 0 {
				a.Window = 2 + rng.IntN(a.T+5)
			}
			a.Past = rng.IntN(2) * rng.IntN(90)
			if c == WGMMA && i%2 == 0 { // more blocks of three groups than one, and tiles than are in memory
				a.T += 200
			}
			if width > 128 && dt == device.BF16 { // pairs of warps: only the last query sees the last warp's first key
				a.T, a.Past = 129, a.Past/16*16
			}
			if drops {
				a.Drop = half
			}
			t.Run(fmt.Sprintf("%v B%d T%d+%d of %d H%d/%d D%d cap %g drops %v", dt, a.B, a.Past, a.T, a.Window, a.H, a.KV, a.D, a.Cap, drops), func(t *testing.T) {
				check(t, uint64(i), func(b *bench) func(operations) {
					a.Start = b.starts(a.B, a.T, a.Past)
					return f(b, dt, a)
				})
			})
		}
	}
}

// flashes returns the number of launches of the kernels of a choice so far.
func flashes(t *testing.T, c Choice) (n int) {
	for name, times := range started(t)[0].launches {
		if strings.HasPrefix(name, map[Choice]string{MMA: "flash", WGMMA: "wgmma"}[c]) {
			n += times
		}
	}
	return n
}

func TestAttentionOnTensorCores(t *testing.T) { attentionBy(t, MMA) }

func TestAttentionByWgmma(t *testing.T) {
	wantHopper(t)
	attentionBy(t, WGMMA)
	gradBy(t, WGMMA)
	growing(t, WGMMA, 24, 0)
	growing(t, WGMMA, 104, 0)
}

// wantHopper skips a test on GPUs that do not have wgmma.
func wantHopper(t *testing.T) {
	if !WGMMA.RunsOn(capability(t)) {
		t.Skip("it needs compute capability 9.0")
	}
}

func attentionBy(t *testing.T, choice Choice) {
	eachFlash(t, choice, func(b *bench, dt device.DType, a device.Attn) func(operations) {
		q, k := b.aligned("q", dt, a.B*a.T, a.H*a.D, 1.5), b.aligned("k", dt, a.B*a.Keys(), a.KV*a.D, 1.5)
		v := b.aligned("v", dt, a.B*a.Keys(), a.KV*a.D, 1)
		o, lse := b.aligned("o", dt, a.B*a.T, a.H*a.D, math.NaN()).near(rounded(dt)), b.make("lse", device.F32, 1, a.B*a.H*a.T).near(2e-6)
		return func(ops operations) {
			onlyFlash(t, choice, 1, ops, func() { ops.Attention(o.Mat, lse.Buf, q.Mat, k.Mat, v.Mat, a) })
		}
	})
}

// TestAttentionOfOtherScales checks scales with which the largest score is not the largest when scaled.
func TestAttentionOfOtherScales(t *testing.T) {
	for i, scale := range []float32{-0.3, 0} {
		check(t, uint64(i), func(b *bench) func(operations) {
			a := device.Attn{B: 1, T: 90, H: 1, KV: 1, D: 64, Scale: scale}
			q, k, v := b.aligned("q", device.BF16, a.T, a.D, 3), b.aligned("k", device.BF16, a.T, a.D, 3), b.aligned("v", device.BF16, a.T, a.D, 1)
			o, lse := b.aligned("o", device.BF16, a.T, a.D, math.NaN()).near(rounded(device.BF16)), b.make("lse", device.F32, 1, a.T).near(2e-6)
			return func(ops operations) { ops.Attention(o.Mat, lse.Buf, q.Mat, k.Mat, v.Mat, a) }
		})
	}
}

// onlyFlash checks that f launches want kernels of a choice, unless the operations run on the CPU.
func onlyFlash(t *testing.T, c Choice, want int, ops operations, f func()) {
	before := flashes(t, c)
	o, gpu := ops.(*Ops)
	if gpu {
		o.Choice = c
	}
	f()
	if n := flashes(t, c) - before; gpu && o.To == Launcher(started(t)[0]) && n != want {
		t.Errorf("%d launches of kernels on tensor cores, want %d", n, want)
	}
}

func TestAttentionGradOnTensorCores(t *testing.T) { gradBy(t, MMA) }

func gradBy(t *testing.T, choice Choice) {
	eachFlash(t, choice, func(b *bench, dt device.DType, a device.Attn) func(operations) {
		rows, keys, c, kv, to := a.B*a.T, a.B*a.Keys(), a.H*a.D, a.KV*a.D, dt
		if a.Past > 0 {
			to = device.F32
		}
		q, k, v := b.aligned("q", dt, rows, c, 1.5), b.aligned("k", dt, keys, kv, 1.5), b.aligned("v", dt, keys, kv, 1)
		o, do := b.aligned("o", dt, rows, c, math.NaN()).near(rounded(dt)), b.aligned("do", dt, rows, c, 1)
		lse, delta := b.make("lse", device.F32, 1, a.B*a.H*a.T).near(2e-6), b.make("delta", device.F32, 1, a.B*a.H*a.T)
		dq, dk, dv := b.aligned("dq", dt, rows, c, math.NaN()), b.aligned("dk", to, keys, kv, math.NaN()), b.aligned("dv", to, keys, kv, math.NaN())
		tol := gradTolerance(dt, a)
		if a.Cap > 0 {
			tol *= 2 // most slopes are small, so that the largest gradients are many times the root mean square
		}
		for _, g := range []*operand{delta, dq, dk, dv} {
			g.near(tol)
		}
		return func(ops operations) {
			onlyFlash(t, choice, 3, ops, func() {
				ops.Attention(o.Mat, lse.Buf, q.Mat, k.Mat, v.Mat, a)
				ops.AttentionGrad(dq.Mat, dk.Mat, dv.Mat, delta.Buf, do.Mat, o.Mat, lse.Buf, q.Mat, k.Mat, v.Mat, a)
			})
		}
	})
}

// TestTensorCoresWithAGrowingCache checks that computing positions one after the other is
// bit-identical to computing all at once.
func TestTensorCoresWithAGrowingCache(t *testing.T) {
	growing(t, MMA, 24, 0)
	growing(t, MMA, 136, 4)
}

func growing(t *testing.T, c Choice, D int, top float32) {
	e := started(t)[0]
	e.reset()
	b := &bench{e: e, rng: rand.New(rand.NewPCG(9, 9))}
	whole := device.Attn{B: 1, T: 77, H: 2, KV: 1, D: D, Scale: 0.2, Window: 40, Cap: top}
	q, k, v := b.aligned("q", device.BF16, 77, 2*D, 2), b.aligned("k", device.BF16, 77, D, 2), b.aligned("v", device.BF16, 77, D, 1)
	all, step, lse := b.aligned("o", device.BF16, 77, 2*D, 0), b.aligned("o", device.BF16, 77, 2*D, 0), b.make("lse", device.F32, 1, 154)
	o := &Ops{To: e, Weigh: true, Choice: c}
	o.Attention(all.Mat, lse.Buf, q.Mat, k.Mat, v.Mat, whole)
	for t := range 77 {
		one := whole
		one.T, one.Past = 1, t
		o.Attention(step.RowRange(t, t+1), lse.Buf.Slice(0, 2), q.RowRange(t, t+1), k.RowRange(0, t+1), v.RowRange(0, t+1), one)
	}
	if e.err != nil {
		t.Fatal(e.err)
	}
	for i := range 77 * 2 * D {
		if all.at(i) != step.at(i) {
			t.Fatalf("element %d: %g with all positions at once, %g one by one", i, all.at(i), step.at(i))
		}
	}
}
