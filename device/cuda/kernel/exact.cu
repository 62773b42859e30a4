// Sums without rounding: device/exact.go defines the order within blocks and the limbs. Eight
// threads sum a block of 64 elements in float64. The sum is added to limbs in registers, then in
// shared memory, then by integer atomics in device memory. So the sum, once carried, has the same
// bits on every device.

#define LIMBS 19
#define EXACT (LIMBS + 1) // the last one counts non-finite terms
#define LOW -298 // limb i counts units of 2^(32 i + LOW)

// Window holds three limbs, starting at number limb.
struct Window {
	i64 part[3];
	int limb;
};

__device__ void flush(Window &w, u64 *limbs) {
	for (int j = 0; j < 3; j++) {
		if (w.part[j]) atomicAdd(&limbs[w.limb + j], (u64)w.part[j]);
		w.part[j] = 0;
	}
}

// add_exact implements device.Exact.Add.
__device__ void add_exact(Window &w, u64 *limbs, double x) {
	u64 b = (u64)__double_as_longlong(x), m = (b & ((1ull << 52) - 1)) | 1ull << 52;
	int exp = (int)(b >> 52 & 0x7ff), at = exp - 1075 - LOW;
	if (exp == 0x7ff) {
		atomicAdd(&limbs[LIMBS], (u64)1);
		return;
	}
	if (x == 0) return;
	if (at < 0) m >>= -at, at = 0; // terms are multiples of 2^LOW, so only zeros are shifted out
	if (at / 32 != w.limb) {
		flush(w, limbs);
		w.limb = at / 32;
	}
	int s = at % 32;
	i64 sign = b >> 63 ? -1 : 1;
	u64 low = m << s;
	w.part[0] += sign * (i64)(low & 0xffffffff);
	w.part[1] += sign * (i64)(low >> 32);
	w.part[2] += sign * (i64)(m >> 1 >> (63 - s));
}

// exact_sum adds the elements of x, or their squares, to acc.
ENTRY exact_sum(u64 *acc, Mat x, i64 n, int squares) {
	SHARED(u64, limbs, EXACT);
	if (threadIdx.x < EXACT) limbs[threadIdx.x] = 0;
	__syncthreads();
	Window w = {{0, 0, 0}, 0};
	i64 blocks = (n + 63) / 64, most = (blocks + 31) / 32 * 32; // whole warps continue together
	for (i64 b = (blockIdx.x * (i64)THREADS + threadIdx.x) / 8; b < most; b += (i64)gridDim.x * THREADS / 8) {
		double sum = 0;
		for (int i = 0; i < 8; i++) {
			i64 at = b * 64 + i * 8 + threadIdx.x % 8;
			double v = at < n ? get(x, at) : 0;
			sum += squares ? v * v : v;
		}
		for (int o = 4; o; o /= 2) sum += __shfl_xor_sync(ALL, sum, o);
		if (threadIdx.x % 8 == 0) add_exact(w, limbs, sum);
	}
	flush(w, limbs);
	__syncthreads();
	if (threadIdx.x < EXACT && limbs[threadIdx.x]) atomicAdd(&acc[threadIdx.x], limbs[threadIdx.x]);
}
KERNEL(exact_sum)

// exact_value implements device.Exact.Value for non-negative sums of finite terms. It carries the
// limbs.
__device__ double exact_value(u64 *limb) {
	for (int i = 0; i < LIMBS - 1; i++) {
		limb[i + 1] += (i64)limb[i] >> 32;
		limb[i] &= 0xffffffff;
	}
	int top = LIMBS - 1;
	while (top > 0 && !limb[top]) top--;
	u64 lead = limb[top];
	int exp = 32 * top + LOW;
	for (int i = top - 1; i >= 0; i--) {
		int take = min(__clzll((i64)lead), 32);
		lead = lead << take | limb[i] >> (32 - take);
		exp -= take;
		if (limb[i] << take & 0xffffffff) lead |= 1; // lost bits only matter for rounding
	}
	return ldexp((double)lead, exp);
}

// divide_by_norm divides x by the larger of eps and the root of acc, its exact sum of squares,
// rounded to x's type. If an element is not finite, it divides by NaN.
ENTRY divide_by_norm(Mat x, const u64 *acc, float eps, i64 n) {
	SHARED(u64, limbs, EXACT);
	SHARED(float, by, 1);
	if (threadIdx.x < EXACT) limbs[threadIdx.x] = acc[threadIdx.x];
	__syncthreads();
	if (threadIdx.x == 0) {
		float norm = limbs[LIMBS] ? INF - INF : (float)sqrt(exact_value(limbs));
		if (x.type != F32) norm = from16(to16(norm, x.type), x.type);
		by[0] = norm < eps ? eps : norm;
	}
	__syncthreads();
	EACH4(i, n) {
		Four f = get4(x, i, n - i);
		for (int j = 0; j < 4; j++) f.v[j] /= by[0];
		put4(x, i, n - i, f);
	}
}
KERNEL(divide_by_norm)
