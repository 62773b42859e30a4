package cpu

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"unsafe"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// ofI64 views exact sums as a buffer.
func ofI64(s []int64) device.Buffer {
	return device.Buffer{Type: device.I64, Host: true, N: len(s), Ptr: unsafe.Pointer(unsafe.SliceData(s))}
}

func TestSumRows(t *testing.T) {
	withVec(t, func(t *testing.T) {
		eachType(t, func(t *testing.T, dt device.DType) {
			for _, shape := range [][2]int{{0, 3}, {1, 1}, {64, 64}, {397, 531}} {
				rows, cols := shape[0], shape[1]
				var dy *guarded
				out := onWorkers(t, func(q *Queue) []*guarded {
					dy = newMat(dt, rows, cols).normal(rand.New(rand.NewPCG(1, 2)), 0.5, 1)
					db := newVec(device.F32, cols)
					q.SumRows(db.Buf, dy.Mat)
					return []*guarded{db}
				})
				want := make([]float64, cols)
				for i, v := range dy.values() {
					want[i%cols] += v
				}
				near(t, "sum of rows", out[0], want, 1e-6)
			}
		})
	})
}

// TestSumsOverManyRowsStayAccurate sums a constant: one chain of float32 additions drifts by a part
// in a thousand, sums of groups do not.
func TestSumsOverManyRowsStayAccurate(t *testing.T) {
	const rows = 1 << 17
	q, f32 := queueOf(t, 1), device.F32
	dy := newMat(f32, rows, 1).fill(func(int) float64 { return 0.1 })
	ones, zeros := newVec(f32, rows), newVec(f32, rows).fill(func(int) float64 { return 0 })
	ones.fill(func(int) float64 { return 1 })
	sum, dw, db := newVec(f32, 1), newVec(f32, 1), newVec(f32, 1)
	x := device.Matrix(ones.Buf, rows, 1)
	q.SumRows(sum.Buf, dy.Mat)
	q.LayerNormGrad(newMat(f32, rows, 1).Mat, dw.Buf, db.Buf, dy.Mat, x, ones.Buf.Slice(0, 1), zeros.Buf, ones.Buf, false)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	var chain float32
	for range rows {
		chain += 0.1
	}
	want := rows * float64(float32(0.1))
	if drift := math.Abs(float64(chain)/want - 1); drift < 1e-4 {
		t.Fatalf("one chain drifts by %g only: this test proves nothing", drift)
	}
	for what, o := range map[string]*guarded{"sum": sum, "dw": dw, "db": db} {
		if got := o.values()[0]; math.Abs(got/want-1) > 2e-5 {
			t.Errorf("%s of %d rows is %g, want %g", what, rows, got, want)
		}
	}
}

// exactKernels are the two sums, with the sum of one block and their terms.
var exactKernels = map[string]struct {
	issue func(q *Queue, acc, x device.Buffer)
	block func(*[device.ExactBlock]float32) float64
	term  func(x float64) float64
}{
	"sum":            {(*Queue).Sum, device.BlockSum, func(x float64) float64 { return x }},
	"sum of squares": {(*Queue).SumSquares, device.BlockSquares, func(x float64) float64 { return x * x }},
}

// summed returns the sum of x in shards of the given length, carried.
func summed(t *testing.T, q *Queue, kernel string, x device.Buffer, shard int) (total device.Exact) {
	t.Helper()
	for lo := 0; lo == 0 || lo < x.N; lo += shard {
		mem := make([]int64, 3*device.ExactLen)
		acc := ofI64(mem[device.ExactLen : 2*device.ExactLen])
		exactKernels[kernel].issue(q, acc, x.Slice(lo, min(lo+shard, x.N)))
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		for i, v := range mem {
			if v != 0 && i/device.ExactLen != 1 {
				t.Fatalf("%s wrote beside its result", kernel)
			}
		}
		total.Merge(device.ExactAt(acc, 0))
	}
	return total
}

func TestExactSumsDoNotDependOnWorkersOrShards(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	n := 7*kernel.PieceWork + 33
	x := newVec(device.F32, n).fill(func(int) float64 { return rng.NormFloat64() * math.Exp(8*rng.NormFloat64()) })
	for name, k := range exactKernels {
		want := summed(t, queueOf(t, 1), name, x.Buf, n)
		for _, workers := range []int{1, 2, 3, 5} {
			q := queueOf(t, workers)
			for _, shard := range []int{n, n/2/64*64 + 64, n/5/64*64 + 64, 64 * 701} {
				if got := summed(t, q, name, x.Buf, shard); got != want {
					t.Errorf("%s, %d workers, shards of %d: %v, want %v", name, workers, shard, got, want)
				}
			}
		}
		exact, size := new(big.Float).SetPrec(2000), 0.0
		for _, v := range x.values() {
			exact.Add(exact, new(big.Float).SetPrec(2000).SetFloat64(k.term(v)))
			size += math.Abs(k.term(v))
		}
		if big, _ := exact.Float64(); math.Abs(want.Value()-big) > 1e-15*size { // rounding occurs only within blocks
			t.Errorf("%s is %g, math/big has %g", name, want.Value(), big)
		}
	}
}

// TestExactSumsAreThoseOfTheirBlocks compares every instruction set, to the last limb, with the
// definition: sums of blocks, added individually to an Exact. Magnitudes range from subnormal to
// the largest, alone, in runs and mixed, with zeros and values that are not finite in between. The
// stages' equal norms depend on it.
func TestExactSumsAreThoseOfTheirBlocks(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	const block = device.ExactBlock
	kinds := []func(i int) float32{
		func(int) float32 { return float32(rng.NormFloat64()) },
		func(int) float32 { return math.Float32frombits(rng.Uint32() &^ (1 << 23)) }, // of every other exponent, so none is infinite
		func(int) float32 { return math.Float32frombits(rng.Uint32() & 0x807fffff) }, // subnormal
		func(int) float32 { return math.MaxFloat32 },
		func(i int) float32 { return float32(math.Ldexp(rng.Float64(), i/block%250-125)) },
		func(i int) float32 { return float32(math.Ldexp(rng.Float64(), i/(block*kernel.SquaresAtOnce)*40-120)) },
		func(i int) float32 { return float32(i / block % 3) },
	}
	for k, kind := range kinds {
		for _, n := range []int{0, 1, 63, 64, 65, 7 * 64, 8*64 + 1, 129*64 - 1, 131 * 64, 640*64 + 17} {
			x := make([]float32, n)
			for i := range x {
				switch x[i] = kind(i); rng.IntN(2000) {
				case 0:
					x[i] = kernel.Inf
				case 1:
					x[i] = float32(math.NaN())
				default:
					if rng.IntN(50) == 0 {
						x[i] = 0
					}
				}
			}
			for name, of := range exactKernels {
				var want device.Exact
				for lo := 0; lo < n; lo += block {
					b := kernel.LastBlock(x[lo:min(lo+block, n)])
					want.Add(of.block(&b))
				}
				want.Carry()
				withVec(t, func(t *testing.T) {
					if got := summed(t, queueOf(t, 2), name, device.OfF32(x), max(1, n)); got != want {
						t.Fatalf("%s: kind %d, %d elements: %v, want %v", name, k, n, got, want)
					}
				})
			}
		}
	}
}

func TestExactSumsAccumulate(t *testing.T) {
	q := queueOf(t, 1)
	acc := ofI64(make([]int64, device.ExactLen))
	for _, x := range [][]float32{{3, 4}, {1e-45}, {-12}} {
		q.SumSquares(acc, device.OfF32(x))
	}
	q.Sum(acc, device.OfF32([]float32{-200, 31}))
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, want := device.ExactAt(acc, 0).Value(), math.Ldexp(1, -298); got != want {
		t.Errorf("3^2 + 4^2 + 12^2 - 169 + (2^-149)^2 = %g, want %g", got, want)
	}
}

func TestSumSquaresNonFinite(t *testing.T) {
	q := queueOf(t, 2)
	x := make([]float32, 200*device.ExactBlock)
	for i := range x {
		x[i] = 1
	}
	x[5], x[6], x[70*device.ExactBlock], x[199*device.ExactBlock+63] = kernel.Inf, -kernel.Inf, float32(math.NaN()), -kernel.Inf
	acc := summed(t, q, "sum of squares", device.OfF32(x), len(x))
	if n := acc.NotFinite(); n != 3 {
		t.Errorf("%d blocks not finite, want 3", n)
	}
	acc[device.ExactLen-1] = 0
	if got, want := acc.Value(), float64(197*device.ExactBlock); got != want {
		t.Errorf("the finite blocks sum to %g, want %g", got, want)
	}
}

func TestSumsRefuseWrongTypes(t *testing.T) {
	q := queueOf(t, 1)
	acc, x := ofI64(make([]int64, device.ExactLen)), newVec(device.F32, 64).Buf
	mustPanic(t, "sum of squares into too few limbs", func() { q.SumSquares(acc.Slice(1, acc.N), x) })
	mustPanic(t, "sum of squares of bf16", func() { q.SumSquares(acc, newVec(device.BF16, 64).Buf) })
	mustPanic(t, "sum into fp32", func() { q.Sum(x.Slice(0, device.ExactLen), x) })
	mustPanic(t, "sum of rows into another width", func() { q.SumRows(x, device.Matrix(x, 2, 32)) })
	mustPanic(t, "sum of rows of a transposed matrix", func() { q.SumRows(x.Slice(0, 8), device.Matrix(x, 8, 8).T()) })
}
