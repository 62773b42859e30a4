package cpu

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
	"zeroth/tests/nightly"
)

// sumTypes are the types that AddUp supports.
var sumTypes = []device.DType{device.F32, device.BF16, device.F16, device.F64}

// oddNumbers returns n numbers of a type of all magnitudes, including infinities and NaN.
func oddNumbers(rng *rand.Rand, t device.DType, n int) device.Buffer {
	wide := device.OfF64(make([]float64, n))
	for i := range wide.F64() {
		x := rng.NormFloat64() * math.Exp2(float64(rng.IntN(40)-30))
		switch rng.IntN(200) {
		case 0:
			x = math.Inf(1 - 2*rng.IntN(2))
		case 1:
			x = math.NaN()
		case 2:
			x = math.Copysign(0, -1)
		}
		wide.F64()[i] = x
	}
	if t == device.F64 {
		return wide
	}
	b := hostBuffer(t, n)
	kernel.CastThroughF32(b, wide)
	return b
}

// sumOracle adds element by element, in order, and rounds once.
func sumOracle(t device.DType, src []device.Buffer) device.Buffer {
	out := hostBuffer(t, src[0].N)
	for i := range out.N {
		if t == device.F64 {
			sum := src[0].F64()[i]
			for _, b := range src[1:] {
				sum += b.F64()[i]
			}
			out.F64()[i] = sum
			continue
		}
		sum := float32(value(src[0], i))
		for _, b := range src[1:] {
			sum += float32(value(b, i))
		}
		kernel.Store(out.Slice(i, i+1), []float32{sum})
	}
	return out
}

func TestAddUp(t *testing.T) {
	nightly.Long(t)
	withVec(t, func(t *testing.T) {
		for _, dt := range sumTypes {
			for _, count := range []int{1, 2, 3, 4, 8, 19} {
				for _, n := range []int{0, 1, 15, 16, 63, 64, 177, kernel.AddAtOnce + 83} {
					t.Run(fmt.Sprint(dt, " ", count, "x", n), func(t *testing.T) { checkAddUp(t, dt, count, n) })
				}
			}
		}
	})
}

// checkAddUp sums into separate memory and into each source.
func checkAddUp(t *testing.T, dt device.DType, count, n int) {
	rng := rand.New(rand.NewPCG(uint64(count), uint64(n)))
	src := make([]device.Buffer, count)
	for i := range src {
		src[i] = oddNumbers(rng, dt, n+1).Slice(n%2, n+n%2)
	}
	want := sumOracle(dt, src)
	apart := newVec(dt, n)
	kernel.AddUp(apart.Buf, src)
	apart.checkGuards(t)
	sameNumbers(t, "apart", apart.Buf, want)
	own := src[rng.IntN(count)]
	kernel.AddUp(own, src)
	sameNumbers(t, "in place", own, want)
}

// TestAddUpInPieces checks that a sum computed in pieces, all but the last of which are float32,
// has the same bits as one computed at once.
func TestAddUpInPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for _, dt := range []device.DType{device.F32, device.BF16, device.F16} {
		for _, n := range []int{1, 16, 83, 3000} {
			src := make([]device.Buffer, 6)
			for i := range src {
				src[i] = oddNumbers(rng, dt, n)
			}
			so := newVec(device.F32, n)
			kernel.AddUp(so.Buf, src[:1])
			kernel.AddUp(so.Buf, append([]device.Buffer{so.Buf}, src[1:4]...))
			got := newVec(dt, n)
			kernel.AddUp(got.Buf, append([]device.Buffer{so.Buf}, src[4:]...))
			so.checkGuards(t)
			got.checkGuards(t)
			sameNumbers(t, fmt.Sprint(dt, " x", n), got.Buf, sumOracle(dt, src))
		}
	}
}

// sameNumbers compares bits, except that all NaN are equal.
func sameNumbers(t *testing.T, what string, got, want device.Buffer) {
	t.Helper()
	if bytes.Equal(got.Raw(), want.Raw()) {
		return
	}
	a, b, size := elements(got), elements(want), want.Type.Size()
	for i := range want.N {
		if x, y := a(i), b(i); !bytes.Equal(got.Raw()[i*size:][:size], want.Raw()[i*size:][:size]) && (x == x || y == y) {
			t.Fatalf("%s: element %d is %g, want %g", what, i, x, y)
		}
	}
}

// TestAddUpPastTheCaches sums enough for stores that bypass the caches, and again in place.
func TestAddUpPastTheCaches(t *testing.T) {
	nightly.Long(t)
	d := NewHost(1)
	defer d.Close()
	withVec(t, func(t *testing.T) {
		for _, dt := range []device.DType{device.F32, device.BF16, device.F16} {
			n := kernel.StreamMin/dt.Size() + 75
			dst, err := d.Alloc(dt, n, device.States)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Free(dst)
			x := newVec(dt, 4099).normal(rand.New(rand.NewPCG(1, 2)), 0, 1).Buf
			src := []device.Buffer{hostBuffer(dt, n), hostBuffer(dt, n)}
			for lo := 0; lo < n; lo += x.N {
				m := min(x.N, n-lo)
				copy(src[0].Slice(lo, lo+m).Raw(), x.Slice(0, m).Raw())
				copy(src[1].Slice(lo, lo+m).Raw(), x.Slice(x.N-m, x.N).Raw())
			}
			for _, count := range []int{1, 2, 3, 8} {
				many := slices.Repeat(src, 4)[:count]
				kernel.AddUp(dst, many)
				kernel.AddUp(src[0], many)
				if !bytes.Equal(dst.Raw(), src[0].Raw()) {
					t.Errorf("%v: other bits past the caches, of %d", dt, count)
				}
			}
		}
	})
}

func TestAddUpRefuses(t *testing.T) {
	f := device.OfF32(make([]float32, 3))
	mustPanic(t, "no source", func() { kernel.AddUp(f, nil) })
	mustPanic(t, "another length", func() { kernel.AddUp(f, []device.Buffer{f, f.Slice(0, 2)}) })
	mustPanic(t, "another type", func() { kernel.AddUp(f, []device.Buffer{f, device.OfI32(make([]int32, 3))}) })
	mustPanic(t, "integers", func() {
		i := device.OfI32(make([]int32, 3))
		kernel.AddUp(i, []device.Buffer{i})
	})
}
