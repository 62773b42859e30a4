// A mixture of experts; see nn.Ops. A row's pairs are its choices of experts, and a sorted row is one of
// order, in which places after the last are -1. Only offsets says where the groups of sorted rows begin.

// Router is device.Router; groups is at least 1 and at most 64.
struct Router {
	int sigmoid, k, biased, groups, top_groups, group_best, normalize;
	float floor, scale;
};

// Scores computes the scores of a row: exp(l-top)/sum, or 1/(1+exp(-l)) if sum is 0.
struct Scores { float top, sum; };

__device__ __forceinline__ float score(const Scores &s, float l) { return s.sum == 0 ? 1 / (1 + exp32(-l)) : exp32(l - s.top) / s.sum; }

__device__ Scores scores_of(const float *row, int E, int sigmoid) {
	Scores s = {-INF, 0};
	if (sigmoid) return s;
	for (int j = LANE; j < E; j += 32) s.top = fmaxf(s.top, row[j]);
	s.top = warp_max(s.top);
	for (int j = LANE; j < E; j += 32) s.sum += exp32(row[j] - s.top);
	s.sum = warp_sum(s.sum);
	return s;
}

// Pick is a number and its index. Larger numbers come before smaller ones, and of equal ones those of lower
// indices; NaN is the smallest.
struct Pick { float v; int i; };
#define FIRST_PICK {INF, -1}

__device__ __forceinline__ bool comes_before(const Pick &a, const Pick &b) { return a.v > b.v || (a.v == b.v && a.i < b.i); }

// next_pick returns, in every lane, the first of values of lo to hi-1 that comes after last.
template <class F> __device__ Pick next_pick(int lo, int hi, const Pick &last, F value) {
	Pick best = {-INF, 0x7fffffff};
	for (int j = lo + LANE; j < hi; j += 32) {
		Pick p = {value(j), j};
		if (!(p.v > -INF)) p.v = -INF;
		if (comes_before(last, p) && comes_before(p, best)) best = p;
	}
	for (int o = 16; o; o /= 2) {
		Pick p = {__shfl_xor_sync(ALL, best.v, o), __shfl_xor_sync(ALL, best.i, o)};
		if (comes_before(p, best)) best = p;
	}
	return best;
}

// Chosen holds a number for each of up to 64 choices: those of choices c and c+32 are in lane c.
template <class T> struct Chosen { T at[2]; };
template <class T> __device__ __forceinline__ T chosen_at(const Chosen<T> &x, int c) { return __shfl_sync(ALL, c < 32 ? x.at[0] : x.at[1], c % 32); }
template <class T> __device__ __forceinline__ void choose(Chosen<T> &x, int c, T v) {
	if (c == LANE) x.at[0] = v;
	if (c == LANE + 32) x.at[1] = v;
}

// route selects and weighs the experts of rows, one row per warp.
ENTRY route(int *experts, float *weights, const float *logits, int ld, Mat bias, int rows, int E, Router r) {
	EACH_ROW(row, rows) {
		const float *l = logits + row * ld;
		Scores s = scores_of(l, E, r.sigmoid);
		bool by_logits = !r.biased && r.groups == 1;
		auto choice = [&](int j) { return by_logits ? l[j] : score(s, l[j]) + (r.biased ? get(bias, j) : 0); };
		u64 open = ~0ull; // groups from which experts are selected
		int n = E / r.groups;
		if (r.groups > 1) {
			Chosen<float> sums = {{0, 0}};
			for (int g = 0; g < r.groups; g++) {
				Pick p = FIRST_PICK;
				float sum = 0;
				for (int c = 0; c < r.group_best; c++) p = next_pick(g * n, (g + 1) * n, p, choice), sum += p.v;
				choose(sums, g, sum);
			}
			Pick p = FIRST_PICK;
			open = 0;
			for (int c = 0; c < r.top_groups; c++) { // LANE and LANE+32 are this lane's groups
				p = next_pick(0, r.groups, p, [&](int g) { return g < 32 ? sums.at[0] : sums.at[1]; });
				open |= 1ull << p.i;
			}
		}
		Chosen<int> chosen = {{0, 0}};
		Pick p = FIRST_PICK;
		for (int c = 0; c < r.k; c++) {
			if (r.groups == 1)
				p = next_pick(0, E, p, choice);
			else {
				Pick last = p;
				p = {-INF, 0x7fffffff};
				for (u64 left = open; left; left &= left - 1) {
					int g = 63 - __clzll((i64)(left & -left));
					Pick q = next_pick(g * n, (g + 1) * n, last, choice);
					if (comes_before(q, p)) p = q;
				}
			}
			choose(chosen, c, p.i);
		}
		float sum = 0;
		for (int c = 0; c < r.k; c++) sum += score(s, l[chosen_at(chosen, c)]);
		float by = r.normalize ? r.scale / fmaxf(sum, r.floor) : r.scale;
#pragma unroll
		for (int h = 0; h < 2; h++) {
			int place = 0, mine = chosen.at[h];
			for (int c = 0; c < r.k; c++) place += chosen_at(chosen, c) < mine;
			if (LANE + 32 * h >= r.k) continue;
			experts[row * r.k + place] = mine;
			weights[row * r.k + place] = score(s, l[mine]) * by;
		}
	}
}
KERNEL(route)

// route_grad computes the gradients of rows of logits, as package cpu does.
ENTRY route_grad(Mat dlogits, const float *logits, int ld, const int *experts, const float *weights, const float *dweights, int rows, int E, Router r) {
	EACH_ROW(row, rows) {
		const float *l = logits + row * ld;
		Scores s = scores_of(l, E, r.sigmoid);
		Chosen<int> chosen = {{-1, -1}};
		Chosen<float> scores = {{0, 0}}, grads = {{0, 0}};
		float dot = 0, sum = 0;
		for (int h = 0; h < 2; h++)
			if (int c = LANE + 32 * h; c < r.k) {
				i64 pair = row * r.k + c;
				chosen.at[h] = experts[pair], scores.at[h] = score(s, l[experts[pair]]);
				dot = fmaf(dweights[pair], weights[pair], dot), sum += scores.at[h];
			}
		dot = warp_sum(dot), sum = r.normalize ? fmaxf(warp_sum(sum), r.floor) : 1;
		bool constant = !r.normalize || sum == r.floor;
		float total = 0;
		for (int h = 0; h < 2; h++)
			if (int c = LANE + 32 * h; c < r.k) {
				grads.at[h] = scores.at[h] * ((r.scale * dweights[row * r.k + c] - (constant ? 0 : dot)) / sum);
				total += grads.at[h];
				if (r.sigmoid) grads.at[h] *= score(s, -l[chosen.at[h]]);
			}
		total = warp_sum(total);
		for (int first = 0; first < E; first += 32) {
			int j = first + LANE;
			float d = 0;
			for (int c = 0; c < r.k; c++) {
				int e = chosen_at(chosen, c);
				float g = chosen_at(grads, c);
				if (e == j) d = g;
			}
			if (j >= E) continue;
			if (!r.sigmoid && constant) d -= score(s, l[j]) * total;
			put(dlogits, row * dlogits.ld + j, d);
		}
	}
}
KERNEL(route_grad)

// The target of padding.
#define PADDING -2

// balance sets rows of stats to ones for the k largest logits and zeros for the others, and then their softmax;
// to zeros for padding.
ENTRY balance(Mat stats, const float *logits, int ld, const int *target, int rows, int E, int k) {
	EACH_ROW(row, rows) {
		const float *l = logits + row * ld;
		float *to = (float *)stats.p + row * stats.ld;
		bool counts = target[row] != PADDING;
		Scores s = scores_of(l, E, 0);
		for (int j = LANE; j < E; j += 32) to[j] = 0, to[E + j] = counts ? score(s, l[j]) : 0;
		Pick p = FIRST_PICK;
		for (int c = 0; c < (counts ? k : 0); c++) {
			p = next_pick(0, E, p, [&](int j) { return l[j]; });
			if (p.i % 32 == LANE) to[p.i] = 1;
		}
	}
}
KERNEL(balance)

// balance_total replaces counts by slopes and adds the loss, as package cpu does, in one warp.
ENTRY balance_total(float *sums, float *loss, int E, int k) {
	if (WARP > 0) return;
	float rows = 0, sum = 0;
	for (int j = LANE; j < E; j += 32) rows += sums[j];
	rows = warp_sum(rows) / k;
	for (int j = LANE; j < E; j += 32) {
		sums[j] = E * sums[j] / fmaxf(1, rows * rows);
		sum = fmaf(sums[j], sums[E + j], sum);
	}
	sum = warp_sum(sum);
	if (LANE == 0) *loss += sum;
}
KERNEL(balance_total)

// balance_grad adds the gradients of rows, as package cpu does.
ENTRY balance_grad(Mat dlogits, const float *logits, int ld, const int *target, const float *slopes, int rows, int E, float scale) {
	EACH_ROW(row, rows) {
		if (target[row] == PADDING) continue;
		const float *l = logits + row * ld;
		Scores s = scores_of(l, E, 0);
		float mean = 0;
		for (int j = LANE; j < E; j += 32) mean = fmaf(score(s, l[j]), slopes[j], mean);
		mean = warp_sum(mean);
		for (int j = LANE; j < E; j += 32) {
			i64 to = row * dlogits.ld + j;
			put(dlogits, to, get(dlogits, to) + scale * score(s, l[j]) * (slopes[j] - mean));
		}
	}
}
KERNEL(balance_grad)

// sort_pairs sorts n pairs by expert; a block has a group. Each warp has a part of the pairs: it counts those of
// earlier groups and of this one, and then gives places to the latter, in order.
ENTRY sort_pairs(int *order, int *at, int *offsets, const int *experts, int n, int groups, int first) {
	SHARED(int, before, WARPS);
	SHARED(int, own, WARPS);
	int g = blockIdx.x, part = (n + 32 * WARPS - 1) / (32 * WARPS) * 32, lo = WARP * part, hi = min(n, lo + part);
	int earlier = 0, equal = 0;
	for (int i = lo + LANE; i < hi; i += 32) {
		int e = experts[i] - first;
		earlier += e >= 0 && e < g, equal += e == g;
		if (g == 0 && (e < 0 || e >= groups)) at[i] = -1;
	}
	for (int o = 16; o; o /= 2) earlier += __shfl_xor_sync(ALL, earlier, o), equal += __shfl_xor_sync(ALL, equal, o);
	if (LANE == 0) before[WARP] = earlier, own[WARP] = equal;
	__syncthreads();
	int start = 0, place = 0, end = 0;
	for (int w = 0; w < WARPS; w++) {
		start += before[w], end += own[w];
		if (w < WARP) place += own[w];
	}
	place += start, end += start;
	for (int i = lo; i < hi; i += 32) {
		bool mine = i + LANE < hi && experts[i + LANE] - first == g;
		unsigned all = __ballot_sync(ALL, mine);
		int to = place + __popc(all & ((1u << LANE) - 1));
		if (mine) order[to] = i + LANE, at[i + LANE] = to;
		place += __popc(all);
	}
	if (threadIdx.x == 0) offsets[g] = start;
	if (g < groups - 1) return;
	if (threadIdx.x == 0) offsets[groups] = end;
	for (int i = end + (int)threadIdx.x; i < n; i += THREADS) order[i] = -1;
}
KERNEL(sort_pairs)

// gather_rows copies the rows of sorted pairs, k for each row of x.
ENTRY gather_rows(Mat y, Mat x, const int *order, int n, int cols, int k) {
	with_kind(type_of(cols % 8 == 0, y, x), [&](auto type) {
		const int T = decltype(type)::is;
		EACH_ROW(row, n) {
			int pair = order[row];
			if (pair < 0) continue;
			LANE8(c, cols) put8<T>(row_of(y, row), c, cols, get8<T>(row_of(x, pair / k), c, cols));
		}
	});
}
KERNEL(gather_rows)

// sum_groups sums the rows of each row's k pairs, and base unless it is null.
ENTRY sum_groups(Mat y, Mat base, Mat x, const int *at, int rows, int cols, int k) {
	int kind = type_of(cols % 8 == 0, y, x);
	if (base.p && type_of(true, base) != kind) kind = ANY;
	with_kind(kind, [&](auto type) {
		const int T = decltype(type)::is;
		EACH_ROW(row, rows) {
			const int *places = at + row * k;
			if constexpr (T == ANY) {
				for (int c = LANE; c < cols; c += 32) {
					float sum = 0;
					for (int i = 0; i < k; i++)
						if (places[i] >= 0) sum += get(x, (i64)places[i] * x.ld + c);
					if (base.p) sum += get(base, row * base.ld + c);
					put(y, row * y.ld + c, sum);
				}
			} else {
				LANE8(c, cols) {
					Eight sum;
					EIGHT(j) sum.v[j] = 0;
					for (int i = 0; i < k; i++) {
						if (places[i] < 0) continue;
						Eight f = load8<T>(x.p, (i64)places[i] * x.ld + c);
						EIGHT(j) sum.v[j] += f.v[j];
					}
					if (base.p) {
						Eight f = load8<T>(base.p, row * base.ld + c);
						EIGHT(j) sum.v[j] += f.v[j];
					}
					store8<T>(y.p, row * y.ld + c, sum);
				}
			}
		}
	});
}
KERNEL(sum_groups)

// with_gate calls f with the Types of a cheap function and of operands of whole words, else with the function
// and ANY.
template <class F> __device__ __forceinline__ void with_gate(int function, int kind, F f) {
	if (is_double(function) || kind == ANY)
		f([&] { return function; }, Type<ANY>());
	else
		with_function(function, [&](auto known) { with_type(kind, [&](auto type) { f([] { return decltype(known)::is; }, type); }); });
}

// gate_rows is gate with the factors of sorted pairs, one row per warp.
ENTRY gate_rows(Mat y, Mat gate, Mat up, const float *weights, const int *order, int n, int cols, int f) {
	with_gate(f, type_of(cols % 8 == 0, y, gate, up), [&](auto function, auto type) {
		const int T = decltype(type)::is;
		EACH_ROW(r, n) {
			if (order[r] < 0) continue;
			float by = weights[order[r]];
			if constexpr (T == ANY) {
				for (int c = LANE; c < cols; c += 32) put(row_of(y, r), c, by * (activated(get(row_of(gate, r), c), function()) * get(row_of(up, r), c)));
			} else {
				LANE8(c, cols) {
					Eight g = load8<T>(row_of(gate, r).p, c), u = load8<T>(row_of(up, r).p, c);
					EIGHT(j) u.v[j] = by * (activated(g.v[j], function()) * u.v[j]);
					store8<T>(row_of(y, r).p, c, u);
				}
			}
		}
	});
}
KERNEL(gate_rows)

// gate_rows_grad computes the gradients of gate_rows.
ENTRY gate_rows_grad(Mat dgate, Mat dup, float *dweights, Mat dy, Mat gate, Mat up, const float *weights, const int *order, int n, int cols, int f) {
	with_gate(f, type_of(cols % 8 == 0, dgate, dup, dy, gate, up), [&](auto function, auto type) {
		const int T = decltype(type)::is;
		EACH_ROW(r, n) {
			if (order[r] < 0) continue;
			float by = weights[order[r]], sum = 0;
			if constexpr (T == ANY) {
				for (int c = LANE; c < cols; c += 32) {
					float x = get(row_of(gate, r), c), d = get(row_of(dy, r), c), u = get(row_of(up, r), c), a = d * activated(x, function());
					sum = fmaf(a, u, sum);
					put(row_of(dgate, r), c, by * slope(x, d * u, function()));
					put(row_of(dup, r), c, by * a);
				}
			} else {
				LANE8(c, cols) {
					Eight g = load8<T>(row_of(gate, r).p, c), u = load8<T>(row_of(up, r).p, c), d = load8<T>(row_of(dy, r).p, c);
					EIGHT(j) {
						float x = g.v[j], a = d.v[j] * activated(x, function());
						sum = fmaf(a, u.v[j], sum);
						g.v[j] = by * slope(x, d.v[j] * u.v[j], function());
						u.v[j] = by * a;
					}
					store8<T>(row_of(dgate, r).p, c, g);
					store8<T>(row_of(dup, r).p, c, u);
				}
			}
			sum = warp_sum(sum);
			if (LANE == 0) dweights[order[r]] = sum;
		}
	});
}
KERNEL(gate_rows_grad)

// Tile is the rows of a block: rows row to end-1 of group g.
struct Tile { int g, row, end; };

// tile_of finds tile number index when each group is divided into tiles of size rows, the last of a group being
// shorter, and returns false if there are fewer. All lanes take part.
__device__ bool tile_of(Tile &t, const int *offsets, int groups, int index, int size) {
	for (int first = 0; first < groups; first += 32) {
		int g = first + LANE, lo = 0, hi = 0;
		if (g < groups) lo = offsets[g], hi = offsets[g + 1];
		int tiles = (hi - lo + size - 1) / size, upto = tiles;
		for (int o = 1; o < 32; o *= 2) {
			int more = __shfl_sync(ALL, upto, LANE - o);
			if (LANE >= o) upto += more;
		}
		unsigned beyond = __ballot_sync(ALL, upto > index);
		if (beyond) {
			int lane = __ffs((int)beyond) - 1;
			t.g = first + lane;
			t.row = __shfl_sync(ALL, lo, lane) + (index - __shfl_sync(ALL, upto - tiles, lane)) * size;
			t.end = min(t.row + size, __shfl_sync(ALL, hi, lane));
			return true;
		}
		index -= __shfl_sync(ALL, upto, 31);
	}
	return false;
}

// Products of groups on tensor cores. A block computes a tile of 128 x 128 elements of C in steps of 32 of the sum,
// loading three steps ahead. Of its 8 warps, each has 64 x 32 elements. An element is one chain over the steps, so
// that its bits do not depend on the tile's other rows and columns.
//
// An operand in shared memory has rows of 32 elements of the sum or, if it is stored the other way (AT, not BT),
// 32 rows of 128 elements.
#define GROUP_TILE 128
#define GROUP_STEP 32
#define GROUP_STAGES 4
#define GROUP_ROOM (GROUP_TILE * (GROUP_STEP + 8)) // elements of an operand's tile

template <int ROWS, int COLS> __device__ __forceinline__ void fetch_tile(u16 *to, const u16 *from, int ld, int rows, int cols) {
#pragma unroll
	for (int i = threadIdx.x; i < ROWS * COLS / 8; i += THREADS) {
		int r = i / (COLS / 8), c = i % (COLS / 8) * 8;
		copy16(to, r * (COLS + 8) + c, from + (i64)r * ld + c, r < rows && c < cols ? 16 : 0);
	}
}

// load_at loads 16 columns of a tile, from row k on, as the left operand.
template <int DP> __device__ __forceinline__ void load_at(unsigned (&a)[4], const u16 *tile, int k, int col) {
	load_transposed(a, tile + (LANE / 16 * 8 + LANE % 8) * (DP + 8) + LANE / 8 % 2 * 8, k * (DP + 8) + col);
}

// multiply sets, or adds to, M x N elements of c, at most a tile, beginning at element at. K is the length of the
// sum. a and b begin at the operands' first elements.
template <int TYPE, bool AT, bool BT> __device__ void multiply(const Mat &c, i64 at, const u16 *a, int lda, const u16 *b, int ldb, int M, int N, int K, int add) {
	DYNAMIC_SHARED(u16, tiles16);
	int m0 = WARP / 4 * 64, n0 = WARP % 4 * 32, steps = (K + GROUP_STEP - 1) / GROUP_STEP;
	auto begin = [&](int step) {
		u16 *A = tiles16 + step % GROUP_STAGES * 2 * GROUP_ROOM, *B = A + GROUP_ROOM;
		int k = step * GROUP_STEP;
		if (AT)
			fetch_tile<GROUP_STEP, GROUP_TILE>(A, a + (i64)k * lda, lda, K - k, M);
		else
			fetch_tile<GROUP_TILE, GROUP_STEP>(A, a + k, lda, M, K - k);
		if (BT)
			fetch_tile<GROUP_TILE, GROUP_STEP>(B, b + k, ldb, N, K - k);
		else
			fetch_tile<GROUP_STEP, GROUP_TILE>(B, b + (i64)k * ldb, ldb, K - k, N);
	};
	for (int i = 0; i < GROUP_STAGES - 1; i++) {
		if (i < steps) begin(i);
		copy_commit();
	}
	float acc[4][4][4];
	clear(acc);
	for (int step = 0; step < steps; step++) {
		copy_wait<GROUP_STAGES - 2>();
		__syncthreads(); // this step has arrived, and the one before has been read
		if (step + GROUP_STAGES - 1 < steps) begin(step + GROUP_STAGES - 1);
		copy_commit();
		if (m0 >= M || n0 >= N) continue;
		const u16 *A = tiles16 + step % GROUP_STAGES * 2 * GROUP_ROOM, *B = A + GROUP_ROOM;
#pragma unroll
		for (int k = 0; k < GROUP_STEP; k += 16) {
			unsigned x[4][4];
#pragma unroll
			for (int m = 0; m < 4; m++)
				if (AT)
					load_at<GROUP_TILE>(x[m], A, k, m0 + 16 * m);
				else
					load_a<GROUP_STEP>(x[m], A, m0 + 16 * m, k);
#pragma unroll
			for (int n = 0; n < 2; n++) {
				unsigned y[4];
				if (BT)
					load_b<GROUP_STEP>(y, B, n0 + 16 * n, k);
				else
					load_bt<GROUP_TILE>(y, B, k, n0 + 16 * n);
#pragma unroll
				for (int m = 0; m < 4; m++) {
					mma<TYPE>(acc[m][2 * n], x[m], y[0], y[1]);
					mma<TYPE>(acc[m][2 * n + 1], x[m], y[2], y[3]);
				}
			}
		}
	}
#pragma unroll
	for (int m = 0; m < 4; m++)
#pragma unroll
		for (int r = 0; r < 2; r++)
#pragma unroll
			for (int n = 0; n < 4; n++) {
				int i = m0 + 16 * m + 8 * r + G, j = n0 + 8 * n + C2;
				if (i >= M || j >= N) continue;
				float x = acc[m][n][2 * r], y = acc[m][n][2 * r + 1];
				i64 to = at + (i64)i * c.ld + j;
				if (add) x += get(c, to), y += get(c, to + 1);
				if (c.type == F32) {
					float2 both;
					both.x = x, both.y = y;
					*(float2 *)((float *)c.p + to) = both;
				} else
					*(unsigned *)((u16 *)c.p + to) = pack<TYPE>(x, y);
			}
}

// Groups are the operands of products of groups: x and y have sorted rows, and matrix g of m, (rows, cols),
// begins g*stride elements after the first. Products set x to y·m or y·mT: a tile of rows is in blockIdx.y, of
// columns in x. Gradients set m to xT·y: a group is in z.
struct Groups {
	Mat x, y, m;
	i64 stride;
	const int *offsets;
	int groups, rows, cols, add;
};

template <int TYPE, bool BT> __device__ void mul_groups(const Groups &p) {
	Tile t;
	if (!tile_of(t, p.offsets, p.groups, blockIdx.y, GROUP_TILE)) return;
	int n = blockIdx.x * GROUP_TILE, N = BT ? p.rows : p.cols, K = BT ? p.cols : p.rows;
	const u16 *m = (const u16 *)p.m.p + t.g * p.stride + (BT ? (i64)n * p.m.ld : n);
	multiply<TYPE, false, BT>(p.x, (i64)t.row * p.x.ld + n, (const u16 *)p.y.p + (i64)t.row * p.y.ld, p.y.ld, m, p.m.ld, t.end - t.row, min(GROUP_TILE, N - n), K, p.add);
}

template <int TYPE> __device__ void grad_groups(const Groups &p) {
	int lo = p.offsets[blockIdx.z], K = p.offsets[blockIdx.z + 1] - lo, m = blockIdx.y * GROUP_TILE, n = blockIdx.x * GROUP_TILE;
	const u16 *x = (const u16 *)p.x.p + (i64)lo * p.x.ld + m, *y = (const u16 *)p.y.p + (i64)lo * p.y.ld + n;
	if (p.add && K == 0) return;
	multiply<TYPE, true, false>(p.m, blockIdx.z * p.stride + (i64)m * p.m.ld + n, x, p.x.ld, y, p.y.ld, min(GROUP_TILE, p.rows - m), min(GROUP_TILE, p.cols - n), K, p.add);
}

#define GROUPS extern "C" __global__ void __launch_bounds__(THREADS, 2)
#define GROUPS_OF(T, TYPE) \
	GROUPS groups_nt_##T##_128(Groups p) { mul_groups<TYPE, true>(p); } \
	KERNEL(groups_nt_##T##_128) \
	GROUPS groups_nn_##T##_128(Groups p) { mul_groups<TYPE, false>(p); } \
	KERNEL(groups_nn_##T##_128) \
	GROUPS groups_tn_##T##_128(Groups p) { grad_groups<TYPE>(p); } \
	KERNEL(groups_tn_##T##_128)
GROUPS_OF(bf16, BF16)
GROUPS_OF(f16, F16)

// The same products of any types and layouts, on ordinary cores. A block computes a tile of 64 x 64 elements in
// steps of 16 of the sum, 4 x 4 elements per thread.
#define CORE_TILE 64

// multiply_cores is multiply; element (i, p) of a is at i*ai + p*ap, element (p, j) of b at p*bp + j*bj.
__device__ void multiply_cores(const Mat &c, i64 at, const Mat &a, i64 ata, i64 ai, i64 ap, const Mat &b, i64 atb, i64 bp, i64 bj, int M, int N, int K, int add) {
	SHARED(float, A, 16 * CORE_TILE);
	SHARED(float, B, 16 * CORE_TILE);
	int i0 = threadIdx.x / 16 * 4, j0 = threadIdx.x % 16 * 4;
	float acc[4][4];
#pragma unroll
	for (int i = 0; i < 16; i++) acc[i / 4][i % 4] = 0;
	for (int k = 0; k < K; k += 16) {
		for (int l = threadIdx.x; l < 16 * CORE_TILE; l += THREADS) {
			int p = l / CORE_TILE, i = l % CORE_TILE;
			A[l] = k + p < K && i < M ? get(a, ata + i * ai + (k + p) * ap) : 0;
			B[l] = k + p < K && i < N ? get(b, atb + (k + p) * bp + i * bj) : 0;
		}
		__syncthreads();
		for (int p = 0; p < 16; p++)
#pragma unroll
			for (int i = 0; i < 16; i++) acc[i / 4][i % 4] = fmaf(A[p * CORE_TILE + i0 + i / 4], B[p * CORE_TILE + j0 + i % 4], acc[i / 4][i % 4]);
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < 16; i++) {
		int row = i0 + i / 4, col = j0 + i % 4;
		if (row >= M || col >= N) continue;
		i64 to = at + (i64)row * c.ld + col;
		put(c, to, add ? acc[i / 4][i % 4] + get(c, to) : acc[i / 4][i % 4]);
	}
}

ENTRY groups_mul(Groups p, int transposed) {
	Tile t;
	if (!tile_of(t, p.offsets, p.groups, blockIdx.y, CORE_TILE)) return;
	int n = blockIdx.x * CORE_TILE, N = transposed ? p.rows : p.cols, K = transposed ? p.cols : p.rows;
	i64 mk = transposed ? 1 : p.m.ld, mn = transposed ? p.m.ld : 1;
	multiply_cores(p.x, (i64)t.row * p.x.ld + n, p.y, (i64)t.row * p.y.ld, p.y.ld, 1, p.m, t.g * p.stride + n * mn, mk, mn, t.end - t.row, min(CORE_TILE, N - n), K, p.add);
}
KERNEL(groups_mul)

ENTRY groups_grad(Groups p) {
	i64 lo = p.offsets[blockIdx.z];
	int K = p.offsets[blockIdx.z + 1] - (int)lo, m = blockIdx.y * CORE_TILE, n = blockIdx.x * CORE_TILE;
	multiply_cores(p.m, blockIdx.z * p.stride + (i64)m * p.m.ld + n, p.x, lo * p.x.ld + m, 1, p.x.ld, p.y, lo * p.y.ld + n, p.y.ld, 1, min(CORE_TILE, p.rows - m),
		min(CORE_TILE, p.cols - n), K, p.add);
}
KERNEL(groups_grad)
