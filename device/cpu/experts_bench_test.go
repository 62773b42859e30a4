package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"zeroth/device"
)

// BenchmarkGroups compares products of groups of equal size with one product of as many operations:
// y = x·Wᵀ, dx = y·W and dW = yᵀ·x, with W (1024, 512).
func BenchmarkGroups(b *testing.B) {
	for _, dt := range []device.DType{device.F32, device.BF16} {
		for _, workers := range []int{1, 2} {
			for _, each := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512} {
				for form, name := range []string{"up", "dx", "dw"} {
					b.Run(fmt.Sprintf("%v/%dw/%d/%s", dt, workers, each, name), func(b *testing.B) {
						grouped, dense := groupsAndDense(testQueue(b, workers), dt, each, form)
						for range b.N {
							x := inTurns(workers, 500*time.Millisecond, 2*1024*512*float64(max(4, min(64, 2048/each))*each), grouped, dense)
							x.report(b, "dense")
						}
						b.ReportMetric(0, "ns/op")
					})
				}
			}
		}
	}
}

// groupsAndDense returns functions that repeat a product of groups and one that is not divided.
func groupsAndDense(q *Queue, dt device.DType, each, form int) (grouped, dense func(reps int)) {
	const N, K = 1024, 512
	E, rng := max(4, min(64, 2048/each)), rand.New(rand.NewPCG(1, 1))
	mat := func(dt device.DType, rows, cols int) device.Mat { return aligned(rng, dt, rows, cols) }
	sizes := make([]int, E)
	for i := range sizes {
		sizes[i] = each
	}
	offsets, rows := offsetsOf(sizes)
	x, y := mat(dt, rows, K), mat(dt, rows, N)
	stack := func(dt device.DType) device.MatGroup {
		all := mat(dt, E*N, K)
		one := all.RowRange(0, N)
		one.Buf = all.Buf
		return device.MatGroup{Mat: one, Stride: N * K}
	}
	w, dw, none := stack(dt), stack(device.F32), device.Buffer{}
	ops := [3][2]func(){
		{func() { q.MatMulGroups(y, x, w.T(), offsets.Buf, false) }, func() { q.MatMul(y, x, w.At(0).T(), none, false) }},
		{func() { q.MatMulGroups(x, y, w, offsets.Buf, false) }, func() { q.MatMul(x, y, w.At(0), none, false) }},
		{func() { q.WeightGradGroups(dw, y, x, offsets.Buf, false) }, func() { q.WeightGrad(dw.At(0), none, y, x) }},
	}
	repeat := func(f func()) func(int) {
		return func(reps int) {
			for range reps {
				f()
			}
			_ = q.Wait()
		}
	}
	return repeat(ops[form][0]), repeat(ops[form][1])
}

// aligned returns a random matrix that begins at a line of the cache, as in programs.
func aligned(rng *rand.Rand, dt device.DType, rows, cols int) device.Mat {
	m := newGuarded(dt, 1, rows*cols+64, 0).normal(rng, 0, 1)
	at := int(-uintptr(m.Buf.Ptr)%64) / dt.Size()
	return device.Mat{Buf: m.Buf.Slice(at, at+rows*cols), Rows: rows, Cols: cols, Ld: cols}
}
