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
struct EmuThread { EmuDim tid, bid, bdim, gdim; unsigned lane, warp; };
extern thread_local EmuThread *emu_cur __attribute__((tls_model("initial-exec")));
#define threadIdx (emu_cur->tid)
#define blockIdx (emu_cur->bid)
#define blockDim (emu_cur->bdim)
#define gridDim (emu_cur->gdim)

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };

// emu_warp is a rendezvous of the lanes in mask, which all come from one line:
// it returns what each lane brought, which stays until the next but one.
struct EmuSlot { uint32_t w[2]; };
EmuSlot *emu_warp(unsigned mask, const EmuSlot *mine, int line);
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
static inline unsigned emu_ballot(unsigned mask, bool yes, int line) {
	EmuSlot s = {{yes}};
	EmuSlot *all = emu_warp(mask, &s, line);
	unsigned bits = 0;
	for (int i = 0; i < 32; i++)
		if (mask >> i & 1) bits |= all[i].w[0] << i;
	return bits;
}
#define __ballot_sync(mask, yes) emu_ballot(mask, yes, __LINE__)
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
