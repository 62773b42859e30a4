// libcublas.so.12, or with -DLT libcublasLt.so.12, on the fake driver: products go
// into the stream as host functions. Sums are in float32, k in order.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

enum { NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { F32 = 0, F16 = 2, BF16 = 14, COMPUTE_32F = 68, COMPUTE_32F_FAST_TF32 = 77, MATH_TF32 = 3 };

// The driver, by its SONAME: the program has loaded it.
static void *driver() { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD); }
static const auto launch = (int (*)(void *, void (*)(void *), void *))dlsym(driver(), "cuLaunchHostFunc");
static const auto live = (int (*)(const void *, size_t))dlsym(driver(), "fakecuda_live");

static int refuse(const char *why) {
	fprintf(stderr, "fakecublas: %s\n", why);
	return INVALID_VALUE;
}

static bool has_context() {
	static const auto get = (int (*)(void **))dlsym(driver(), "cuCtxGetCurrent");
	void *ctx = nullptr;
	return get && !get(&ctx) && ctx;
}

// nothing is the driver's mode.
static bool nothing() {
	static const char *mode = getenv("FAKECUDA_MODE");
	static const bool is = mode && !strcmp(mode, "nothing");
	return is;
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

// Of cublasLtEpilogue_t. BIAS and AUX are bits of others.
enum { NONE = 1, BIAS = 4, AUX = 128, GELU_AUX = 160, GELU_AUX_BIAS = 164, DGELU = 192, BGRADA = 256, BGRADB = 512 };

static double inner(double x) { return 0.7978845608028654 * (x + 0.044715 * x * x * x); }
static float gelu(double x) { return x / 2 * (1 + tanh(inner(x))); }
static float gelu_slope(double x) {
	double t = tanh(inner(x));
	return (1 + t) / 2 + x / 2 * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

// d (m, n) = op(a) (m, k) op(b) (k, n) + beta c, and what the epilogue makes of it.
struct Product {
	bool ta, tb;
	Matrix a, b, c, d;
	float alpha, beta;
	int epilogue = NONE;
	void *vector = nullptr;
	Matrix aux = {};
	int compute = COMPUTE_32F, math = 0; // of cublasComputeType_t and of cublasMath_t

	float operand(const Matrix &m, size_t i) const;
	void multiply() const;
};

// operand is an element as it is multiplied: of float32 TF32 has 10 bits of the fraction.
float Product::operand(const Matrix &m, size_t i) const {
	float x = get(m.p, m.type, i);
	if (m.type != F32 || (compute != COMPUTE_32F_FAST_TF32 && math != MATH_TF32))
		return x;
	uint32_t u;
	memcpy(&u, &x, 4);
	u = (u + 0x1000) & ~0x1fffu;
	memcpy(&x, &u, 4);
	return x;
}

// note writes how a product is computed into the file that FAKECUBLAS_PRODUCTS names, if
// any: its type, and what asks for other sums than those of float32.
static void note(const Product &p) {
	const char *path = getenv("FAKECUBLAS_PRODUCTS");
	FILE *f = path && *path ? fopen(path, "a") : nullptr;
	if (!f)
		return;
	fprintf(f, "type %d compute %d math %d epilogue %d\n", p.a.type, p.compute, p.math, p.epilogue);
	fclose(f);
}

void Product::multiply() const {
	long m = d.rows, n = d.cols, k = ta ? a.rows : a.cols;
	std::vector<float> left(m * k), column(m), right(k);
	for (long p = 0; p < k; p++)
		for (long i = 0; i < m; i++)
			left[p * m + i] = operand(a, ta ? p + i * a.ld : i + p * a.ld);
	for (long i = 0; epilogue == BGRADA && i < m; i++) {
		float sum = 0;
		for (long p = 0; p < k; p++)
			sum += left[p * m + i];
		put(vector, d.type, i, sum);
	}
	for (long j = 0; j < n; j++) {
		float sum = 0;
		for (long p = 0; p < k; p++)
			sum += right[p] = operand(b, tb ? j + p * b.ld : p + j * b.ld);
		if (epilogue == BGRADB)
			put(vector, d.type, j, sum);
		std::fill(column.begin(), column.end(), 0.f);
		for (long p = 0; p < k; p++)
			for (long i = 0; i < m; i++)
				column[i] += left[p * m + i] * right[p];
		for (long i = 0; i < m; i++) {
			float x = alpha * column[i];
			if (beta)
				x += beta * get(c.p, c.type, i + j * c.ld);
			if (epilogue & BIAS)
				x += get(vector, d.type, i);
			if (epilogue == DGELU)
				x *= gelu_slope(get(aux.p, aux.type, i + j * aux.ld));
			else if (epilogue & AUX) {
				put((void *)aux.p, aux.type, i + j * aux.ld, x);
				x = gelu(x);
			}
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

static size_t bytes(const Matrix &m) { return ((m.cols - 1) * m.ld + m.rows) * width(m.type); }
static bool apart(const Matrix &x, const Matrix &y) { return (const char *)x.p + bytes(x) <= y.p || (const char *)y.p + bytes(y) <= x.p; }

static int put_into(void *stream, const Product &p) {
	const Matrix &a = p.a, &b = p.b, &c = p.c, &d = p.d;
	if (!known(a.type) || a.type != b.type || (d.type != a.type && d.type != F32) || c.type != d.type)
		return NOT_SUPPORTED;
	if (a.ld < a.rows || b.ld < b.rows || c.ld < c.rows || d.ld < d.rows || (p.ta ? a.rows : a.cols) != (p.tb ? b.cols : b.rows))
		return refuse("shapes that do not go together");
	if (!there(a) || !there(b) || !there(c) || !there(d))
		return refuse("an operand is not within device memory that is in use");
	if (c.p == d.p ? c.ld != d.ld : !apart(c, d))
		return refuse("c and d overlap and are not the same");
	long length = p.epilogue == BGRADB ? d.cols : d.rows;
	if (p.epilogue & (BIAS | BGRADA | BGRADB) && !live(p.vector, length * width(d.type)))
		return refuse("a bias is not within device memory that is in use");
	if (p.epilogue & AUX && (!there(p.aux) || !apart(p.aux, d)))
		return refuse("the matrix beside d is not device memory, or overlaps it");
	note(p);
	return enqueue(stream, [=] { p.multiply(); });
}

#ifndef LT

struct Handle { void *stream = nullptr; int math = 0; };

API cublasCreate_v2(Handle **h) {
	if (!has_context())
		return NOT_INITIALIZED;
	*h = new Handle;
	return 0;
}

API cublasDestroy_v2(Handle *h) { return has_context() ? (delete h, 0) : (int)NOT_INITIALIZED; }
API cublasGetProperty(int part, int *v) { return *v = part == 0 ? 12 : part == 1 ? 4 : 0, 0; }
API cublasSetStream_v2(Handle *h, void *s) { return h->stream = s, 0; }
API cublasSetWorkspace_v2(Handle *, void *p, size_t n) { return live(p, n) ? 0 : refuse("the work space is not device memory"); }
API cublasSetMathMode(Handle *h, int mode) { return h->math = mode & 3, 0; } // what is above is about sums of 16 bits

API cublasGemmEx(Handle *h, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int at, int lda, const void *b, int bt, int ldb, const float *beta, void *d, int dt, int ldd, int compute, int) {
	if (nothing())
		return 0;
	if ((compute != COMPUTE_32F && compute != COMPUTE_32F_FAST_TF32) || m < 1 || n < 1 || k < 0)
		return refuse("not this product");
	Matrix result = {d, dt, m, n, ldd};
	Product p = {(bool)ta, (bool)tb, {a, at, ta ? k : m, ta ? m : k, lda}, {b, bt, tb ? n : k, tb ? k : n, ldb}, result, result, *alpha, *beta};
	p.compute = compute, p.math = h->math;
	return put_into(h->stream, p);
}

#else

struct Desc { int compute, ta = 0, tb = 0, epilogue = NONE; void *bias = nullptr, *aux = nullptr; int64_t aux_ld = 0; };
struct Preference { uint32_t align[4] = {256, 256, 256, 256}, reduction = 7; };

API cublasLtMatmulDescCreate(Desc **d, int compute, int scale) {
	*d = new Desc{compute};
	return (compute == COMPUTE_32F || compute == COMPUTE_32F_FAST_TF32) && scale == F32 ? 0 : (int)NOT_SUPPORTED;
}
API cublasLtMatmulDescDestroy(Desc *d) { return delete d, 0; }

API cublasLtMatmulDescSetAttribute(Desc *d, int a, const void *p, size_t n) {
	struct { int attribute; void *to; size_t size; } all[] = {
		{3, &d->ta, 4}, {4, &d->tb, 4}, {7, &d->epilogue, 4}, {8, &d->bias, 8}, {11, &d->aux, 8}, {12, &d->aux_ld, 8},
	};
	for (auto &x : all)
		if (x.attribute == a)
			return n == x.size ? memcpy(x.to, p, n), 0 : refuse("the size of an attribute");
	return NOT_SUPPORTED;
}

API cublasLtMatrixLayoutCreate(Matrix **m, int type, uint64_t rows, uint64_t cols, int64_t ld) { return *m = new Matrix{nullptr, type, (long)rows, (long)cols, (long)ld}, 0; }
API cublasLtMatrixLayoutDestroy(Matrix *m) { return delete m, 0; }
API cublasLtMatmulPreferenceCreate(Preference **p) { return *p = new Preference, 0; }
API cublasLtMatmulPreferenceDestroy(Preference *p) { return delete p, 0; }

API cublasLtMatmulPreferenceSetAttribute(Preference *p, int a, const void *v, size_t) {
	if (a >= 5 && a <= 8)
		memcpy(&p->align[a - 5], v, 4);
	if (a == 3)
		memcpy(&p->reduction, v, 4);
	return a == 1 || a == 3 || (a >= 5 && a <= 8) ? 0 : (int)NOT_SUPPORTED;
}

// The algorithm notes what it was chosen for: the epilogue, and how a, b, c, d, its
// vector and the matrix beside d are aligned; nil is aligned.
struct Algo { uint32_t align[6]; int epilogue; uint32_t reduction; };

static uint32_t alignment(const void *p) { return p ? (uint32_t)((uintptr_t)p & -(uintptr_t)p & 0xffffff) : 256; }

// FAKECUBLAS_LACKS is epilogues there are no algorithms for, as in "164,192".
static bool lacks(int epilogue) {
	const char *all = getenv("FAKECUBLAS_LACKS");
	return all && ("," + std::string(all) + ",").find("," + std::to_string(epilogue) + ",") != std::string::npos;
}

API cublasLtMatmulAlgoGetHeuristic(void *, Desc *e, void *, void *, void *, Matrix *d, Preference *p, int, char *result, int *n) {
	*n = 0;
	if (!has_context())
		return NOT_INITIALIZED;
	switch (e->epilogue) {
	case NONE: case BIAS: case GELU_AUX: case GELU_AUX_BIAS: case DGELU: break;
	case BGRADA:
		if (e->ta)
			return NOT_SUPPORTED;
		break;
	case BGRADB:
		if (!e->tb)
			return NOT_SUPPORTED;
		break;
	default: return NOT_SUPPORTED;
	}
	if (lacks(e->epilogue))
		return NOT_SUPPORTED;
	if (e->epilogue & AUX && (e->aux_ld < d->rows || e->aux_ld % 8))
		return INVALID_VALUE;
	Algo algo = {{p->align[0], p->align[1], p->align[2], p->align[3], alignment(e->bias), alignment(e->aux)}, e->epilogue, p->reduction};
	memset(result, 0, 96);
	memcpy(result, &algo, sizeof algo);
	return *n = 1, 0;
}

// What can be asked is how an algorithm adds the parts that k is split into, of the ways it
// may the worst; all else is 1.
API cublasLtMatmulAlgoConfigGetAttribute(const Algo *algo, int a, int32_t *v, size_t n, size_t *written) {
	if (n != 4)
		return INVALID_VALUE;
	return *v = a != 3 ? 1 : algo->reduction & 4 ? 4 : algo->reduction & 2, *written = n, 0;
}

API cublasLtMatmul(void *, Desc *e, const float *alpha, const void *a, Matrix *la, const void *b, Matrix *lb, const float *beta, const void *c, Matrix *lc, void *d, Matrix *ld, const Algo *algo, void *work, size_t work_len, void *stream) {
	if (nothing())
		return 0;
	if (algo->epilogue != e->epilogue)
		return refuse("an algorithm of another epilogue");
	if (e->epilogue & (BIAS | BGRADA | BGRADB) && !e->bias)
		return INVALID_VALUE;
	if (e->epilogue & AUX && !e->aux)
		return e->epilogue == DGELU ? INVALID_VALUE : NOT_SUPPORTED;
	const void *at[] = {a, b, c, d, e->bias, e->aux};
	for (int i = 0; i < 6; i++)
		if ((uintptr_t)at[i] % algo->align[i])
			return refuse("an operand is not aligned as the algorithm was chosen for");
	if (!live(work, work_len))
		return refuse("the work space is not device memory");
	Product p = {(bool)e->ta, (bool)e->tb, *la, *lb, *lc, *ld, *alpha, *beta, e->epilogue, e->bias};
	p.a.p = a, p.b.p = b, p.c.p = c, p.d.p = d;
	p.compute = e->compute;
	p.aux = {e->aux, ld->type, ld->rows, ld->cols, (long)e->aux_ld};
	return put_into(stream, p);
}

#endif
