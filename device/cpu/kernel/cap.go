package kernel

import "math"

// Soft caps as in Gemma 2 (arXiv 2408.00118, section 2) replace a score or logit x by c
// tanh(x/c). They are Go loops on every instruction set because their cost is small next to that
// of the products that compute x.

// Tanh32 returns the hyperbolic tangent within 1.3 ulp: below 0.625 with the polynomial of Cephes'
// tanhf (S. Moshier, 1984-1992), else 1 - 2/(e^2x + 1).
func Tanh32(x float32) float32 {
	a := math.Float32frombits(math.Float32bits(x) &^ (1 << 31))
	if a < 0.625 {
		z := x * x
		return x + x*z*((((-5.70498872745e-3*z+2.06390887954e-2)*z-5.37397155531e-2)*z+1.33314422036e-1)*z-3.33332819422e-1)
	}
	y := 1 - 2/(Exp32(a+a)+1)
	return math.Float32frombits(math.Float32bits(y) | math.Float32bits(x)&(1<<31))
}

// capped replaces every x by cap tanh(x/cap).
func capped(x []float32, cap float32) {
	by := 1 / cap
	for i, v := range x {
		x[i] = cap * Tanh32(v*by)
	}
}

// capSlope returns the derivative of cap tanh(x/cap), given its value y and by = 1/cap.
func capSlope(y, by float32) float32 {
	t := y * by
	return 1 - t*t
}

// capScores caps the visible scores (nq, nk), with rows ld apart. The first query sees n keys,
// each further query one more. If slopes is not nil, it receives the derivatives.
func capScores(s, slopes []float32, ld, nq, nk, n int, cap float32) {
	by := 1 / cap
	for i := range nq {
		row := s[i*ld:][:min(nk, n+i)]
		capped(row, cap)
		if slopes == nil {
			continue
		}
		to := slopes[i*ld:][:len(row)]
		for j, y := range row {
			to[j] = capSlope(y, by)
		}
	}
}

// mulScores multiplies the visible elements of s by the elements of by.
func mulScores(s, by []float32, ld, nq, nk, n int) {
	for i := range nq {
		row := s[i*ld:][:min(nk, n+i)]
		for j, x := range by[i*ld:][:len(row)] {
			row[j] *= x
		}
	}
}
