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
	1001: "the algorithm adds partial sums in 16 bits, which was not allowed", 1002: "the math mode is not the float32 that was set",
}

// refused returns the error of a cublasStatus_t; a negative code is an error of the context.
func refused(code C.int, call string, args ...any) error {
	if code <= 0 {
		return failed(-code, call, args...)
	}
	name, ok := statusNames[code]
	if !ok {
		name = fmt.Sprintf("cuBLAS status %d", code)
	}
	return Error{Name: name, Call: fmt.Sprintf(call, args...)}
}

// Operands locates the operands of Fused. The vector has M elements of d's type, for SumsB N; the
// matrix Aux has (M, N) elements of d's type. Operands without a role in the epilogue are nil.
type Operands struct{ A, B, C, D, Vector, Aux unsafe.Pointer }

// put copies the shape to C.
func (g *Gemm) put(s *C.z_gemm_shape) {
	s.ta, s.tb = flag(g.TransA), flag(g.TransB)
	s.m, s.n, s.k = C.int32_t(g.M), C.int32_t(g.N), C.int32_t(g.K)
	s.lda, s.ldb, s.ldc, s.ldd, s.ldaux = C.int32_t(g.LdA), C.int32_t(g.LdB), C.int32_t(g.LdC), C.int32_t(g.LdD), C.int32_t(g.LdAux)
	s._type, s.typed, s.beta = C.int32_t(g.Type), C.int32_t(g.TypeD), g.beta()
	s.epilogue, s.align = C.int32_t(g.Epilogue), C.int32_t(g.Align)
}

// beta returns the factor of c.
func (g *Gemm) beta() C.float { return C.float(flag(g.Add)) }

func flag(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

// BLAS is a cuBLAS handle for one stream, with its working space and the plans made by cuBLASLt, 0
// if it has none. The table contains chosen algorithms for some products; plain contains products
// that cuBLAS computed without a plan.
type BLAS struct {
	table   Table
	plain   map[Gemm]bool
	usual   [recentPlans]Gemm // recent plain products, by index
	s       Stream
	h       C.uintptr_t
	work    unsafe.Pointer
	workLen int
	plans   map[Gemm]C.uintptr_t
	recent  [recentPlans]recent
}

// recent is the last used plan at its index: a step has a dozen or two shapes, and a map lookup
// takes as long as half a launch.
type recent struct {
	g    Gemm
	plan C.uintptr_t // 0: none
}

const recentPlans = 64

// at returns a shape's index among the recent plans. Sizes are mostly multiples of powers of two.
func (g *Gemm) at() uint32 {
	x := uint32(g.M) + uint32(g.N)*3 + uint32(g.K)*5 + uint32(g.Epilogue)*7 + uint32(g.Align)
	return x * 0x9E3779B1 >> 26 % recentPlans
}

// NewBLAS opens a handle. The caller keeps the working space, workLen bytes on the stream's GPU,
// and the table, which may be nil, and may free them after Close.
func NewBLAS(s Stream, work unsafe.Pointer, workLen int, table Table) (*BLAS, error) {
	if _, err := OpenBLAS(); err != nil {
		return nil, err
	}
	b := &BLAS{s: s, work: work, workLen: workLen, table: table, plain: map[Gemm]bool{}, plans: map[Gemm]C.uintptr_t{}}
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

// Chosen reports whether the table has an algorithm for a product without an epilogue, to be
// computed by Fused; otherwise use Product.
func (b *BLAS) Chosen(g *Gemm) bool {
	if last := &b.usual[g.at()]; *last != *g {
		if _, chosen := b.table[*g]; chosen {
			return true
		}
		*last, b.plain[*g] = *g, true
	}
	return false
}

// Product enqueues a product in commands of the handle's stream.
func (b *BLAS) Product(to *Commands, g *Gemm, x, y, d unsafe.Pointer) {
	p := (*C.z_product)(to.next(C.Z_PRODUCT, unsafe.Sizeof(C.z_product{})))
	p.handle, p.a, p.b, p.d = b.h, address(x), address(y), address(d)
	g.put(&p.s)
}

// Fused enqueues a product with an epilogue, or with c different from d. It returns false and does
// nothing if cuBLASLt has no algorithm for the shape.
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
	f.o = C.z_operands{a: address(o.A), b: address(o.B), c: address(o.C), d: address(o.D), bias: address(o.Vector), aux: address(o.Aux)}
	return true, nil
}

// cuBLASLt's answers if it does not support a request; older versions do not know some epilogues.
const invalidValue, notSupported = 7, 15

// newPlan is a separate function, since memory filled by C is on the heap. It returns 0 if there is
// no plan, unless the table has an algorithm, which then must work.
func (b *BLAS) newPlan(g *Gemm) (p C.uintptr_t, err error) {
	var c C.z_gemm_shape
	var algo *C.uint64_t
	g.put(&c)
	of, given := b.table[*g]
	if given {
		algo = (*C.uint64_t)(unsafe.Pointer(&of[0]))
	}
	code := C.z_lt_plan(b.s.gpu.ctx, b.h, &p, &c, C.size_t(b.workLen), algo)
	if given && code != 0 {
		return 0, refused(code, "the algorithm that was chosen for a %v", *g)
	}
	if code == invalidValue || code == notSupported {
		code, p = 0, 0
	}
	if code != 0 {
		return 0, refused(code, "plan a %v", *g)
	}
	b.plans[*g] = p
	return p, nil
}

// Candidates returns at most most algorithms for a product, in cuBLASLt's order of preference.
func (b *BLAS) Candidates(g *Gemm, most int) ([]Algorithm, error) {
	var c C.z_gemm_shape
	var n C.int
	g.put(&c)
	all := make([]Algorithm, most)
	code := C.z_lt_candidates(b.s.gpu.ctx, b.h, &c, C.size_t(b.workLen), (*C.uint64_t)(unsafe.Pointer(&all[0])), C.int(most), &n)
	if code == invalidValue || code == notSupported {
		return nil, nil
	}
	return all[:n], refused(code, "look for algorithms of a %v", *g)
}

// Planned returns the number of shapes of products so far.
func (b *BLAS) Planned() int { return len(b.plans) + len(b.plain) }

// Use sets the algorithm for a product.
func (b *BLAS) Use(g *Gemm, a Algorithm) error {
	if p := b.plans[*g]; p != 0 {
		C.z_lt_end(p)
	}
	delete(b.plans, *g)
	b.recent[g.at()] = recent{}
	b.table = Table{*g: a}
	_, err := b.newPlan(g)
	return err
}

// Choices returns how the products so far are computed.
func (b *BLAS) Choices() map[Gemm]Choice {
	all := map[Gemm]Choice{}
	for g := range b.plain {
		all[g] = Choice{By: ByCUBLAS, Config: "cublasGemmEx"}
	}
	for g, p := range b.plans {
		c := Choice{By: ByHeuristic, Config: "no algorithm"}
		if p != 0 {
			C.z_lt_algo(p, (*C.uint64_t)(unsafe.Pointer(&c.Algorithm[0])))
			c.Config = c.Algorithm.String()
		}
		if _, given := b.table[g]; given {
			c.By = ByTable
		}
		all[g] = c
	}
	return all
}

// String describes the algorithm.
func (a Algorithm) String() string {
	of := func(part C.int) C.int { return C.z_lt_algorithm((*C.uint64_t)(unsafe.Pointer(&a[0])), part) }
	return fmt.Sprintf("algorithm %d, tile %d, stages %d, split-k %d, reduction %d", of(0), of(1), of(6), of(2), of(3))
}

// Unfused describes products for which cuBLASLt had no algorithm: a line per epilogue, about the
// smallest shape.
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
			lines = append(lines, fmt.Sprintf("cuBLASLt has no algorithm for a %v (%d such shapes so far): separate kernels compute the fused part", *least, n))
		}
	}
	return lines
}
