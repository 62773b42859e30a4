package cpu

import (
	"zeroth/device"
	"zeroth/device/cpu/kernel"
)

// MatMul sets c = a·b, plus bias in every row if bias is not empty, plus the old c if add is set.
// Every operand may be of any float type; c must not be transposed or share memory with the others.
func (q *Queue) MatMul(c, a, b device.Mat, bias device.Buffer, add bool) {
	g := kernel.NewGemm(c, a, b, bias, add)
	if g.M == 0 || g.N == 0 {
		return
	}
	t := q.issue("matmul")
	t.Gemm, t.phases = g, runProduct
	q.commit()
}

func runProduct(t *task, q *Queue) {
	if t.Gemm.Few() {
		runFew(t, q)
	} else {
		runGemm(t, q)
	}
}

// runGemm computes the blocks sequentially. Packing a block of A, if necessary, is a separate
// phase: the workers multiply after all of it is packed.
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

// runFew computes a product with few rows, which needs no shared memory.
func runFew(t *task, q *Queue) {
	g := &t.Gemm
	g.Workers = len(q.pool.workers) + 1
	if g.N*g.K <= kernel.FewWhole {
		g.Workers = 1
	}
	q.phase(t, kernel.RunFew, g.FewPieces(), 1, g.Workers)
}
