package kernel

import (
	"math"
)

// RunRMSNorm normalizes rows like layer norm without mean and bias.
func RunRMSNorm(t *Args, work *Worker, lo, hi int) {
	ym, xm, n := &t.M[0], &t.M[1], t.M[1].Cols
	np, rstd := padded(n, rowUnit), t.B[0].F32()
	mem := work.Floats(4 * np)
	w, zeros := take(&mem, np), take(&mem, np)
	Load(w[:n], t.B[1])
	clear(zeros)
	rows := normRows{isa: &BestVec.normISA, n: n, np: np, direct: directRows(n, ym, xm)}
	for i := lo; i < hi; i++ {
		x, kind := rows.read(mem, xm, i)
		r := float32(1 / math.Sqrt(float64(rows.isa.squares[kind](x, np, 0)/float32(n)+t.F)))
		rstd[i] = r
		y := rows.rowMemory(mem[np:], ym, i)
		rows.isa.norm[kind](y, x, FloatPtr(w, 0), FloatPtr(zeros, 0), np, 0, r)
		rows.write(ym, i, mem[np:])
	}
}

// RunRMSNormGradW sums chunks of columns; see sum.go.
func RunRMSNormGradW(t *Args, work *Worker, lo, hi int) {
	c := newNormColumns(work, &t.M[0], &t.M[1])
	c.chunks(lo, hi, t.B[0].F32(), nil, nil, t.B[1].F32())
}

// RunRMSNormGradX computes dx of rows [lo, hi).
func RunRMSNormGradX(t *Args, work *Worker, lo, hi int) {
	runNormGrad(t, work, lo, hi, nil, t.B[1].F32())
}
