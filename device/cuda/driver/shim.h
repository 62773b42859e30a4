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

int z_module(uintptr_t ctx, uintptr_t *module, const char *image, char *log, int log_len);
int z_module_end(uintptr_t ctx, uintptr_t module);

// A kernel: blocks of so many threads, whose parameter i is at data + at[i]. Only
// z_function makes one; z_function_end ends it with its module.
enum { Z_PARAMS = 64 };
typedef struct {
	uintptr_t fn;
	uint32_t threads;
	int32_t params, at[Z_PARAMS];
	char name[64];
} z_kernel;
int z_function(uintptr_t ctx, z_kernel **kernel, uintptr_t module, const char *name, uint32_t threads, const int32_t *at, int params, int shared);
int z_function_uses(uintptr_t ctx, const z_kernel *kernel, int *registers, int *local);
void z_function_end(z_kernel *kernel);
const char *z_kernel_name(uintptr_t kernel);

int z_alloc(uintptr_t ctx, uintptr_t *p, size_t n);
int z_free(uintptr_t ctx, uintptr_t p);
int z_host_alloc(uintptr_t ctx, uintptr_t *p, size_t n);
int z_host_free(uintptr_t ctx, uintptr_t p);
int z_memory(uintptr_t ctx, size_t *free, size_t *total);
int z_peer(uintptr_t ctx, uintptr_t peer);

int z_stream(uintptr_t ctx, uintptr_t *stream, int first);
int z_stream_wait(uintptr_t ctx, uintptr_t stream);
int z_stream_end(uintptr_t ctx, uintptr_t stream);
int z_event(uintptr_t ctx, uintptr_t *event, int timed);
int z_event_end(uintptr_t ctx, uintptr_t event);
int z_await(uintptr_t ctx, uintptr_t event, int us);
int64_t z_us(void); // a clock, in microseconds
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
	int32_t epilogue; // cublasLtEpilogue_t; z_product has none
	int32_t align;    // bytes that all operands' addresses are multiples of; z_product does not need it
} z_gemm_shape;

typedef struct { uintptr_t a, b, c, d, bias, aux; } z_operands;

// With an epilogue, or a c that is not d, products are cuBLASLt's. A plan belongs to a
// shape.
int z_lt_plan(uintptr_t ctx, uintptr_t handle, uintptr_t *plan, const z_gemm_shape *s, size_t work_len, const uint64_t *algo);
void z_lt_end(uintptr_t plan);
// An algorithm is a cublasLtMatmulAlgo_t: 8 words, which the same version of cuBLASLt
// understands on the same model of GPU.
int z_lt_candidates(uintptr_t ctx, uintptr_t handle, const z_gemm_shape *s, size_t work_len, uint64_t *algos, int most, int *n);
void z_lt_algo(uintptr_t plan, uint64_t *algo);
int z_lt_algorithm(const uint64_t *algo, int part);
z_gemm_shape z_lt_shape(uintptr_t plan);

// Work for a stream, as commands one behind the other, which z_run gives to the driver
// in one call. Each begins with its kind and its bytes, a multiple of 8.
enum { Z_LAUNCH, Z_TO_DEVICE, Z_TO_HOST, Z_ON_DEVICE, Z_ZERO, Z_RECORD, Z_AFTER, Z_PRODUCT, Z_FUSED };
typedef struct { uint32_t kind, bytes; } z_command;
typedef struct { z_command c; uintptr_t kernel; uint32_t grid[3], shared; } z_launch; // a z_kernel; its parameters follow
typedef struct { z_command c; uintptr_t dst, src; size_t n; } z_copy; // Z_ZERO has no src
typedef struct { z_command c; uintptr_t event; } z_event_command;
typedef struct { z_command c; uintptr_t handle, a, b, d; z_gemm_shape s; } z_product; // c is d
typedef struct { z_command c; uintptr_t handle, plan, work; size_t work_len; z_operands o; float beta; } z_fused;

// The first command that failed, as bytes from the first one, and its code: a CUresult,
// of products a cublasStatus_t. After it events are still recorded and waited for, and
// nothing else is done. at is -1 where nothing failed, or making the context current.
typedef struct { int32_t at, code; } z_result;
z_result z_run(uintptr_t ctx, uintptr_t stream, const z_command *commands, uint32_t bytes);
int z_product_run(const z_product *p);
int z_fused_run(const z_fused *f, uintptr_t stream);
