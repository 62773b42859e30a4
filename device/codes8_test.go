package device

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// dynamicMap is a transcription of create_dynamic_map in bitsandbytes' functional.py: seven
// decades, each with twice as many values as the one below.
func dynamicMap(signed bool) (values []float64) {
	for i := range 7 {
		items := 1 << i
		if !signed {
			items *= 2
		}
		for j := range items {
			lo, hi := 0.1+0.9*float64(j)/float64(items), 0.1+0.9*float64(j+1)/float64(items)
			v := math.Pow(10, float64(i-6)) * (lo + hi) / 2
			values = append(values, v)
			if signed {
				values = append(values, -v)
			}
		}
	}
	values = append(values, 0, 1)
	slices.Sort(values)
	return values
}

// TestCodesAreBitsandbytes checks that the values of codes are bitsandbytes', except the largest:
// instead of 1 and ±0.993, a Q8 has ±1. A U8 has the same values.
func TestCodesAreBitsandbytes(t *testing.T) {
	for _, dt := range []DType{Q8, U8} {
		want := dynamicMap(dt == Q8)
		if len(want) != 256 {
			t.Fatalf("%d values", len(want))
		}
		if dt == Q8 { // sorted, the last two are 0.993 and 1, the first is -0.993
			want[0] = -1
			want[254] = 0 // two codes have this value
			slices.Sort(want)
		}
		value, _, _ := dt.Code8()
		got := slices.Clone(value[:])
		slices.Sort(got)
		for i, v := range got {
			if math.Abs(float64(v)-want[i]) > 1e-7*math.Abs(want[i]) {
				t.Errorf("%v: value %d is %v, want %v", dt, i, v, want[i])
			}
		}
	}
}

// TestCodesAreTheNearest checks that every magnitude has the code of the nearest value: on both
// sides of every limit, at the edges of the table's cells, and at random in all decades.
func TestCodesAreTheNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, dt := range []DType{Q8, U8} {
		value, limits, _ := dt.Code8()
		var xs []float32
		for _, l := range limits {
			if l <= 1 {
				xs = append(xs, l, math.Nextafter32(l, 0), math.Nextafter32(l, 1))
			}
		}
		for i := range 3600 {
			if x := math.Float32frombits(uint32(Code8From-100+i) << 16); x <= 1 {
				xs = append(xs, x, math.Nextafter32(x, 0))
			}
		}
		for range 20000 {
			xs = append(xs, float32(math.Pow(10, -9*r.Float64())))
		}
		for _, x := range xs {
			for _, sign := range []float32{1, -1} {
				if sign < 0 && dt == U8 {
					continue
				}
				var most float32
				var code [2]uint8
				dt.Encode(&most, code[:], []float32{1, sign * x})
				got := value[code[1]]
				for _, v := range value {
					if math.Abs(float64(v-sign*x)) < math.Abs(float64(got-sign*x))*(1-1e-4) { // limits are rounded
						t.Fatalf("%v: %v has the code of %v, %v is nearer", dt, sign*x, got, v)
					}
				}
			}
		}
	}
}

// TestCodesReadBack checks that decoded values are coded as before, for any largest magnitude and
// length, so Narrow and Widen are inverses.
func TestCodesReadBack(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, dt := range []DType{Q8, U8} {
		for _, n := range []int{1, 2, 3, 5, 255, 256, 257, 258, 512, 513, 1000} {
			for _, scale := range []float64{0, 1e-37, 1e-30, 1e-9, 1, 3e20, 1e38} {
				s := make([]float32, n, n+2)
				for i := range s {
					if s[i] = float32(r.NormFloat64() * math.Pow(10, -8*r.Float64()) * scale); dt == U8 {
						s[i] = float32(math.Abs(float64(s[i])))
					}
				}
				first := Narrow(slices.Clone(s), dt)
				copy(Narrowed(s, dt).Raw(), first.Raw())
				Widen(s, dt)
				if again := Narrow(slices.Clone(s), dt); !sameCodes(again, first) {
					t.Fatalf("%v: %d elements of about %v have other codes when read back", dt, n, scale)
				}
			}
		}
	}
}

// sameCodes compares everything except padding.
func sameCodes(a, b Buffer) bool {
	for i := range (a.N + BlockLen - 1) / BlockLen {
		x, xs := a.Block8(i)
		y, ys := b.Block8(i)
		if *x != *y || !slices.Equal(xs, ys) {
			return false
		}
	}
	return a.N == b.N
}

func TestCodedBuffers(t *testing.T) {
	for _, c := range [][2]int{{0, 0}, {1, 8}, {4, 8}, {5, 12}, {255, 260}, {256, 260}, {257, 268}, {512, 520}} {
		if got := Q8.Bytes(c[0]); got != c[1] {
			t.Errorf("%d elements take %d bytes, want %d", c[0], got, c[1])
		}
	}
	b := Narrow(make([]float32, 1000), U8)
	if part := b.Slice(512, 700); part.N != 188 || part.Raw()[0] != 0 || uintptr(part.Ptr)-uintptr(b.Ptr) != 520 {
		t.Errorf("%+v of %+v", part, b)
	}
	defer func() {
		if recover() == nil {
			t.Error("a slice within a block does not panic")
		}
	}()
	b.Slice(100, 200)
}
