// CUDA C on the processor, so that the kernels of ../kernel run where there is
// no GPU. Every CUDA thread is a fiber; a block runs on one thread of the system.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__
#define __device__ static inline
#define __forceinline__
#define __restrict__
#define __grid_constant__
#define __launch_bounds__(...)

struct EmuDim { unsigned x = 1, y = 1, z = 1; };

// EmuCopies are a thread's copies into shared memory that it has not waited for yet,
// groups of them that were committed before the last ones first.
struct EmuCopies {
	struct { char *to; const char *from; unsigned room, bytes, group; } all[96];
	unsigned n = 0, groups = 0;
};
struct EmuProduct;
struct EmuProductOf { // a product as its lanes bring it, but for what is in EmuSlot
	void (*run)(const EmuProduct &, float (*sum)[32]);
	uint64_t b;
	bool add;
	int line;
};
struct EmuThread {
	EmuDim tid, bid, bdim, gdim;
	unsigned lane, warp;
	EmuCopies copies;
	bool unfenced; // copies have landed that wgmma does not see yet
	EmuProductOf product;
};
extern thread_local EmuThread *emu_cur __attribute__((tls_model("initial-exec")));
#define threadIdx (emu_cur->tid)
#define blockIdx (emu_cur->bid)
#define blockDim (emu_cur->bdim)
#define gridDim (emu_cur->gdim)

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };

// emu_warp is a rendezvous of the lanes in mask, which all come from one line:
// it returns what each lane brought, which stays until the next but one. The last
// lane to come calls work on it, if there is any.
struct EmuSlot { uint32_t w[10]; };
EmuSlot *emu_warp(unsigned mask, const EmuSlot *mine, int line, void (*work)(EmuSlot *) = 0);
void emu_sync(int line);
void *emu_shared(const void *key, size_t bytes);
void *emu_dynamic_shared();
[[noreturn]] void emu_trap(const char *why, int line);

#define __syncthreads() emu_sync(__LINE__)
#define SHARED(T, name, n) \
	static char emu_key_##name; \
	T *name = (T *)emu_shared(&emu_key_##name, sizeof(T) * (n))
#define DYNAMIC_SHARED(T, name) T *name = (T *)emu_dynamic_shared()
#define TRAP(why) emu_trap(why, __LINE__)

template <class T> static inline T emu_shuffle(unsigned mask, T v, unsigned from, int line) {
	EmuSlot s;
	memcpy(s.w, &v, sizeof v);
	EmuSlot *all = emu_warp(mask, &s, line);
	memcpy(&v, all[from & 31].w, sizeof v);
	return v;
}
#define __shfl_xor_sync(mask, v, x) emu_shuffle(mask, v, emu_cur->lane ^ (x), __LINE__)
#define __shfl_sync(mask, v, from) emu_shuffle(mask, v, from, __LINE__)
static inline unsigned emu_ballot(unsigned mask, bool yes, int line) {
	EmuSlot s = {{yes}};
	EmuSlot *all = emu_warp(mask, &s, line);
	unsigned bits = 0;
	for (int i = 0; i < 32; i++)
		if (mask >> i & 1) bits |= all[i].w[0] << i;
	return bits;
}
#define __ballot_sync(mask, yes) emu_ballot(mask, yes, __LINE__)
#define __all_sync(mask, yes) (emu_ballot(mask, yes, __LINE__) == (mask))
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }

static inline int atomicAdd(int *p, int x) { return __atomic_fetch_add(p, x, __ATOMIC_RELAXED); }
static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long x) {
	return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
}

template <class To, class From> static inline To emu_bits(From x) {
	static_assert(sizeof(To) == sizeof(From), "bits of another size");
	To y;
	memcpy(&y, &x, sizeof y);
	return y;
}
static inline unsigned __float_as_uint(float x) { return emu_bits<unsigned>(x); }
static inline float __uint_as_float(unsigned x) { return emu_bits<float>(x); }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline long long __double_as_longlong(double x) { return emu_bits<long long>(x); }
static inline float __double2float_rz(double x) {
	float f = (float)x;
	return std::fabs((double)f) > std::fabs(x) ? __uint_as_float(__float_as_uint(f) - 1) : f;
}
using std::max;
using std::min;

// Conversions of 16 bits, to nearest even; every NaN becomes one, as on a GPU.
static inline float from_bf16(unsigned short h) { return __uint_as_float((unsigned)h << 16); }
static inline unsigned short to_bf16(float x) {
	unsigned u = __float_as_uint(x);
	return x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
static inline float from_f16(unsigned short h) {
	unsigned sign = (h & 0x8000u) << 16, a = h & 0x7fff;
	if (a >= 0x7c00) return __uint_as_float(a > 0x7c00 ? 0x7fffffff : sign | 0x7f800000);
	if (a < 0x400) return __uint_as_float(sign | __float_as_uint(a * 0x1p-24f));
	return __uint_as_float(sign | ((a << 13) + (112u << 23)));
}
static inline unsigned short to_f16(float x) {
	unsigned u = __float_as_uint(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
	if (a > 0x7f800000) return 0x7fff;
	if (a >= 143u << 23) return sign | 0x7c00; // 2^16 and above
	if (a >= 113u << 23) return sign | (a + 0xfff + (a >> 13 & 1) - (112u << 23)) >> 13;
	return sign | (__float_as_uint(__uint_as_float(a) + 0.5f) - 0x3f000000); // 0.5 has a last place of 2^-24
}

// emu_rough, of EMU_ROUGH in the environment, has sums of tensor cores and 2^x as coarse as a
// GPU's may be.
extern const bool emu_rough;

// emu_aligned is what tensor cores add up (Fasi et al., Numerical behavior of NVIDIA tensor
// cores, 2021): products and the old sum are shifted to the exponent of the largest and cut off
// there, at the last place of a float32, and the sum is cut off, too.
static inline float emu_aligned(const float *u, const float *v, float old) {
	double term[17] = {old}, sum = 0;
	int most = -149, e;
	for (int k = 0; k < 16; k++) term[k + 1] = (double)u[k] * v[k];
	for (double x : term) {
		if (!(fabs(x) < INFINITY)) most = 1 << 20;
		else if (x) frexp(x, &e), most = most > e ? most : e;
	}
	for (double x : term) sum += most == 1 << 20 ? x : ldexp(trunc(ldexp(x, 24 - most)), most - 24);
	float y = (float)sum;
	return fabs(y) > fabs(sum) && fabs(y) < INFINITY ? nextafterf(y, 0) : y;
}

// Tensor cores: fragments as PTX's m16n8k16 has them, products added one after the
// other, which a GPU does otherwise.
template <float (*wide)(unsigned short)> static void emu_products(EmuSlot *s) {
	float a[16][16], b[8][16];
	for (int l = 0; l < 32; l++) {
		const uint32_t *w = s[l].w;
		int g = l / 4, c = l % 4 * 2;
		for (int i = 0; i < 4; i++)
			for (int j = 0; j < 2; j++) a[g + i % 2 * 8][c + i / 2 * 8 + j] = wide(w[i] >> 16 * j);
		for (int i = 0; i < 2; i++)
			for (int j = 0; j < 2; j++) b[g][c + i * 8 + j] = wide(w[4 + i] >> 16 * j);
	}
	for (int l = 0; l < 32; l++)
		for (int i = 0; i < 4; i++) {
			const float *u = a[l / 4 + i / 2 * 8], *v = b[l % 4 * 2 + i % 2];
			float sum = 0, old = __uint_as_float(s[l].w[6 + i]);
			for (int k = 0; k < 16; k++) sum += u[k] * v[k];
			s[l].w[6 + i] = __float_as_uint(emu_rough ? emu_aligned(u, v, old) : old + sum);
		}
}
template <float (*wide)(unsigned short)> static inline void emu_mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, int line) {
	EmuSlot m;
	memcpy(m.w, a, 16);
	m.w[4] = b0, m.w[5] = b1;
	memcpy(m.w + 6, d, 16);
	memcpy(d, emu_warp(~0u, &m, line, emu_products<wide>)[emu_cur->lane].w + 6, 16);
}
static inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, int line = __builtin_LINE()) {
	emu_mma<from_bf16>(d, a, b0, b1, line);
}
static inline void mma_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, int line = __builtin_LINE()) {
	emu_mma<from_f16>(d, a, b0, b1, line);
}
static inline unsigned pack_bf16(float lo, float hi) { return to_bf16(lo) | (unsigned)to_bf16(hi) << 16; }
static inline unsigned pack_f16(float lo, float hi) { return to_f16(lo) | (unsigned)to_f16(hi) << 16; }
static inline float exp2_fast(float x) {
	float y = exp2f(x);
	if (emu_rough && y >= 0x1p-100f && y < 0x1p100f && x != floorf(x)) // up to two last places away
		y = __uint_as_float(__float_as_uint(y) + __float_as_uint(x) * 0x9e3779b1 % 5 - 2);
	return y < 0x1p-126f ? 0 : y;
}
static inline float inverse(float x) { return 1 / x; }
static inline float inverse_root(float x) { return 1 / sqrtf(x); }

// emu_matrices is ldmatrix: lane 8i+r brings where row r of the 8x8 matrix i lies.
static inline void emu_matrices(unsigned (&to)[4], const void *row, bool transposed, int line) {
	if ((uintptr_t)row % 16) emu_trap("a row of a matrix is not aligned", line);
	EmuSlot m;
	memcpy(m.w, &row, sizeof row);
	EmuSlot *all = emu_warp(~0u, &m, line);
	int g = emu_cur->lane / 4, c = emu_cur->lane % 4 * 2;
	for (int i = 0; i < 4; i++)
		for (int j = 0; j < 2; j++) {
			const unsigned short *from;
			memcpy(&from, all[8 * i + (transposed ? c + j : g)].w, sizeof from);
			to[i] = (j ? to[i] : 0) | (unsigned)from[transposed ? g : c + j] << 16 * j;
		}
}
static inline void load_matrices(unsigned (&to)[4], const unsigned short *row, int at, int line = __builtin_LINE()) { emu_matrices(to, row + at, false, line); }
static inline void load_transposed(unsigned (&to)[4], const unsigned short *row, int at, int line = __builtin_LINE()) { emu_matrices(to, row + at, true, line); }

// Copies happen when they are waited for; until then there is NaN.
static inline void emu_copy(void *to, const void *from, unsigned room, unsigned bytes, int line) {
	EmuCopies &c = emu_cur->copies;
	if ((uintptr_t)to % room || (uintptr_t)from % room) emu_trap("a copy into shared memory is not aligned", line);
	if (c.n == sizeof c.all / sizeof *c.all) emu_trap("more copies into shared memory than the emulator keeps", line);
	memset(to, 0xff, room);
	c.all[c.n++] = {(char *)to, (const char *)from, room, bytes, c.groups};
}
static inline void copy16(unsigned short *to, int at, const void *from, int bytes, int line = __builtin_LINE()) { emu_copy(to + at, from, 16, bytes, line); }
static inline void copy4(float *to, int at, const void *from, int bytes, int line = __builtin_LINE()) { emu_copy(to + at, from, 4, bytes, line); }
static inline void copy_commit() { emu_cur->copies.groups++; }
template <int N> static inline void copy_wait() {
	EmuCopies &c = emu_cur->copies;
	unsigned done = 0;
	for (; done < c.n && c.all[done].group + N < c.groups; done++) {
		auto &x = c.all[done];
		for (unsigned i = 0; i < x.room; i++) x.to[i] = i < x.bytes ? x.from[i] : 0;
		emu_cur->unfenced = true;
	}
	c.n -= done;
	for (unsigned i = 0; i < c.n; i++) c.all[i] = c.all[done + i];
}

// Products of four warps (wgmma, m64n64k16). A warp's part is done when it is waited for, or, in a
// drawn order, at once: until then its sums are NaN. A descriptor says where an operand lies: rows
// of 128 bytes, eight of them SBO apart from the next eight, and in each row 16 bytes are where the
// row's number, by the address, has been added to theirs without carry.
struct EmuProduct {
	void (*run)(const EmuProduct &, float (*sum)[32]);
	uint64_t b;
	uint32_t a[32][4]; // of each lane: elements, or the descriptor of A, the same for all
	const void *from[32]; // where they still have to be when it is done
	bool add;
	unsigned warp, group;
};
const char *emu_at(unsigned address);
unsigned emu_address(const void *);
void emu_issue(EmuSlot *);  // adds the last lane's product to the warp's
void emu_commit(EmuSlot *); // closes a group of them
void emu_await(EmuSlot *);  // does those that slot 0 does not allow to be under way
void emu_fence(EmuSlot *);

static inline unsigned in_shared(const void *p) { return emu_address(p); }

template <float (*wide)(unsigned short)> static float emu_element(uint64_t desc, int row, int k, bool trans) {
	unsigned start = (desc & 0x3fff) << 4, next = (desc >> 32 & 0x3fff) << 4, at;
	at = trans ? start + k / 8 * next + k % 8 * 128 + row * 2 : start + row / 8 * next + row % 8 * 128 + k * 2;
	unsigned short h;
	memcpy(&h, emu_at(at ^ (at >> 7 & 7) << 4), sizeof h);
	return wide(h);
}
template <float (*wide)(unsigned short), bool REGS, bool TRANS> static void emu_run(const EmuProduct &p, float (*sum)[32]) {
	float a[16][16], b[64][16];
	uint64_t da;
	for (int l = 0; REGS && l < 32; l++)
		if (memcmp(p.a[l], p.from[l], sizeof p.a[l])) emu_trap("elements of a product under way were changed", 0);
	memcpy(&da, p.a[0], sizeof da);
	for (int i = 0; i < 16; i++)
		for (int k = 0; k < 16; k++) {
			unsigned w = p.a[i % 8 * 4 + k % 8 / 2][i / 8 + k / 8 * 2];
			a[i][k] = REGS ? wide(w >> 16 * (k % 2)) : emu_element<wide>(da, p.warp % 4 * 16 + i, k, false);
		}
	for (int j = 0; j < 64; j++)
		for (int k = 0; k < 16; k++) b[j][k] = emu_element<wide>(p.b, j, k, TRANS);
	for (int l = 0; l < 32; l++)
		for (int i = 0; i < 32; i++) {
			const float *u = a[l / 4 + i / 2 % 2 * 8], *v = b[i / 4 * 8 + l % 4 * 2 + i % 2];
			float s = 0, old = p.add ? sum[l][i] : 0;
			for (int k = 0; k < 16; k++) s += u[k] * v[k];
			sum[l][i] = emu_rough ? emu_aligned(u, v, old) : old + s;
		}
}
template <int TYPE, bool TRANS, bool REGS> static inline void emu_wgmma(float (&d)[32], const void *a, uint64_t b, bool add, int line) {
	EmuSlot m;
	float *to = d;
	memcpy(m.w, &to, sizeof to);
	memcpy(m.w + 2, a, REGS ? 16 : 8);
	memcpy(m.w + 6, &a, sizeof a);
	emu_cur->product = {TYPE == 1 ? emu_run<from_bf16, REGS, TRANS> : emu_run<from_f16, REGS, TRANS>, b, add, line};
	emu_warp(~0u, &m, line, emu_issue);
}
template <int TYPE, bool TRANS> static inline void wgmma(float (&d)[32], const unsigned (&a)[4], uint64_t b, bool add, int line = __builtin_LINE()) {
	emu_wgmma<TYPE, TRANS, true>(d, a, b, add, line);
}
template <int TYPE> static inline void wgmma(float (&d)[32], uint64_t a, uint64_t b, bool add, int line = __builtin_LINE()) {
	emu_wgmma<TYPE, false, false>(d, &a, b, add, line);
}
static inline void wgmma_meet(void (*work)(EmuSlot *), unsigned n, int line) {
	EmuSlot m = {{n}};
	emu_warp(~0u, &m, line, work);
}
static inline void wgmma_fence(int line = __builtin_LINE()) { wgmma_meet(emu_fence, 0, line); }
static inline void wgmma_commit(int line = __builtin_LINE()) { wgmma_meet(emu_commit, 0, line); }
template <int N> static inline void wgmma_wait(int line = __builtin_LINE()) { wgmma_meet(emu_await, N, line); }
static inline void fence_async() { emu_cur->unfenced = false; }
template <int N> static inline void landed(float (&)[N]) {}

// Kernels by name, with a function that takes cuLaunchKernel's parameters.
struct EmuKernel {
	const char *name;
	void (*call)(void **);
	int params;
	const int *size; // bytes of each
	EmuKernel *next;
};
extern EmuKernel *emu_kernels;
template <class... A> struct EmuSizes { static constexpr int v[] = {(int)sizeof(A)..., 0}; };
template <auto F> struct EmuEntry;
template <class... A, void (*F)(A...)> struct EmuEntry<F> {
	template <size_t... I> static void go(void **p, std::index_sequence<I...>) { F(*(std::remove_const_t<A> *)p[I]...); }
	static void call(void **p) { go(p, std::index_sequence_for<A...>{}); }
	static EmuKernel make(const char *name) { return {name, call, sizeof...(A), EmuSizes<A...>::v, emu_kernels}; }
};
#define KERNEL(f) \
	static EmuKernel emu_k_##f = EmuEntry<f>::make(#f); \
	static bool emu_r_##f = (emu_kernels = &emu_k_##f, true);
