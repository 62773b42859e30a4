// Causal attention of 16-bit types for sm_90a: the same as flash.cu, by products of four warps
// (wgmma), which read their right operand, and the left one if it is not in registers, from shared
// memory, and run beside what the warps do next (Shah et al., FlashAttention-3, arXiv 2407.08608).
// Here, too, an element is summed by one thread in a fixed order, without atomics.
//
// A group of four warps owns 64 rows of its block's tile, a warp 16 of them; its sums lie as mma's
// do. A tile in shared memory consists of parts of 64 columns. Rows of a part are 128 bytes apart,
// and a row r has word w, of 16 bytes, at place w ^ r % 8: so eight rows' words are in different
// banks both along rows and across them, and one tile serves as operand and as its transpose.
#ifdef __CUDACC__
// tile must be aligned to 1024 bytes.
#define TILES(name) extern __shared__ __align__(1024) u16 name[]

#define EIGHT_OF(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define ALL_OF(d) EIGHT_OF(d, 0), EIGHT_OF(d, 8), EIGHT_OF(d, 16), EIGHT_OF(d, 24)
#define WGMMA(type, add, a) \
	"{ .reg .pred p; setp.ne.b32 p, " add ", 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type \
	" {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, " a

// wgmma sets d to a·b, with add to d + a·b, for 64 x 16 and 16 x 64: a is in registers, as mma's,
// and b, with TRANS, a tile's rows as they lie; else both are tiles whose rows are summed over. d,
// and a in registers, may not be touched until wgmma_wait and landed.
template <int TYPE, int TRANS> __device__ __forceinline__ void wgmma(float (&d)[32], const unsigned (&a)[4], u64 b, bool add) {
	if (TYPE == BF16)
		asm volatile(WGMMA("bf16", "%37", "{%32,%33,%34,%35}, %36, p, 1, 1, %38; }")
			: ALL_OF(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(TRANS));
	else
		asm volatile(WGMMA("f16", "%37", "{%32,%33,%34,%35}, %36, p, 1, 1, %38; }")
			: ALL_OF(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(TRANS));
}
template <int TYPE> __device__ __forceinline__ void wgmma(float (&d)[32], u64 a, u64 b, bool add) {
	if (TYPE == BF16)
		asm volatile(WGMMA("bf16", "%34", "%32, %33, p, 1, 1, 0, 0; }") : ALL_OF(d) : "l"(a), "l"(b), "r"((int)add));
	else
		asm volatile(WGMMA("f16", "%34", "%32, %33, p, 1, 1, 0, 0; }") : ALL_OF(d) : "l"(a), "l"(b), "r"((int)add));
}

// wgmma_fence comes before products whose registers were touched, wgmma_commit makes a group of
// products, and wgmma_wait<N> waits for all but the last N groups. fence_async shows copies that
// have arrived to products.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// landed has the compiler read d only from here on.
template <int N> __device__ __forceinline__ void landed(float (&d)[N]) {
#pragma unroll
	for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
#else
#define TILES(name) DYNAMIC_SHARED(u16, name)
#endif

#define GROUP_ROWS 64
#define TILE_ROWS 64 // of keys, or in dkv of queries

// described returns the descriptor of a tile: 128 bytes swizzled, eight rows 1024 bytes from the
// next eight. In its units of 16 bytes a row is 8, and 16 columns are 2.
__device__ __forceinline__ u64 described(const u16 *tile) { return (u64)(in_shared(tile) >> 4) | 1 << 16 | 64ull << 32 | 1ull << 62; }

// fetch_tile starts copying n rows of a head, from element at, to a tile of ROWS rows. The rest,
// beyond n and D, becomes 0.
template <int ROWS, int DP, int WGS> __device__ __forceinline__ void fetch_tile(u16 *to, const Mat &m, i64 at, int n, int D) {
	const int WORDS = DP / 8, STEP = 128 * WGS / WORDS;
	static_assert(STEP % 8 == 0, "a thread's words have one place in their rows");
	int r = threadIdx.x / WORDS, w = threadIdx.x % WORDS;
	const u16 *from = (const u16 *)m.p + at + (i64)r * m.ld + 8 * w;
	to += w / 8 * ROWS * 64 + r * 64 + (w ^ r) % 8 * 8;
	n = 8 * w < D ? n - r : 0;
#pragma unroll
	for (int i = 0; i < ROWS; i += STEP, from += STEP * (i64)m.ld)
		if (ROWS % STEP == 0 || i + STEP <= ROWS || r + i < ROWS) copy16(to, i * 64, from, i < n ? 16 : 0);
}

// scores issues s = a·b^T for 64 rows of tile a, which has ROWS, and tile b.
template <int TYPE, int DP, int ROWS> __device__ __forceinline__ void scores(float (&s)[4][1][2][4], u64 a, u64 b) {
#pragma unroll
	for (int k = 0; k < DP / 16; k++) wgmma<TYPE>((float(&)[32])s, a + k / 4 * ROWS * 8 + k % 4 * 2, b + k / 4 * TILE_ROWS * 8 + k % 4 * 2, k > 0);
	wgmma_commit();
}

// weighted issues o += w·v for weights of 64 rows and the 64 rows of tile v.
template <int TYPE, int DP> __device__ __forceinline__ void weighted(float (&o)[1][DP / 8][4], const unsigned (&w)[4][4], u64 v) {
#pragma unroll
	for (int k = 0; k < 4; k++)
#pragma unroll
		for (int n = 0; n < DP / 64; n++) wgmma<TYPE, 1>((float(&)[32])o[0][8 * n], w[k], v + n * TILE_ROWS * 8 + k * 128, true);
	wgmma_commit();
}

template <int TYPE> __device__ __forceinline__ void pack_weights(unsigned (&w)[4][4], const float (&s)[4][1][2][4]) {
#pragma unroll
	for (int k = 0; k < 4; k++)
#pragma unroll
		for (int i = 0; i < 4; i++) w[k][i] = pack<TYPE>(s[k][0][i / 2][i % 2 * 2], s[k][0][i / 2][i % 2 * 2 + 1]);
}
// settled has the compiler compute w before it goes on.
__device__ __forceinline__ void settled(unsigned (&w)[4][4]) {
#pragma unroll
	for (int i = 0; i < 16; i++) asm volatile("" : "+r"(w[i / 4][i % 4])::"memory");
}
template <int N> __device__ __forceinline__ void landed(float (&s)[1][N][4]) { landed((float(&)[4 * N])s); }
__device__ __forceinline__ void landed(float (&s)[4][1][2][4]) { landed((float(&)[32])s); }

// group returns the number of the thread's group of four warps, as one value of a warp.
__device__ __forceinline__ int group() { return __shfl_sync(ALL, (int)threadIdx.x / 128, 0); }

// wgmma_forward computes 64 queries of a head for each group against tiles of 64 keys. Three tiles
// are in memory: the next one arrives, this one's scores become weights, and the one before is
// multiplied by its weights meanwhile.
template <int TYPE, int DP, int WGS> __device__ void wgmma_forward(const Mat &o, float *lse, const Mat &q, const Mat &k, const Mat &v, const Attn &a) {
	const int BQ = GROUP_ROWS * WGS, BK = TILE_ROWS, TILE = BK * DP;
	TILES(tiles);
	u16 *Q = tiles, *KV = Q + BQ * DP;
	int q0 = (gridDim.x - 1 - blockIdx.x) * BQ, h = blockIdx.y, b = blockIdx.z, nq = min(BQ, a.T - q0);
	int of = GROUP_ROWS * group(), mine = WARP * 16;
	i64 row = (i64)b * a.T + q0, key = (i64)b * a.keys;
	int head = h * a.D, shared = h / (a.H / a.KV) * a.D;
	Seen seen = seen_by(a, b, q0 + of, GROUP_ROWS);
	auto begin = [&](int k0, int stage) {
		fetch_tile<BK, DP, WGS>(KV + 2 * TILE * stage, k, (key + k0) * k.ld + shared, a.keys - k0, a.D);
		fetch_tile<BK, DP, WGS>(KV + 2 * TILE * stage + TILE, v, (key + k0) * v.ld + shared, a.keys - k0, a.D);
		copy_commit();
	};
	int k0 = first_key(a, b, q0) / BK * BK, end = a.past + q0 + nq, stage = 0;
	fetch_tile<BQ, DP, WGS>(Q, q, row * q.ld + head, nq, a.D);
	begin(k0, 0);
	u64 atQ = described(Q) + of * 8, atV = 0;
	float s[4][1][2][4], acc[1][DP / 8][4], top[2] = {-INF, -INF}, sum[1][2] = {{0, 0}}, scale = a.scale * LOG2E;
	unsigned w[4][4];
	bool first = true;
	clear(acc);
	for (; k0 < end; k0 += BK) {
		copy_wait<0>();
		fence_async();
		__syncthreads(); // this tile has arrived, and the one before the previous has been read
		int next = stage == 2 ? 0 : stage + 1;
		if (k0 + BK < end) begin(k0 + BK, next);
		u64 atK = described(KV + 2 * TILE * stage);
		stage = next;
		if (k0 > seen.last || k0 + BK <= seen.first) continue;
		auto use = [&](auto weighs) { // once without weights of a tile before: ptxas runs no products beside each other that are issued on a condition
			const int more = decltype(weighs)::is;
			wgmma_fence();
			scores<TYPE, DP, BQ>(s, atQ, atK);
			if (more) weighted<TYPE, DP>(acc, w, atV);
			wgmma_wait<more>();
			landed(s);
			if (k0 < seen.all || k0 + BK - 1 > seen.last_all) hide_unseen(s, a, b, q0 + mine, k0);
			float shrink[2];
#pragma unroll
			for (int r = 0; r < 2; r++) {
				float most = top[r], part = 0;
#pragma unroll
				for (int j = 0; j < BK / 8; j++) most = fmaxf(most, fmaxf(s[j / 2][0][j % 2][2 * r], s[j / 2][0][j % 2][2 * r + 1]));
				most = quad_max(most);
				float base = most == -INF ? 0 : most * scale; // -INF: no key was seen yet
				shrink[r] = exp2_fast(top[r] * scale - base);
				top[r] = most;
#pragma unroll
				for (int j = 0; j < BK / 8; j++)
#pragma unroll
					for (int i = 0; i < 2; i++) {
						float &x = s[j / 2][0][j % 2][2 * r + i];
						x = exp2_fast(fmaf(x, scale, -base));
						part += x;
					}
				sum[0][r] = fmaf(sum[0][r], shrink[r], part);
			}
			wgmma_wait<0>();
			landed(acc);
			if (!__all_sync(ALL, shrink[0] == 1 && shrink[1] == 1)) {
#pragma unroll
				for (int d = 0; d < DP / 8; d++)
#pragma unroll
					for (int i = 0; i < 4; i++) acc[0][d][i] *= shrink[i / 2];
			}
			pack_weights<TYPE>(w, s);
			settled(w);
			atV = atK + TILE / 8;
		};
		if (first)
			use(Type<0>());
		else
			use(Type<1>());
		first = false;
		if (k0 + BK > seen.last) { // the group's last tile
			wgmma_fence();
			weighted<TYPE, DP>(acc, w, atV);
			wgmma_wait<0>();
			landed(acc);
		}
	}
	for (int r = 0; r < 2; r++) {
		float whole = quad_sum(sum[0][r]);
		int t = mine + 8 * r + G;
		if (C2 == 0 && t < nq) lse[((i64)b * a.H + h) * a.T + q0 + t] = (float)((double)(top[r] * scale) * 0.6931471805599453 + log((double)whole));
		sum[0][r] = 1 / whole;
	}
	store<TYPE>(o, (row + mine) * o.ld + head, nq - mine, a.D, acc, sum);
}

// wgmma_dq computes dq = scale dS·K for 64 queries of a head for each group, with tiles as in
// wgmma_forward.
template <int TYPE, int DP, int WGS>
__device__ void wgmma_dq(const Mat &dq, const Mat &dout, const Mat &q, const Mat &k, const Mat &v, const float *lse, const float *delta, const Attn &a) {
	const int BQ = GROUP_ROWS * WGS, BK = TILE_ROWS, TILE = BK * DP;
	TILES(tiles);
	u16 *Q = tiles, *dO = Q + BQ * DP, *KV = dO + BQ * DP;
	int q0 = (gridDim.x - 1 - blockIdx.x) * BQ, h = blockIdx.y, b = blockIdx.z, nq = min(BQ, a.T - q0);
	int of = GROUP_ROWS * group(), mine = WARP * 16;
	i64 first_row = (i64)b * a.T, key = (i64)b * a.keys, stat = ((i64)b * a.H + h) * a.T;
	int head = h * a.D, shared = h / (a.H / a.KV) * a.D;
	Seen seen = seen_by(a, b, q0 + of, GROUP_ROWS);
	auto begin = [&](int k0, int stage) {
		fetch_tile<BK, DP, WGS>(KV + 2 * TILE * stage, k, (key + k0) * k.ld + shared, a.keys - k0, a.D);
		fetch_tile<BK, DP, WGS>(KV + 2 * TILE * stage + TILE, v, (key + k0) * v.ld + shared, a.keys - k0, a.D);
		copy_commit();
	};
	int k0 = first_key(a, b, q0) / BK * BK, end = a.past + q0 + nq, stage = 0;
	fetch_tile<BQ, DP, WGS>(Q, q, (first_row + q0) * q.ld + head, nq, a.D);
	fetch_tile<BQ, DP, WGS>(dO, dout, (first_row + q0) * dout.ld + head, nq, a.D);
	begin(k0, 0);
	u64 atQ = described(Q) + of * 8, atO = described(dO) + of * 8, before = 0;
	float s[4][1][2][4], d[4][1][2][4], acc[1][DP / 8][4], by[1][2], l[2], e[2], scale = a.scale * LOG2E;
	unsigned w[4][4];
	bool first = true;
	clear(acc);
	for (int r = 0; r < 2; r++) {
		int t = q0 + mine + 8 * r + G;
		by[0][r] = a.scale, l[r] = t < a.T ? lse[stat + t] * LOG2E : 0, e[r] = t < a.T ? delta[stat + t] : 0;
	}
	for (; k0 < end; k0 += BK) {
		copy_wait<0>();
		fence_async();
		__syncthreads();
		int next = stage == 2 ? 0 : stage + 1;
		if (k0 + BK < end) begin(k0 + BK, next);
		u64 atK = described(KV + 2 * TILE * stage);
		stage = next;
		if (k0 > seen.last || k0 + BK <= seen.first) continue;
		auto use = [&](auto weighs) {
			const int more = decltype(weighs)::is;
			wgmma_fence();
			scores<TYPE, DP, BQ>(s, atQ, atK);
			scores<TYPE, DP, BQ>(d, atO, atK + TILE / 8);
			if (more) weighted<TYPE, DP>(acc, w, before);
			wgmma_wait<1 + more>();
			landed(s);
			if (k0 < seen.all || k0 + BK - 1 > seen.last_all) hide_unseen(s, a, b, q0 + mine, k0);
#pragma unroll
			for (int n = 0; n < BK / 8; n++)
#pragma unroll
				for (int i = 0; i < 4; i++) {
					float &x = s[n / 2][0][n % 2][i];
					x = exp2_fast(fmaf(x, scale, -l[i / 2]));
				}
			wgmma_wait<more>();
			landed(d);
#pragma unroll
			for (int n = 0; n < BK / 8; n++)
#pragma unroll
				for (int i = 0; i < 4; i++) s[n / 2][0][n % 2][i] *= d[n / 2][0][n % 2][i] - e[i / 2];
			wgmma_wait<0>();
			landed(acc);
			pack_weights<TYPE>(w, s);
			settled(w);
			before = atK;
		};
		if (first)
			use(Type<0>());
		else
			use(Type<1>());
		first = false;
		if (k0 + BK > seen.last) {
			wgmma_fence();
			weighted<TYPE, DP>(acc, w, before);
			wgmma_wait<0>();
			landed(acc);
		}
	}
	store<TYPE>(dq, (first_row + q0 + mine) * dq.ld + head, nq - mine, a.D, acc, by);
}

// wgmma_dkv computes dv = P^T·dO and dk = scale dS^T·Q for 64 keys of a head for each group, over
// all query heads that share it, in tiles of 64 queries. Scores are transposed: their rows are keys.
template <int TYPE, int DP, int WGS>
__device__ void wgmma_dkv(const Mat &dk, const Mat &dv, const Mat &dout, const Mat &q, const Mat &k, const Mat &v, const float *lse, const float *delta,
	const Attn &a) {
	const int BK = GROUP_ROWS * WGS, BQ = TILE_ROWS, TILE = BQ * DP;
	TILES(tiles);
	u16 *K = tiles, *V = K + BK * DP, *QO = V + BK * DP;
	float *stats = (float *)(QO + 4 * TILE); // lse and delta of the queries of both tiles
	int k0 = blockIdx.x * BK, kv = blockIdx.y, b = blockIdx.z, nk = min(BK, a.keys - k0), share = a.H / a.KV;
	int of = GROUP_ROWS * group(), mine = WARP * 16, key0 = k0 + of, key1 = min(key0 + GROUP_ROWS, a.keys) - 1; // the group's keys
	i64 first = (i64)b * a.T, key = (i64)b * a.keys;
	int q0 = max(0, k0 - a.past) / BQ * BQ, end = min(a.T, k0 + nk - a.reach); // queries that see a key of the tile
	int tiles_of_head = 0;
	for (int t = q0; t < end && !(a.start && a.past + a.start[first + t] >= k0 + nk); t += BQ) tiles_of_head++; // stops at later documents
	int to_h = kv * share, to_t = q0, last_t = q0 + (tiles_of_head - 1) * BQ; // the next tile to begin
	auto begin = [&](int turn) {
		i64 stat = ((i64)b * a.H + to_h) * a.T + to_t;
		u16 *to = QO + turn * 2 * TILE;
		fetch_tile<BQ, DP, WGS>(to, q, (first + to_t) * q.ld + to_h * a.D, a.T - to_t, a.D);
		fetch_tile<BQ, DP, WGS>(to + TILE, dout, (first + to_t) * dout.ld + to_h * a.D, a.T - to_t, a.D);
		if (int i = threadIdx.x; i < 2 * BQ) copy4(stats + turn * 2 * BQ, i, (i < BQ ? lse : delta) + stat + i % BQ, to_t + i % BQ < a.T ? 4 : 0);
		copy_commit();
		to_h += to_t == last_t, to_t = to_t == last_t ? q0 : to_t + BQ;
	};
	if (tiles_of_head) {
		fetch_tile<BK, DP, WGS>(K, k, (key + k0) * k.ld + kv * a.D, nk, a.D);
		fetch_tile<BK, DP, WGS>(V, v, (key + k0) * v.ld + kv * a.D, nk, a.D);
		begin(0);
	}
	u64 atK = described(K) + of * 8, atV = described(V) + of * 8;
	float s[4][1][2][4], d[4][1][2][4], gk[1][DP / 8][4], gv[1][DP / 8][4], by[1][2] = {{a.scale, a.scale}}, one[1][2] = {{1, 1}}, scale = a.scale * LOG2E;
	unsigned w[4][4];
	clear(gk);
	clear(gv);
	for (int left = share * tiles_of_head, turn = 0, t0 = q0, next; left; left--, turn ^= 1, t0 = next) {
		copy_wait<0>();
		fence_async();
		__syncthreads();
		u64 atQ = described(QO + turn * 2 * TILE), atO = atQ + TILE / 8;
		const float *l = stats + turn * 2 * BQ, *e = l + BQ;
		next = to_t;
		if (left > 1) begin(turn ^ 1);
		Seen seen = seen_by(a, b, t0, BQ);
		if (key0 > seen.last || key1 < seen.first) continue;
		wgmma_fence();
		scores<TYPE, DP, BK>(s, atK, atQ);
		scores<TYPE, DP, BK>(d, atV, atO);
		wgmma_wait<1>();
		landed(s);
		if (key0 < seen.all || key1 > seen.last_all || t0 + BQ > a.T) {
#pragma unroll
			for (int j = 0; j < BQ / 16; j++) hide_unseen_by(s[j], a, b, t0 + 16 * j, k0 + mine);
		}
#pragma unroll
		for (int j = 0; j < BQ / 8; j++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				float under = l[8 * j + C2 + c] * LOG2E;
#pragma unroll
				for (int r = 0; r < 2; r++) {
					float &x = s[j / 2][0][j % 2][2 * r + c];
					x = exp2_fast(fmaf(x, scale, -under));
				}
			}
		pack_weights<TYPE>(w, s);
		settled(w);
		wgmma_fence();
		weighted<TYPE, DP>(gv, w, atO);
		wgmma_wait<1>();
		landed(d);
#pragma unroll
		for (int j = 0; j < BQ / 8; j++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				float less = e[8 * j + C2 + c];
#pragma unroll
				for (int r = 0; r < 2; r++) {
					float &y = d[j / 2][0][j % 2][2 * r + c];
					y = s[j / 2][0][j % 2][2 * r + c] * (y - less);
				}
			}
		wgmma_wait<0>();
		landed(gv);
		pack_weights<TYPE>(w, d);
		wgmma_fence();
		weighted<TYPE, DP>(gk, w, atQ);
		wgmma_wait<0>();
		landed(gk);
	}
	i64 atk = (key + k0 + mine) * dk.ld + kv * a.D, atv = (key + k0 + mine) * dv.ld + kv * a.D;
	if (dk.type == F32) { // terms of sums over ranks
		store<F32>(dk, atk, nk - mine, a.D, gk, by);
		store<F32>(dv, atv, nk - mine, a.D, gv, one);
	} else {
		store<TYPE>(dk, atk, nk - mine, a.D, gk, by);
		store<TYPE>(dv, atv, nk - mine, a.D, gv, one);
	}
}

// Kernels for heads of up to DP elements: forward has FG groups of warps a block, FB blocks share a
// multiprocessor; dq has QG and QB, dkv KG and KB. See attention.go.
#define WARPGROUPS(n, blocks) extern "C" __global__ void __launch_bounds__(128 * n, blocks)
#define WGMMA_OF(T, TYPE, DP, FG, FB, QG, QB, KG, KB) \
	WARPGROUPS(FG, FB) wgmma_##T##_##DP(Mat o, float *lse, Mat q, Mat k, Mat v, Attn a) { wgmma_forward<TYPE, DP, FG>(o, lse, q, k, v, a); } \
	KERNEL(wgmma_##T##_##DP) \
	WARPGROUPS(QG, QB) wgmma_dq_##T##_##DP(Mat dq, Mat dout, Mat q, Mat k, Mat v, const float *lse, const float *delta, Attn a) { \
		wgmma_dq<TYPE, DP, QG>(dq, dout, q, k, v, lse, delta, a); \
	} \
	KERNEL(wgmma_dq_##T##_##DP) \
	WARPGROUPS(KG, KB) wgmma_dkv_##T##_##DP(Mat dk, Mat dv, Mat dout, Mat q, Mat k, Mat v, const float *lse, const float *delta, Attn a) { \
		wgmma_dkv<TYPE, DP, KG>(dk, dv, dout, q, k, v, lse, delta, a); \
	} \
	KERNEL(wgmma_dkv_##T##_##DP)
#define WGMMA_BOTH(...) WGMMA_OF(bf16, BF16, __VA_ARGS__) WGMMA_OF(f16, F16, __VA_ARGS__)
WGMMA_BOTH(64, 2, 2, 3, 1, 2, 1)
WGMMA_BOTH(128, 3, 1, 2, 1, 2, 1)
