package cpu

// panel is a small float32 matrix in cache: element (i, j) is x[i*row+j*col].
type panel struct {
	x        []float32
	row, col int
}

// panelOf views x as rows of n elements.
func panelOf(x []float32, n int) panel { return panel{x, n, 1} }

// t is the transposed view.
func (b panel) t() panel { return panel{b.x, b.col, b.row} }

// panelMul adds the product of a (m, k) and b (k, n) to c (m, n); b and c have
// col 1. Each element's products are summed in order of k and then added to c,
// wherever in c it lies.
func panelMul(c, a, b panel, m, n, k int) {
	i := 0
	for ; i+4 <= m; i += 4 {
		j := 0
		for ; j+2 <= n; j += 2 {
			tile4x2(c.x[i*c.row+j:], c.row, a.x[i*a.row:], a, b.x[j:], b.row, k)
		}
		if j < n {
			panelDots(c, a, b, i, i+4, j, k)
		}
	}
	for ; i < m; i++ {
		for j := range n {
			panelDots(c, a, b, i, i+1, j, k)
		}
	}
}

// panelDots adds column j of rows [i0, i1).
func panelDots(c, a, b panel, i0, i1, j, k int) {
	for i := i0; i < i1; i++ {
		var s float32
		for l := range k {
			s += a.x[i*a.row+l*a.col] * b.x[l*b.row+j]
		}
		c.x[i*c.row+j] += s
	}
}

// tile4x2 adds four rows and two columns: eight sums fit in registers. The
// slices start at the tile's first element.
func tile4x2(c []float32, ldc int, a []float32, of panel, b []float32, ldb, k int) {
	var s00, s01, s10, s11, s20, s21, s30, s31 float32
	row, at, bt := of.row, 0, 0
	for range k {
		b0, b1 := b[bt], b[bt+1]
		a0, a1, a2, a3 := a[at], a[at+row], a[at+2*row], a[at+3*row]
		s00 += a0 * b0
		s01 += a0 * b1
		s10 += a1 * b0
		s11 += a1 * b1
		s20 += a2 * b0
		s21 += a2 * b1
		s30 += a3 * b0
		s31 += a3 * b1
		at += of.col
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
