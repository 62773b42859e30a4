package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// MatMul sets c = a·b, plus bias in every row if bias is not empty, plus the
// old c if add is set. Every operand may be of any float type; c is not
// transposed and shares no memory with the others.
func (q *Queue) MatMul(c, a, b device.Mat, bias device.Buffer, add bool) {
	g := kernel.NewGemm(c, a, b, bias, add)
	if g.M == 0 || g.N == 0 {
		return
	}
	t := q.issue("matmul")
	t.Gemm, t.phases = g, runGemm
	if g.Few() {
		t.phases = runFew
	}
	q.commit()
}

// runGemm computes the blocks one after the other. A block of A that has to be
// packed is a phase of its own: when all of it is packed the workers multiply.
func runGemm(t *task, q *Queue) {
	g, mem := &t.Gemm, q.products
	mem.mu.Lock()
	defer mem.mu.Unlock()
	mem.need(g)
	g.Workers = len(q.pool.workers) + 1
	if g.M*g.N*g.K <= kernel.WholeMax {
		g.Workers = 1
	}
	g.Ends()
	for more := true; more; more = g.Next() {
		if !g.InPlace {
			q.phase(t, kernel.RunPack, g.Panels, 1, g.Workers)
		}
		mem.blocks++
		g.Block = mem.blocks
		q.phase(t, kernel.RunTiles, g.Groups*g.Splits, 1, g.Workers)
	}
}

// runFew computes a product of few rows, which takes no memory of the device's.
func runFew(t *task, q *Queue) {
	g := &t.Gemm
	g.Workers = len(q.pool.workers) + 1
	if g.N*g.K <= kernel.FewWhole {
		g.Workers = 1
	}
	q.phase(t, kernel.RunFew, g.FewPieces(), 1, g.Workers)
}
