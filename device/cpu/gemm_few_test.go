package cpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
	"zeroth/tests/nightly"
)

// fewTypes contains types of operands: those of text generation in float32 and in bf16, where
// logits are float32, and others.
var fewTypes = [][4]device.DType{allF32, {device.BF16, device.BF16, device.BF16, device.BF16}, {device.F32, device.BF16, device.BF16, device.BF16}, {device.BF16, device.F32, device.BF16, device.F32}}

// TestFewRowsMatchMany checks that a few rows, which are computed differently, get the
// same bits alone as among many.
func TestFewRowsMatchMany(t *testing.T) {
	nightly.Long(t)
	withISA(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(21, 22))
		few := 0
		for i, s := range [][2]int{{32, 1}, {64, 7}, {96, 8}, {1056, 65}, {2112, 513}, {256, 1100}, {50, 130}, {33, 640}, {17, 5}, {1057, 257}, {768, 1024}} {
			for form := range 8 * len(fewTypes) {
				if form >= 8 && i%3 != 1 {
					continue // further types run on some shapes, with one block of k and with several
				}
				if !nightly.All() && form%8 != (i+form/8)%8 {
					continue // each form has some shapes
				}
				p := newProduct(rng, 11, s[0], s[1], fewTypes[form/8], false, form&1 != 0, form&2 != 0, form&4 != 0, i%3)
				start := append([]byte(nil), p.c.whole.Raw()...)
				p.run(t, testQueue(t, 2))
				want := append([]byte(nil), p.c.whole.Raw()...)
				copy(p.c.whole.Raw(), start)
				q := testQueue(t, 1+i%3)
				for i := 0; i < p.m; {
					n := min(1+i%kernel.FewRows, p.m-i)
					if g := kernel.NewGemm(p.c.RowRange(i, i+n), p.a.RowRange(i, i+n), p.b, p.bias, p.add); g.Few() {
						few++
					}
					q.MatMul(p.c.RowRange(i, i+n), p.a.RowRange(i, i+n), p.b, p.bias, p.add)
					i += n
				}
				if err := q.Wait(); err != nil {
					t.Fatal(err)
				}
				if string(p.c.whole.Raw()) != string(want) {
					t.Fatalf("%v, types %v, form %d: other bits", s, fewTypes[form/8], form%8)
				}
			}
		}
		if kernel.BestISA != &kernel.Portable && few == 0 {
			t.Log("no product goes the way of few rows on this machine")
		}
	})
}

// BenchmarkFewRows multiplies one row and eight rows by the weights of GPT-2 124M in sequence, so
// that weights come from memory. It reports bytes of weights per second; the limit is the speed
// of reading memory.
//
//	go test -run xxx -bench FewRows ./device/cpu
func BenchmarkFewRows(b *testing.B) {
	streams := kernel.Streams()
	read := streams[slices.IndexFunc(streams, func(s kernel.Stream) bool { return s.Name == "read" })]
	for _, workers := range []int{1, 2} {
		for _, dtype := range []device.DType{device.F32, device.BF16} {
			for _, trans := range []bool{false, true} {
				for _, rows := range []int{1, 8} {
					b.Run(fmt.Sprintf("%d-workers/%v/transposed=%v/rows=%d", workers, dtype, trans, rows), func(b *testing.B) { benchFewRows(b, workers, rows, dtype, trans) })
				}
			}
		}
		b.Run(fmt.Sprintf("%d-workers/limit", workers), func(b *testing.B) {
			d, _ := benchQueue(b, workers)
			x := benchBuffer(b, d, device.F32, 30*3072*768).F32()
			b.SetBytes(int64(4 * len(x)))
			for b.Loop() {
				read.Pass(workers, x, x, x)
			}
		})
	}
}

func benchQueue(b *testing.B, workers int) (*Device, *Queue) {
	d := NewHost(workers)
	b.Cleanup(func() { d.Close() })
	q := d.NewQueue("compute")
	b.Cleanup(q.Close)
	return d, q
}

// benchBuffer returns zeroed device memory with touched pages, like a model's.
func benchBuffer(b *testing.B, d *Device, t device.DType, n int) device.Buffer {
	x, err := d.Alloc(t, n, device.Params)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { d.Free(x) })
	x.Host = true
	clear(x.Raw())
	return x
}

func benchFewRows(b *testing.B, workers, rows int, dtype device.DType, trans bool) {
	const layers, n, k = 30, 3072, 768
	d, q := benchQueue(b, workers)
	weights := benchBuffer(b, d, dtype, layers*n*k)
	x, y := device.Matrix(benchBuffer(b, d, dtype, rows*k), rows, k), device.Matrix(benchBuffer(b, d, dtype, rows*n), rows, n)
	b.SetBytes(int64(weights.Bytes()))
	for b.Loop() {
		for i := range layers {
			w := weights.Slice(i*n*k, (i+1)*n*k)
			m := device.Matrix(w, k, n)
			if trans {
				m = device.Matrix(w, n, k).T()
			}
			q.MatMul(y, x, m, device.Buffer{}, false)
		}
		if err := q.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}
