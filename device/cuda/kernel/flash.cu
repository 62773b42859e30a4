// Causal attention of 16-bit types on tensor cores. It computes the same as attention.cu, but keeps
// scores and their gradients in registers from one product to the next (Dao, arXiv 2307.08691).
// Probabilities and ds are rounded to the operands' type before multiplication; sums are float32.
// Each element is summed by one thread in a fixed order: dk and dv by a block that owns keys, dq by
// one that owns queries.
//
// A block has 4 warps; each owns 16M rows of the block's tile. Blocks for heads wider than 128 have 8,
// see FLASH_WIDE. In thread (g, c) of a warp, a
// fragment of C holds rows g and g+8 and columns 2c and 2c+1 of a 16 x 8 tile: C[0] and C[1] of row
// g, C[2] and C[3] of row g+8. DP is the head's width D rounded up to a width that has kernels.
// Rows of a tile in shared memory are DP+8 elements apart, so that the same 16 bytes of eight rows
// are in different banks.

#define FLASH_WARPS 4
#define FLASH_THREADS (32 * FLASH_WARPS)
#define FLASH(WARPS_OF) BLOCKS_OF(32 * (WARPS_OF))
#define G (LANE / 4)
#define C2 (LANE % 4 * 2)

// hidden_lane returns LANE, hidden from the compiler, which would otherwise keep values that depend
// on it in registers throughout a loop.
__device__ __forceinline__ unsigned hidden_lane() {
	unsigned x = LANE;
	hide(x);
	return x;
}

template <int TYPE> __device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
	if (TYPE == BF16)
		mma_bf16(d, a, b0, b1);
	else
		mma_f16(d, a, b0, b1);
}
template <int TYPE> __device__ __forceinline__ unsigned pack(float lo, float hi) { return TYPE == BF16 ? pack_bf16(lo, hi) : pack_f16(lo, hi); }

// fetch starts copying n rows of a head, from element at, to ROWS rows of shared memory. The rest,
// beyond n and D, becomes 0. Each thread copies one column of every STEP-th row, if possible.
template <int ROWS, int DP, int W = FLASH_WARPS> __device__ __forceinline__ void fetch(u16 *to, const Mat &m, i64 at, int n, int D) {
	const int WORDS = DP / 8, STEP = 32 * W / WORDS;
	if constexpr (32 * W % WORDS == 0 && ROWS % STEP == 0) {
		unsigned thread = threadIdx.x;
		if (W > FLASH_WARPS) hide(thread); // to save registers
		int r = thread / WORDS, c = thread % WORDS * 8;
		const u16 *from = (const u16 *)m.p + at + (i64)r * m.ld + c;
		to += r * (DP + 8) + c;
		n = c < D ? n - r : 0;
#pragma unroll
		for (int i = 0; i < ROWS; i += STEP, from += STEP * (i64)m.ld) copy16(to, i * (DP + 8), from, i < n ? 16 : 0);
	} else {
#pragma unroll 1
		for (int i = threadIdx.x; i < ROWS * WORDS; i += 32 * W) {
			int r = i / WORDS, c = i % WORDS * 8;
			copy16(to, r * (DP + 8) + c, (const u16 *)m.p + at + (i64)r * m.ld + c, r < n && c < D ? 16 : 0);
		}
	}
}

// load_a loads 16 rows and 16 columns of a tile as the left operand. load_b loads 16 rows of a tile
// as columns of the right operand, with 16 columns to sum over, in two halves: {b[0], b[1]} and
// {b[2], b[3]}. load_bt does the same with the transpose.
template <int DP> __device__ __forceinline__ void load_a(unsigned (&a)[4], const u16 *tile, int row, int col) {
	load_matrices(a, tile + LANE % 16 * (DP + 8) + LANE / 16 * 8, row * (DP + 8) + col);
}
template <int DP> __device__ __forceinline__ void load_b(unsigned (&b)[4], const u16 *tile, int row, int col) {
	load_matrices(b, tile + (LANE / 16 * 8 + LANE % 8) * (DP + 8) + LANE / 8 % 2 * 8, row * (DP + 8) + col);
}
template <int DP> __device__ __forceinline__ void load_bt(unsigned (&b)[4], const u16 *tile, int row, int col) {
	load_transposed(b, tile + LANE % 16 * (DP + 8) + LANE / 16 * 8, row * (DP + 8) + col);
}

// Own holds the 16M rows of a tile that a warp owns, starting at row, as the left operand. The
// first 16 HELD columns stay in registers; the loop over the other operand would otherwise reload
// them for every 16 of its rows.
template <int M, int HELD> struct Own {
	const u16 *tile;
	int row;
	unsigned x[HELD + 1][M][4]; // the last one is for columns that are not held
};
template <int DP, int M, int HELD> __device__ __forceinline__ void load_own(Own<M, HELD> &a, int to, int k) {
#pragma unroll
	for (int m = 0; m < M; m++) load_a<DP>(a.x[to][m], a.tile, a.row + 16 * m, 16 * k);
}
template <int DP, int M, int HELD> __device__ __forceinline__ void hold(Own<M, HELD> &a) {
#pragma unroll
	for (int k = 0; k < HELD; k++) load_own<DP>(a, k, k);
}

// add_scores adds the products of the warp's rows and 16 rows of b, starting at other+16n, to s[n].
template <int TYPE, int DP, int M, int N, int HELD> __device__ __forceinline__ void add_scores(float (&s)[N][M][2][4], Own<M, HELD> &a, const u16 *b, int other) {
#pragma unroll
	for (int k = 0; k < DP / 16; k++) {
		const int at = k < HELD ? k : HELD;
		if (at == HELD) load_own<DP>(a, at, k);
#pragma unroll
		for (int n = 0; n < N; n++) {
			unsigned y[4];
			load_b<DP>(y, b, other + 16 * n, 16 * k);
#pragma unroll
			for (int m = 0; m < M; m++) {
				mma<TYPE>(s[n][m][0], a.x[at][m], y[0], y[1]);
				mma<TYPE>(s[n][m][1], a.x[at][m], y[2], y[3]);
			}
		}
	}
}

// add_weighted adds to o the product of the weights w (the warp's rows by 16 others) and the 16
// rows of v starting at row, in the 8E columns from v on.
template <int TYPE, int DP, int M, int E> __device__ void add_weighted(float (&o)[M][E][4], const float (&w)[M][2][4], const u16 *v, int row) {
	unsigned x[M][4];
#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int i = 0; i < 4; i++) x[m][i] = pack<TYPE>(w[m][i / 2][i % 2 * 2], w[m][i / 2][i % 2 * 2 + 1]);
#pragma unroll
	for (int d = 0; d < E / 2; d++) {
		unsigned y[4];
		load_bt<DP>(y, v, row, 16 * d);
#pragma unroll
		for (int m = 0; m < M; m++) {
			mma<TYPE>(o[m][2 * d], x[m], y[0], y[1]);
			mma<TYPE>(o[m][2 * d + 1], x[m], y[2], y[3]);
		}
	}
}

template <int M, int N> __device__ __forceinline__ void clear(float (&o)[M][N][4]) {
#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int i = 0; i < 4; i++) o[m][n][i] = 0;
}

// store writes the first n of the warp's 16M rows, multiplied by by, to a head, starting at element
// at.
template <int TYPE, int M, int E> __device__ void store(const Mat &to, i64 at, int n, int D, const float (&o)[M][E][4], const float (&by)[M][2]) {
#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int r = 0; r < 2; r++) {
			int row = 16 * m + 8 * r + G;
			if (row >= n) continue;
			i64 first = at + (i64)row * to.ld + C2;
#pragma unroll
			for (int d = 0; d < E; d++) {
				float x = o[m][d][2 * r] * by[m][r], y = o[m][d][2 * r + 1] * by[m][r];
				if (8 * d >= D) continue;
				if (TYPE == F32)
					((float *)to.p)[first + 8 * d] = x, ((float *)to.p)[first + 8 * d + 1] = y;
				else
					*(unsigned *)((u16 *)to.p + first + 8 * d) = pack<TYPE>(x, y);
			}
		}
}

// quad_max and quad_sum reduce over the 4 threads that share a row.
__device__ float quad_max(float x) {
	x = fmaxf(x, __shfl_xor_sync(ALL, x, 1));
	return fmaxf(x, __shfl_xor_sync(ALL, x, 2));
}
__device__ float quad_sum(float x) {
	x += __shfl_xor_sync(ALL, x, 1);
	return x + __shfl_xor_sync(ALL, x, 2);
}

// Seen describes the keys that a warp's queries see: at least one query sees keys first to last,
// and every query sees keys all to last_all.
struct Seen { int first, last, all, last_all; };

// seen_by returns the keys seen by n queries of sequence b, starting at t; queries after the end of
// the sequence do not count. Without queries no key is seen.
__device__ Seen seen_by(const Attn &a, int b, int t, int n) {
	n = min(n, a.T - t);
	if (n <= 0) return {a.keys, -1, a.keys, -1};
	return {first_key(a, b, t), a.past + t + n - 1, first_key(a, b, t + n - 1), a.past + t};
}

// swap performs one step of transposing a bit matrix: lanes are rows, fields of bits are columns.
// Lanes that differ in one bit of their number exchange fields: the one's high fields, by bits
// above low, for the other's low fields.
__device__ __forceinline__ unsigned swap(unsigned x, int bit, int by, unsigned low) {
	unsigned y = __shfl_xor_sync(ALL, x, bit);
	return LANE & bit ? (x & ~low) | (y >> by & low) : (x & low) | (y << by & ~low);
}

// kept_scores returns which scores of the warp's 16M queries from t and 16 keys are kept: bit
// 8m+4r+2n+i is for C[2r+i] of tile n. Each thread computes the mask of eight keys for M queries,
// query 8r+g in tile n for c = 2r+n, and swaps bits with its neighbours. kept_transposed does the
// same for 16 queries from t and 16M keys, where rows are keys: a thread computes query 8n+2c+i and
// keys 8r to 8r+7 for g = 4r+2n+i.
template <int M> __device__ unsigned kept_scores(const Dropping &a, int b, int h, int t, int key) {
	unsigned x = 0, c = LANE % 4;
	if (M > 1) hide(c);
	u64 row = drop_row(a, b, h, t + c / 2 * 8 + G);
#pragma unroll
	for (int m = 0; m < M; m++) x |= kept8(a.drop, row + 16 * m, key / 8 + c % 2) << 8 * m;
	return swap(swap(x, 1, 2, 0x33333333), 2, 4, 0x0f0f0f0f);
}
template <int M> __device__ unsigned kept_transposed(const Dropping &a, int b, int h, int t, int key) {
	unsigned x = 0;
	int lane = hidden_lane(), g = lane / 4;
	u64 row = drop_row(a, b, h, t + g / 2 % 2 * 8 + lane % 4 * 2 + g % 2);
#pragma unroll
	for (int m = 0; m < M; m++) x |= kept8(a.drop, row, key / 8 + 2 * m + g / 4) << 8 * m;
	return swap(swap(swap(x, 4, 1, 0x55555555), 8, 2, 0x33333333), 16, 4, 0x0f0f0f0f);
}
__device__ __forceinline__ bool is_kept(unsigned bits, int m, int n, int i) { return bits >> (8 * m + i / 2 * 4 + 2 * n + i % 2) & 1; }

// drop_scores sets dropped scores to 0.
template <int M> __device__ void drop_scores(float (&s)[M][2][4], unsigned kept) {
#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int n = 0; n < 2; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				if (!is_kept(kept, m, n, i)) s[m][n][i] = 0;
}

// hide_unseen sets to -INF the scores of keys that a query does not see. Tile n of row 8r+g has
// keys 8n+C2 and 8n+C2+1, counted from key; the rows are queries from t.
template <int M, int N> __device__ __forceinline__ void hide_unseen(float (&s)[N][M][2][4], const Attn &a, int b, int t, int key) {
	int g = hidden_lane() / 4;
#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int r = 0; r < 2; r++) {
			int q = t + 16 * m + 8 * r + g, from = first_key(a, b, q) - key, to = q < a.T ? a.past + q + 1 - key : 0;
#pragma unroll
			for (int n = 0; n < 2 * N; n++)
#pragma unroll
				for (int i = 0; i < 2; i++) {
					int at = 8 * n + C2 + i;
					if (at < from || at >= to) s[n / 2][m][n % 2][2 * r + i] = -INF;
				}
		}
}

// hide_unseen_by does the same where rows are keys, from key, and columns are 16 queries from t.
template <int M> __device__ __forceinline__ void hide_unseen_by(float (&s)[M][2][4], const Attn &a, int b, int t, int key) {
	int g = hidden_lane() / 4;
#pragma unroll
	for (int c = 0; c < 4; c++) {
		int q = t + c / 2 * 8 + C2 + c % 2, from = first_key(a, b, q), to = q < a.T ? a.past + q + 1 : 0;
#pragma unroll
		for (int m = 0; m < M; m++)
#pragma unroll
			for (int r = 0; r < 2; r++) {
				int at = key + 16 * m + 8 * r + g;
				if (at < from || at >= to) s[m][c / 2][2 * r + c % 2] = -INF;
			}
	}
}

// A score in units of log2(e) is scale_of times what cap_scores makes of the product: tanh(product
// scale/cap), or the product itself without a cap. cap_slope_of returns the derivative of the cap
// there, and a finite number for a key that a query does not see.
template <class A> __device__ __forceinline__ float scale_of(const A &a) { return (A::CAPS && a.cap > 0 ? a.cap : a.scale) * LOG2E; }
template <int M, int N, class A> __device__ __forceinline__ void cap_scores(float (&s)[N][M][2][4], const A &a) {
	if (!A::CAPS || a.cap == 0) return;
	float by = a.scale / a.cap;
#pragma unroll
	for (int n = 0; n < N; n++)
#pragma unroll
		for (int m = 0; m < M; m++)
#pragma unroll
			for (int i = 0; i < 8; i++) s[n][m][i / 4][i % 4] = tanh_fast(s[n][m][i / 4][i % 4] * by);
}
template <class A> __device__ __forceinline__ float cap_slope_of(float x, const A &a) {
	if (!A::CAPS || a.cap == 0) return 1;
	x = fmaxf(x, -1);
	return fmaf(-x, x, 1);
}

// flash computes 16MW queries of a head against tiles of BK keys, loading the next tile while using
// one. Blocks of the last queries, which see most keys, start first. In blocks of 8 warps keys and
// values take the place of the queries, all of which a warp holds.
template <int TYPE, int DP, int W, int M, int BK, int HELD, class A> __device__ void flash(const Mat &o, float *lse, const Mat &q, const Mat &k, const Mat &v, const A &a) {
	const int BQ = 16 * M * W, P = DP + 8;
	const bool OVER = W > FLASH_WARPS;
	static_assert(!OVER || HELD == DP / 16, "queries are read after they are overwritten");
	DYNAMIC_SHARED(u16, tiles16);
	u16 *Q = tiles16, *KV = OVER ? Q : Q + BQ * P; // keys and values of one tile, then of the other
	int q0 = (gridDim.x - 1 - blockIdx.x) * BQ, h = blockIdx.y, b = blockIdx.z, nq = min(BQ, a.T - q0);
	int mine = WARP * 16 * M, t0 = q0 + mine;
	i64 row = (i64)b * a.T + q0, key = (i64)b * a.keys;
	int head = h * a.D, shared = h / (a.H / a.KV) * a.D;
	Seen seen = seen_by(a, b, t0, 16 * M);
	auto begin = [&](int k0, u16 *to) {
		fetch<BK, DP, W>(to, k, (key + k0) * k.ld + shared, a.keys - k0, a.D);
		fetch<BK, DP, W>(to + BK * P, v, (key + k0) * v.ld + shared, a.keys - k0, a.D);
		copy_commit();
	};
	int k0 = first_key(a, b, q0) / BK * BK, end = a.past + q0 + nq;
	fetch<BQ, DP, W>(Q, q, row * q.ld + head, nq, a.D);
	OVER ? copy_commit() : begin(k0, KV);
	float acc[M][DP / 8][4], top[M][2], sum[M][2], scale = scale_of(a);
	clear(acc);
	for (int m = 0; m < M; m++)
		for (int r = 0; r < 2; r++) top[m][r] = -INF, sum[m][r] = 0;
	Own<M, HELD> own = {Q, mine};
	copy_wait<0>();
	__syncthreads();
	hold<DP>(own);
	if constexpr (OVER) {
		__syncthreads(); // all warps hold their queries
		begin(k0, KV);
	}
	for (int turn = 0; k0 < end; k0 += BK, turn ^= 1) {
		copy_wait<0>();
		__syncthreads(); // this tile has arrived, and the previous one has been read
		if (k0 + BK < end) begin(k0 + BK, KV + (turn ^ 1) * 2 * BK * P);
		if (k0 > seen.last || k0 + BK <= seen.first) continue;
		const u16 *K = KV + turn * 2 * BK * P, *V = K + BK * P;
		float s[BK / 16][M][2][4];
#pragma unroll
		for (int j = 0; j < BK / 16; j++) clear(s[j]);
		add_scores<TYPE, DP>(s, own, K, 0);
		cap_scores(s, a);
		if (k0 < seen.all || k0 + BK - 1 > seen.last_all) hide_unseen(s, a, b, t0, k0);
		bool same = true;
		float shrink[M][2];
#pragma unroll
		for (int m = 0; m < M; m++)
#pragma unroll
			for (int r = 0; r < 2; r++) {
				float most = top[m][r], part = 0;
#pragma unroll
				for (int j = 0; j < BK / 8; j++) most = fmaxf(most, fmaxf(s[j / 2][m][j % 2][2 * r], s[j / 2][m][j % 2][2 * r + 1]));
				most = quad_max(most);
				float base = most == -INF ? 0 : most * scale; // -INF: no key was seen yet
				shrink[m][r] = exp2_fast(top[m][r] * scale - base);
				same = same && shrink[m][r] == 1;
				top[m][r] = most;
#pragma unroll
				for (int j = 0; j < BK / 8; j++)
#pragma unroll
					for (int i = 0; i < 2; i++) {
						float &x = s[j / 2][m][j % 2][2 * r + i];
						x = exp2_fast(fmaf(x, scale, -base));
						part += x;
					}
				sum[m][r] = fmaf(sum[m][r], shrink[m][r], part);
			}
		if (!__all_sync(ALL, same)) {
#pragma unroll
			for (int m = 0; m < M; m++)
#pragma unroll
				for (int d = 0; d < DP / 8; d++)
#pragma unroll
					for (int i = 0; i < 4; i++) acc[m][d][i] *= shrink[m][i / 2];
		}
#pragma unroll
		for (int j = 0; j < BK / 16; j++) {
			if constexpr (A::DROPS) drop_scores(s[j], kept_scores<M>(a, b, h, t0, k0 + 16 * j));
			add_weighted<TYPE, DP>(acc, s[j], V, 16 * j); // V is 0 after the last key
		}
	}
	for (int m = 0; m < M; m++)
		for (int r = 0; r < 2; r++) {
			float whole = quad_sum(sum[m][r]);
			int t = mine + 16 * m + 8 * r + G;
			if (C2 == 0 && t < nq) lse[((i64)b * a.H + h) * a.T + q0 + t] = (float)((double)(top[m][r] * scale) * 0.6931471805599453 + log((double)whole));
			sum[m][r] = 1 / whole;
			if constexpr (A::DROPS) sum[m][r] *= a.drop.scale;
		}
	store<TYPE>(o, (row + mine) * o.ld + head, nq - mine, a.D, acc, sum);
}

// flash_dq computes dq = scale dS·K for 64M queries of a head.
template <int TYPE, int DP, int M, int BK, int HELD, class A>
__device__ void flash_dq(const Mat &dq, const Mat &dout, const Mat &q, const Mat &k, const Mat &v, const float *lse, const float *delta, const A &a) {
	const int BQ = 16 * M * FLASH_WARPS, P = DP + 8;
	DYNAMIC_SHARED(u16, tiles16);
	u16 *Q = tiles16, *dO = Q + BQ * P, *KV = dO + BQ * P;
	int q0 = (gridDim.x - 1 - blockIdx.x) * BQ, h = blockIdx.y, b = blockIdx.z, nq = min(BQ, a.T - q0);
	int mine = WARP * 16 * M, t0 = q0 + mine;
	i64 first = (i64)b * a.T, key = (i64)b * a.keys, stat = ((i64)b * a.H + h) * a.T;
	int head = h * a.D, shared = h / (a.H / a.KV) * a.D;
	Seen seen = seen_by(a, b, t0, 16 * M);
	auto begin = [&](int k0, u16 *to) {
		fetch<BK, DP>(to, k, (key + k0) * k.ld + shared, a.keys - k0, a.D);
		fetch<BK, DP>(to + BK * P, v, (key + k0) * v.ld + shared, a.keys - k0, a.D);
		copy_commit();
	};
	int k0 = first_key(a, b, q0) / BK * BK, end = a.past + q0 + nq;
	fetch<BQ, DP>(Q, q, (first + q0) * q.ld + head, nq, a.D);
	fetch<BQ, DP>(dO, dout, (first + q0) * dout.ld + head, nq, a.D);
	begin(k0, KV);
	float acc[M][DP / 8][4], by[M][2], l[M][2], e[M][2], scale = scale_of(a);
	clear(acc);
	for (int m = 0; m < M; m++)
		for (int r = 0; r < 2; r++) {
			int t = t0 + 16 * m + 8 * r + G;
			by[m][r] = a.scale, l[m][r] = t < a.T ? lse[stat + t] * LOG2E : 0, e[m][r] = t < a.T ? delta[stat + t] : 0;
			if constexpr (A::DROPS) by[m][r] *= a.drop.scale, e[m][r] /= a.drop.scale; // leaves drop.scale out of the scores' gradients
		}
	Own<M, HELD> ofQ = {Q, mine}, ofO = {dO, mine};
	copy_wait<0>();
	__syncthreads();
	hold<DP>(ofQ);
	hold<DP>(ofO);
	for (int turn = 0; k0 < end; k0 += BK, turn ^= 1) {
		copy_wait<0>();
		__syncthreads();
		if (k0 + BK < end) begin(k0 + BK, KV + (turn ^ 1) * 2 * BK * P);
		const u16 *K = KV + turn * 2 * BK * P, *V = K + BK * P;
#pragma unroll 1
		for (int j = 0; j < BK; j += 16) {
			int at = k0 + j;
			if (at > seen.last || at + 16 <= seen.first) continue;
			float s1[1][M][2][4], d1[1][M][2][4], (&s)[M][2][4] = s1[0], (&d)[M][2][4] = d1[0];
			clear(s);
			clear(d);
			if constexpr (!A::DROPS) add_scores<TYPE, DP>(s1, ofQ, K, j);
			add_scores<TYPE, DP>(d1, ofO, V, j);
			if constexpr (A::DROPS) { // before the other product, to save registers
				drop_scores(d, kept_scores<M>(a, b, h, t0, at));
				add_scores<TYPE, DP>(s1, ofQ, K, j);
			}
			cap_scores(s1, a);
			if (at < seen.all || at + 15 > seen.last_all) hide_unseen(s1, a, b, t0, at);
#pragma unroll
			for (int m = 0; m < M; m++)
#pragma unroll
				for (int n = 0; n < 2; n++)
#pragma unroll
					for (int i = 0; i < 4; i++) s[m][n][i] = exp2_fast(fmaf(s[m][n][i], scale, -l[m][i / 2])) * (d[m][n][i] - e[m][i / 2]) * cap_slope_of(s[m][n][i], a);
			add_weighted<TYPE, DP>(acc, s, K, j);
		}
	}
	store<TYPE>(dq, (first + t0) * dq.ld + head, nq - mine, a.D, acc, by);
}

// flash_dkv computes dv = P^T·dO and dk = scale dS^T·Q for 64M keys of a head, over all query heads
// that share it, in tiles of BQ queries one after the other. dk and dv have the operands' type or
// float32. Scores are transposed here: their rows are keys.
template <int TYPE, int DP, int M, int BQ, int HELDK, int HELDV, class A>
__device__ void flash_dkv(const Mat &dk, const Mat &dv, const Mat &dout, const Mat &q, const Mat &k, const Mat &v, const float *lse, const float *delta,
	const A &a) {
	const int BK = 16 * M * FLASH_WARPS, P = DP + 8, TILE = 2 * BQ * P + 4 * BQ; // a tile of queries: Q, dO, lse and delta
	DYNAMIC_SHARED(u16, tiles16);
	u16 *K = tiles16, *V = K + BK * P, *QO = V + BK * P;
	int k0 = blockIdx.x * BK, kv = blockIdx.y, b = blockIdx.z, nk = min(BK, a.keys - k0), share = a.H / a.KV;
	int mine = WARP * 16 * M, key0 = k0 + mine, key1 = min(key0 + 16 * M, a.keys) - 1; // the warp's keys
	i64 first = (i64)b * a.T, key = (i64)b * a.keys;
	int q0 = max(0, k0 - a.past) / BQ * BQ, end = min(a.T, k0 + nk - a.reach); // queries that see a key of the tile
	int tiles = 0;
	for (int t = q0; t < end && !(a.start && a.past + a.start[first + t] >= k0 + nk); t += BQ) tiles++; // stops at later documents
	auto begin = [&](int n, u16 *to) {
		int h = kv * share + n / tiles, t = q0 + n % tiles * BQ;
		i64 stat = ((i64)b * a.H + h) * a.T + t;
		fetch<BQ, DP>(to, q, (first + t) * q.ld + h * a.D, a.T - t, a.D);
		fetch<BQ, DP>(to + BQ * P, dout, (first + t) * dout.ld + h * a.D, a.T - t, a.D);
		float *stats = (float *)(to + 2 * BQ * P);
		static_assert(2 * BQ <= FLASH_THREADS, "a thread copies one of them");
		if (int i = threadIdx.x; i < 2 * BQ) copy4(stats, i, (i < BQ ? lse : delta) + stat + i % BQ, t + i % BQ < a.T ? 4 : 0);
		copy_commit();
	};
	fetch<BK, DP>(K, k, (key + k0) * k.ld + kv * a.D, nk, a.D);
	fetch<BK, DP>(V, v, (key + k0) * v.ld + kv * a.D, nk, a.D);
	if (tiles)
		begin(0, QO);
	else
		copy_commit();
	float gk[M][DP / 8][4], gv[M][DP / 8][4], by[M][2], one[M][2], scale = scale_of(a);
	clear(gk);
	clear(gv);
	for (int m = 0; m < M; m++)
		for (int r = 0; r < 2; r++) {
			by[m][r] = a.scale, one[m][r] = 1;
			if constexpr (A::DROPS) by[m][r] *= a.drop.scale, one[m][r] = a.drop.scale;
		}
	Own<M, HELDK> ofK = {K, mine};
	Own<M, HELDV> ofV = {V, mine};
	copy_wait<0>();
	__syncthreads();
	hold<DP>(ofK);
	hold<DP>(ofV);
	for (int n = 0; n < share * tiles; n++) {
		copy_wait<0>();
		__syncthreads();
		if (n + 1 < share * tiles) begin(n + 1, QO + (n + 1) % 2 * TILE);
		const u16 *Q = QO + n % 2 * TILE, *dO = Q + BQ * P;
		const float *l = (const float *)(dO + BQ * P), *e = l + BQ;
		int t0 = q0 + n % tiles * BQ;
		Seen by_tile = seen_by(a, b, t0, BQ);
		bool inside = key0 >= by_tile.all && key1 <= by_tile.last_all && t0 + BQ <= a.T; // every query sees every key
#pragma unroll 1
		for (int j = 0; j < BQ; j += 16) {
			bool all = inside;
			if (!inside) {
				Seen seen = seen_by(a, b, t0 + j, 16);
				if (key0 > seen.last || key1 < seen.first) continue;
				all = key0 >= seen.all && key1 <= seen.last_all && t0 + j + 16 <= a.T;
			}
			unsigned kept = 0;
			if constexpr (A::DROPS) kept = kept_transposed<M>(a, b, kv * share + n / tiles, t0 + j, key0);
			float s1[1][M][2][4], d1[1][M][2][4], (&s)[M][2][4] = s1[0], (&d)[M][2][4] = d1[0];
			clear(s);
			clear(d);
			add_scores<TYPE, DP>(s1, ofK, Q, j);
			add_scores<TYPE, DP>(d1, ofV, dO, j);
			if constexpr (A::DROPS) drop_scores(d, kept);
			cap_scores(s1, a);
			if (!all) hide_unseen_by(s, a, b, t0 + j, key0);
#pragma unroll
			for (int c = 0; c < 4; c++) { // the thread's queries
				int i = j + c / 2 * 8 + C2 + c % 2;
				float under = l[i] * LOG2E, less = e[i];
				if constexpr (A::DROPS) less /= a.drop.scale;
#pragma unroll
				for (int m = 0; m < M; m++)
#pragma unroll
					for (int r = 0; r < 2; r++) {
						float &x = s[m][c / 2][2 * r + c % 2], &y = d[m][c / 2][2 * r + c % 2];
						float slope = cap_slope_of(x, a);
						x = exp2_fast(fmaf(x, scale, -under));
						y = x * (y - less) * slope;
					}
			}
			if constexpr (A::DROPS) drop_scores(s, kept);
			add_weighted<TYPE, DP>(gv, s, dO, j);
			add_weighted<TYPE, DP>(gk, d, Q, j);
		}
	}
	i64 atk = (key + key0) * dk.ld + kv * a.D, atv = (key + key0) * dv.ld + kv * a.D;
	if (dk.type == F32) { // terms of sums over ranks
		store<F32>(dk, atk, nk - mine, a.D, gk, by);
		store<F32>(dv, atv, nk - mine, a.D, gv, one);
	} else {
		store<TYPE>(dk, atk, nk - mine, a.D, gk, by);
		store<TYPE>(dv, atv, nk - mine, a.D, gv, one);
	}
}

// Heads wider than 128 have more sums than a warp has registers for, in both gradients. There pairs
// of warps, w and w+4, own 16 rows together: the first computes probabilities, times the cap's
// slope, and the second dO·V less delta, from operands that each of them holds as a whole, and the
// tiles of the other operands take the place of these in shared memory.

// give writes a tile of a warp to its place in shared memory; times_given multiplies one by it.
__device__ __forceinline__ void give(float4 *to, const float (&x)[4]) {
	float4 y;
	y.x = x[0], y.y = x[1], y.z = x[2], y.w = x[3];
	to[hidden_lane()] = y;
}
__device__ __forceinline__ void times_given(float (&x)[4], const float4 *from) {
	float4 y = from[hidden_lane()];
	x[0] *= y.x, x[1] *= y.y, x[2] *= y.z, x[3] *= y.w;
}

// pair_dq computes dq for 64 queries of a head, in tiles of BK keys. Each warp of a pair adds half
// of the columns.
template <int TYPE, int DP, int BK, class A>
__device__ void pair_dq(const Mat &dq, const Mat &dout, const Mat &q, const Mat &k, const Mat &v, const float *lse, const float *delta, const A &a) {
	const int BQ = 64, W = 8, P = DP + 8, N = BK / 16;
	DYNAMIC_SHARED(u16, tiles16);
	u16 *Q = tiles16, *KV = tiles16;
	float4 *given = (float4 *)(tiles16 + max(2 * BQ, 4 * BK) * P);
	int q0 = (gridDim.x - 1 - blockIdx.x) * BQ, h = blockIdx.y, b = blockIdx.z, nq = min(BQ, a.T - q0);
	int mine = WARP % 4 * 16, t0 = q0 + mine, second = WARP / 4;
	i64 first = (i64)b * a.T, key = (i64)b * a.keys, stat = ((i64)b * a.H + h) * a.T;
	int head = h * a.D, shared = h / (a.H / a.KV) * a.D;
	Seen seen = seen_by(a, b, t0, 16);
	auto begin = [&](int k0, u16 *to) {
		fetch<BK, DP, W>(to, k, (key + k0) * k.ld + shared, a.keys - k0, a.D);
		fetch<BK, DP, W>(to + BK * P, v, (key + k0) * v.ld + shared, a.keys - k0, a.D);
		copy_commit();
	};
	int k0 = first_key(a, b, q0) / BK * BK, end = a.past + q0 + nq;
	fetch<BQ, DP, W>(Q, q, (first + q0) * q.ld + head, nq, a.D);
	fetch<BQ, DP, W>(Q + BQ * P, dout, (first + q0) * dout.ld + head, nq, a.D);
	copy_commit();
	float acc[1][DP / 16][4], by[1][2], less[2], scale = scale_of(a);
	clear(acc);
	for (int r = 0; r < 2; r++) {
		int t = t0 + 8 * r + G;
		by[0][r] = a.scale, less[r] = t >= a.T ? 0 : second ? delta[stat + t] : lse[stat + t] * LOG2E;
	}
	Own<1, DP / 16> own = {Q + second * BQ * P, mine};
	copy_wait<0>();
	__syncthreads();
	hold<DP>(own);
	__syncthreads(); // all warps hold their rows
	begin(k0, KV);
	for (int turn = 0; k0 < end; k0 += BK, turn ^= 1) {
		copy_wait<0>();
		__syncthreads(); // this tile has arrived, and the previous one and what was given have been read
		if (k0 + BK < end) begin(k0 + BK, KV + (turn ^ 1) * 2 * BK * P);
		const u16 *K = KV + turn * 2 * BK * P;
		bool sees = k0 <= seen.last && k0 + BK > seen.first;
		float s[N][1][2][4];
		if (sees) {
#pragma unroll
			for (int j = 0; j < N; j++) clear(s[j]);
			add_scores<TYPE, DP>(s, own, K + second * BK * P, 0);
			if (!second) {
				cap_scores(s, a);
				if (k0 < seen.all || k0 + BK - 1 > seen.last_all) hide_unseen(s, a, b, t0, k0);
			}
#pragma unroll
			for (int n = 0; n < 2 * N; n++) {
				float(&x)[4] = s[n / 2][0][n % 2];
#pragma unroll
				for (int i = 0; i < 4; i++)
					x[i] = second ? x[i] - less[i / 2] : exp2_fast(fmaf(x[i], scale, -less[i / 2])) * cap_slope_of(x[i], a);
				give(given + (WARP * 2 * N + n) * 32, x);
			}
		}
		__syncthreads();
		if (!sees) continue;
#pragma unroll
		for (int n = 0; n < 2 * N; n++) times_given(s[n / 2][0][n % 2], given + ((WARP + 4) % 8 * 2 * N + n) * 32);
#pragma unroll
		for (int j = 0; j < N; j++) add_weighted<TYPE, DP>(acc, s[j], K + second * DP / 2, 16 * j);
	}
	int from = second * DP / 2;
	store<TYPE>(dq, (first + t0) * dq.ld + head + from, nq - mine, a.D - from, acc, by);
}

// pair_dkv computes dk and dv for 64 keys of a head, in tiles of BQ queries. The first warp of a pair
// adds dv, the second dk.
template <int TYPE, int DP, int BQ, class A>
__device__ void pair_dkv(const Mat &dk, const Mat &dv, const Mat &dout, const Mat &q, const Mat &k, const Mat &v, const float *lse, const float *delta,
	const A &a) {
	const int BK = 64, W = 8, P = DP + 8, TILE = 2 * BQ * P + 4 * BQ, N = BQ / 16;
	DYNAMIC_SHARED(u16, tiles16);
	u16 *K = tiles16, *QO = tiles16;
	float4 *given = (float4 *)(tiles16 + max(2 * BK * P, 2 * TILE));
	int k0 = blockIdx.x * BK, kv = blockIdx.y, b = blockIdx.z, nk = min(BK, a.keys - k0), share = a.H / a.KV;
	int mine = WARP % 4 * 16, key0 = k0 + mine, key1 = min(key0 + 16, a.keys) - 1, second = WARP / 4;
	i64 first = (i64)b * a.T, key = (i64)b * a.keys;
	int q0 = max(0, k0 - a.past) / BQ * BQ, end = min(a.T, k0 + nk - a.reach);
	int tiles = 0;
	for (int t = q0; t < end && !(a.start && a.past + a.start[first + t] >= k0 + nk); t += BQ) tiles++;
	auto begin = [&](int n, u16 *to) {
		int h = kv * share + n / tiles, t = q0 + n % tiles * BQ;
		i64 stat = ((i64)b * a.H + h) * a.T + t;
		fetch<BQ, DP, W>(to, q, (first + t) * q.ld + h * a.D, a.T - t, a.D);
		fetch<BQ, DP, W>(to + BQ * P, dout, (first + t) * dout.ld + h * a.D, a.T - t, a.D);
		if (int i = threadIdx.x; i < 2 * BQ) copy4((float *)(to + 2 * BQ * P), i, (i < BQ ? lse : delta) + stat + i % BQ, t + i % BQ < a.T ? 4 : 0);
		copy_commit();
	};
	fetch<BK, DP, W>(K, k, (key + k0) * k.ld + kv * a.D, nk, a.D);
	fetch<BK, DP, W>(K + BK * P, v, (key + k0) * v.ld + kv * a.D, nk, a.D);
	copy_commit();
	float acc[1][DP / 8][4], scale = scale_of(a);
	clear(acc);
	Own<1, DP / 16> own = {K + second * BK * P, mine};
	copy_wait<0>();
	__syncthreads();
	hold<DP>(own);
	__syncthreads(); // all warps hold their rows
	if (tiles) begin(0, QO);
	for (int n = 0; n < share * tiles; n++) {
		copy_wait<0>();
		__syncthreads();
		if (n + 1 < share * tiles) begin(n + 1, QO + (n + 1) % 2 * TILE);
		const u16 *Q = QO + n % 2 * TILE, *dO = Q + BQ * P;
		const float *less = (const float *)(dO + BQ * P) + second * BQ; // lse or delta
		int t0 = q0 + n % tiles * BQ;
		Seen seen = seen_by(a, b, t0, BQ);
		bool sees = key0 <= seen.last && key1 >= seen.first;
		float s[N][1][2][4];
		if (sees) {
#pragma unroll
			for (int j = 0; j < N; j++) clear(s[j]);
			add_scores<TYPE, DP>(s, own, second ? dO : Q, 0);
			if (!second) {
				cap_scores(s, a);
				if (key0 < seen.all || key1 > seen.last_all || t0 + BQ > a.T)
#pragma unroll
					for (int j = 0; j < N; j++) hide_unseen_by(s[j], a, b, t0 + 16 * j, key0);
			}
#pragma unroll
			for (int n = 0; n < 2 * N; n++) {
				float(&x)[4] = s[n / 2][0][n % 2], steep[4];
#pragma unroll
				for (int i = 0; i < 4; i++) {
					float under = less[8 * n + C2 + i % 2];
					if (second)
						x[i] -= under;
					else {
						float slope = cap_slope_of(x[i], a);
						x[i] = exp2_fast(fmaf(x[i], scale, -under * LOG2E));
						steep[i] = x[i] * slope;
					}
				}
				if (!second) give(given + (WARP * 2 * N + n) * 32, steep);
			}
		}
		__syncthreads();
		if (!sees) continue;
		if (second)
#pragma unroll
			for (int n = 0; n < 2 * N; n++) times_given(s[n / 2][0][n % 2], given + ((WARP - 4) * 2 * N + n) * 32);
#pragma unroll
		for (int j = 0; j < N; j++) add_weighted<TYPE, DP>(acc, s[j], second ? Q : dO, 16 * j);
	}
	Mat to = second ? dk : dv;
	float x = second ? a.scale : 1, by[1][2] = {{x, x}};
	i64 at = (key + key0) * to.ld + kv * a.D;
	if (to.type == F32) // terms of sums over ranks
		store<F32>(to, at, nk - mine, a.D, acc, by);
	else
		store<TYPE>(to, at, nk - mine, a.D, acc, by);
}

// Kernels for heads of up to DP elements. Forward owns 64 FM queries and dq 64 QM, in tiles of BK
// keys; dkv owns 64 KM keys, in tiles of BK queries; see attention.go. A warp holds 16 HF columns
// of its queries in forward, 16 HQ of its queries and their gradients in dq, and 16 HK of its keys
// and 16 HV of its values in dkv: as many as ptxas 12.4 and 13.0 can without spilling.
#define FLASH_THREE(NAME, A, T, DP, WARPS_OF, FORWARD, DQ, DKV) \
	FLASH(WARPS_OF) NAME##_##T##_##DP(Mat o, float *lse, Mat q, Mat k, Mat v, A a) { FORWARD(o, lse, q, k, v, a); } \
	KERNEL(NAME##_##T##_##DP) \
	FLASH(WARPS_OF) NAME##_dq_##T##_##DP(Mat dq, Mat dout, Mat q, Mat k, Mat v, const float *lse, const float *delta, A a) { \
		DQ(dq, dout, q, k, v, lse, delta, a); \
	} \
	KERNEL(NAME##_dq_##T##_##DP) \
	FLASH(WARPS_OF) NAME##_dkv_##T##_##DP(Mat dk, Mat dv, Mat dout, Mat q, Mat k, Mat v, const float *lse, const float *delta, A a) { \
		DKV(dk, dv, dout, q, k, v, lse, delta, a); \
	} \
	KERNEL(NAME##_dkv_##T##_##DP)
#define FLASH_OF(NAME, A, T, TYPE, DP, FM, QM, KM, BK, HF, HQ, HK, HV) \
	FLASH_THREE(NAME, A, T, DP, FLASH_WARPS, (flash<TYPE, DP, FLASH_WARPS, FM, BK, HF>), (flash_dq<TYPE, DP, QM, BK, HQ>), (flash_dkv<TYPE, DP, KM, BK, HK, HV>))
#define FLASH_BOTH(NAME, A, DP, ...) FLASH_OF(NAME, A, bf16, BF16, DP, __VA_ARGS__) FLASH_OF(NAME, A, f16, F16, DP, __VA_ARGS__)
FLASH_BOTH(flash, Attn, 64, 2, 2, 2, 64, 4, 4, 4, 0)
FLASH_BOTH(flash, Attn, 96, 2, 1, 1, 32, 6, 6, 6, 6)
FLASH_BOTH(flash, Attn, 128, 2, 1, 1, 32, 0, 8, 8, 6)
FLASH_BOTH(flash_cap, Capping, 128, 2, 1, 1, 32, 0, 8, 8, 6)
FLASH_BOTH(flash_drop, Dropping, 64, 2, 2, 2, 64, 0, 4, 4, 1)
#define FLASH_WIDE(T, TYPE) FLASH_THREE(flash, Capping, T, 256, 2 * FLASH_WARPS, (flash<TYPE, 256, 8, 1, 32, 16>), (pair_dq<TYPE, 256, 32>), (pair_dkv<TYPE, 256, 32>))
FLASH_WIDE(bf16, BF16)
FLASH_WIDE(f16, F16)
