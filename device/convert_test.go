package device

import (
	"math"
	"testing"
)

// TestConversionsExhaustive checks that every f16 and bf16 bit pattern survives conversion to
// float32 and back, and that the value halfway to the next rounds to even.
func TestConversionsExhaustive(t *testing.T) {
	for h := range 1 << 16 {
		x := WideF16(uint16(h))
		if x != x {
			if y := WideF16(RoundF16(x)); y == y {
				t.Fatalf("f16 NaN %04x became %g", h, y)
			}
			continue
		}
		if got := RoundF16(x); got != uint16(h) {
			t.Fatalf("f16 %04x became %04x", h, got)
		}
		if h&0x7c00 == 0x7c00 || h&0x7fff == 0x7bff {
			continue
		}
		next := WideF16(uint16(h + 1))
		mid := float32((float64(x) + float64(next)) / 2) // exact: 12 bits
		if got := RoundF16(mid); got != uint16(h+h&1) {
			t.Fatalf("half way after f16 %04x became %04x", h, got)
		}
		if got := RoundF16(math.Nextafter32(mid, x)); got != uint16(h) {
			t.Fatalf("just under half way after f16 %04x became %04x", h, got)
		}
		if got := RoundF16(math.Nextafter32(mid, next)); got != uint16(h+1) {
			t.Fatalf("just over half way after f16 %04x became %04x", h, got)
		}
	}
	for _, c := range []struct {
		x    float32
		want uint16
	}{{65519.996, 0x7bff}, {65520, 0x7c00}, {-1e9, 0xfc00}, {1.0 / (1 << 25), 0}, {1.1 / (1 << 25), 1}} {
		if got := RoundF16(c.x); got != c.want {
			t.Errorf("f16 of %g is %04x, want %04x", c.x, got, c.want)
		}
	}
	for h := range 1 << 16 {
		x := math.Float32frombits(uint32(h) << 16)
		if x != x {
			if got := RoundBF16(x); got&0x7fff <= 0x7f80 {
				t.Fatalf("bf16 NaN %04x became %04x", h, got)
			}
			continue
		}
		if got := RoundBF16(x); got != uint16(h) {
			t.Fatalf("bf16 %04x became %04x", h, got)
		}
		if h&0x7f80 == 0x7f80 {
			continue
		}
		if got := RoundBF16(math.Float32frombits(uint32(h)<<16 | 0x8000)); got != uint16(h+h&1) {
			t.Fatalf("half way after bf16 %04x became %04x", h, got)
		}
	}
}

// TestOverflow checks that exactly the finite elements overflow that are rounded to infinity.
func TestOverflow(t *testing.T) {
	for _, x := range []float32{0, 1, -65504, 65519.99, 65520, -65520, 70_000, 0x1.fep127, 0x1.fefffep127, 0x1.ffp127, -math.MaxFloat32, float32(math.Inf(1)), float32(math.NaN())} {
		for _, n := range []DType{F32, F16, BF16} {
			y := Narrow([]float32{x}, n)
			wide := x
			if n != F32 {
				wide = map[DType]func(uint16) float32{F16: WideF16, BF16: WideBF16}[n](y.U16()[0])
			}
			want := -1
			if math.IsInf(float64(wide), 0) && !math.IsInf(float64(x), 0) {
				want = 1
			}
			if got := Overflow([]float32{0, x}, n); got != want {
				t.Errorf("%v in %v: %d, want %d", x, n, got, want)
			}
		}
	}
}

// TestNarrowWiden checks that in-place conversions equal those of single elements.
func TestNarrowWiden(t *testing.T) {
	for _, dt := range []DType{F32, BF16, F16} {
		for _, n := range []int{0, 1, 2, 7, 1000} {
			s, want := make([]float32, n), make([]float32, n)
			for i := range s {
				s[i] = float32(i)/3 - 50
				switch want[i] = s[i]; dt {
				case BF16:
					want[i] = WideBF16(RoundBF16(s[i]))
				case F16:
					want[i] = WideF16(RoundF16(s[i]))
				}
			}
			b := Narrow(s, dt)
			if b.Type != dt || b.N != n {
				t.Fatalf("%d of %v as %+v", n, dt, b)
			}
			if to := Narrowed(s, dt); to.Type != dt || to.N != n {
				t.Fatalf("%d of %v as %+v", n, dt, to)
			} else if n > 0 {
				copy(to.Raw(), b.Raw())
			}
			Widen(s, dt)
			for i, x := range s {
				if x != want[i] {
					t.Fatalf("element %d of %d, %v, is %v, want %v", i, n, dt, x, want[i])
				}
			}
		}
	}
}
