// libcublas.so.12, or with -DLT libcublasLt.so.12, on the fake driver: products go
// into the stream as host functions. What cuBLAS 13.0.2 refuses is refused; the texts of its
// library say what that is.
//
//   FAKECUBLAS_SEED=N         sums are in float32, k in order if N is 0 or not set. Else k is
//                             split into up to four parts, by seed and shape, which lie in the
//                             work space and are added as the reduction scheme says
//   FAKECUBLAS_DISOBEYS=WHAT  "reduction": algorithms add parts in D's type whatever the mask;
//                             "math": float32 products are TF32's whatever was set
//   FAKECUBLAS_LACKS=E,F      epilogues there are no algorithms for, as in "164,192"
//   FAKECUBLAS_VERSION=A.B.C  12.4.0 if it is not set
//   FAKECUBLAS_PRODUCTS=FILE  receives a line for each product: how it is computed
#include <algorithm>
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

static uint32_t seed() {
	static const char *v = getenv("FAKECUBLAS_SEED");
	return v && *v ? atoi(v) : 0;
}

static bool disobeys(const char *what) {
	const char *v = getenv("FAKECUBLAS_DISOBEYS");
	return v && !strcmp(v, what);
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
	int split = 1, reduction = 0;        // the parts of k, and of cublasLtReductionScheme_t
	float *work = nullptr;               // (split, n, m) of these, unless they are added in place

	float operand(const Matrix &m, size_t i) const;
	void multiply() const;
	void finish(long i, long j, float x) const;
	void add_parts(std::vector<float> &parts) const;
};

// Of cublasLtReductionScheme_t, whose bits are those of the mask.
enum { INPLACE = 1, COMPUTE_TYPE = 2, OUTPUT_TYPE = 4 };

// parts_of draws into how many parts k is split.
static int parts_of(long m, long n, long k, int epilogue) {
	if (!seed())
		return 1;
	uint32_t h = seed();
	for (long x : {m, n, k, (long)epilogue})
		h = (h ^ (uint32_t)x) * 0x9e3779b1 ^ h >> 15;
	return std::max(1l, std::min(k, 1 + (long)(h >> 7) % 4));
}

static size_t work_of(int split, int reduction, long m, long n) { return split > 1 && reduction != INPLACE ? (size_t)split * m * n * sizeof(float) : 0; }

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
	fprintf(f, "type %d compute %d math %d epilogue %d split %d reduction %d\n", p.a.type, p.compute, p.math, p.epilogue, p.split, p.reduction);
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
	std::vector<float> parts(split * m * n);
	for (long j = 0; j < n; j++) {
		float sum = 0;
		for (long p = 0; p < k; p++)
			sum += right[p] = operand(b, tb ? j + p * b.ld : p + j * b.ld);
		if (epilogue == BGRADB)
			put(vector, d.type, j, sum);
		for (long part = 0; part < split; part++) {
			std::fill(column.begin(), column.end(), 0.f);
			for (long p = k * part / split; p < k * (part + 1) / split; p++)
				for (long i = 0; i < m; i++)
					column[i] += left[p * m + i] * right[p];
			std::copy(column.begin(), column.end(), &parts[(part * n + j) * m]);
		}
	}
	add_parts(parts);
	for (long j = 0; j < n; j++)
		for (long i = 0; i < m; i++)
			finish(i, j, parts[j * m + i]);
}

// add_parts leaves the sum of all parts in the first: by way of the work space, each rounded
// to d's type if they are of that.
void Product::add_parts(std::vector<float> &parts) const {
	size_t each = d.rows * d.cols;
	if (work && work_of(split, reduction, d.rows, d.cols))
		std::copy(parts.begin(), parts.end(), work);
	for (size_t i = each; i < parts.size(); i++) {
		float x = work && reduction != INPLACE ? work[i] : parts[i], sum = parts[i % each];
		if (reduction == OUTPUT_TYPE) {
			char narrow[4];
			put(narrow, d.type, 0, x), x = get(narrow, d.type, 0);
			put(narrow, d.type, 0, sum), sum = get(narrow, d.type, 0);
		}
		parts[i % each] = sum + x;
	}
}

// finish is what becomes of an element: c, and the epilogue.
void Product::finish(long i, long j, float x) const {
	x *= alpha;
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

static int enqueue(void *stream, std::function<void()> f) {
	auto *held = new std::function<void()>(std::move(f));
	int r = launch(stream, [](void *p) { (*(std::function<void()> *)p)(); delete (std::function<void()> *)p; }, held);
	return r ? EXECUTION_FAILED : 0;
}

static bool known(int t) { return t == F32 || t == F16 || t == BF16; }

static size_t bytes(const Matrix &m) { return ((m.cols - 1) * m.ld + m.rows) * width(m.type); }
static bool apart(const Matrix &x, const Matrix &y) { return (const char *)x.p + bytes(x) <= y.p || (const char *)y.p + bytes(y) <= x.p; }

// shaped is 0 for operands of types and shapes that there are products of.
static int shaped(const Product &p) {
	const Matrix &a = p.a, &b = p.b, &c = p.c, &d = p.d;
	if (!known(a.type) || a.type != b.type || (d.type != a.type && d.type != F32) || c.type != d.type)
		return fprintf(stderr, "fakecublas: unsupported combination of precisions: %d, %d, %d, %d\n", a.type, b.type, c.type, d.type), (int)NOT_SUPPORTED;
	long inner = p.ta ? a.rows : a.cols;
	if (a.rows < 1 || a.cols < 1 || b.rows < 1 || b.cols < 1 || a.ld < a.rows || b.ld < b.rows || c.ld < c.rows || d.ld < d.rows)
		return refuse("the leading dimension of a matrix must be greater or equal to its number of rows");
	if (inner != (p.tb ? b.cols : b.rows) || (p.ta ? a.cols : a.rows) != d.rows || (p.tb ? b.rows : b.cols) != d.cols || c.rows != d.rows || c.cols != d.cols)
		return refuse("shapes that do not go together");
	return 0;
}

// on_element says whether an operand begins at a multiple of its elements' size.
static bool on_element(const void *p, int type) { return (uintptr_t)p % width(type) == 0; }

static int put_into(void *stream, const Product &p) {
	const Matrix &a = p.a, &b = p.b, &c = p.c, &d = p.d;
	if (int r = shaped(p))
		return r;
	if (!has_context())
		return NOT_INITIALIZED;
	if (!on_element(a.p, a.type) || !on_element(b.p, b.type) || !on_element(c.p, c.type) || !on_element(d.p, d.type))
		return refuse("an operand does not begin with an element");
	if (!there(a) || !there(b) || !there(c) || !there(d))
		return refuse("an operand is not within device memory that is in use");
	if (c.p == d.p ? c.ld != d.ld : !apart(c, d))
		return refuse("c and d overlap and are not the same");
	if (!apart(a, d) || !apart(b, d))
		return refuse("d overlaps what is multiplied");
	long length = p.epilogue == BGRADB ? d.cols : d.rows;
	if (p.epilogue & (BIAS | BGRADA | BGRADB) && !live(p.vector, length * width(d.type)))
		return refuse("a bias is not within device memory that is in use");
	if (p.epilogue & AUX && (!there(p.aux) || !apart(p.aux, d)))
		return refuse("the matrix beside d is not device memory, or overlaps it");
	note(p);
	return enqueue(stream, [=] { p.multiply(); });
}

// usable is 0 for a work space that may be handed over.
static int usable(const void *work, size_t n) {
	if (!work && n)
		return refuse("provided buffer is NULL but buffer size is not zero");
	if ((uintptr_t)work % 256)
		return refuse("the workspace pointer must be aligned to a multiple of 256 bytes");
	return n && !live(work, n) ? refuse("the work space is not device memory") : 0;
}

#ifndef LT

struct Handle { void *stream = nullptr; int math = 0; float *work = nullptr; size_t work_len = 0; };

API cublasCreate_v2(Handle **h) {
	if (!has_context())
		return NOT_INITIALIZED;
	*h = new Handle;
	return 0;
}

API cublasDestroy_v2(Handle *h) { return has_context() ? (delete h, 0) : (int)NOT_INITIALIZED; }

API cublasGetProperty(int part, int *v) {
	const char *version = getenv("FAKECUBLAS_VERSION");
	int all[3] = {12, 4, 0};
	if (version && *version)
		sscanf(version, "%d.%d.%d", all, all + 1, all + 2);
	return part < 0 || part > 2 ? (int)INVALID_VALUE : (*v = all[part], 0);
}

API cublasSetStream_v2(Handle *h, void *s) { return h->stream = s, 0; }

API cublasSetWorkspace_v2(Handle *h, void *p, size_t n) {
	int r = usable(p, n);
	return r ? r : (h->work = (float *)p, h->work_len = n, 0);
}

// 16 is about sums of 16 bits; below it are the default, tensor cores, pedantic and TF32.
API cublasSetMathMode(Handle *h, int mode) { return mode < 0 || (mode & ~16) > 3 ? refuse("no math mode") : (h->math = mode, 0); }
API cublasGetMathMode(Handle *h, int *mode) { return *mode = disobeys("math") ? (int)MATH_TF32 : h->math, 0; }

API cublasGemmEx(Handle *h, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int at, int lda, const void *b, int bt, int ldb, const float *beta, void *d, int dt, int ldd, int compute, int) {
	if (nothing())
		return 0;
	if ((compute != COMPUTE_32F && compute != COMPUTE_32F_FAST_TF32) || m < 1 || n < 1 || k < 1 || ta < 0 || ta > 1 || tb < 0 || tb > 1)
		return refuse("not this product");
	Matrix result = {d, dt, m, n, ldd};
	Product p = {(bool)ta, (bool)tb, {a, at, ta ? k : m, ta ? m : k, lda}, {b, bt, tb ? n : k, tb ? k : n, ldb}, result, result, *alpha, *beta};
	p.compute = compute, p.math = h->math & 3;
	p.split = parts_of(m, n, k, NONE), p.reduction = COMPUTE_TYPE, p.work = h->work;
	if (p.split == 1 || work_of(p.split, p.reduction, m, n) > h->work_len)
		p.split = 1, p.reduction = 0;
	return put_into(h->stream, p);
}

#else

struct Attribute { int number; void *at; size_t size; };

// One attribute is set, or read: both ask for its size, as the library does, and take any value.
template <size_t N> static int set(const Attribute (&all)[N], int a, const void *p, size_t n) {
	for (auto &x : all)
		if (x.number == a)
			return n == x.size ? memcpy(x.at, p, n), 0 : refuse("the size of an attribute");
	return INVALID_VALUE;
}
template <size_t N> static int read(const Attribute (&all)[N], int a, void *p, size_t n, size_t *written) {
	for (auto &x : all)
		if (x.number == a && n == x.size)
			return memcpy(p, x.at, n), *written = n, 0;
	return INVALID_VALUE;
}

struct Desc { int compute, scale, ta = 0, tb = 0, epilogue = NONE; void *bias = nullptr, *aux = nullptr; int64_t aux_ld = 0; };
#define DESC(d) {{0, &d->compute, 4}, {1, &d->scale, 4}, {3, &d->ta, 4}, {4, &d->tb, 4}, {7, &d->epilogue, 4}, {8, &d->bias, 8}, {11, &d->aux, 8}, {12, &d->aux_ld, 8}}

API cublasLtMatmulDescCreate(Desc **d, int compute, int scale) { return *d = new Desc{compute, scale}, 0; }
API cublasLtMatmulDescDestroy(Desc *d) { return delete d, 0; }
API cublasLtMatmulDescSetAttribute(Desc *d, int a, const void *p, size_t n) {
	const Attribute all[] = DESC(d);
	return set(all, a, p, n);
}
API cublasLtMatmulDescGetAttribute(Desc *d, int a, void *p, size_t n, size_t *written) {
	const Attribute all[] = DESC(d);
	return read(all, a, p, n, written);
}

API cublasLtMatrixLayoutCreate(Matrix **m, int type, uint64_t rows, uint64_t cols, int64_t ld) { return *m = new Matrix{nullptr, type, (long)rows, (long)cols, (long)ld}, 0; }
API cublasLtMatrixLayoutDestroy(Matrix *m) { return delete m, 0; }

struct Preference { uint64_t work = 0; uint32_t align[4] = {256, 256, 256, 256}, reduction = 7; };
#define PREFERENCE(p) {{1, &p->work, 8}, {3, &p->reduction, 4}, {5, &p->align[0], 4}, {6, &p->align[1], 4}, {7, &p->align[2], 4}, {8, &p->align[3], 4}}

API cublasLtMatmulPreferenceCreate(Preference **p) { return *p = new Preference, 0; }
API cublasLtMatmulPreferenceDestroy(Preference *p) { return delete p, 0; }
API cublasLtMatmulPreferenceSetAttribute(Preference *p, int a, const void *v, size_t n) {
	const Attribute all[] = PREFERENCE(p);
	return set(all, a, v, n);
}
API cublasLtMatmulPreferenceGetAttribute(Preference *p, int a, void *v, size_t n, size_t *written) {
	const Attribute all[] = PREFERENCE(p);
	return read(all, a, v, n, written);
}

// The algorithm is what it was chosen for: types, epilogue, transposes, how a, b, c, d, its
// vector and the matrix beside d are aligned, of nil well; and how it adds.
struct Algo { uint16_t align[6]; int32_t epilogue, type, typed; int32_t split, reduction; uint8_t ta, tb; uint64_t work; };
static_assert(sizeof(Algo) <= 64, "an algorithm");

struct Result { uint64_t algo[8]; size_t work; int status; float waves; int reserved[4]; };

static uint16_t alignment(const void *p) { return p ? (uint16_t)std::min<uintptr_t>(256, (uintptr_t)p & -(uintptr_t)p) : 256; }

// FAKECUBLAS_LACKS is epilogues there are no algorithms for, as in "164,192".
static bool lacks(int epilogue) {
	const char *all = getenv("FAKECUBLAS_LACKS");
	return all && ("," + std::string(all) + ",").find("," + std::to_string(epilogue) + ",") != std::string::npos;
}

// fits is 0 if there are algorithms for such a product at all.
static int fits(Desc *e, const Matrix &a, const Matrix &b, const Matrix &c, const Matrix &d) {
	if ((e->compute != COMPUTE_32F && e->compute != COMPUTE_32F_FAST_TF32) || e->scale != F32)
		return NOT_SUPPORTED;
	Product p = {(bool)e->ta, (bool)e->tb, a, b, c, d};
	if (int r = shaped(p))
		return r;
	switch (e->epilogue) {
	case NONE: case BIAS: case GELU_AUX: case GELU_AUX_BIAS: case DGELU: break;
	case BGRADA:
		if (e->ta)
			return fprintf(stderr, "fakecublas: BGRADA only works with non-transposed A\n"), (int)NOT_SUPPORTED;
		break;
	case BGRADB:
		if (!e->tb)
			return fprintf(stderr, "fakecublas: BGRADB only works with transposed B\n"), (int)NOT_SUPPORTED;
		break;
	default: return NOT_SUPPORTED;
	}
	if (lacks(e->epilogue))
		return NOT_SUPPORTED;
	if (e->epilogue & (BIAS | BGRADA | BGRADB) && (!e->bias || !on_element(e->bias, d.type)))
		return refuse("the bias pointer is required, aligned to the output data type");
	if (e->epilogue & AUX && (!e->aux || e->aux_ld < d.rows || e->aux_ld % 8))
		return refuse("the matrix beside d is required, with rows in multiples of 8");
	return 0;
}

// suits says whether an algorithm may split k so, within a mask.
static bool suits(const Algo &x, uint32_t mask, uint64_t most) { return x.work <= most && (x.split == 1 || disobeys("reduction") || x.reduction & mask); }

API cublasLtMatmulAlgoGetHeuristic(void *handle, Desc *e, Matrix *a, Matrix *b, Matrix *c, Matrix *d, Preference *p, int wanted, Result *results, int *n) {
	*n = 0;
	if (!has_context() || !handle)
		return NOT_INITIALIZED;
	if (wanted < 1)
		return refuse("the limit of requested algorithms must be greater than zero");
	if (int r = fits(e, *a, *b, *c, *d))
		return r;
	long m = d->rows, cols = d->cols, k = e->ta ? a->rows : a->cols, first = parts_of(m, cols, k, e->epilogue);
	for (long i = 0; i < 4 && *n < wanted; i++) {
		Algo x = {{}, e->epilogue, a->type, d->type, (int)((first + i - 1) % 4 + 1), 0, (uint8_t)e->ta, (uint8_t)e->tb, 0};
		for (int j = 0; j < 4; j++)
			x.align[j] = (uint16_t)p->align[j];
		x.align[4] = alignment(e->bias), x.align[5] = alignment(e->aux);
		if (disobeys("reduction"))
			x.split = 2;
		if (x.split > 1)
			x.reduction = disobeys("reduction") ? OUTPUT_TYPE : p->reduction & INPLACE && i % 2 ? INPLACE : COMPUTE_TYPE;
		x.work = work_of(x.split, x.reduction, m, cols);
		if (x.split > k || !suits(x, p->reduction, p->work))
			continue;
		Result &r = results[(*n)++];
		memset(&r, 0, sizeof r);
		memcpy(r.algo, &x, sizeof x);
		r.work = x.work, r.waves = 1;
	}
	return *n ? 0 : (int)NOT_SUPPORTED;
}

// An algorithm from elsewhere: whether it computes this product, and its work space.
API cublasLtMatmulAlgoCheck(void *handle, Desc *e, Matrix *a, Matrix *b, Matrix *c, Matrix *d, const Algo *x, Result *result) {
	if (!has_context() || !handle)
		return NOT_INITIALIZED;
	if (int r = fits(e, *a, *b, *c, *d))
		return r;
	long k = e->ta ? a->rows : a->cols;
	if (x->epilogue != e->epilogue || x->type != a->type || x->typed != d->type || x->ta != e->ta || x->tb != e->tb || x->split < 1 || x->split > std::min(4l, k))
		return NOT_SUPPORTED;
	memset(result, 0, sizeof *result);
	memcpy(result->algo, x, sizeof *x);
	result->work = work_of(x->split, x->reduction, d->rows, d->cols);
	return 0;
}

// What can be asked is into how many parts k is split, and how they are added; all else is 1.
API cublasLtMatmulAlgoConfigGetAttribute(const Algo *x, int a, int32_t *v, size_t n, size_t *written) {
	if (n != 4)
		return INVALID_VALUE;
	return *v = a == 2 ? x->split : a == 3 ? x->reduction : 1, *written = n, 0;
}

API cublasLtMatmul(void *handle, Desc *e, const float *alpha, const void *a, Matrix *la, const void *b, Matrix *lb, const float *beta, const void *c, Matrix *lc, void *d, Matrix *ld, const Algo *algo, void *work, size_t work_len, void *stream) {
	if (nothing())
		return 0;
	if (!has_context() || !handle)
		return NOT_INITIALIZED;
	if (int r = fits(e, *la, *lb, *lc, *ld))
		return r;
	if (algo->epilogue != e->epilogue || algo->type != la->type || algo->typed != ld->type || algo->ta != e->ta || algo->tb != e->tb)
		return refuse("an algorithm of another product");
	const void *at[] = {a, b, c, d, e->bias, e->aux};
	for (int i = 0; i < 6; i++)
		if (algo->align[i] && (uintptr_t)at[i] % algo->align[i])
			return refuse("an operand is not aligned as the algorithm was chosen for");
	if (int r = usable(work, work_len))
		return r;
	Product p = {(bool)e->ta, (bool)e->tb, *la, *lb, *lc, *ld, *alpha, *beta, e->epilogue, e->bias};
	p.a.p = a, p.b.p = b, p.c.p = c, p.d.p = d;
	p.compute = e->compute, p.split = algo->split, p.reduction = algo->reduction, p.work = (float *)work;
	if (work_of(p.split, p.reduction, ld->rows, ld->cols) > work_len)
		return refuse("the work space is smaller than the algorithm's");
	p.aux = {e->aux, ld->type, ld->rows, ld->cols, (long)e->aux_ld};
	return put_into(stream, p);
}

#endif
