package cpu

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"zeroth/device"
)

// coded returns n elements coded from s in separate memory.
func coded(dt device.DType, s []float32) device.Buffer {
	return device.Narrow(append([]float32(nil), s...), dt)
}

// decoded returns the elements of a coded buffer.
func decoded(b device.Buffer) []float32 {
	x := make([]float32, b.N)
	for i := 0; i < b.N; i += device.BlockLen {
		largest, codes := b.Block8(i / device.BlockLen)
		b.Type.Decode(x[i:], *largest, codes)
	}
	return x
}

// sameCodes compares everything except padding.
func sameCodes(a, b device.Buffer) bool {
	for i := range (a.N + device.BlockLen - 1) / device.BlockLen {
		x, xs := a.Block8(i)
		y, ys := b.Block8(i)
		if *x != *y || !bytes.Equal(xs, ys) {
			return false
		}
	}
	return a.N == b.N
}

// TestAdamW8 compares bits, for every length and type, with AdamW on decoded moments that are then
// coded by the definition of device.Q8, block by block.
func TestAdamW8(t *testing.T) {
	a := device.AdamW{GradScale: 0.5, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Shrink: 0.999, Step: 3e-3, RootC2: 1.5}
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for _, n := range []int{1, 15, 16, 255, 256, 257, 512, 1000, 3001} {
				r := rand.New(rand.NewPCG(uint64(n), 9))
				ms, vs := make([]float32, n), make([]float32, n)
				for i := range n {
					ms[i], vs[i] = float32(r.NormFloat64()*1e-3), float32(math.Abs(r.NormFloat64())*1e-5)
				}
				w, g := newVec(device.F32, n).normal(r, 0, 1), newVec(device.F32, n).normal(r, 0, 0.1)
				want, wp := newVec(device.F32, n), newVec(dt, n)
				copy(want.Buf.F32(), w.Buf.F32())
				wm, wv := coded(device.Q8, ms), coded(device.U8, vs)
				m, v := decoded(wm), decoded(wv)
				q := queueOf(t, 1)
				q.AdamW(want.Buf, wp.Buf, g.Buf, device.OfF32(m), device.OfF32(v), a)
				if err := q.Wait(); err != nil {
					t.Fatal(err)
				}
				for _, workers := range []int{1, 3} {
					q := queueOf(t, workers)
					x, p, gm, gv := newVec(device.F32, n), newVec(dt, n), coded(device.Q8, ms), coded(device.U8, vs)
					copy(x.Buf.F32(), w.Buf.F32())
					q.AdamW8(x.Buf, p.Buf, g.Buf, gm, gv, a)
					if err := q.Wait(); err != nil {
						t.Fatal(err)
					}
					for i, o := range []*guarded{x, p} {
						o.checkGuards(t)
						if !bytes.Equal(o.mem.Raw(), []*guarded{want, wp}[i].mem.Raw()) {
							t.Fatalf("%d elements, %d workers: operand %d has other bits than of AdamW", n, workers, i)
						}
					}
					if !sameCodes(gm, coded(device.Q8, m)) || !sameCodes(gv, coded(device.U8, v)) {
						t.Fatalf("%d elements, %d workers: moments have other codes than AdamW's", n, workers)
					}
				}
			}
		})
	})
}
