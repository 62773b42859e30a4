package cpu

import (
	"math"
	"math/big"
	"math/cmplx"
	"math/rand/v2"
	"testing"

	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// rope64 rotates x, (B*T, cols), as complex numbers: pair (j, j+W/2) of a head at position t is
// multiplied by e^(i t freq), where W of the D elements are rotated.
func rope64(x []float64, cols int, r device.Rope, inverse bool) []float64 {
	y, half := append([]float64(nil), x...), r.RotaryDim()/2
	for i := range x {
		row, col := i/cols, i%cols
		j := col % r.D
		if j >= half {
			continue
		}
		at := r.Past + row%r.T
		if r.Start.N > 0 {
			at -= int(r.Start.I32()[row])
		}
		angle := float64(at) * r.Freq(j)
		if inverse {
			angle = -angle
		}
		z := complex(x[i], x[i+half]) * cmplx.Exp(complex(0, angle))
		y[i], y[i+half] = real(z)*r.Amplitude(), imag(z)*r.Amplitude()
	}
	return y
}

var ropeShapes = []struct {
	B, heads int
	device.Rope
}{
	{1, 1, device.Rope{T: 1, D: 2, Theta: 10000}},
	{3, 5, device.Rope{T: 7, D: 6, Theta: 10000}},
	{2, 3, device.Rope{T: 5, Past: 37, D: 32, Theta: 10000}},
	{2, 2, device.Rope{T: 33, D: 142, Theta: 500000}}, // more than one run of pairs
	{2, 3, device.Rope{T: 300, D: 32, Theta: 10000, Scaling: device.RopeScaling{Kind: device.RopeLlama3, Factor: 8, Low: 1, High: 4, Context: 128}}},
	{2, 3, device.Rope{T: 9, D: 32, Part: 24, Theta: 10000}},
	{1, 2, device.Rope{T: 9, D: 8, Part: 6, Theta: 10000, Scaling: device.RopeScaling{Kind: device.RopeLong, Context: 4, Factors: []float64{1, 1.5, 3}, Amplitude: 1.2}}},
}

func TestRope(t *testing.T) {
	eachType(t, func(t *testing.T, dt device.DType) {
		for _, s := range ropeShapes {
			for i, inverse := range []bool{false, true, false, true} {
				if i >= 2 && s.Past == 0 {
					s.Start = starts(rand.New(rand.NewPCG(7, 8)), s.B, s.T).Buf
				}
				var before []float64
				out := onWorkers(t, func(q *Queue) []*guarded {
					x := newMat(dt, s.B*s.T, s.heads*s.D).normal(rand.New(rand.NewPCG(1, 2)), 0.3, 1)
					before = x.values()
					q.Rope(x.Mat, s.Rope, inverse)
					return []*guarded{x}
				})
				near(t, "rope", out[0], rope64(before, s.heads*s.D, s.Rope, inverse), 3e-7) // two products that cancel
			}
		}
	})
}

// TestRopeBitsMatch compares with computing one pair at a time. One
// device gets several shapes in sequence, so that its table changes.
func TestRopeBitsMatch(t *testing.T) {
	withVec(t, func(t *testing.T) {
		q := queueOf(t, 2)
		eachType(t, func(t *testing.T, dt device.DType) {
			for i, r := range []device.Rope{{T: 9, D: 64, Theta: 10000}, {T: 5, D: 64, Theta: 10000}, {T: 30, D: 64, Theta: 10000}, {T: 30, D: 96, Theta: 500000}, {T: 4, Past: 29, D: 96, Theta: 500000}, {T: 3, Past: 90, D: 96, Theta: 500000}, {T: 4, D: 40, Theta: 10000},
				{T: 4, D: 64, Part: 48, Theta: 10000}, {T: 4, D: 64, Part: 32, Theta: 10000}} {
				x := newMat(dt, 2*r.T, 3*r.D).normal(rand.New(rand.NewPCG(1, 2)), 0, 1)
				want, sign := x.values(), float32(1-2*(i%2))
				one := hostBuffer(dt, 1)
				rounded := func(v float32) float64 {
					kernel.Store(one, []float32{v})
					return value(one, 0)
				}
				for at := range want {
					row, col := at/x.Cols, at%x.Cols
					j := col % r.D
					half := r.RotaryDim() / 2
					if j >= half {
						continue
					}
					s64, c64 := math.Sincos(float64(r.Past+row%r.T) * r.Freq(j))
					a, b, s, c := float32(want[at]), float32(want[at+half]), sign*float32(s64), float32(c64)
					want[at], want[at+half] = rounded(float32(a*c)-float32(b*s)), rounded(float32(b*c)+float32(a*s))
				}
				q.Rope(x.Mat, r, i%2 != 0)
				if err := q.Wait(); err != nil {
					t.Fatal(err)
				}
				x.checkGuards(t)
				for at, got := range x.values() {
					if got != want[at] {
						t.Fatalf("%+v: element %d is %g, want %g", r, at, got, want[at])
					}
				}
			}
		})
	})
}

// TestRopeInverseAgainstFiniteDifferences checks that the gradient of a rotation is its inverse:
// the inverse of dy is the slope of dot(dy, rope(x)).
func TestRopeInverseAgainstFiniteDifferences(t *testing.T) {
	s := ropeShapes[1]
	rng, cols := rand.New(rand.NewPCG(3, 4)), s.heads*s.D
	x, dy := newMat(device.F32, s.B*s.T, cols).normal(rng, 0, 1), newMat(device.F32, s.B*s.T, cols).normal(rng, 0, 1)
	xs, ds := x.values(), dy.values()
	q := queueOf(t, 1)
	q.Rope(dy.Mat, s.Rope, true)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	near(t, "dx", dy, slopes(xs, func() float64 { return dot(ds, rope64(xs, cols, s.Rope, false)) }), 3e-7)
}

// TestRopeScoresDependOnDistance checks the purpose of rotary positions: the product of a rotated
// query with a rotated key depends only on their distance.
func TestRopeScoresDependOnDistance(t *testing.T) {
	const T, D = 40, 8
	x := newMat(device.F32, T, 2*D).fill(func(i int) float64 { return math.Sin(float64(i % (2 * D))) }) // equal rows
	q := queueOf(t, 1)
	q.Rope(x.Mat, device.Rope{T: T, D: D, Theta: 100}, false)
	if err := q.Wait(); err != nil {
		t.Fatal(err)
	}
	v := x.values()
	score := func(a, b int) float64 { return dot(v[a*2*D:a*2*D+D], v[b*2*D+D:(b+1)*2*D]) }
	for a := 5; a < T; a++ {
		if d := math.Abs(score(a, a-5) - score(5, 0)); d > 1e-5 {
			t.Errorf("positions %d and %d score %g, %d and %d %g", a, a-5, score(a, a-5), 5, 0, score(5, 0))
		}
	}
	if d := math.Abs(score(5, 0) - score(6, 0)); d < 1e-3 {
		t.Errorf("5 and 6 positions apart score alike: %g", score(5, 0))
	}
}

func TestRopeRefuses(t *testing.T) {
	q := queueOf(t, 1)
	x := newMat(device.F32, 6, 12).Mat
	for what, r := range map[string]device.Rope{
		"an odd width": {T: 3, D: 3}, "no width": {T: 3}, "a width that does not divide": {T: 3, D: 8}, "half a sequence": {T: 4, D: 4}, "no positions": {D: 4},
		"an odd part": {T: 3, D: 4, Part: 3}, "more than all of a head": {T: 3, D: 4, Part: 6},
	} {
		r.Theta = 10000
		mustPanic(t, what, func() { q.Rope(x, r, false) })
	}
}

// TestRopeOfAMillionPositions compares angles up to the last position with arithmetic of 300 bits. transformers
// multiplies positions by frequencies in float32, whose error grows to 0.04 radians there; ours do not follow it.
func TestRopeOfAMillionPositions(t *testing.T) {
	const D, most, theta = 128, 1 << 20, 500000
	pi2, _, _ := big.ParseFloat("6.283185307179586476925286766559005768394338798750211641949889184615632812572417997256069650684234136", 10, 300, 0)
	root := new(big.Float).SetPrec(300).SetInt64(theta) // becomes theta^(2/D)
	for n := 1; n < D/2; n *= 2 {
		root.Sqrt(root)
	}
	w := &kernel.Worker{Rope: &kernel.RopeTable{Table: make([]float32, most*D), Rope: device.Rope{T: most, D: D, Theta: theta}}}
	worst, of32 := 0.0, 0.0
	for _, at := range []int{1, 4095, 131071, 524287, 1000003, most - 1} {
		kernel.RunAngles(nil, w, at, at+1)
		angle := new(big.Float).SetPrec(300).SetInt64(int64(at))
		for j := range D / 2 {
			turns, _ := new(big.Float).SetPrec(300).Quo(angle, pi2).Int(nil)
			rest, _ := new(big.Float).SetPrec(300).Sub(angle, new(big.Float).SetPrec(300).Mul(pi2, new(big.Float).SetPrec(300).SetInt(turns))).Float64()
			sin, cos := math.Sincos(rest)
			row := w.Rope.Table[at*D:]
			worst = max(worst, math.Abs(float64(row[j])-cos), math.Abs(float64(row[D/2+j])-sin))
			freq := 1 / float32(math.Pow(theta, float64(float32(2*j)/D)))
			of32 = max(of32, math.Abs(math.Remainder(float64(float32(at)*freq)-rest, 2*math.Pi)))
			angle.Quo(angle, root)
		}
	}
	if worst > 0x1p-25+1e-9 {
		t.Errorf("cosines and sines are off by up to %g, more than a rounding to float32", worst)
	}
	if of32 < 0.03 || of32 > 0.1 {
		t.Errorf("angles in float32 are off by up to %g radians; the comment above says 0.04", of32)
	}
}
