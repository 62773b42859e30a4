package kernel

import "unsafe"

// Portable runs everywhere; the assembly is tested against it.
var Portable = ISA{
	Name: "portable", MR: 4, nr: 4, KC: KcF32, pair: 1, unit: 1,
	a: packGo, b: packGo,
	tile: tileGo,
	peak: Peak{Name: "fp32 Go", ops: 16 * 2, loop: FmaGo},
}

var packGo = packing{copy: [3]packCopyFunc{copyGo}, trans: [3]packTransFunc{transGo}, transLanes: 4}

func copyGo(dst, src unsafe.Pointer, ld, k, width, stride, panel int) {
	s := unsafe.Slice((*float32)(src), (k-1)*ld+width)
	for i := 0; i < width; i += stride {
		n := min(stride, width-i)
		d := unsafe.Slice((*float32)(unsafe.Add(dst, 4*(i/stride*panel))), (k-1)*stride+n)
		for p := range k {
			copy(d[p*stride:][:n], s[p*ld+i:])
		}
	}
}

func transGo(dst, src unsafe.Pointer, ld, k, width, stride int) {
	d := unsafe.Slice((*float32)(dst), (k-1)*stride+width)
	s := unsafe.Slice((*float32)(src), (width-1)*ld+k)
	for i := range width {
		for p, x := range s[i*ld:][:k] {
			d[p*stride+i] = x
		}
	}
}

// tileGo computes 4 by 4 elements and stores those within C.
func tileGo(t *Tile) {
	sum := dot4x4(unsafe.Slice((*[4]float32)(t.A), t.K), unsafe.Slice((*[4]float32)(t.B), t.K))
	from := unsafe.Slice((*float32)(t.Base), (t.Rows-1)*t.Ldb+t.Cols)
	to := unsafe.Slice((*float32)(t.C), (t.Rows-1)*t.Ldc+t.Cols)
	for i := range t.Rows {
		for j := range t.Cols {
			to[i*t.Ldc+j] = from[i*t.Ldb+j] + sum[i][j]
		}
	}
}

func dot4x4(a, b [][4]float32) [4][4]float32 {
	var c00, c01, c02, c03, c10, c11, c12, c13 float32
	var c20, c21, c22, c23, c30, c31, c32, c33 float32
	b = b[:len(a)]
	for p := range a {
		x, y := &a[p], &b[p]
		b0, b1, b2, b3 := y[0], y[1], y[2], y[3]
		c00, c01, c02, c03 = c00+x[0]*b0, c01+x[0]*b1, c02+x[0]*b2, c03+x[0]*b3
		c10, c11, c12, c13 = c10+x[1]*b0, c11+x[1]*b1, c12+x[1]*b2, c13+x[1]*b3
		c20, c21, c22, c23 = c20+x[2]*b0, c21+x[2]*b1, c22+x[2]*b2, c23+x[2]*b3
		c30, c31, c32, c33 = c30+x[3]*b0, c31+x[3]*b1, c32+x[3]*b2, c33+x[3]*b3
	}
	return [4][4]float32{{c00, c01, c02, c03}, {c10, c11, c12, c13}, {c20, c21, c22, c23}, {c30, c31, c32, c33}}
}
