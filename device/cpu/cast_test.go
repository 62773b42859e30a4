package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
	"zeroth/tests/nightly"
)

var floats = []device.DType{device.F32, device.BF16, device.F16, device.F64}

// nearest is the oracle for rounding: it returns the value nearest to x, ties to even, of a type
// with the given mantissa bits (without the hidden one), smallest normal exponent and largest
// finite value.
func nearest(x float64, mantissa, minExp int, largest float64) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	_, e := math.Frexp(x) // x = f * 2^e, f in [0.5, 1)
	ulp := math.Ldexp(1, max(e-1, minExp)-mantissa)
	y := math.RoundToEven(x/ulp) * ulp
	if math.Abs(y) > largest {
		return math.Inf(int(math.Copysign(1, x)))
	}
	return math.Copysign(y, x)
}

func round(t device.DType, x float64) float64 {
	switch t {
	case device.F32:
		return float64(float32(x))
	case device.BF16:
		return nearest(x, 7, -126, math.Ldexp(255, 120))
	case device.F16:
		return nearest(x, 10, -14, 65504)
	}
	return x
}

// sameFloat compares bits, except that all NaN are equal.
func sameFloat(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b
}

// hostBuffer returns n elements of type t on the Go heap.
func hostBuffer(t device.DType, n int) device.Buffer {
	switch t {
	case device.F32:
		return device.OfF32(make([]float32, n))
	case device.F64:
		return device.OfF64(make([]float64, n))
	case device.I32:
		return device.OfI32(make([]int32, n))
	}
	return device.OfU16(t, make([]uint16, n))
}

// value returns element i of b, decoded from its bits.
func value(b device.Buffer, i int) float64 { return elements(b)(i) }

// elements returns a function of an element's number in b. It decodes the element from its bits.
func elements(b device.Buffer) func(i int) float64 {
	switch b.Type {
	case device.F32:
		x := b.F32()
		return func(i int) float64 { return float64(x[i]) }
	case device.F64:
		x := b.F64()
		return func(i int) float64 { return x[i] }
	case device.I32:
		x := b.I32()
		return func(i int) float64 { return float64(x[i]) }
	case device.BF16:
		x := b.U16()
		return func(i int) float64 { return float64(math.Float32frombits(uint32(x[i]) << 16)) }
	}
	x := b.U16()
	return func(i int) float64 { return half(x[i]) }
}

// half returns the value of a number in fp16.
func half(h uint16) float64 {
	e, m, sign := int(h>>10&31), float64(h&0x3ff), 1-2*float64(h>>15)
	switch {
	case e == 31 && m != 0:
		return math.NaN()
	case e == 31:
		return math.Inf(int(sign))
	case e == 0:
		return math.Copysign(math.Ldexp(m, -24), sign)
	}
	return sign * math.Ldexp(1024+m, e-25)
}

// setBits sets element i of b to the upper bits of a 64-bit pattern.
func setBits(b device.Buffer, i int, u uint64) {
	switch b.Type {
	case device.F32:
		b.F32()[i] = math.Float32frombits(uint32(u >> 32))
	case device.F64:
		b.F64()[i] = math.Float64frombits(u)
	default:
		b.U16()[i] = uint16(u >> 48)
	}
}

// hard returns float64 values around every edge of the narrower types.
func hard() (xs []float64) {
	for _, e := range []int{-1074, -150, -149, -140, -133, -127, -126, -25, -24, -20, -15, -14, -1, 0, 1, 15, 16, 17, 126, 127, 128, 1023} {
		for _, m := range []float64{1, 1 + 1.0/128, 1 + 1.0/256, 1 + 3.0/256, 1 + 1.0/1024, 1 + 1.0/2048, 1 + 3.0/2048, 1.5,
			2 - 1.0/128, 2 - 1.0/256, 2 - 1.0/512, 2 - 1.0/1024, 2 - 1.0/2048, 2 - 1.0/4096, 2 - 0x1p-23, 2 - 0x1p-24, 2 - 0x1p-52} {
			for _, d := range []float64{0, 0x1p-23, -0x1p-23, 0x1p-24, 0x1p-40, -0x1p-40, 0x1p-52, -0x1p-52} {
				xs = append(xs, math.Ldexp(m+d, e), -math.Ldexp(m+d, e))
			}
		}
	}
	return append(xs, 0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), 65519.99, 65520, 65504)
}

func TestCastEveryPair(t *testing.T) {
	q := NewHost(1).NewQueue("test")
	defer q.Close()
	for _, from := range floats {
		for _, to := range floats {
			t.Run(fmt.Sprintf("%v to %v", from, to), func(t *testing.T) {
				src := hard()
				if from == device.BF16 || from == device.F16 {
					src = make([]float64, 1<<16) // every bit pattern
				}
				a, b := hostBuffer(from, len(src)), hostBuffer(to, len(src)+1)
				setBits(b, len(src), 0x3ff0_1234_5678_9abc)
				guard := value(b, len(src))
				for i, x := range src {
					switch from {
					case device.F32:
						a.F32()[i] = float32(x)
					case device.F64:
						a.F64()[i] = x
					default:
						a.U16()[i] = uint16(i)
					}
				}
				q.Cast(b.Slice(0, len(src)), a)
				if err := q.Wait(); err != nil {
					t.Fatal(err)
				}
				for i := range src {
					x := value(a, i)
					if got, want := value(b, i), round(to, x); !sameFloat(got, want) {
						t.Fatalf("%d: %g (%#x) became %g, want %g", i, x, math.Float64bits(x), got, want)
					}
				}
				if value(b, len(src)) != guard {
					t.Error("wrote past the end")
				}
			})
		}
	}
}

func TestCastRandomBits(t *testing.T) {
	q := NewHost(1).NewQueue("test")
	defer q.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	const n = 20000
	for _, from := range []device.DType{device.F32, device.F64} {
		a := hostBuffer(from, n)
		for i := range n {
			setBits(a, i, rng.Uint64())
			if from == device.F64 && i%2 == 0 { // within the range of the narrow types
				a.F64()[i] = math.Ldexp(1+rng.Float64(), rng.IntN(300)-160)
			}
		}
		for _, to := range floats {
			b := hostBuffer(to, n)
			q.Cast(b, a)
			if err := q.Wait(); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				if got, want := value(b, i), round(to, value(a, i)); !sameFloat(got, want) {
					t.Fatalf("%v to %v: %g became %g, want %g", from, to, value(a, i), got, want)
				}
			}
		}
	}
}

func TestCastSplitAmongWorkers(t *testing.T) {
	d := NewHost(3)
	defer d.Close()
	q := d.NewQueue("test")
	defer q.Close()
	const n = 5*kernel.CastGrain + 7
	a, b := hostBuffer(device.F32, n), hostBuffer(device.BF16, n)
	for i := range n {
		a.F32()[i] = float32(i) / 3
	}
	q.Cast(b, a)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if got, want := value(b, i), round(device.BF16, value(a, i)); got != want {
			t.Fatalf("%d: %g, want %g", i, got, want)
		}
	}
}

// TestCastAssemblyGivesThePortableBits compares the assembly with the portable functions, for all
// lengths and kinds of stores.
func TestCastAssemblyGivesThePortableBits(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	wide := make([]float32, 1<<17+5)
	for i := range wide {
		wide[i] = math.Float32frombits(rng.Uint32())
		if i%3 == 0 { // within the range of binary16
			wide[i] = float32(math.Ldexp(rng.NormFloat64(), rng.IntN(50)-30))
		}
	}
	for i, x := range hard() {
		wide[i] = float32(x)
	}
	wide[7000], wide[7001] = math.Float32frombits(0x7f800001), math.Float32frombits(0xffffffff)
	narrow := make([]uint16, 1<<16+5)
	for i := range narrow {
		narrow[i] = uint16(i)
	}
	for _, c := range kernel.CastISAs[1:] {
		for k := range kernel.CastKinds {
			for _, n := range []int{16, 48, 64, 80, 1 << 16, 1 << 17} {
				for _, f := range []kernel.CastFunc{c.Plain[k], c.Stream[k]} {
					if k == kernel.WidenBF16 || k == kernel.WidenF16 {
						n = min(n, 1<<16)
						got, want := alignedBuffer(device.F32, n+16), make([]float32, n)
						f(got.Ptr, kernel.SliceAt(narrow), n)
						if k == kernel.WidenBF16 {
							kernel.Bf16ToF32Go(want, narrow[:n])
						} else {
							kernel.F16ToF32Go(want, narrow[:n])
						}
						sameBytes(t, got, device.OfF32(want))
					} else {
						got, want := alignedBuffer(device.BF16, n+16), make([]uint16, n)
						f(got.Ptr, kernel.SliceAt(wide), n)
						if k == kernel.RoundBF16 {
							kernel.F32ToBF16Go(want, wide[:n])
						} else {
							kernel.F32ToF16Go(want, wide[:n])
						}
						sameBytes(t, got, device.OfU16(device.BF16, want))
					}
				}
			}
		}
	}
}

// alignedBuffer returns n zeroed elements aligned to 64 bytes.
func alignedBuffer(t device.DType, n int) device.Buffer {
	b := hostBuffer(t, n+64)
	skip, _ := kernel.UntilAligned(b.Ptr, t.Size())
	return b.Slice(skip, skip+n)
}

// sameBytes checks that got starts with want and is zero after it.
func sameBytes(t *testing.T, got, want device.Buffer) {
	t.Helper()
	if string(got.Raw()[:want.Bytes()]) != string(want.Raw()) {
		t.Fatalf("%v: other bits than the portable conversion", want.Type)
	}
	for i, b := range got.Raw()[want.Bytes():] {
		if b != 0 {
			t.Fatalf("%v: byte %d past the end was written", want.Type, i)
		}
	}
}

// TestCastAndCopyOfManyElements tests outputs that exceed the caches and are stored past them.
func TestCastAndCopyOfManyElements(t *testing.T) {
	nightly.Long(t)
	defer func(old *kernel.CastISA) { kernel.BestCasts = old }(kernel.BestCasts)
	d := NewHost(3)
	defer d.Close()
	q := d.NewQueue("test")
	defer q.Close()
	const n = kernel.StreamMin/2 + 1234
	src := hostBuffer(device.F32, n)
	for i := range src.F32() {
		src.F32()[i] = float32(i%8191) / 37
	}
	for _, to := range []device.DType{device.F32, device.BF16, device.F16} {
		for _, skip := range []int{0, 3} {
			there, back := hostBuffer(to, n), hostBuffer(device.F32, n)
			var want []byte
			for _, c := range kernel.CastISAs {
				kernel.BestCasts = c
				clear(there.Raw())
				q.Cast(there.Slice(skip, n-5), src.Slice(skip, n-5))
				q.Cast(back, there)
				q.Copy(there.Slice(n-4, n), there.Slice(skip, skip+4))
				if err := q.Wait(); err != nil {
					t.Fatal(err)
				}
				if got := append(append([]byte(nil), there.Raw()...), back.Raw()...); want == nil {
					want = got
				} else if string(got) != string(want) {
					t.Fatalf("%v from %d: %s differs from the portable code", to, skip, c.Name)
				}
			}
		}
	}
	big, other := hostBuffer(device.F32, n), hostBuffer(device.F32, n)
	q.Copy(big, src)
	q.Copy(other.Slice(1, n), src.Slice(0, n-1))
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	if string(big.Raw()) != string(src.Raw()) || string(other.Raw()[4:]) != string(src.Raw()[:4*n-4]) {
		t.Error("a large copy differs from its source")
	}
}

func BenchmarkCast(b *testing.B) {
	for _, n := range []int{1 << 16, 1 << 25} {
		for _, p := range [][2]device.DType{{device.F32, device.BF16}, {device.BF16, device.F32}, {device.F32, device.F16}, {device.F16, device.F32}, {device.F32, device.F32}} {
			b.Run(fmt.Sprintf("%v to %v/%d", p[0], p[1], n), func(b *testing.B) {
				q := testQueue(b, 1)
				src, dst := hostBuffer(p[0], n), hostBuffer(p[1], n)
				b.SetBytes(int64(src.Bytes() + dst.Bytes()))
				for b.Loop() {
					q.Cast(dst, src)
					if err := q.Wait(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func TestCastRefuses(t *testing.T) {
	q := NewHost(1).NewQueue("test")
	defer q.Close()
	for name, f := range map[string]func(){
		"lengths": func() { q.Cast(hostBuffer(device.F32, 3), hostBuffer(device.F32, 4)) },
		"int32":   func() { q.Cast(hostBuffer(device.I32, 3), hostBuffer(device.F32, 3)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}
