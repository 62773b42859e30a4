// libcublas.so.12, or with -DLT libcublasLt.so.12, on the fake driver: products go
// into the stream as host functions. Sums are in float32, k in order.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

enum { NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { F32 = 0, F16 = 2, BF16 = 14, COMPUTE_32F = 68 };

// The driver, by its SONAME: the program has loaded it.
static void *driver() { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); }
static const auto launch = (int (*)(void *, void (*)(void *), void *))dlsym(driver(), "cuLaunchHostFunc");
static const auto live = (int (*)(const void *, size_t))dlsym(driver(), "fakecuda_live");

static int refuse(const char *why) {
	fprintf(stderr, "fakecublas: %s\n", why);
	return INVALID_VALUE;
}

static size_t width(int t) { return t == F32 ? 4 : 2; }

#ifdef __aarch64__
typedef __fp16 Half; // before g++ 13 it has no other name there
#else
typedef _Float16 Half;
#endif

static float get(const void *p, int t, size_t i) {
	if (t == F32)
		return ((const float *)p)[i];
	if (t == F16)
		return (float)((const Half *)p)[i];
	uint32_t u = (uint32_t)((const uint16_t *)p)[i] << 16;
	float f;
	memcpy(&f, &u, 4);
	return f;
}

static void put(void *p, int t, size_t i, float x) {
	uint32_t u;
	memcpy(&u, &x, 4);
	if (t == F32)
		((float *)p)[i] = x;
	else if (t == F16)
		((Half *)p)[i] = (Half)x;
	else
		((uint16_t *)p)[i] = x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

// An operand as stored, column-major.
struct Matrix { const void *p; int type; long rows, cols, ld; };

static bool there(const Matrix &m) { return m.rows == 0 || m.cols == 0 || live(m.p, ((m.cols - 1) * m.ld + m.rows) * width(m.type)); }

// d (m, n) = op(a) (m, k) op(b) (k, n) + beta d + bias
static void multiply(bool ta, bool tb, Matrix a, Matrix b, Matrix d, float alpha, float beta, const void *bias) {
	long m = d.rows, n = d.cols, k = ta ? a.rows : a.cols;
	std::vector<float> left(m * k), column(m), right(k);
	for (long p = 0; p < k; p++)
		for (long i = 0; i < m; i++)
			left[p * m + i] = get(a.p, a.type, ta ? p + i * a.ld : i + p * a.ld);
	for (long j = 0; j < n; j++) {
		for (long p = 0; p < k; p++)
			right[p] = get(b.p, b.type, tb ? j + p * b.ld : p + j * b.ld);
		std::fill(column.begin(), column.end(), 0.f);
		for (long p = 0; p < k; p++)
			for (long i = 0; i < m; i++)
				column[i] += left[p * m + i] * right[p];
		for (long i = 0; i < m; i++) {
			float x = alpha * column[i];
			if (beta)
				x += beta * get(d.p, d.type, i + j * d.ld);
			if (bias)
				x += get(bias, d.type, i);
			put((void *)d.p, d.type, i + j * d.ld, x);
		}
	}
}

static int enqueue(void *stream, std::function<void()> f) {
	auto *held = new std::function<void()>(std::move(f));
	int r = launch(stream, [](void *p) { (*(std::function<void()> *)p)(); delete (std::function<void()> *)p; }, held);
	return r ? EXECUTION_FAILED : 0;
}

static bool known(int t) { return t == F32 || t == F16 || t == BF16; }

static int product(void *stream, bool ta, bool tb, Matrix a, Matrix b, Matrix d, float alpha, float beta, const void *bias) {
	if (!known(a.type) || a.type != b.type || (d.type != a.type && d.type != F32))
		return NOT_SUPPORTED;
	if (a.ld < a.rows || b.ld < b.rows || d.ld < d.rows || (ta ? a.rows : a.cols) != (tb ? b.cols : b.rows))
		return refuse("shapes that do not go together");
	if (!there(a) || !there(b) || !there(d) || (bias && !live(bias, d.rows * width(d.type))))
		return refuse("an operand is not within device memory that is in use");
	return enqueue(stream, [=] { multiply(ta, tb, a, b, d, alpha, beta, bias); });
}

#ifndef LT

struct Handle { void *stream = nullptr; };

API cublasCreate_v2(Handle **h) {
	auto get = (int (*)(void **))dlsym(driver(), "cuCtxGetCurrent");
	void *ctx = nullptr;
	if (!get || get(&ctx) || !ctx)
		return NOT_INITIALIZED;
	*h = new Handle;
	return 0;
}

API cublasDestroy_v2(Handle *h) { return delete h, 0; }
API cublasGetProperty(int part, int *v) { return *v = part == 0 ? 12 : part == 1 ? 4 : 0, 0; }
API cublasSetStream_v2(Handle *h, void *s) { return h->stream = s, 0; }
API cublasSetWorkspace_v2(Handle *, void *p, size_t n) { return live(p, n) ? 0 : refuse("the work space is not device memory"); }
API cublasSetMathMode(Handle *, int mode) { return mode & 3 ? refuse("TF32") : 0; }

API cublasGemmEx(Handle *h, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int at, int lda, const void *b, int bt, int ldb, const float *beta, void *d, int dt, int ldd, int compute, int) {
	if (compute != COMPUTE_32F || m < 1 || n < 1 || k < 0)
		return refuse("not this product");
	return product(h->stream, ta, tb, {a, at, ta ? k : m, ta ? m : k, lda}, {b, bt, tb ? n : k, tb ? k : n, ldb}, {d, dt, m, n, ldd}, *alpha, *beta, nullptr);
}

#else

struct Desc { int ta = 0, tb = 0, epilogue = 1; const void *bias = nullptr; };
struct Preference { uint32_t align[4] = {256, 256, 256, 256}; };

API cublasLtMatmulDescCreate(Desc **d, int compute, int scale) { return *d = new Desc, compute == COMPUTE_32F && scale == F32 ? 0 : (int)NOT_SUPPORTED; }
API cublasLtMatmulDescDestroy(Desc *d) { return delete d, 0; }

API cublasLtMatmulDescSetAttribute(Desc *d, int a, const void *p, size_t n) {
	switch (a) {
	case 3: return memcpy(&d->ta, p, sizeof d->ta), n != 4;
	case 4: return memcpy(&d->tb, p, sizeof d->tb), n != 4;
	case 7: return memcpy(&d->epilogue, p, sizeof d->epilogue), n != 4;
	case 8: return memcpy(&d->bias, p, sizeof d->bias), n != 8;
	}
	return NOT_SUPPORTED;
}

API cublasLtMatrixLayoutCreate(Matrix **m, int type, uint64_t rows, uint64_t cols, int64_t ld) { return *m = new Matrix{nullptr, type, (long)rows, (long)cols, (long)ld}, 0; }
API cublasLtMatrixLayoutDestroy(Matrix *m) { return delete m, 0; }
API cublasLtMatmulPreferenceCreate(Preference **p) { return *p = new Preference, 0; }
API cublasLtMatmulPreferenceDestroy(Preference *p) { return delete p, 0; }

API cublasLtMatmulPreferenceSetAttribute(Preference *p, int a, const void *v, size_t) {
	if (a >= 5 && a <= 8)
		memcpy(&p->align[a - 5], v, 4);
	return a == 1 || (a >= 5 && a <= 8) ? 0 : (int)NOT_SUPPORTED;
}

// The algorithm notes what it was chosen for: how operands are aligned.
struct Algo { uint32_t align[4]; };

API cublasLtMatmulAlgoGetHeuristic(void *, Desc *, void *, void *, void *, void *, Preference *p, int, char *result, int *n) {
	memset(result, 0, 96);
	memcpy(result, p->align, sizeof p->align);
	return *n = 1, 0;
}

API cublasLtMatmul(void *, Desc *e, const float *alpha, const void *a, Matrix *la, const void *b, Matrix *lb, const float *beta, const void *c, Matrix *, void *d, Matrix *ld, const Algo *algo, void *work, size_t work_len, void *stream) {
	if (e->epilogue != 4 || !e->bias || c != d)
		return NOT_SUPPORTED;
	const void *at[] = {a, b, c, d};
	for (int i = 0; i < 4; i++)
		if ((uintptr_t)at[i] % algo->align[i])
			return refuse("an operand is not aligned as the algorithm was chosen for");
	if (!live(work, work_len))
		return refuse("the work space is not device memory");
	Matrix ma = *la, mb = *lb, md = *ld;
	ma.p = a, mb.p = b, md.p = d;
	return product(stream, e->ta, e->tb, ma, mb, md, *alpha, *beta, e->bias);
}

#endif
