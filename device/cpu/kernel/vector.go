package kernel

import (
	"math"
	"unsafe"

	"zeroth/device"
)

// VecISA contains an instruction set's functions for kernels other than matrix products. Rows in
// working space are padded to multiples of 16 elements; the content of the padding is irrelevant.
type VecISA struct {
	Name string
	attnISA
	eachISA
	ruleISA
	normISA
	sumISA
	dropISA
	codeISA
}

// attnISA contains the functions of attention. A tile of the microkernel has Rows query or key
// positions; Lanes is the number of elements in a vector.
type attnISA struct {
	Rows, Lanes int
	Micro       [3]microFunc // by number of vectors, 1 or 2
	online      onlineSoftmaxFunc
	SoftmaxGrad softmaxGradFunc
	load, store [3]rowsFunc                                 // from F32, BF16, F16 to float32 and back
	scale       func(x unsafe.Pointer, n int, by float32)   // x[:n] *= by
	dot         func(x, y unsafe.Pointer, n int) float32    // sum of x[i]*y[i]
	trans       func(dst, src unsafe.Pointer, ld, k, n int) // dst[p*2*lanes+i] = src[i*ld+p] for p < k, i < n <= lanes
}

// eachISA contains elementwise functions and sums, indexed by F32, BF16 and F16. If an entry is
// nil, elements are converted and the entry for F32 is used. Conversions and rounding are as in
// load and store.
type eachISA struct {
	Gelu, GeluGrad, Times, Add [3]EachFunc // Gelu: y = gelu(a); GeluGrad: b times the slope of gelu at a; Times: a*s; Add: a + b
	Swiglu                     [3]EachFunc // silu(a) * b
	swigluGrad                 [3]swigluGradFunc
	addStream                  [3]EachFunc // bypasses the caches, y aligned to 64 bytes
	addF32                     [3]EachFunc // y and a float32, b of the type
	largest                    [3]func(x unsafe.Pointer, n int) float32
	expSum                     [3]func(x unsafe.Pointer, n int, top float32) float32 // sum of exp(x-top)
	softmax                    [3]func(x unsafe.Pointer, n int, top, r float32)      // x = r*exp(x-top)
	rope                       [3]ropeFunc                                           // nil: in Go
	// sumSquares sets a squareWindow that begins at the exponent base of a float64. It stores
	// sums outside the window in odd and returns their number.
	sumSquares func(odd, x unsafe.Pointer, blocks int, window unsafe.Pointer, base int) int
}

// EachFunc processes n elements, a positive multiple of 16; y may be a or b. Not all use b and s.
type EachFunc func(y, a, b unsafe.Pointer, n int, s float32)

// swigluGradFunc sets dgate = dy * up * silu'(gate) and dup = dy * silu(gate) for n elements, a
// positive multiple of 16; each may be one of the others.
type swigluGradFunc func(dgate, dup, dy, gate, up unsafe.Pointer, n int)

// microFunc sets c[i*ldc+j] to the sum over p < k of a[i*ai+p*ak] * b[p*ldb+j], added in the
// order of p, plus the old c if add is not 0. i runs over Rows rows, j over a number of vectors;
// k >= 1.
type microFunc func(t *MicroTile)

// rowsFunc copies rows of n elements, a positive multiple of 16, between working space and a
// matrix, multiplying them by by. ldd and lds are the row strides in elements.
type rowsFunc func(dst, src unsafe.Pointer, ldd, lds, rows, n int, by float32)

// onlineSoftmaxFunc replaces scores by exponentials. Row i, s[i*ld:], sees the first min(n+i, most)
// >= 1 elements. m[i] becomes the maximum of itself and the visible scores, shrink[i] = exp(old
// m[i] - m[i]), and each score exp(score - m[i]); invisible elements become 0, up to end at least.
// l has lanes partial sums per row: they are multiplied by shrink[i], and the exponentials are
// added.
type onlineSoftmaxFunc func(r *SoftmaxRows)

// softmaxGradFunc replaces scores p by probabilities exp(p - lse[i]) and ds by p*(ds - delta[i]);
// elements invisible to row i become 0, as in onlineSoftmaxFunc.
type softmaxGradFunc func(r *SoftmaxGradRows)

// BestVec is the instruction set used for kernels. Tests set it to other elements of VecISAs.
var BestVec = VecISAs[len(VecISAs)-1]

// VecISAs contains the instruction sets that this machine supports, the fastest last.
var VecISAs = append([]*VecISA{&portableVec}, nativeVecs()...)

var portableVec = VecISA{
	Name: "portable",
	attnISA: attnISA{Rows: 4, Lanes: 8, Micro: [3]microFunc{nil, microGo(8), microGo(16)},
		load:   [3]rowsFunc{loadGo(device.F32), loadGo(device.BF16), loadGo(device.F16)},
		store:  [3]rowsFunc{storeGo(device.F32), storeGo(device.BF16), storeGo(device.F16)},
		online: onlineSoftmaxGo, SoftmaxGrad: softmaxGradGo, scale: scaleGo, dot: dotGo, trans: transposeGo},
	ruleISA: ruleISA{AdamW: ruleGo(adamW), Sgd: ruleGo(sgd), Momentum: ruleGo(momentum), Lion: ruleGo(lion)},
	normISA: normGo,
	dropISA: dropISA{keepsGo, [3]dropFunc{dropGo}},
	eachISA: eachISA{
		Gelu:       [3]EachFunc{eachGo(func(a, _, _ float32) float32 { return Gelu(a) })},
		GeluGrad:   [3]EachFunc{eachGo(func(a, b, _ float32) float32 { return b * GeluSlope(a) })},
		Times:      [3]EachFunc{eachGo(func(a, _, s float32) float32 { return a * s })},
		Add:        [3]EachFunc{addGo},
		Swiglu:     [3]EachFunc{eachGo(func(a, b, _ float32) float32 { return Silu(a) * b })},
		swigluGrad: [3]swigluGradFunc{swigluGradGo},
		largest:    [3]func(unsafe.Pointer, int) float32{largestGo},
		expSum:     [3]func(unsafe.Pointer, int, float32) float32{expSumGo},
		softmax:    [3]func(unsafe.Pointer, int, float32, float32){softmaxGo},
		sumSquares: sumSquaresGo,
	},
}

// FloatsAt returns n floats at p.
func FloatsAt(p unsafe.Pointer, n int) []float32 { return unsafe.Slice((*float32)(p), n) }

// FloatPtr returns the address of element i of x; i may be len(x).
func FloatPtr(x []float32, i int) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(x)), 4*i)
}

// microGo returns a microkernel of 4 rows by cols columns, two columns at a time.
func microGo(cols int) microFunc {
	return func(t *MicroTile) {
		as, bs := FloatsAt(t.A, 3*t.Ai+(t.K-1)*t.Ak+1), FloatsAt(t.B, (t.K-1)*t.Ldb+cols)
		cs := FloatsAt(t.C, 3*t.Ldc+cols)
		if t.Add == 0 {
			for i := range 4 {
				clear(cs[i*t.Ldc:][:cols])
			}
		}
		for j := 0; j < cols; j += 2 {
			tile4x2(cs[j:], t.Ldc, as, t.Ai, t.Ak, bs[j:], t.Ldb, t.K)
		}
	}
}

// tile4x2 adds the product for four rows and two columns: eight sums fit in registers.
func tile4x2(c []float32, ldc int, a []float32, ai, ak int, b []float32, ldb, k int) {
	var s00, s01, s10, s11, s20, s21, s30, s31 float32
	at, bt := 0, 0
	for range k {
		b0, b1 := b[bt], b[bt+1]
		a0, a1, a2, a3 := a[at], a[at+ai], a[at+2*ai], a[at+3*ai]
		s00 += a0 * b0
		s01 += a0 * b1
		s10 += a1 * b0
		s11 += a1 * b1
		s20 += a2 * b0
		s21 += a2 * b1
		s30 += a3 * b0
		s31 += a3 * b1
		at += ak
		bt += ldb
	}
	c[0] += s00
	c[1] += s01
	c[ldc] += s10
	c[ldc+1] += s11
	c[2*ldc] += s20
	c[2*ldc+1] += s21
	c[3*ldc] += s30
	c[3*ldc+1] += s31
}

// onlineSoftmaxGo stores a row's whole sum in the first of its partial sums.
func onlineSoftmaxGo(r *SoftmaxRows) {
	const lanes = 8
	ms, ls, shrinks := FloatsAt(r.M, r.Rows), FloatsAt(r.L, r.Rows*lanes), FloatsAt(r.Shrink, r.Rows)
	for i := range r.Rows {
		row := FloatsAt(unsafe.Add(r.S, 4*i*r.Ld), r.End)
		see := min(r.N+i, r.Most)
		top := max(ms[i], Largest(row[:see]))
		shrinks[i] = Exp32(ms[i] - top)
		ms[i] = top
		ls[i*lanes] = ls[i*lanes]*shrinks[i] + ExpSum(row[:see], row[:see], top)
		clear(row[see:])
	}
}

func softmaxGradGo(r *SoftmaxGradRows) {
	lses, deltas := FloatsAt(r.Lse, r.Rows), FloatsAt(r.Delta, r.Rows)
	for i := range r.Rows {
		ps, dss := FloatsAt(unsafe.Add(r.P, 4*i*r.Ld), r.End), FloatsAt(unsafe.Add(r.Ds, 4*i*r.Ld), r.End)
		see := min(r.N+i, r.Most)
		for j, x := range ps[:see] {
			ps[j] = Exp32(x - lses[i])
			dss[j] = ps[j] * (dss[j] - deltas[i])
		}
		clear(ps[see:])
		clear(dss[see:])
	}
}

// RawBuffer returns n elements at p.
func RawBuffer(t device.DType, p unsafe.Pointer, n int) device.Buffer {
	return device.Buffer{Type: t, Host: true, N: n, Ptr: p}
}

func loadGo(t device.DType) rowsFunc {
	return func(dst, src unsafe.Pointer, ldd, lds, rows, n int, by float32) {
		for i := range rows {
			x := FloatsAt(unsafe.Add(dst, 4*i*ldd), n)
			Load(x, RawBuffer(t, unsafe.Add(src, i*lds*t.Size()), n))
			for j := range x {
				x[j] *= by
			}
		}
	}
}

// storeGo returns a function that also leaves the rows in working space multiplied.
func storeGo(t device.DType) rowsFunc {
	return func(dst, src unsafe.Pointer, ldd, lds, rows, n int, by float32) {
		for i := range rows {
			x := FloatsAt(unsafe.Add(src, 4*i*lds), n)
			for j := range x {
				x[j] *= by
			}
			Store(RawBuffer(t, unsafe.Add(dst, i*ldd*t.Size()), n), x)
		}
	}
}

func scaleGo(x unsafe.Pointer, n int, by float32) {
	for i, v := range FloatsAt(x, n) {
		FloatsAt(x, n)[i] = v * by
	}
}

func dotGo(x, y unsafe.Pointer, n int) (s float32) {
	ys := FloatsAt(y, n)
	for i, v := range FloatsAt(x, n) {
		s += v * ys[i]
	}
	return s
}

func transposeGo(dst, src unsafe.Pointer, ld, k, n int) {
	d, s := FloatsAt(dst, (k-1)*16+n), FloatsAt(src, (n-1)*ld+k)
	for i := range n {
		for p, x := range s[i*ld:][:k] {
			d[p*16+i] = x
		}
	}
}

func eachGo(f func(a, b, s float32) float32) EachFunc {
	return func(y, a, b unsafe.Pointer, n int, s float32) {
		ys, as, bs := FloatsAt(y, n), FloatsAt(a, n), FloatsAt(b, n)
		for i := range ys {
			ys[i] = f(as[i], bs[i], s)
		}
	}
}

func addGo(y, a, b unsafe.Pointer, n int, _ float32) {
	ys, as, bs := FloatsAt(y, n), FloatsAt(a, n), FloatsAt(b, n)
	for i := range ys {
		ys[i] = as[i] + bs[i]
	}
}

func largestGo(x unsafe.Pointer, n int) float32 { return Largest(FloatsAt(x, n)) }

// expSumGo sums in runs of 64, which keeps long sums accurate.
func expSumGo(x unsafe.Pointer, n int, top float32) (sum float32) {
	for xs := FloatsAt(x, n); len(xs) > 0; xs = xs[min(64, len(xs)):] {
		var part float32
		for _, v := range xs[:min(64, len(xs))] {
			part += Exp32(v - top)
		}
		sum += part
	}
	return sum
}

func softmaxGo(x unsafe.Pointer, n int, top, r float32) {
	xs := FloatsAt(x, n)
	for i, v := range xs {
		xs[i] = Exp32(v-top) * r
	}
}

// sumSquaresGo returns all sums in odd.
func sumSquaresGo(odd, x unsafe.Pointer, blocks int, window unsafe.Pointer, _ int) int {
	*(*squareWindow)(window) = squareWindow{}
	for i := range blocks {
		block := (*[device.ExactBlock]float32)(unsafe.Add(x, 4*device.ExactBlock*i))
		*(*float64)(unsafe.Add(odd, 8*i)) = device.BlockSquares(block)
	}
	return blocks
}

// negInf is less than any finite number.
var negInf = float32(math.Inf(-1))
