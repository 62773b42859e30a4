//go:build cuda

package driver

// #cgo noescape z_gemm
// #cgo nocallback z_gemm
// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"
)

var statusNames = map[C.int]string{
	1: "CUBLAS_STATUS_NOT_INITIALIZED", 3: "CUBLAS_STATUS_ALLOC_FAILED", 7: "CUBLAS_STATUS_INVALID_VALUE", 8: "CUBLAS_STATUS_ARCH_MISMATCH",
	11: "CUBLAS_STATUS_MAPPING_ERROR", 13: "CUBLAS_STATUS_EXECUTION_FAILED", 14: "CUBLAS_STATUS_INTERNAL_ERROR", 15: "CUBLAS_STATUS_NOT_SUPPORTED",
}

// refused is the error of a cublasStatus_t; of a negative one, that of the context.
func refused(code C.int, call string, args ...any) error {
	if code <= 0 {
		return failed(-code, call, args...)
	}
	name, ok := statusNames[code]
	if !ok {
		name = fmt.Sprintf("cuBLAS status %d", code)
	}
	return Error{Code: int(code), Name: name, Call: fmt.Sprintf(call, args...)}
}

// Types as cuBLAS calls them.
const (
	Float32  = 0
	Float16  = 2
	BFloat16 = 14
)

// Gemm is the shape of a product of column-major matrices, d (M, N) = a (M, K)
// b (K, N) + Beta d; a and b are stored transposed where it says so.
type Gemm struct {
	TransA, TransB bool
	M, N, K        int
	LdA, LdB, LdD  int // elements from one column to the next
	Type, TypeD    int // of a and b, and of d
	Beta           float32
	Align          int // bytes that the operands' addresses are multiples of
}

func (g Gemm) c() (s C.z_gemm_shape) {
	flag := func(b bool) C.int32_t {
		if b {
			return 1
		}
		return 0
	}
	return C.z_gemm_shape{
		ta: flag(g.TransA), tb: flag(g.TransB), m: C.int32_t(g.M), n: C.int32_t(g.N), k: C.int32_t(g.K),
		lda: C.int32_t(g.LdA), ldb: C.int32_t(g.LdB), ldd: C.int32_t(g.LdD),
		_type: C.int32_t(g.Type), typed: C.int32_t(g.TypeD), beta: C.float(g.Beta), align: C.int32_t(g.Align),
	}
}

// BLAS is a cuBLAS handle for one stream, with its work space and the plans it has
// made for products with a bias.
type BLAS struct {
	s       Stream
	h       C.uintptr_t
	work    unsafe.Pointer
	workLen int
	plans   map[Gemm]C.uintptr_t
}

// NewBLAS makes a handle; the work space, bytes on the stream's GPU, stays the
// caller's, to be freed after Close.
func NewBLAS(s Stream, work unsafe.Pointer, workLen int) (*BLAS, error) {
	if _, err := OpenBLAS(); err != nil {
		return nil, err
	}
	b := &BLAS{s: s, work: work, workLen: workLen, plans: map[Gemm]C.uintptr_t{}}
	err := refused(C.z_blas_create(s.gpu.ctx, &b.h, s.h, address(work), C.size_t(workLen)), "make a cuBLAS handle on %v", s.gpu)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Close ends the handle. The stream must be idle.
func (b *BLAS) Close() error {
	for _, p := range b.plans {
		C.z_lt_end(p)
	}
	return refused(C.z_blas_destroy(b.s.gpu.ctx, b.h), "end a cuBLAS handle")
}

// Product puts a product into the stream.
func (b *BLAS) Product(g Gemm, x, y, d unsafe.Pointer) error {
	c := g.c()
	if code := C.z_gemm(b.s.gpu.ctx, b.h, &c, address(x), address(y), address(d)); code != 0 {
		return refused(code, "product (%d,%d) by (%d,%d)", g.N, g.K, g.K, g.M)
	}
	return nil
}

// WithBias is Product plus bias[i], of d's type, in row i of d.
func (b *BLAS) WithBias(g Gemm, x, y, d, bias unsafe.Pointer) error {
	p, err := b.plan(g)
	if err != nil {
		return err
	}
	if code := C.z_lt_run(b.s.gpu.ctx, b.h, p, b.s.h, C.float(g.Beta), address(x), address(y), address(d), address(bias), address(b.work), C.size_t(b.workLen)); code != 0 {
		return refused(code, "product (%d,%d) by (%d,%d) with bias", g.N, g.K, g.K, g.M)
	}
	return nil
}

// plan is the one there is, or a new one.
func (b *BLAS) plan(g Gemm) (C.uintptr_t, error) {
	if p, ok := b.plans[g]; ok {
		return p, nil
	}
	return b.newPlan(g)
}

// newPlan is apart from plan: what C fills in is on the heap.
func (b *BLAS) newPlan(g Gemm) (p C.uintptr_t, err error) {
	c := g.c()
	err = refused(C.z_lt_plan(b.s.gpu.ctx, b.h, &p, &c, C.size_t(b.workLen)), "plan a product (%d,%d) by (%d,%d) with bias", g.N, g.K, g.K, g.M)
	if err == nil {
		b.plans[g] = p
	}
	return p, err
}
