package cpu

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
	"zeroth/tests/nightly"
)

// TestAxpby checks that Axpby rounds each product and the sum once to float32, for all types and
// instruction sets, in place and not, and that p equals y rounded to p's type.
func TestAxpby(t *testing.T) {
	nightly.Long(t)
	const alpha, beta = float32(-4.775), float32(0.3)
	withVec(t, func(t *testing.T) {
		for _, types := range [][4]device.DType{{0, 1, 0, 1}, {1, 0, 1, 0}, {1, 1, 1, 1}, {2, 1, 0, 2}, {0, 0, 0, 0}} {
			for _, in := range []int{-1, 2, 3} { // y is separate, a or b
				if in > 0 && types[in] != types[0] {
					continue
				}
				var v [4]*guarded
				var a, b []float64
				outs := onWorkers(t, func(q *Queue) []*guarded {
					rng := rand.New(rand.NewPCG(1, 2))
					for i, dt := range types {
						v[i] = newVec(dt, 2*kernel.PieceWork+77).normal(rng, 0, 1)
					}
					a, b = v[2].values(), v[3].values()
					if in > 0 {
						v[0] = v[in]
					}
					q.Axpby(v[0].Buf, v[1].Buf, v[2].Buf, v[3].Buf, alpha, beta)
					return []*guarded{v[0], v[1]}
				})
				for o, out := range outs {
					for i, got := range out.values() {
						sum := float32(alpha*float32(a[i])) + float32(beta*float32(b[i]))
						if want := round(types[o], float64(sum)); got != want {
							t.Fatalf("%v in place of %d: element %d is %g, want %g", types, in, i, got, want)
						}
					}
				}
			}
		}
	})
}

// TestCopyBlock copies blocks between wider matrices.
func TestCopyBlock(t *testing.T) {
	eachType(t, func(t *testing.T, dt device.DType) {
		const rows, cols, from, to = 7, 5, 3, 11
		q, rng := queueOf(t, 2), rand.New(rand.NewPCG(5, 6))
		src, dst := newMat(dt, rows, from+cols).normal(rng, 0, 1), newMat(dt, rows+2, to+cols+1).normal(rng, 0, 1)
		want := dst.values()
		for i := range rows {
			for j := range cols {
				want[(i+1)*dst.Cols+to+j] = src.values()[i*src.Cols+from+j]
			}
		}
		q.CopyBlock(dst.RowRange(1, 1+rows).Columns(to, to+cols), src.Columns(from, from+cols))
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		near(t, "matrix", dst, want, 0)
	})
}

// TestNormalize checks division by the norm, which is exact except for two roundings, and
// division by eps if the norm is smaller. NaN or infinite elements must make the result NaN.
func TestNormalize(t *testing.T) {
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for _, scale := range []float64{1, 0, 1e-6, math.NaN()} {
				var x []float64
				out := onWorkers(t, func(q *Queue) []*guarded {
					rng := rand.New(rand.NewPCG(3, 4))
					v := newVec(dt, 3*kernel.NormLen+99)
					v.fill(func(i int) float64 { return float64(rng.IntN(64)-32) * scale })
					x = v.values()
					q.Normalize(v.Buf, ofI64(make([]int64, device.ExactLen)), 1e-3)
					return []*guarded{v}
				})
				by := max(round(dt, float64(float32(norm(x)))), float64(float32(1e-3)))
				for i, got := range out[0].values() {
					want := round(dt, float64(float32(x[i])/float32(by)))
					if got != want && !(math.IsNaN(scale) && math.IsNaN(got)) {
						t.Fatalf("times %g: element %d is %g, want %g / %g = %g", scale, i, got, x[i], by, want)
					}
				}
			}
		})
	})
}

// norm returns the Euclidean norm, rounded once.
func norm(x []float64) float64 {
	sum := new(big.Float).SetPrec(500)
	for _, v := range x {
		if math.IsNaN(v) {
			return v
		}
		f := new(big.Float).SetPrec(500).SetFloat64(v)
		sum.Add(sum, f.Mul(f, f))
	}
	root, _ := new(big.Float).Sqrt(sum).Float64()
	return root
}
