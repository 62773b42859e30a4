// C side of package driver. Every z_ function that needs a context takes it first
// and makes it the thread's current one, for Go moves goroutines between threads.
// Handles and addresses are integers. Functions return a CUresult.
#pragma once
#include <stddef.h>
#include <stdint.h>

int z_loaded(void);
int z_init_code(void);
const char *z_path(void);
const char *z_why(void);

// A launch whose parameter i is at data + at[i].
int z_launch(uintptr_t ctx, uintptr_t fn, uintptr_t stream, const uint32_t *grid, uint32_t threads, uint32_t shared, int params, const int32_t *at, char *data);
int z_shared(uintptr_t ctx, uintptr_t fn, int bytes);
int z_module(uintptr_t ctx, uintptr_t *module, const char *image, char *log, int log_len);
int z_module_end(uintptr_t ctx, uintptr_t module);
int z_function(uintptr_t ctx, uintptr_t *fn, uintptr_t module, const char *name);
int z_alloc(uintptr_t ctx, uintptr_t *p, size_t n);
int z_free(uintptr_t ctx, uintptr_t p);
int z_host_alloc(uintptr_t ctx, uintptr_t *p, size_t n);
int z_host_free(uintptr_t ctx, uintptr_t p);
int z_memory(uintptr_t ctx, size_t *free, size_t *total);
int z_peer(uintptr_t ctx, uintptr_t peer);

enum { Z_TO_DEVICE, Z_TO_HOST, Z_ON_DEVICE };
int z_copy(uintptr_t ctx, uintptr_t stream, int kind, uintptr_t dst, uintptr_t src, size_t n);
int z_zero(uintptr_t ctx, uintptr_t stream, uintptr_t p, size_t n);

int z_stream(uintptr_t ctx, uintptr_t *stream);
int z_stream_wait(uintptr_t ctx, uintptr_t stream);
int z_stream_end(uintptr_t ctx, uintptr_t stream);
int z_event(uintptr_t ctx, uintptr_t *event, int timed);
int z_event_end(uintptr_t ctx, uintptr_t event);
int z_record(uintptr_t ctx, uintptr_t event, uintptr_t stream);
int z_after(uintptr_t ctx, uintptr_t stream, uintptr_t event);
int z_await(uintptr_t ctx, uintptr_t event);
int z_elapsed(uintptr_t ctx, float *ms, uintptr_t from, uintptr_t to);

int z_event_reached(uintptr_t ctx, uintptr_t event);

const char *z_error_name(int code);
const char *z_error_text(int code);

// cuBLAS and cuBLASLt. Functions return a cublasStatus_t; a CUresult of making
// the context current is returned negated.
int z_blas_open(const char *lt, const char *blas, char *why, int why_len);
int z_blas_create(uintptr_t ctx, uintptr_t *handle, uintptr_t stream, uintptr_t work, size_t work_len);
int z_blas_destroy(uintptr_t ctx, uintptr_t handle);
int z_blas_version(int part, int *n);

// A product of column-major matrices: d (m, n) = a (m, k) b (k, n) + beta c, with c
// of d's type.
typedef struct {
	int32_t ta, tb, m, n, k, lda, ldb, ldc, ldd, ldaux;
	int32_t type, typed; // cudaDataType_t of a and b, and of c and d
	float beta;
	int32_t epilogue; // cublasLtEpilogue_t; z_gemm has none
	int32_t align;    // bytes that all operands' addresses are multiples of; z_gemm does not need it
} z_gemm_shape;

typedef struct { uintptr_t a, b, c, d, bias, aux; } z_operands;

// c is d.
int z_gemm(uintptr_t ctx, uintptr_t handle, const z_gemm_shape *s, uintptr_t a, uintptr_t b, uintptr_t d);

// The same by cuBLASLt, with an epilogue. A plan belongs to a shape.
int z_lt_plan(uintptr_t ctx, uintptr_t handle, uintptr_t *plan, const z_gemm_shape *s, size_t work_len);
int z_lt_run(uintptr_t ctx, uintptr_t handle, uintptr_t plan, uintptr_t stream, float beta, z_operands o, uintptr_t work, size_t work_len);
void z_lt_end(uintptr_t plan);
