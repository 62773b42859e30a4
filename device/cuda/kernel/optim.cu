// Update rules; see device.AdamW, device.SGD and device.Lion. w (master copy), g, m and v are
// float32; p, if not null, receives w rounded to its type in the same pass. Every product and sum
// is rounded separately, which gives the CPU's bits.

struct AdamW { float scale, l2, b1, c1, b2, c2, shrink, step, root, eps; }; // c is 1 - b

// adam updates a weight x with gradient d and moments a and b.
__device__ __forceinline__ void adam(float &x, float d, float &a, float &b, const AdamW &k) {
	float e = d * k.scale + k.l2 * x;
	a = k.b1 * a + k.c1 * e;
	b = k.b2 * b + k.c2 * e * e;
	x = x * k.shrink - k.step * a / (sqrtf(b) * k.root + k.eps);
}

// Runs are of elements with the same hyperparameters: run r ends before element end[r]. The ends
// after the last run's are INT_MAX.
#define RUNS 24
struct Runs { float shrink[RUNS], l2[RUNS], step[RUNS]; int end[RUNS]; };

ENTRY adamw(Mat w, Mat p, Mat g, Mat m, Mat v, i64 n, AdamW k, Runs runs) {
	EACH4(i, n) {
		Four x = get4(w, i, n - i), d = get4(g, i, n - i), a = get4(m, i, n - i), b = get4(v, i, n - i);
		int r = 0;
#pragma unroll
		for (int j = 0; j < 4; j++) {
			while (i + j >= runs.end[r]) r++;
			k.l2 = runs.l2[r], k.shrink = runs.shrink[r], k.step = runs.step[r];
			adam(x.v[j], d.v[j], a.v[j], b.v[j], k);
		}
		put4(m, i, n - i, a);
		put4(v, i, n - i, b);
		put4(w, i, n - i, x);
		if (p.p) put4(p, i, n - i, x);
	}
}
KERNEL(adamw)

// Codes holds the magnitudes of the codes of device.Q8 and device.U8, ascending.
struct Codes { float q[128], u[256]; };

// code_of returns the code of the magnitude nearest to x, the smaller one on a tie; for NaN, the
// last.
__device__ int code_of(const float *value, int n, float x) {
	int lo = 0, hi = n - 1;
	while (lo < hi) {
		int mid = (lo + hi) / 2;
		if (x <= (value[mid] + value[mid + 1]) * 0.5f)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

// largest returns the largest magnitude among a block's threads, or 0 if that is too small to
// divide by. It compares bits, so NaN is larger than all others.
__device__ float largest(float x, unsigned *most) {
	unsigned u = __float_as_uint(x) & 0x7fffffff;
	for (int d = 16; d; d /= 2) u = max(u, __shfl_xor_sync(ALL, u, d));
	__syncthreads(); // most of the previous call has been read
	if (LANE == 0) most[WARP] = u;
	__syncthreads();
	for (int i = 0; i < WARPS; i++) u = max(u, most[i]);
	float f = __uint_as_float(u);
	return f < 0x1p-100f ? 0 : f;
}

// adamw8 is adamw with moments coded in blocks of one element per thread: m is device.Q8, v is
// device.U8.
ENTRY adamw8(Mat w, Mat p, Mat g, char *m, char *v, i64 n, AdamW k, Codes codes) {
	SHARED(float, q, 128);
	SHARED(float, u, 256);
	SHARED(unsigned, most, WARPS);
	int t = threadIdx.x;
	u[t] = codes.u[t];
	if (t < 128) q[t] = codes.q[t];
	__syncthreads();
	for (i64 block = blockIdx.x; block * THREADS < n; block += gridDim.x) {
		char *mb = m + block * (THREADS + 4), *vb = v + block * (THREADS + 4);
		unsigned char *mc = (unsigned char *)mb + 4 + t, *vc = (unsigned char *)vb + 4 + t;
		i64 i = block * THREADS + t;
		float a = 0, b = 0;
		if (i < n) {
			float x = get(w, i);
			a = (*mc & 0x80 ? -q[*mc & 0x7f] : q[*mc]) * *(float *)mb;
			b = u[*vc] * *(float *)vb;
			adam(x, get(g, i), a, b, k);
			put(w, i, x);
			if (p.p) put(p, i, x);
		}
		float am = largest(a, most), bm = largest(b, most);
		if (i < n) {
			float e = a * (1 / am), f = b * (1 / bm);
			int code = am == 0 ? 0 : code_of(q, 128, fabsf(e));
			*mc = code && e < 0 ? code | 0x80 : code;
			*vc = bm == 0 ? 0 : code_of(u, 256, fabsf(f));
			if (t == 0) *(float *)mb = am, *(float *)vb = bm;
		}
	}
}
KERNEL(adamw8)

struct SGD { float scale, decay, lr, momentum; };

// sgd has no momentum if m is null.
ENTRY sgd(Mat w, Mat p, Mat g, Mat m, i64 n, SGD k) {
	EACH4(i, n) {
		Four x = get4(w, i, n - i), d = get4(g, i, n - i);
		for (int j = 0; j < 4; j++) d.v[j] = d.v[j] * k.scale + k.decay * x.v[j];
		if (m.p) {
			Four a = get4(m, i, n - i);
			for (int j = 0; j < 4; j++) d.v[j] = k.momentum * a.v[j] + d.v[j];
			put4(m, i, n - i, d);
		}
		for (int j = 0; j < 4; j++) x.v[j] = x.v[j] - k.lr * d.v[j];
		put4(w, i, n - i, x);
		if (p.p) put4(p, i, n - i, x);
	}
}
KERNEL(sgd)

struct Lion { float scale, b1, c1, b2, c2, shrink, lr; };

// sign_of returns 1, -1 or 0; NaN stays NaN, so that a bad gradient is noticed.
__device__ float sign_of(float x) { return x > 0 ? 1 : x < 0 ? -1 : x; }

ENTRY lion(Mat w, Mat p, Mat g, Mat m, i64 n, Lion k) {
	EACH4(i, n) {
		Four x = get4(w, i, n - i), d = get4(g, i, n - i), a = get4(m, i, n - i);
		for (int j = 0; j < 4; j++) {
			float e = d.v[j] * k.scale, u = sign_of(k.b1 * a.v[j] + k.c1 * e);
			a.v[j] = k.b2 * a.v[j] + k.c2 * e;
			x.v[j] = x.v[j] * k.shrink - k.lr * u;
		}
		put4(m, i, n - i, a);
		put4(w, i, n - i, x);
		if (p.p) put4(p, i, n - i, x);
	}
}
KERNEL(lion)
