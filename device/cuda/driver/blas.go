//go:build cuda

package driver

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

// Epilogue is what a product does beside multiplying, as cublasLtEpilogue_t has it.
type Epilogue int32

// Bias adds one to each row. GeluBias adds it, writes the sum to the matrix beside d and
// GELU (by tanh) of the sum to d; GeluGrad multiplies by GELU's slope at what is in that
// matrix. SumsA and SumsB write the sums of op(a) and of op(b) over k, of which a is not
// transposed, or b is.
const (
	Plain    Epilogue = 1
	Bias     Epilogue = 4
	GeluBias Epilogue = 164 // CUBLASLT_EPILOGUE_GELU_AUX_BIAS
	GeluGrad Epilogue = 192 // CUBLASLT_EPILOGUE_DGELU
	SumsA    Epilogue = 256 // CUBLASLT_EPILOGUE_BGRADA
	SumsB    Epilogue = 512 // CUBLASLT_EPILOGUE_BGRADB
)

// String is what is beside the product.
func (e Epilogue) String() string {
	switch e {
	case Bias:
		return "a bias"
	case GeluBias:
		return "a bias and GELU"
	case GeluGrad:
		return "the slope of GELU"
	case SumsA, SumsB:
		return "the gradient of a bias"
	}
	return "another matrix"
}

// Gemm is the shape of a product of column-major matrices, d (M, N) = a (M, K)
// b (K, N), plus c if Add is set; a and b are stored transposed where it says so. The
// second part is of Fused alone, which looks its plans up by all of it: there is nothing
// between the fields, so that it is hashed as one piece.
type Gemm struct {
	M, N, K       int32
	LdA, LdB, LdD int32 // elements from one column to the next
	Type, TypeD   int32 // of a and b, and of c and d

	LdC, LdAux int32
	Align      int32 // bytes that the operands' addresses are multiples of
	Epilogue   Epilogue

	TransA, TransB, Add bool
}

// Operands are where those of Fused are. The vector has M elements of d's type, for
// SumsB N; the matrix beside d is (M, N) of d's type. What an epilogue does not have is
// nil.
type Operands struct{ A, B, C, D, Vector, Beside unsafe.Pointer }

// put has C know the shape.
func (g *Gemm) put(s *C.z_gemm_shape) {
	s.ta, s.tb = flag(g.TransA), flag(g.TransB)
	s.m, s.n, s.k = C.int32_t(g.M), C.int32_t(g.N), C.int32_t(g.K)
	s.lda, s.ldb, s.ldc, s.ldd, s.ldaux = C.int32_t(g.LdA), C.int32_t(g.LdB), C.int32_t(g.LdC), C.int32_t(g.LdD), C.int32_t(g.LdAux)
	s._type, s.typed, s.beta = C.int32_t(g.Type), C.int32_t(g.TypeD), g.beta()
	s.epilogue, s.align = C.int32_t(g.Epilogue), C.int32_t(g.Align)
}

// beta is what c counts.
func (g *Gemm) beta() C.float { return C.float(flag(g.Add)) }

func flag(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

// BLAS is a cuBLAS handle for one stream, with its work space and the plans that
// cuBLASLt has made, of 0 where it has none.
type BLAS struct {
	s       Stream
	h       C.uintptr_t
	work    unsafe.Pointer
	workLen int
	plans   map[Gemm]C.uintptr_t
	recent  [recentPlans]recent
}

// recent is a plan that was used last of those at its place: a step has a dozen or two
// shapes, and to look one up in the map takes as long as half a launch.
type recent struct {
	g    Gemm
	plan C.uintptr_t // 0: there is none here
}

const recentPlans = 64

// at is a shape's place among the recent plans. Sizes are mostly multiples of powers of two.
func (g *Gemm) at() uint32 {
	x := uint32(g.M) + uint32(g.N)*3 + uint32(g.K)*5 + uint32(g.Epilogue)*7 + uint32(g.Align)
	return x * 0x9E3779B1 >> 26 % recentPlans
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
		if p != 0 {
			C.z_lt_end(p)
		}
	}
	return refused(C.z_blas_destroy(b.s.gpu.ctx, b.h), "end a cuBLAS handle")
}

// Product puts a product into the commands, of the handle's stream.
func (b *BLAS) Product(to *Commands, g *Gemm, x, y, d unsafe.Pointer) {
	p := (*C.z_product)(to.next(C.Z_PRODUCT, unsafe.Sizeof(C.z_product{})))
	p.handle, p.a, p.b, p.d = b.h, address(x), address(y), address(d)
	g.put(&p.s)
}

// Fused puts a product with an epilogue, or with a c that is not d, into the commands. It
// does nothing and says so where cuBLASLt has no algorithm for the shape.
func (b *BLAS) Fused(to *Commands, g *Gemm, o Operands) (done bool, err error) {
	last := &b.recent[g.at()]
	if last.plan == 0 || last.g != *g {
		plan, known := b.plans[*g]
		if !known {
			plan, err = b.newPlan(g)
		}
		if plan == 0 {
			return false, err
		}
		*last = recent{*g, plan}
	}
	f := (*C.z_fused)(to.next(C.Z_FUSED, unsafe.Sizeof(C.z_fused{})))
	f.handle, f.plan, f.work, f.work_len, f.beta = b.h, last.plan, address(b.work), C.size_t(b.workLen), g.beta()
	f.o = C.z_operands{a: address(o.A), b: address(o.B), c: address(o.C), d: address(o.D), bias: address(o.Vector), aux: address(o.Beside)}
	return true, nil
}

// String is the product in words.
func (g Gemm) String() string {
	return fmt.Sprintf("product (%d,%d) by (%d,%d) with %v", g.N, g.K, g.K, g.M, g.Epilogue)
}

// What cuBLASLt answers where it does not have what is asked for; older versions do not
// know some epilogues.
const invalidValue, notSupported = 7, 15

// newPlan is apart: what C fills in is on the heap. It is 0 where there is none.
func (b *BLAS) newPlan(g *Gemm) (p C.uintptr_t, err error) {
	var c C.z_gemm_shape
	g.put(&c)
	code := C.z_lt_plan(b.s.gpu.ctx, b.h, &p, &c, C.size_t(b.workLen))
	if code == invalidValue || code == notSupported {
		code, p = 0, 0
	}
	if code != 0 {
		return 0, refused(code, "plan a %v", *g)
	}
	b.plans[*g] = p
	return p, nil
}

// Algorithms are cuBLASLt's plans so far, by shape: which algorithm computes each, or that
// there is none.
func (b *BLAS) Algorithms() map[Gemm]string {
	all := map[Gemm]string{}
	for g, p := range b.plans {
		if all[g] = "no algorithm"; p != 0 {
			of := func(part C.int) C.int { return C.z_lt_algorithm(p, part) }
			all[g] = fmt.Sprintf("algorithm %d, tile %d, stages %d, split-k %d, reduction %d", of(0), of(1), of(6), of(2), of(3))
		}
	}
	return all
}

// Unfused is what cuBLASLt had no algorithm for: of each epilogue a line, about the
// first shape in order of size.
func (b *BLAS) Unfused() (lines []string) {
	for _, e := range []Epilogue{Plain, Bias, GeluBias, GeluGrad, SumsA, SumsB} {
		var least *Gemm
		n := 0
		for g, p := range b.plans {
			if g.Epilogue != e || p != 0 {
				continue
			}
			if n++; least == nil || g.String() < least.String() {
				least = &g
			}
		}
		if n > 0 {
			lines = append(lines, fmt.Sprintf("cuBLASLt has no algorithm for a %v, of %d such shapes: kernels of their own compute what is beside it", *least, n))
		}
	}
	return lines
}
