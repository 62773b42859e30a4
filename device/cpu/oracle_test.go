package cpu

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
	"zeroth/tests/nightly"
)

// The kernels' tests run each kernel on operands in guarded memory with gaps between rows and
// outputs poisoned with NaN, for 1, 2, 3 and 5 workers, which must agree to the bit; the first
// result is compared with a slow loop in float64 on the same, already rounded, inputs.

var computeTypes = []device.DType{device.F32, device.BF16, device.F16}

func eachType(t *testing.T, f func(t *testing.T, dt device.DType)) {
	for _, dt := range computeTypes {
		t.Run(dt.String(), func(t *testing.T) { f(t, dt) })
	}
}

// guarded is a matrix under test with its memory.
type guarded struct {
	device.Mat
	mem device.Buffer
}

const (
	guardValue = 96.0 // every element outside of the operand
	guardLen   = 5    // elements before and after
	gapLen     = 3    // elements between rows
)

// newMat returns a (rows, cols) matrix of NaN with gaps.
func newMat(dt device.DType, rows, cols int) *guarded { return newGuarded(dt, rows, cols, gapLen) }

// newVec returns n elements of NaN.
func newVec(dt device.DType, n int) *guarded { return newGuarded(dt, 1, n, 0) }

func newGuarded(dt device.DType, rows, cols, gap int) *guarded {
	ld := cols + gap
	mem := hostBuffer(dt, 2*guardLen+rows*ld)
	around := &guarded{device.Mat{Buf: mem, Rows: 1, Cols: 1, Ld: 1}, mem}
	around.fill(func(int) float64 { return guardValue })
	repeat(mem.Raw(), dt.Size())
	body := mem.Slice(guardLen, guardLen+max(0, (rows-1)*ld+cols))
	o := &guarded{device.Mat{Buf: body, Rows: min(rows, 1), Cols: cols, Ld: ld}, mem}
	o.fill(func(int) float64 { return math.NaN() })
	o.Rows = rows
	for i := 1; i < rows; i++ {
		copy(body.Slice(i*ld, i*ld+cols).Raw(), body.Slice(0, cols).Raw())
	}
	return o
}

// repeat sets all of x to its first n elements, over and over.
func repeat[T any](x []T, n int) {
	for ; n > 0 && n < len(x); n *= 2 {
		copy(x[n:], x[:n])
	}
}

// fill sets element i, in row-major order, to f(i).
func (o *guarded) fill(f func(i int) float64) *guarded {
	row := make([]float32, o.Cols)
	for i := range o.Rows {
		part := o.Buf.Slice(i*o.Ld, i*o.Ld+o.Cols)
		for j := range row {
			v := f(i*o.Cols + j)
			row[j] = float32(v)
			if o.Buf.Type == device.I32 {
				part.I32()[j] = int32(v)
			}
		}
		if o.Buf.Type != device.I32 {
			kernel.Store(part, row)
		}
	}
	return o
}

// normal sets elements to mean + std times random normals.
func (o *guarded) normal(rng *rand.Rand, mean, std float64) *guarded {
	return o.fill(func(int) float64 { return mean + std*rng.NormFloat64() })
}

// values returns the elements in row-major order.
func (o *guarded) values() []float64 {
	x, of := make([]float64, o.Rows*o.Cols), elements(o.Buf)
	for i := range o.Rows {
		for j := range o.Cols {
			x[i*o.Cols+j] = of(i*o.Ld + j)
		}
	}
	return x
}

// checkGuards fails if anything outside of the operand was written.
func (o *guarded) checkGuards(t *testing.T) {
	t.Helper()
	for i := range o.mem.N {
		at := i - guardLen
		inside := at >= 0 && at < o.Buf.N && (o.Rows == 1 || at%o.Ld < o.Cols)
		if got := guardValue; !inside {
			if o.mem.Type == device.I32 {
				got = float64(o.mem.I32()[i])
			} else {
				got = value(o.mem, i)
			}
			if got != guardValue {
				t.Fatalf("element %d outside the operand (%d, %d) was set to %g", at, o.Rows, o.Cols, got)
			}
		}
	}
}

// queueOf returns a queue of a device with the given workers, closed with the test. The scratch of
// its own worker is full of NaN, which no kernel may depend on.
func queueOf(t testing.TB, workers int) *Queue {
	d := NewHost(workers)
	q := d.NewQueue("test")
	all := q.w.Floats(1 << 15)
	all[0] = float32(math.NaN())
	repeat(all, 1)
	t.Cleanup(func() { q.Close(); d.Close() })
	return q
}

// onWorkers calls f, which makes operands and issues a kernel on them, with 1, 2, 3 and 5 workers,
// or in short mode with 1 and 3, and returns the operands of the first call.
func onWorkers(t *testing.T, f func(q *Queue) []*guarded) []*guarded {
	t.Helper()
	var first []*guarded
	several := []int{1, 2, 3, 5}
	if !nightly.All() {
		several = []int{1, 3}
	}
	for _, workers := range several {
		q := queueOf(t, workers)
		out := f(q)
		if err := q.Wait(); err != nil {
			t.Fatal(err)
		}
		for i, o := range out {
			o.checkGuards(t)
			if first != nil && !bytes.Equal(o.mem.Raw(), first[i].mem.Raw()) {
				t.Fatalf("operand %d: other bits with %d workers than with 1", i, workers)
			}
		}
		if first == nil {
			first = out
		}
	}
	return first
}

// epsilon bounds the relative error of rounding once to dt or, for float32, of the few roundings
// per element.
func epsilon(dt device.DType) float64 {
	switch dt {
	case device.BF16:
		return 0x1p-8
	case device.F16:
		return 0x1p-11 + 1e-6
	}
	return 2e-6
}

// near fails unless each element of o is within one rounding of want, plus tol times the root
// mean square of want to allow for cancellation in float32 sums. Below its normal numbers, fp16
// has steps of 2^-24.
func near(t *testing.T, what string, o *guarded, want []float64, tol float64) {
	t.Helper()
	got := o.values()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	var square float64
	for _, w := range want {
		square += w * w / float64(len(want))
	}
	base := tol * math.Sqrt(square)
	if o.Buf.Type == device.F16 {
		base += 0x1p-25
	}
	for i, w := range want {
		if d := math.Abs(got[i] - w); !(d <= base+epsilon(o.Buf.Type)*math.Abs(w)) {
			t.Fatalf("%s: element (%d, %d) is %.9g, want %.9g: off by %.3g, allowed %.3g",
				what, i/o.Cols, i%o.Cols, got[i], w, d, base+epsilon(o.Buf.Type)*math.Abs(w))
		}
	}
}

// slopes returns the gradient of f at x by central differences.
func slopes(x []float64, f func() float64) []float64 {
	const h = 1e-5
	d := make([]float64, len(x))
	for i, at := range x {
		x[i] = at + h
		up := f()
		x[i] = at - h
		d[i] = (up - f()) / (2 * h)
		x[i] = at
	}
	return d
}

func dot(a, b []float64) (s float64) {
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

// mustPanic fails unless f panics.
func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s did not panic", what)
		}
	}()
	f()
}
