//go:build cuda

// cuBLAS and cuBLASLt, found at run time. Their functions have had these names and
// parameters from version 11 to 13, and the enumerations these values.
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define ENTER(ctx) \
	do { \
		int r = cuCtxSetCurrent((CUcontext)(ctx)); \
		if (r) \
			return -r; \
	} while (0)
#define ALLOC_FAILED 3 // CUBLAS_STATUS_ALLOC_FAILED
#define NOT_SUPPORTED 15
// What a library has done although it was told otherwise, among its own status codes.
#define NARROW_SUMS 1001
#define OTHER_MATH 1002

enum { COMPUTE_32F = 68, DEFAULT_ALGO = -1, OP_N = 0, OP_T = 1, R_32F = 0 };
// Sums within 16-bit products stay in float32; without TF32_TENSOR_OP (3), float32
// products are in float32.
enum { MATH_DEFAULT = 0, MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16 };
enum { DESC_COMPUTE = 0, DESC_TRANSA = 3, DESC_TRANSB = 4, DESC_EPILOGUE = 7, DESC_BIAS_POINTER = 8, DESC_AUX_POINTER = 11, DESC_AUX_LD = 12 };
enum { PREF_MAX_WORKSPACE = 1, PREF_REDUCTION_SCHEME_MASK = 3, PREF_MIN_ALIGNMENT_A = 5, PREF_MIN_ALIGNMENT_D = 8 };
enum { REDUCTION_INPLACE = 1, REDUCTION_COMPUTE_TYPE = 2 };
enum { EPILOGUE_VECTOR = 4 | 256 | 512, EPILOGUE_AUX = 128 }; // bits of those that have a vector, and a matrix beside d

#define BLAS \
	F(cublasCreate_v2, (void **)) \
	F(cublasDestroy_v2, (void *)) \
	F(cublasGetProperty, (int, int *)) \
	F(cublasSetStream_v2, (void *, void *)) \
	F(cublasSetWorkspace_v2, (void *, void *, size_t)) \
	F(cublasSetMathMode, (void *, int)) \
	F(cublasGetMathMode, (void *, int *)) \
	F(cublasGemmEx, (void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int, const void *, void *, int, int, int, int))
#define LT \
	F(cublasLtMatmulDescCreate, (void **, int, int)) \
	F(cublasLtMatmulDescDestroy, (void *)) \
	F(cublasLtMatmulDescSetAttribute, (void *, int, const void *, size_t)) \
	F(cublasLtMatmulDescGetAttribute, (void *, int, void *, size_t, size_t *)) \
	F(cublasLtMatrixLayoutCreate, (void **, int, uint64_t, uint64_t, int64_t)) \
	F(cublasLtMatrixLayoutDestroy, (void *)) \
	F(cublasLtMatmulPreferenceCreate, (void **)) \
	F(cublasLtMatmulPreferenceDestroy, (void *)) \
	F(cublasLtMatmulPreferenceSetAttribute, (void *, int, const void *, size_t)) \
	F(cublasLtMatmulPreferenceGetAttribute, (void *, int, void *, size_t, size_t *)) \
	F(cublasLtMatmulAlgoCheck, (void *, void *, void *, void *, void *, void *, const void *, void *)) \
	F(cublasLtMatmulAlgoGetHeuristic, (void *, void *, void *, void *, void *, void *, void *, int, void *, int *)) \
	F(cublasLtMatmul, (void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *, void *, void *, void *, const void *, void *, size_t, void *))

#define F(name, args) static int(*name) args;
BLAS LT
#undef F

// What an algorithm is; libraries may lack it.
static int (*cublasLtMatmulAlgoConfigGetAttribute)(const void *, int, void *, size_t, size_t *);

static int find(void *lib, const char *name, void *to, char *why, int why_len) {
	*(void **)to = dlsym(lib, name);
	if (!*(void **)to)
		snprintf(why, why_len, "it has no %s", name);
	return *(void **)to != NULL;
}

// Opens both libraries, Lt first, for the other needs it. Returns 0 if all is there.
HIDDEN int z_blas_open(const char *lt, const char *blas, char *why, int why_len) {
	void *l = dlopen(lt, RTLD_NOW | RTLD_LOCAL), *b = l ? dlopen(blas, RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!b) {
		const char *e = dlerror();
		snprintf(why, why_len, "%s", e ? e : "it cannot be opened");
		if (l)
			dlclose(l);
		return 1;
	}
#define F(name, args) && find(b, #name, &name, why, why_len)
	int ok = 1 BLAS;
#undef F
#define F(name, args) && find(l, #name, &name, why, why_len)
	ok = ok LT;
#undef F
	*(void **)&cublasLtMatmulAlgoConfigGetAttribute = dlsym(l, "cublasLtMatmulAlgoConfigGetAttribute");
	if (!ok) {
		dlclose(b);
		dlclose(l);
	}
	return !ok;
}

HIDDEN int z_blas_create(uintptr_t ctx, uintptr_t *handle, uintptr_t stream, uintptr_t work, size_t work_len) {
	ENTER(ctx);
	void *h = NULL;
	int r = cublasCreate_v2(&h);
	if (r)
		return r;
	*handle = (uintptr_t)h;
	const int math = MATH_DEFAULT | MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
	int is = -1;
	if (!(r = cublasSetStream_v2(h, (void *)stream)) && !(r = cublasSetWorkspace_v2(h, (void *)work, work_len)) && !(r = cublasSetMathMode(h, math)) && !(r = cublasGetMathMode(h, &is)))
		r = is == math ? 0 : OTHER_MATH;
	if (r)
		cublasDestroy_v2(h);
	return r;
}

HIDDEN int z_blas_destroy(uintptr_t ctx, uintptr_t handle) {
	ENTER(ctx);
	return cublasDestroy_v2((void *)handle);
}

// part is 0, 1 or 2: the major, minor and patch number of cuBLAS.
HIDDEN int z_blas_version(int part, int *n) { return cublasGetProperty(part, n); }

HIDDEN int z_product_run(const z_product *p) {
	const z_gemm_shape *s = &p->s;
	float one = 1;
	return cublasGemmEx((void *)p->handle, s->ta, s->tb, s->m, s->n, s->k, &one, (void *)p->a, s->type, s->lda, (void *)p->b, s->type, s->ldb, &s->beta, (void *)p->d, s->typed, s->ldd, COMPUTE_32F, DEFAULT_ALGO);
}

// cublasLtMatmulHeuristicResult_t, 96 bytes, which begins with the 64 of an algorithm.
typedef struct {
	uint64_t algo[8];
	size_t work;
	int status;
	float waves;
	int reserved[4];
} heuristic;
_Static_assert(sizeof(heuristic) == 96, "the size of cublasLtMatmulHeuristicResult_t");

typedef struct {
	void *desc, *a, *b, *c, *d;
	z_gemm_shape shape;
	heuristic best;
} lt_plan;

HIDDEN z_gemm_shape z_lt_shape(uintptr_t plan) { return ((lt_plan *)plan)->shape; }

HIDDEN void z_lt_end(uintptr_t plan) {
	lt_plan *p = (lt_plan *)plan;
	void *layouts[] = {p->d, p->c, p->b, p->a};
	for (int i = 0; i < 4; i++)
		if (layouts[i])
			cublasLtMatrixLayoutDestroy(layouts[i]);
	if (p->desc)
		cublasLtMatmulDescDestroy(p->desc);
	free(p);
}

// point sets where the vector and the matrix of an epilogue are, if it has them.
static int point(lt_plan *p, uintptr_t bias, uintptr_t aux) {
	int r = 0;
	if (p->shape.epilogue & EPILOGUE_VECTOR)
		r = cublasLtMatmulDescSetAttribute(p->desc, DESC_BIAS_POINTER, &bias, sizeof bias);
	if (!r && p->shape.epilogue & EPILOGUE_AUX)
		r = cublasLtMatmulDescSetAttribute(p->desc, DESC_AUX_POINTER, &aux, sizeof aux);
	return r;
}

static int describe(lt_plan *p, const z_gemm_shape *s) {
	int64_t ldaux = s->ldaux;
	p->shape = *s;
	int r = cublasLtMatmulDescCreate(&p->desc, COMPUTE_32F, R_32F);
	if (!r)
		r = cublasLtMatmulDescSetAttribute(p->desc, DESC_TRANSA, &s->ta, sizeof s->ta);
	if (!r)
		r = cublasLtMatmulDescSetAttribute(p->desc, DESC_TRANSB, &s->tb, sizeof s->tb);
	if (!r)
		r = cublasLtMatmulDescSetAttribute(p->desc, DESC_EPILOGUE, &s->epilogue, sizeof s->epilogue);
	if (!r && p->shape.epilogue & EPILOGUE_AUX)
		r = cublasLtMatmulDescSetAttribute(p->desc, DESC_AUX_LD, &ldaux, sizeof ldaux);
	if (!r) // the heuristic looks at how addresses are aligned, not at what is there
		r = point(p, (uintptr_t)s->align, (uintptr_t)s->align);
	if (!r)
		r = cublasLtMatrixLayoutCreate(&p->a, s->type, s->ta ? s->k : s->m, s->ta ? s->m : s->k, s->lda);
	if (!r)
		r = cublasLtMatrixLayoutCreate(&p->b, s->type, s->tb ? s->n : s->k, s->tb ? s->k : s->n, s->ldb);
	if (!r)
		r = cublasLtMatrixLayoutCreate(&p->c, s->typed, s->m, s->n, s->ldc);
	if (!r)
		r = cublasLtMatrixLayoutCreate(&p->d, s->typed, s->m, s->n, s->ldd);
	return r;
}

// Where k is split the parts are added in float32: beside d, or in it if that is its type.
static uint32_t reductions(const z_gemm_shape *s) { return REDUCTION_COMPUTE_TYPE | (s->typed == R_32F ? REDUCTION_INPLACE : 0); }

static int prefer(void *pref, const z_gemm_shape *s, size_t work_len) {
	uint32_t mask = reductions(s), is = 0;
	size_t n = 0;
	int r = cublasLtMatmulPreferenceSetAttribute(pref, PREF_MAX_WORKSPACE, &work_len, sizeof work_len);
	if (!r)
		r = cublasLtMatmulPreferenceSetAttribute(pref, PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask);
	if (!r)
		r = cublasLtMatmulPreferenceGetAttribute(pref, PREF_REDUCTION_SCHEME_MASK, &is, sizeof is, &n);
	if (!r && is != mask)
		r = NARROW_SUMS;
	for (int i = PREF_MIN_ALIGNMENT_A; !r && i <= PREF_MIN_ALIGNMENT_D; i++)
		r = cublasLtMatmulPreferenceSetAttribute(pref, i, &s->align, sizeof(uint32_t));
	return r;
}

// part is of cublasLtMatmulAlgoConfigAttributes_t: 0 the algorithm's number, 1 the tile, 2
// the parts that k is split into, 3 how those are added, 6 the stages. -1 is not known.
HIDDEN int z_lt_algorithm(const uint64_t *algo, int part) {
	int32_t v = 0;
	size_t n = 0;
	if (!cublasLtMatmulAlgoConfigGetAttribute || cublasLtMatmulAlgoConfigGetAttribute(algo, part, &v, sizeof v, &n))
		return -1;
	return v;
}

// safe reads back what the plan computes with: float32, and sums of parts of k in that too.
static int safe(const lt_plan *p) {
	int32_t compute = 0;
	size_t n = 0;
	int r = cublasLtMatmulDescGetAttribute(p->desc, DESC_COMPUTE, &compute, sizeof compute, &n);
	if (!r && compute != COMPUTE_32F)
		r = OTHER_MATH;
	int parts = z_lt_algorithm(p->best.algo, 2), how = z_lt_algorithm(p->best.algo, 3);
	return !r && parts != 0 && parts != 1 && how > 0 && !((uint32_t)how & reductions(&p->shape)) ? NARROW_SUMS : r;
}

// choose asks for the algorithms the heuristic likes best: at most most, and at least one.
static int choose(void *handle, lt_plan *p, size_t work_len, heuristic *best, int most, int *n) {
	void *pref = NULL;
	int r = cublasLtMatmulPreferenceCreate(&pref);
	if (!r)
		r = prefer(pref, &p->shape, work_len);
	if (!r) // a cuBLAS handle is a cuBLASLt handle, too
		r = cublasLtMatmulAlgoGetHeuristic(handle, p->desc, p->a, p->b, p->c, p->d, pref, most, best, n);
	if (pref)
		cublasLtMatmulPreferenceDestroy(pref);
	return r ? r : *n && !best[0].status ? 0 : NOT_SUPPORTED;
}

// The algorithm is the heuristic's first, or the one that is given.
HIDDEN int z_lt_plan(uintptr_t ctx, uintptr_t handle, uintptr_t *plan, const z_gemm_shape *s, size_t work_len, const uint64_t *algo) {
	ENTER(ctx);
	lt_plan *p = calloc(1, sizeof *p);
	if (!p)
		return ALLOC_FAILED;
	int n = 0, r = describe(p, s);
	if (!r && algo) {
		r = cublasLtMatmulAlgoCheck((void *)handle, p->desc, p->a, p->b, p->c, p->d, algo, &p->best);
		memcpy(p->best.algo, algo, sizeof p->best.algo);
		if (!r && (p->best.status || p->best.work > work_len))
			r = NOT_SUPPORTED;
	} else if (!r)
		r = choose((void *)handle, p, work_len, &p->best, 1, &n);
	if (!r)
		r = safe(p);
	if (r)
		z_lt_end((uintptr_t)p);
	else
		*plan = (uintptr_t)p;
	return r;
}

HIDDEN int z_lt_candidates(uintptr_t ctx, uintptr_t handle, const z_gemm_shape *s, size_t work_len, uint64_t *algos, int most, int *n) {
	ENTER(ctx);
	lt_plan *p = calloc(1, sizeof *p);
	heuristic *all = calloc(most, sizeof *all);
	int r = p && all ? describe(p, s) : ALLOC_FAILED;
	if (!r)
		r = choose((void *)handle, p, work_len, all, most, n);
	for (int i = 0; !r && i < *n; i++)
		memcpy(algos + 8 * i, all[i].algo, sizeof all[i].algo);
	free(all);
	if (p)
		z_lt_end((uintptr_t)p);
	return r;
}

HIDDEN void z_lt_algo(uintptr_t plan, uint64_t *algo) { memcpy(algo, ((const lt_plan *)plan)->best.algo, 64); }

HIDDEN int z_fused_run(const z_fused *f, uintptr_t stream) {
	lt_plan *p = (lt_plan *)f->plan;
	float one = 1;
	int r = point(p, f->o.bias, f->o.aux);
	if (r)
		return r;
	return cublasLtMatmul((void *)f->handle, p->desc, &one, (void *)f->o.a, p->a, (void *)f->o.b, p->b, &f->beta, (void *)f->o.c, p->c, (void *)f->o.d, p->d, p->best.algo, (void *)f->work, f->work_len, (void *)stream);
}
