//go:build cuda

package cuda

import "zeroth/device/cuda/driver"

// Candidates returns at most most algorithms for a product, in cuBLASLt's order of preference.
func (q *Queue) Candidates(g *driver.Gemm, most int) ([]driver.Algorithm, error) {
	if !q.canMultiply() {
		return nil, q.failed()
	}
	return q.blas.Candidates(g, most)
}

// Use sets the algorithm for a product. The queue must be idle.
func (q *Queue) Use(g *driver.Gemm, a driver.Algorithm) error { return q.blas.Use(g, a) }

// Multiply issues a product, with the algorithm set by Use if planned, else as cuBLAS computes it.
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
