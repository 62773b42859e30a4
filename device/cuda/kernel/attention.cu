// Causal attention in tiles of shared memory. Products use ordinary cores in float32; tensor cores
// would replace dot_tile and the two sums below.
//
// The forward pass keeps each row's largest score and the sum of exponentials relative to it (Dao
// et al., arXiv 2205.14135), so no T×T matrix exists. The backward pass recomputes probabilities,
// in one kernel by key tile for dk and dv and in another by query tile for dq, so each element is
// summed by one thread in a fixed order.
//
// Letters: q query positions of a tile, k key positions, d elements of a head. DP is the head's
// width D rounded up to a width that has kernels; LD is the number of floats from a row of a tile
// to the next. THREADS are 16 × 16: thread (y, x) owns rows y, y+16, ... of a tile. Its columns are
// x, x+16, ... of scores and, of a head's elements, 4x to 4x+3 of every 64.

// Attn is device.Attn. keys is past + T. start is null if every sequence is one document; otherwise
// it never decreases from a position to the next, so a tile's first query sees the first key. The
// window of query t begins at key t + reach, which is negative without a window.
struct Attn {
	const int *start;
	int T, keys, H, KV, D, past, reach;
	float scale, cap;
	static const bool DROPS = false, CAPS = false;
};

// Capping is an Attn whose cap kernels on tensor cores apply; with cap 0 it caps nothing.
struct Capping : Attn { static const bool CAPS = true; };

// Dropping is an Attn with dropout of probabilities; with drop 0 it drops none. On tensor cores,
// kernels exist for both types, so that runs without dropout skip the test.
struct Dropping : Attn {
	Drop drop;
	static const bool DROPS = true;
};

// drop_row returns the number of query t's row in the dropout mask; see device.Attn's DropRow.
__device__ u64 drop_row(const Dropping &a, int b, int h, int t) { return a.drop.row + ((u64)h << 44) + (u64)((i64)b * a.T + t); }

// first_key returns the first key position that query t of sequence b sees; start counts from the
// first query. For positions after the last query only the window counts.
__device__ int first_key(const Attn &a, int b, int t) {
	int first = max(0, t + a.reach);
	return a.start && t < a.T ? max(first, a.past + a.start[(i64)b * a.T + t]) : first;
}

// UNSEEN is the score of a key that a query does not see. Compared with the score of any visible
// key, and each query sees its own, the exponential is 0. A row's sum before its first visible key
// is later multiplied by 0.
#define UNSEEN -1e30f

#define TX ((int)threadIdx.x % 16)
#define TY ((int)threadIdx.x / 16)

// load_tile copies n rows of a head, starting at element at, to ROWS rows of shared memory. It
// fills the rest, beyond n and D, with 0.
template <int ROWS, int DP> __device__ void load_tile(float *to, const Mat &m, i64 at, int n, int D) {
#pragma unroll 1
	for (int i = threadIdx.x; i < ROWS * DP / 4; i += THREADS) {
		int r = i / (DP / 4), c = i % (DP / 4) * 4;
		Four f = get4(m, at + (i64)r * m.ld + c, r < n ? D - c : 0);
		float4 x;
		x.x = f.v[0], x.y = f.v[1], x.z = f.v[2], x.w = f.v[3];
		*(float4 *)(to + r * (DP + 4) + c) = x;
	}
}

// dot_tile sets s[i][j] to the product of row y+16i of a and row x+16j of b.
template <int DP, int M, int N> __device__ void dot_tile(float (&s)[M][N], const float *a, const float *b, int D) {
	for (int i = 0; i < M; i++)
		for (int j = 0; j < N; j++) s[i][j] = 0;
#pragma unroll 1
	for (int c = 0; c < D; c += 4) {
		float4 u[M], v[N];
#pragma unroll
		for (int i = 0; i < M; i++) u[i] = *(const float4 *)(a + (TY + 16 * i) * (DP + 4) + c);
#pragma unroll
		for (int j = 0; j < N; j++) v[j] = *(const float4 *)(b + (TX + 16 * j) * (DP + 4) + c);
#pragma unroll
		for (int i = 0; i < M; i++)
#pragma unroll
			for (int j = 0; j < N; j++)
				s[i][j] = fmaf(u[i].w, v[j].w, fmaf(u[i].z, v[j].z, fmaf(u[i].y, v[j].y, fmaf(u[i].x, v[j].x, s[i][j]))));
	}
}

// add_product adds row y+16i of a·b to o[i] or, with T, that row of aᵀ·b, summing over the N rows
// of b. Rows of a are ld floats apart.
template <bool T, int DP, int N, int M> __device__ void add_product(float (&o)[M][DP / 16], const float *a, int ld, const float *b) {
#pragma unroll 1
	for (int k = 0; k < N; k += 4) {
		float u[M][4];
#pragma unroll
		for (int i = 0; i < M; i++) {
			int r = TY + 16 * i;
			if (T) {
#pragma unroll
				for (int j = 0; j < 4; j++) u[i][j] = a[(k + j) * ld + r];
			} else {
				float4 x = *(const float4 *)(a + r * ld + k);
				u[i][0] = x.x, u[i][1] = x.y, u[i][2] = x.z, u[i][3] = x.w;
			}
		}
#pragma unroll
		for (int j = 0; j < 4; j++)
#pragma unroll
			for (int c = 0; c < DP / 64; c++) {
				float4 v = *(const float4 *)(b + (k + j) * (DP + 4) + 64 * c + 4 * TX);
#pragma unroll
				for (int i = 0; i < M; i++) {
					o[i][4 * c] = fmaf(u[i][j], v.x, o[i][4 * c]);
					o[i][4 * c + 1] = fmaf(u[i][j], v.y, o[i][4 * c + 1]);
					o[i][4 * c + 2] = fmaf(u[i][j], v.z, o[i][4 * c + 2]);
					o[i][4 * c + 3] = fmaf(u[i][j], v.w, o[i][4 * c + 3]);
				}
			}
	}
}

// store_tile writes n rows of o, multiplied by by[i], to a head, starting at element at.
template <int DP, int M> __device__ void store_tile(const Mat &m, i64 at, int n, int D, const float (&o)[M][DP / 16], const float (&by)[M]) {
#pragma unroll
	for (int i = 0; i < M; i++) {
		int r = TY + 16 * i;
#pragma unroll
		for (int c = 0; c < DP / 64; c++) {
			Four f;
			for (int j = 0; j < 4; j++) f.v[j] = o[i][4 * c + j] * by[i];
			put4(m, at + (i64)r * m.ld + 64 * c + 4 * TX, r < n ? D - 64 * c - 4 * TX : 0, f);
		}
	}
}

template <int N, int E> __device__ void clear_tile(float (&o)[N][E]) {
	for (int i = 0; i < N; i++)
		for (int j = 0; j < E; j++) o[i][j] = 0;
}

// row_max and row_sum reduce over the 16 threads that share a row.
__device__ float row_max(float x) {
	for (int o = 8; o; o /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, o));
	return x;
}
__device__ float row_sum(float x) {
	for (int o = 8; o; o /= 2) x += __shfl_xor_sync(ALL, x, o);
	return x;
}

// kept_tile sets bit i*N+j if dropout keeps the probability of query y+16i, counted from position
// t, and key x+16j, counted from k0; without dropout it sets all bits. Each of the 16 threads that
// share a query computes the mask of eight keys for the others.
template <int M, int N> __device__ unsigned kept_tile(const Dropping &a, int b, int h, int t, int k0) {
	const int GROUPS = 2 * N;
	static_assert(M * GROUPS <= 16, "more groups of keys than threads");
	if (a.drop.drop == 0) return ~0u;
	unsigned own = kept8(a.drop, drop_row(a, b, h, t + TY + TX / GROUPS % M * 16), k0 / 8 + TX % GROUPS), bits = 0;
#pragma unroll
	for (int i = 0; i < M; i++)
#pragma unroll
		for (int j = 0; j < N; j++) bits |= (__shfl_sync(ALL, own, LANE / 16 * 16 + i * GROUPS + 2 * j + TX / 8) >> TX % 8 & 1) << (i * N + j);
	return bits;
}

// attention computes BQ queries of a head against tiles of BK keys. Blocks of the last queries,
// which see most keys, start first.
template <int BQ, int BK, int DP> __device__ void attention(const Mat &o, float *lse, const Mat &q, const Mat &k, const Mat &v, const Dropping &a) {
	DYNAMIC_SHARED(float, mem);
	float *Q = mem, *K = Q + BQ * (DP + 4), *V = K + BK * (DP + 4), *P = V + BK * (DP + 4);
	const int M = BQ / 16, N = BK / 16;
	int q0 = (gridDim.x - 1 - blockIdx.x) * BQ, h = blockIdx.y, b = blockIdx.z, nq = min(BQ, a.T - q0);
	i64 row = (i64)b * a.T + q0, key = (i64)b * a.keys;
	int head = h * a.D, shared = h / (a.H / a.KV) * a.D;
	load_tile<BQ, DP>(Q, q, row * q.ld + head, nq, a.D);
	float acc[M][DP / 16], top[M], sum[M];
	clear_tile(acc);
	for (int i = 0; i < M; i++) top[i] = -INF, sum[i] = 0;
	for (int k0 = first_key(a, b, q0) / BK * BK; k0 < a.past + q0 + nq; k0 += BK) {
		int nk = min(BK, a.keys - k0);
		__syncthreads(); // the previous tile has been read
		load_tile<BK, DP>(K, k, (key + k0) * k.ld + shared, nk, a.D);
		load_tile<BK, DP>(V, v, (key + k0) * v.ld + shared, nk, a.D);
		__syncthreads();
		float s[M][N];
		dot_tile<DP>(s, Q, K, a.D);
		unsigned kept = kept_tile<M, N>(a, b, h, q0, k0);
		for (int i = 0; i < M; i++) {
			int t = q0 + TY + 16 * i, from = first_key(a, b, t) - k0, to = min(nk, a.past + t + 1 - k0); // visible keys of the tile
			float most = top[i], part = 0;
			for (int j = 0; j < N; j++) {
				int key = TX + 16 * j;
				s[i][j] = key >= from && key < to ? capped(s[i][j] * a.scale, a.cap) : UNSEEN;
				most = fmaxf(most, s[i][j]);
			}
			most = row_max(most);
			float shrink = exp32(top[i] - most);
			top[i] = most;
			for (int j = 0; j < N; j++) {
				float p = exp32(s[i][j] - most);
				P[(TY + 16 * i) * (BK + 4) + TX + 16 * j] = kept >> (i * N + j) & 1 ? p : 0;
				part += p;
			}
			sum[i] = fmaf(sum[i], shrink, part);
			for (int e = 0; e < DP / 16; e++) acc[i][e] *= shrink;
		}
		__syncthreads();
		add_product<false, DP, BK>(acc, P, BK + 4, V); // V is 0 after the last key
	}
	for (int i = 0; i < M; i++) {
		float all = row_sum(sum[i]);
		if (TX == 0 && TY + 16 * i < nq) lse[((i64)b * a.H + h) * a.T + q0 + TY + 16 * i] = top[i] + (float)log((double)all);
		sum[i] = 1 / all * a.drop.scale;
	}
	store_tile<DP>(o, row * o.ld + head, nq, a.D, acc, sum);
}

// attention_delta sets delta (B, H, T) to the row sums of do*o. Depending on the head's width, 32,
// 16 or 8 lanes of a warp share a row of a head.
PASS attention_delta(float *delta, Mat dout, Mat o, Attn a, int B) {
	int lanes = a.D > 128 ? 32 : a.D > 64 ? 16 : 8, at = 8 * (LANE % lanes), rows = B * a.H * a.T;
	with_kind(type_of(a.D % 8 == 0, dout, o), [&](auto type) {
		const int AS = decltype(type)::is;
		EACH_ROW(w, (rows + 32 / lanes - 1) / (32 / lanes)) {
			int i = (int)w * (32 / lanes) + LANE / lanes, t = i % a.T, h = i / a.T % a.H;
			i64 row = (i64)(i / a.T / a.H) * a.T + t;
			float sum = 0;
			for (int c = at; i < rows && c < a.D; c += 8 * lanes) {
				int first = h * a.D;
				Eight d = get8<AS>(row_of(dout, row), first + c, first + a.D), x = get8<AS>(row_of(o, row), first + c, first + a.D);
				EIGHT(j) sum = fmaf(d.v[j], x.v[j], sum);
			}
			for (int o = lanes / 2; o; o /= 2) sum += __shfl_xor_sync(ALL, sum, o);
			if (at == 0 && i < rows) delta[i] = sum;
		}
	});
}
KERNEL(attention_delta)

// grad_scores processes the queries q0+y+16i and keys k0+x+16j of a tile. It writes the
// probabilities after dropout to P, if not null, and ds = p*(do·v - delta) to S, with do·v = 0 for
// dropped probabilities.
template <int BK, int DP, int M, int N>
__device__ void grad_scores(float *P, float *S, const float *Q, const float *dO, const float *K, const float *V, const float *lse,
	const float *delta, int q0, int k0, int h, const Dropping &a) {
	float s[M][N], d[M][N];
	dot_tile<DP>(s, Q, K, a.D);
	dot_tile<DP>(d, dO, V, a.D);
	unsigned kept = kept_tile<M, N>(a, blockIdx.z, h, q0, k0);
	for (int i = 0; i < M; i++) {
		int t = q0 + TY + 16 * i, from = first_key(a, blockIdx.z, t), to = t < a.T ? a.past + t + 1 : 0;
		float l = t < a.T ? lse[t] : 0, e = t < a.T ? delta[t] : 0;
		for (int j = 0; j < N; j++) {
			int at = (TY + 16 * i) * (BK + 4) + TX + 16 * j;
			int key = k0 + TX + 16 * j;
			bool sees = key >= from && key < to;
			float x = a.cap > 0 ? capped(s[i][j] * a.scale, a.cap) - l : fmaf(s[i][j], a.scale, -l);
			float p = sees ? exp32(x) : 0;
			bool is = kept >> (i * N + j) & 1;
			d[i][j] = is ? d[i][j] * a.drop.scale : 0;
			if (P) P[at] = is ? p : 0;
			S[at] = sees ? p * (d[i][j] - e) * cap_slope(x + l, a.cap) : 0;
		}
	}
}

// attention_dq computes dq = scale dS·K for BQ queries of a head.
template <int BQ, int BK, int DP>
__device__ void attention_dq(const Mat &dq, const Mat &dout, const Mat &q, const Mat &k, const Mat &v, const float *lse, const float *delta, const Dropping &a) {
	DYNAMIC_SHARED(float, mem);
	float *Q = mem, *dO = Q + BQ * (DP + 4), *K = dO + BQ * (DP + 4), *V = K + BK * (DP + 4), *S = V + BK * (DP + 4);
	const int M = BQ / 16;
	int q0 = (gridDim.x - 1 - blockIdx.x) * BQ, h = blockIdx.y, nq = min(BQ, a.T - q0);
	i64 first = (i64)blockIdx.z * a.T, key = (i64)blockIdx.z * a.keys, stat = ((i64)blockIdx.z * a.H + h) * a.T;
	int head = h * a.D, shared = h / (a.H / a.KV) * a.D;
	load_tile<BQ, DP>(Q, q, (first + q0) * q.ld + head, nq, a.D);
	load_tile<BQ, DP>(dO, dout, (first + q0) * dout.ld + head, nq, a.D);
	float acc[M][DP / 16], by[M];
	clear_tile(acc);
	for (int i = 0; i < M; i++) by[i] = a.scale;
	for (int k0 = first_key(a, blockIdx.z, q0) / BK * BK; k0 < a.past + q0 + nq; k0 += BK) {
		int nk = min(BK, a.keys - k0);
		__syncthreads();
		load_tile<BK, DP>(K, k, (key + k0) * k.ld + shared, nk, a.D);
		load_tile<BK, DP>(V, v, (key + k0) * v.ld + shared, nk, a.D);
		__syncthreads();
		grad_scores<BK, DP, M, BK / 16>(nullptr, S, Q, dO, K, V, lse + stat, delta + stat, q0, k0, h, a);
		__syncthreads();
		add_product<false, DP, BK>(acc, S, BK + 4, K);
	}
	store_tile<DP>(dq, (first + q0) * dq.ld + head, nq, a.D, acc, by);
}

// attention_dkv computes dv = P^T·dO and dk = scale dS^T·Q for BK keys of a head, over all query
// heads that share it, one after the other.
template <int BQ, int BK, int DP>
__device__ void attention_dkv(const Mat &dk, const Mat &dv, const Mat &dout, const Mat &q, const Mat &k, const Mat &v, const float *lse, const float *delta,
	const Dropping &a) {
	DYNAMIC_SHARED(float, mem);
	float *K = mem, *V = K + BK * (DP + 4), *Q = V + BK * (DP + 4), *dO = Q + BQ * (DP + 4), *P = dO + BQ * (DP + 4), *S = P + BQ * (BK + 4);
	const int M = BK / 16;
	int k0 = blockIdx.x * BK, kv = blockIdx.y, nk = min(BK, a.keys - k0), share = a.H / a.KV;
	i64 first = (i64)blockIdx.z * a.T, key = (i64)blockIdx.z * a.keys;
	load_tile<BK, DP>(K, k, (key + k0) * k.ld + kv * a.D, nk, a.D);
	load_tile<BK, DP>(V, v, (key + k0) * v.ld + kv * a.D, nk, a.D);
	float gk[M][DP / 16], gv[M][DP / 16], by[M], one[M];
	clear_tile(gk);
	clear_tile(gv);
	for (int i = 0; i < M; i++) by[i] = a.scale, one[i] = a.drop.scale;
	int begin = max(0, k0 - a.past), end = min(a.T, k0 + nk - a.reach); // queries that see a key of the tile
	for (int h = kv * share; h < (kv + 1) * share; h++) {
		i64 stat = ((i64)blockIdx.z * a.H + h) * a.T;
		for (int q0 = begin / BQ * BQ; q0 < end; q0 += BQ) {
			int nq = min(BQ, a.T - q0);
			if (a.start && a.past + a.start[first + q0] >= k0 + nk) break; // later documents
			__syncthreads();
			load_tile<BQ, DP>(Q, q, (first + q0) * q.ld + h * a.D, nq, a.D);
			load_tile<BQ, DP>(dO, dout, (first + q0) * dout.ld + h * a.D, nq, a.D);
			__syncthreads();
			grad_scores<BK, DP, BQ / 16, BK / 16>(P, S, Q, dO, K, V, lse + stat, delta + stat, q0, k0, h, a);
			__syncthreads();
			add_product<true, DP, BQ>(gv, P, BK + 4, dO);
			add_product<true, DP, BQ>(gk, S, BK + 4, Q);
		}
	}
	store_tile<DP>(dk, (key + k0) * dk.ld + kv * a.D, nk, a.D, gk, by);
	store_tile<DP>(dv, (key + k0) * dv.ld + kv * a.D, nk, a.D, gv, one);
}

// Kernels for heads of up to DP elements. Forward uses tiles of Q queries and K keys. In backward,
// a block owns BIG positions and iterates over SMALL at a time. The tiles fit in the 99 KiB that a
// block can use on every GPU; see attention.go.
#define ATTENTION(DP, Q, K, BIG, SMALL) \
	ENTRY attention_##DP(Mat o, float *lse, Mat q, Mat k, Mat v, Dropping a) { attention<Q, K, DP>(o, lse, q, k, v, a); } \
	KERNEL(attention_##DP) \
	ENTRY attention_dq_##DP(Mat dq, Mat dout, Mat q, Mat k, Mat v, const float *lse, const float *delta, Dropping a) { \
		attention_dq<BIG, SMALL, DP>(dq, dout, q, k, v, lse, delta, a); \
	} \
	KERNEL(attention_dq_##DP) \
	ENTRY attention_dkv_##DP(Mat dk, Mat dv, Mat dout, Mat q, Mat k, Mat v, const float *lse, const float *delta, Dropping a) { \
		attention_dkv<SMALL, BIG, DP>(dk, dv, dout, q, k, v, lse, delta, a); \
	} \
	KERNEL(attention_dkv_##DP)
ATTENTION(64, 64, 32, 64, 32)
ATTENTION(128, 64, 32, 32, 32)
ATTENTION(256, 32, 16, 16, 16)
