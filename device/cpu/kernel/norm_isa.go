package kernel

import "unsafe"

// normISA contains the functions of layer norm, for rows of n elements (a positive multiple of
// 16), and of sums over columns. Arrays are indexed by F32, BF16 and F16; weights are float32. If
// an entry is nil, elements are converted and the entry for F32 is used.
type normISA struct {
	columns     int // columns per call of sumColumns and normColumns
	sum         [3]rowSumFunc
	squares     [3]rowSquaresFunc
	norm        [3]normFunc
	sums        [3]normSumsFunc
	grad        [3]normGradFunc
	sumColumns  [3]sumColumnsFunc
	normColumns [3]normColumnsFunc
}

type (
	// rowSumFunc returns the sum of x, rowSquaresFunc the sum of (x-m)^2.
	rowSumFunc     func(x unsafe.Pointer, n int) float32
	rowSquaresFunc func(x unsafe.Pointer, n int, m float32) float32
	// normFunc sets y = (x-m)*r*w + b.
	normFunc func(y, x, w, b unsafe.Pointer, n int, m, r float32)
	// normSumsFunc sets sums[0] and sums[1] to the sums of dy*w and dy*w*(x-m).
	normSumsFunc func(sums, dy, x, w unsafe.Pointer, n int, m float32)
	// normGradFunc sets dx = r*(dy*w - g - (x-m)*gn), plus the old dx if add is not 0.
	normGradFunc func(a *NormGradRow)
	// sumColumnsFunc adds rows, ld elements apart, to sum in order.
	sumColumnsFunc func(sum, x unsafe.Pointer, ld, rows int)
	// normColumnsFunc adds the sum over rows of dy*(x-mean)*rstd to dw and the sum of dy to db.
	normColumnsFunc func(a *ColumnGrads)
)

const columnsGo = 16

var normGo = normISA{
	columns:     columnsGo,
	sum:         [3]rowSumFunc{func(x unsafe.Pointer, n int) float32 { return sum4(FloatsAt(x, n)) }},
	squares:     [3]rowSquaresFunc{func(x unsafe.Pointer, n int, m float32) float32 { return squares4(FloatsAt(x, n), m) }},
	norm:        [3]normFunc{normRowGo},
	sums:        [3]normSumsFunc{normSumsGo},
	grad:        [3]normGradFunc{normGradGo},
	sumColumns:  [3]sumColumnsFunc{sumColumnsGo},
	normColumns: [3]normColumnsFunc{normColumnsGo},
}

// sum4 returns the sum of x in four lanes.
func sum4(x []float32) float32 {
	var a, b, c, d float32
	for ; len(x) >= 4; x = x[4:] {
		a, b, c, d = a+x[0], b+x[1], c+x[2], d+x[3]
	}
	return (a + b) + (c + d)
}

// squares4 returns the sum of (x-m)^2 in four lanes.
func squares4(x []float32, m float32) float32 {
	var a, b, c, d float32
	for ; len(x) >= 4; x = x[4:] {
		p, q, r, s := x[0]-m, x[1]-m, x[2]-m, x[3]-m
		a, b, c, d = a+p*p, b+q*q, c+r*r, d+s*s
	}
	return (a + b) + (c + d)
}

func normRowGo(y, x, w, b unsafe.Pointer, n int, m, r float32) {
	xs, ws, bs := FloatsAt(x, n), FloatsAt(w, n), FloatsAt(b, n)
	for j := range FloatsAt(y, n) {
		FloatsAt(y, n)[j] = (xs[j]-m)*r*ws[j] + bs[j]
	}
}

func normSumsGo(sums, dy, x, w unsafe.Pointer, n int, m float32) {
	var g, gx [2]float32
	dys, xs, ws := FloatsAt(dy, n), FloatsAt(x, n), FloatsAt(w, n)
	for j := 0; j < n; j += 2 {
		a, b := float32(dys[j]*ws[j]), float32(dys[j+1]*ws[j+1])
		g[0], g[1] = g[0]+a, g[1]+b
		gx[0], gx[1] = gx[0]+a*(xs[j]-m), gx[1]+b*(xs[j+1]-m)
	}
	s := FloatsAt(sums, 2)
	s[0], s[1] = g[0]+g[1], gx[0]+gx[1]
}

func normGradGo(a *NormGradRow) {
	dxs, dys, xs, ws := FloatsAt(a.Dx, a.N), FloatsAt(a.Dy, a.N), FloatsAt(a.X, a.N), FloatsAt(a.W, a.N)
	for j := range dxs {
		d := a.R * (float32(dys[j]*ws[j]) - a.G - (xs[j]-a.M)*a.Gn) // rounded as in normSumsGo: a single column has no gradient
		if a.Add != 0 {
			d += dxs[j]
		}
		dxs[j] = d
	}
}

func sumColumnsGo(sum, x unsafe.Pointer, ld, rows int) {
	var part [columnsGo]float32
	for i := range rows {
		for j, v := range FloatsAt(unsafe.Add(x, 4*i*ld), columnsGo) {
			part[j] += v
		}
	}
	for j, v := range part {
		FloatsAt(sum, columnsGo)[j] += v
	}
}

func normColumnsGo(a *ColumnGrads) {
	var w, b [columnsGo]float32
	for i := range a.Rows {
		m, r := FloatsAt(a.Mean, a.Rows)[i], FloatsAt(a.Rstd, a.Rows)[i]
		xs := FloatsAt(unsafe.Add(a.X, 4*i*a.Ldx), columnsGo)
		for j, d := range FloatsAt(unsafe.Add(a.Dy, 4*i*a.Lddy), columnsGo) {
			b[j] += d
			w[j] += d * ((xs[j] - m) * r)
		}
	}
	for j := range w {
		FloatsAt(a.Dw, columnsGo)[j] += w[j]
		FloatsAt(a.Db, columnsGo)[j] += b[j]
	}
}
