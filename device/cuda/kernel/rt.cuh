// Runtime shared by all kernels, for NVRTC and, with ../emu/emu.h, for g++.
//
// Kernels only use operations of IEEE 754, in a fixed order. Products and sums are fused only by
// fmaf (--fmad=false, -ffp-contract=off), and e^x is a polynomial. So a kernel's bits do not depend
// on the GPU or its number of processors, and the emulator produces the same. There are three
// exceptions: log and sincos in float64, rounded to float32, are the platform's; functions called
// fast or inverse, used for example in cross-entropy, are the GPU's own 2^x, 1/x and 1/sqrt(x); and
// tensor cores add in their own way.
//
// There are no floating-point atomics: every sum has one order.
#pragma once

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned short u16;

#ifdef __CUDACC__
#define SHARED(T, name, n) __shared__ T name[n]
#define DYNAMIC_SHARED(T, name) extern __shared__ __align__(16) T name[]
#define KERNEL(f)
#define FRESH(i) asm volatile("" : "+r"(i)) // makes the compiler compute values that depend on i anew from here on
#define TRAP(why) asm volatile("trap;")
__device__ __forceinline__ float from_bf16(unsigned short h) { return __uint_as_float((unsigned)h << 16); }
__device__ __forceinline__ unsigned short to_bf16(float x) {
	unsigned short h;
	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
	return h;
}
__device__ __forceinline__ float from_f16(unsigned short h) {
	float x;
	asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
	return x;
}
__device__ __forceinline__ unsigned short to_f16(float x) {
	unsigned short h;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
	return h;
}

// Tensor cores: d += a·b for 16 x 16 and 16 x 8, with fragments as PTX defines them.
#define MMA(type) \
	asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
		: "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
__device__ __forceinline__ void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) { MMA("bf16"); }
__device__ __forceinline__ void mma_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) { MMA("f16"); }
__device__ __forceinline__ unsigned pack_bf16(float lo, float hi) {
	unsigned x;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(hi), "f"(lo));
	return x;
}
__device__ __forceinline__ unsigned pack_f16(float lo, float hi) {
	unsigned x;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(hi), "f"(lo));
	return x;
}

// exp2_fast returns 2^x, inverse 1/x and inverse_root 1/sqrt(x), computed by the GPU's own unit to
// within 2 units in the last place; subnormal numbers become 0.
__device__ __forceinline__ float exp2_fast(float x) {
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
__device__ __forceinline__ float inverse(float x) {
	float y;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
__device__ __forceinline__ float inverse_root(float x) {
	float y;
	asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

// load_matrices and load_transposed read four 8 x 8 matrices of 16-bit elements from shared memory:
// lane 8i+r passes the address of row r of matrix i, aligned to 16 bytes. Here and below, an address
// is a pointer and a number of elements, so that constants become part of the instruction.
__device__ __forceinline__ unsigned in_shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const u16 *row, int at) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		: "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(in_shared(row) + 2 * at) : "memory");
}
__device__ __forceinline__ void load_transposed(unsigned (&to)[4], const u16 *row, int at) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		: "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(in_shared(row) + 2 * at) : "memory");
}

// copy16 and copy4 start copying bytes bytes to shared memory, followed by zeros up to 16 or 4.
// from is not read, and may be anything, if bytes is 0.
// copy_commit makes a group of the copies since the last one, and copy_wait<N> waits for all but
// the thread's last N groups.
__device__ __forceinline__ void copy16(u16 *to, int at, const void *from, int bytes) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(in_shared(to) + 2 * at), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy4(float *to, int at, const void *from, int bytes) {
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(in_shared(to) + 4 * at), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
#else
#include "emu.h"
#define FRESH(i)
#endif

// hide makes x unknown to the compiler, so that values that depend on x are computed where they are
// used instead of being kept in registers.
__device__ __forceinline__ void hide(unsigned &x) { asm volatile("" : "+r"(x)); }

#define THREADS 256 // per block, in all kernels except those of flash.cu
#define WARPS (THREADS / 32)
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
#define BLOCKS_OF(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#else
#define BLOCKS_OF(...) static __device__ void // only the kernels of wgmma.cu are made for sm_90a
#endif
#define ENTRY BLOCKS_OF(THREADS)
#define PASS BLOCKS_OF(THREADS, 4) // four blocks keep memory busy if each thread has 16 bytes or more in flight
#define ALL 0xffffffffu
#define LANE ((int)threadIdx.x % 32)
#define WARP ((int)threadIdx.x / 32)
#define INF __uint_as_float(0x7f800000)

enum { F32, BF16, F16, I32, F64, I64, ANY }; // device.DType; ANY: decided per element

// Mat is a matrix or vector of any float type: element (i, j) has index i*ld + j. wide 1 promises
// that four elements whose index is a multiple of four are one aligned word, and that ld is a
// multiple of four. wide 2 promises the same of eight elements, as one word of 16 bytes or two.
struct Mat {
	char *p;
	int ld;
	short type, wide;
};

__device__ __forceinline__ float from16(u16 h, int type) { return type == BF16 ? from_bf16(h) : from_f16(h); }
__device__ __forceinline__ u16 to16(float x, int type) { return type == BF16 ? to_bf16(x) : to_f16(x); }

__device__ __forceinline__ float get(const Mat &m, i64 i) {
	return m.type == F32 ? ((const float *)m.p)[i] : from16(((const u16 *)m.p)[i], m.type);
}

__device__ __forceinline__ void put(const Mat &m, i64 i, float x) {
	if (m.type == F32)
		((float *)m.p)[i] = x;
	else
		((u16 *)m.p)[i] = to16(x, m.type);
}

// row_of returns a row of a matrix of a float type.
__device__ __forceinline__ Mat row_of(const Mat &m, i64 row) { return {m.p + row * m.ld * (m.type == F32 ? 4 : 2), m.ld, m.type, m.wide}; }

struct Four { float v[4]; };

// get4 returns elements i to i+3; those after the first n are 0.
__device__ __forceinline__ Four get4(const Mat &m, i64 i, i64 n) {
	Four f = {{0, 0, 0, 0}};
	if (!m.wide || n < 4) {
		for (int j = 0; j < 4; j++)
			if (j < n) f.v[j] = get(m, i + j);
	} else if (m.type == F32) {
		float4 x = *(const float4 *)((const float *)m.p + i);
		f.v[0] = x.x, f.v[1] = x.y, f.v[2] = x.z, f.v[3] = x.w;
	} else {
		ushort4 h = *(const ushort4 *)((const u16 *)m.p + i);
		if (m.type == BF16)
			f.v[0] = from_bf16(h.x), f.v[1] = from_bf16(h.y), f.v[2] = from_bf16(h.z), f.v[3] = from_bf16(h.w);
		else
			f.v[0] = from_f16(h.x), f.v[1] = from_f16(h.y), f.v[2] = from_f16(h.z), f.v[3] = from_f16(h.w);
	}
	return f;
}

// put4 sets the first n of elements i to i+3.
__device__ __forceinline__ void put4(const Mat &m, i64 i, i64 n, const Four &f) {
	if (!m.wide || n < 4) {
		for (int j = 0; j < 4; j++)
			if (j < n) put(m, i + j, f.v[j]);
	} else if (m.type == F32) {
		float4 x;
		x.x = f.v[0], x.y = f.v[1], x.z = f.v[2], x.w = f.v[3];
		*(float4 *)((float *)m.p + i) = x;
	} else {
		ushort4 h;
		if (m.type == BF16)
			h.x = to_bf16(f.v[0]), h.y = to_bf16(f.v[1]), h.z = to_bf16(f.v[2]), h.w = to_bf16(f.v[3]);
		else
			h.x = to_f16(f.v[0]), h.y = to_f16(f.v[1]), h.z = to_f16(f.v[2]), h.w = to_f16(f.v[3]);
		*(ushort4 *)((u16 *)m.p + i) = h;
	}
}

// Loops over elements of one type are instances of a template, so that they do not test the type:
// with_type calls f with its Type. They process eight elements at a time, as words of 16 bytes.
template <int T> struct Type { static const int is = T; };
template <class F> __device__ __forceinline__ void with_type(int type, F f) {
	if (type == BF16)
		f(Type<BF16>());
	else if (type == F16)
		f(Type<F16>());
	else
		f(Type<F32>());
}

// type_of returns the common type of all matrices, or ANY if their types differ or their rows are
// not whole words; with_kind is with_type including ANY.
__device__ __forceinline__ int type_of(bool whole, const Mat &a) { return whole && a.wide == 2 ? a.type : ANY; }
template <class... M> __device__ __forceinline__ int type_of(bool whole, const Mat &a, const M &...more) {
	return type_of(whole, a) == type_of(whole, more...) ? type_of(whole, a) : ANY;
}
template <class F> __device__ __forceinline__ void with_kind(int type, F f) {
	if (type == ANY)
		f(Type<ANY>());
	else
		with_type(type, f);
}

struct Eight { float v[8]; };

template <int T> __device__ __forceinline__ float get_as(const char *p, i64 i) { return T == F32 ? ((const float *)p)[i] : from16(((const u16 *)p)[i], T); }
template <int T> __device__ __forceinline__ void put_as(char *p, i64 i, float x) {
	if (T == F32)
		((float *)p)[i] = x;
	else
		((u16 *)p)[i] = to16(x, T);
}

template <int T> __device__ __forceinline__ void unpack2(float *to, unsigned x) {
	to[0] = T == BF16 ? __uint_as_float(x << 16) : from_f16(x & 0xffff);
	to[1] = T == BF16 ? __uint_as_float(x & 0xffff0000) : from_f16(x >> 16);
}
template <int T> __device__ __forceinline__ unsigned pack2(const float *x) { return T == BF16 ? pack_bf16(x[0], x[1]) : pack_f16(x[0], x[1]); }

// load8 and store8 read and write elements i to i+7 at p, as words of 16 bytes.
template <int T> __device__ __forceinline__ Eight load8(const char *p, i64 i) {
	Eight f;
	if (T == F32) {
#pragma unroll
		for (int j = 0; j < 8; j += 4) {
			float4 x = *(const float4 *)((const float *)p + i + j);
			f.v[j] = x.x, f.v[j + 1] = x.y, f.v[j + 2] = x.z, f.v[j + 3] = x.w;
		}
	} else {
		uint4 x = *(const uint4 *)((const u16 *)p + i);
		unpack2<T>(f.v, x.x), unpack2<T>(f.v + 2, x.y), unpack2<T>(f.v + 4, x.z), unpack2<T>(f.v + 6, x.w);
	}
	return f;
}
template <int T> __device__ __forceinline__ void store8(char *p, i64 i, const Eight &f) {
	if (T == F32) {
#pragma unroll
		for (int j = 0; j < 8; j += 4) {
			float4 x;
			x.x = f.v[j], x.y = f.v[j + 1], x.z = f.v[j + 2], x.w = f.v[j + 3];
			*(float4 *)((float *)p + i + j) = x;
		}
	} else {
		uint4 x;
		x.x = pack2<T>(f.v), x.y = pack2<T>(f.v + 2), x.z = pack2<T>(f.v + 4), x.w = pack2<T>(f.v + 6);
		*(uint4 *)((u16 *)p + i) = x;
	}
}

// part8 and put_part8 are load8 and store8 restricted to elements 0 to n-1; part8 returns 0 for the
// others.
template <int T> __device__ __forceinline__ Eight part8(const char *p, i64 i, i64 n) {
	if (i >= 0 && i + 8 <= n) return load8<T>(p, i);
	Eight f;
#pragma unroll
	for (int j = 0; j < 8; j++) f.v[j] = i + j >= 0 && i + j < n ? get_as<T>(p, i + j) : 0;
	return f;
}
template <int T> __device__ __forceinline__ void put_part8(char *p, i64 i, i64 n, const Eight &f) {
	if (i >= 0 && i + 8 <= n) {
		store8<T>(p, i, f);
		return;
	}
#pragma unroll
	for (int j = 0; j < 8; j++)
		if (i + j >= 0 && i + j < n) put_as<T>(p, i + j, f.v[j]);
}

// get8 and put8 read and write elements i to i+7 of n. If T is not ANY, all of them exist.
template <int T> __device__ __forceinline__ Eight get8(const Mat &m, i64 i, i64 n) {
	if constexpr (T == ANY) {
		Eight f;
		Four a = get4(m, i, n - i), b = get4(m, i + 4, n - i - 4);
#pragma unroll
		for (int j = 0; j < 4; j++) f.v[j] = a.v[j], f.v[j + 4] = b.v[j];
		return f;
	} else
		return load8<T>(m.p, i);
}
template <int T> __device__ __forceinline__ void put8(const Mat &m, i64 i, i64 n, const Eight &f) {
	if constexpr (T == ANY) {
		Four a, b;
#pragma unroll
		for (int j = 0; j < 4; j++) a.v[j] = f.v[j], b.v[j] = f.v[j + 4];
		put4(m, i, n - i, a);
		put4(m, i + 4, n - i - 4, b);
	} else
		store8<T>(m.p, i, f);
}

// Loops of a thread over four or eight elements at a time, of a warp over rows, and of a lane over
// columns.
#define EACH4(i, n) for (i64 i = 4 * (blockIdx.x * (i64)THREADS + threadIdx.x); i < (n); i += 4 * (i64)gridDim.x * THREADS)
#define EACH8(i, n) for (i64 i = 8 * (blockIdx.x * (i64)THREADS + threadIdx.x); i < (n); i += 8 * (i64)gridDim.x * THREADS)
#define EACH(i, n) for (i64 i = blockIdx.x * (i64)THREADS + threadIdx.x; i < (n); i += (i64)gridDim.x * THREADS)
#define EIGHT(j) _Pragma("unroll") for (int j = 0; j < 8; j++)
#define EACH_ROW(row, n) for (i64 row = blockIdx.x * (i64)WARPS + WARP; row < (n); row += (i64)gridDim.x * WARPS)
#define LANE4(c, n) for (int c = 4 * LANE; c < (n); c += 128)
#define LANE8(c, n) _Pragma("unroll 1") for (int c = 8 * LANE; c < (n); c += 256)

// warp_sum and warp_max return the same bits in every lane.
__device__ float warp_sum(float x) {
	for (int o = 16; o; o /= 2) x += __shfl_xor_sync(ALL, x, o);
	return x;
}
__device__ double warp_sum(double x) {
	for (int o = 16; o; o /= 2) x += __shfl_xor_sync(ALL, x, o);
	return x;
}
__device__ float warp_max(float x) {
	for (int o = 16; o; o /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, o));
	return x;
}

// exp32 returns e^x to within 1.1 units in the last place. Below -87.33, where the result would be
// subnormal, it returns 0. x = n ln 2 + r; the result is a polynomial in r with n added to the
// exponent: Cephes' expf, as in package cpu.
__device__ float exp32(float x) {
	if (!(x <= 88.72283f)) return x * INF; // overflow; NaN stays NaN
	if (x < -87.33f) return 0;
	float t = fmaf(x, 1.44269504f, 12582912.0f), n = t - 12582912.0f; // rounds to an integer
	float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));
	float p = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
	p = fmaf(p, r, 8.3334519073e-3f);
	p = fmaf(p, r, 4.1665795894e-2f);
	p = fmaf(p, r, 1.6666665459e-1f);
	p = fmaf(p, r, 5.0000001201e-1f);
	return __uint_as_float(__float_as_uint(fmaf(p * r, r, r) + 1) + (__float_as_uint(t) << 23));
}

#define LOG2E 1.44269504f

// exp_fast returns e^x with an error of 2 units in the last place plus half a unit of x log2(e).
__device__ __forceinline__ float exp_fast(float x) { return exp2_fast(x * LOG2E); }

// tanh_fast returns the hyperbolic tangent with an error of some 3e-7, which is small enough to be
// multiplied by a cap: tanh.approx has 5e-4 times the result.
__device__ __forceinline__ float tanh_fast(float x) { return 1 - 2 * inverse(exp_fast(2 * x) + 1); }

// tanh32 returns the hyperbolic tangent to within 2 units in the last place: Cephes' tanhf, as in
// package cpu; tanh_small is valid up to 0.625.
__device__ float tanh_small(float x) {
	float z = x * x, p = fmaf(-5.70498872745e-3f, z, 2.06390887954e-2f);
	p = fmaf(fmaf(fmaf(p, z, -5.37397155531e-2f), z, 1.33314422036e-1f), z, -3.33332819422e-1f);
	return fmaf(x * z, p, x);
}
__device__ float tanh32(float x) {
	float a = fabsf(x);
	if (a < 0.625f) return tanh_small(x);
	return copysignf(1 - 2 / (exp32(a + a) + 1), x);
}

// capped returns cap tanh(x/cap), or x without a cap; cap_slope returns its derivative where its
// value is y.
__device__ __forceinline__ float capped(float x, float cap) { return cap > 0 ? cap * tanh32(x / cap) : x; }
__device__ __forceinline__ float cap_slope(float y, float cap) {
	float t = y / cap;
	return cap > 0 ? 1 - t * t : 1;
}
