//go:build cuda

package cuda

import "zeroth/device/cuda/driver"

// Candidates are algorithms for a product, at most so many, those first that cuBLASLt likes best.
func (q *Queue) Candidates(g *driver.Gemm, most int) ([]driver.Algorithm, error) {
	if !q.canMultiply() {
		return nil, q.failed()
	}
	return q.blas.Candidates(g, most)
}

// Use has a product computed by an algorithm from now on. The queue is idle.
func (q *Queue) Use(g *driver.Gemm, a driver.Algorithm) error { return q.blas.Use(g, a) }

// Multiply issues a product, by the algorithm that Use said, or as cuBLAS computes it without
// one.
func (q *Queue) Multiply(g *driver.Gemm, o driver.Operands, planned bool) {
	if !q.canMultiply() || !q.begin("matmul") {
		return
	}
	if !planned {
		q.blas.Product(q.commands(), g, o.A, o.B, o.D)
	} else if _, err := q.blas.Fused(q.commands(), g, o); err != nil {
		q.fail(err)
	}
	q.end()
}
