package kernel

import "math"

// Exp32 returns e^x within 1.1 ulp; below -87.33, where the result would be subnormal, it is 0.
// It uses the reduction and coefficients of Cephes' expf (S. Moshier, 1984-1992): x = n ln 2 + r with
// |r| <= ln 2 / 2, then a polynomial in r, then n added to the exponent.
func Exp32(x float32) float32 {
	if !(x <= ExpMax) {
		return x * Inf // overflow; NaN stays NaN
	}
	if x < ExpMin {
		return 0
	}
	t := x*log2E + roundMagic // its low bits are n
	n := t - roundMagic
	r := x - n*ln2High - n*ln2Low
	p := ((((1.9875691500e-4*r+1.3981999507e-3)*r+8.3334519073e-3)*r+4.1665795894e-2)*r+1.6666665459e-1)*r + 5.0000001201e-1
	return math.Float32frombits(math.Float32bits(p*r*r+r+1) + math.Float32bits(t)<<23)
}

const (
	ExpMax     = 88.72283 // largest x with finite e^x
	ExpMin     = -87.33   // ln 2^-126 is -87.3365
	log2E      = math.Log2E
	ln2High    = 0.693359375 // 9 bits, so that n*ln2High is exact
	ln2Low     = -2.12194440e-4
	roundMagic = 3 << 22 // adding it rounds to an integer; its bits end in 9 zeros
)

var Inf = float32(math.Inf(1))

// ExpSum sets dst[i] = exp(x[i]-top) and returns their sum, added in order; dst may be x. Runs of a
// few hundred elements keep the sum accurate.
func ExpSum(dst, x []float32, top float32) float32 {
	var sum float32
	dst = dst[:len(x)]
	for i, v := range x {
		e := Exp32(v - top)
		dst[i] = e
		sum += e
	}
	return sum
}

// Largest returns the maximum of x, ignoring NaN; -Inf if x is empty.
func Largest(x []float32) float32 {
	top := float32(math.Inf(-1))
	for _, v := range x {
		if v > top {
			top = v
		}
	}
	return top
}
