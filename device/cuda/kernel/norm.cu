// LayerNorm and RMSNorm, one row per warp. If mean is null, the norm is RMSNorm (Zhang and
// Sennrich, arXiv 1910.07467), which subtracts no mean and has no bias.

// row_norm sets y = (x-mean)*rstd*w + b with rstd = 1/sqrt(variance + eps); y may be x.
template <int T> __device__ __forceinline__ void row_norm_of(const Mat &y, float *mean, float *rstd, const Mat &x, const Mat &w, const Mat &b, int rows, int cols, float eps) {
	float each = inverse((float)cols);
	EACH_ROW(row, rows) {
		Mat from = row_of(x, row), to = row_of(y, row);
		float m = 0, v = 0;
		if (mean) {
			LANE8(c, cols) {
				Eight f = get8<T>(from, c, cols);
				m += ((f.v[0] + f.v[1]) + (f.v[2] + f.v[3])) + ((f.v[4] + f.v[5]) + (f.v[6] + f.v[7]));
			}
			m = warp_sum(m) * each;
		}
		LANE8(c, cols) {
			Eight f = get8<T>(from, c, cols);
			EIGHT(j) {
				float d = c + j < cols ? f.v[j] - m : 0;
				v = fmaf(d, d, v);
			}
		}
		float r = inverse_root(fmaf(warp_sum(v), each, eps));
		LANE8(c, cols) {
			Eight f = get8<T>(from, c, cols), g = get8<T>(w, c, cols), h = {{0, 0, 0, 0, 0, 0, 0, 0}};
			if (mean) h = get8<T>(b, c, cols);
			EIGHT(j) f.v[j] = fmaf((f.v[j] - m) * r, g.v[j], h.v[j]);
			put8<T>(to, c, cols, f);
		}
		if (LANE == 0) {
			rstd[row] = r;
			if (mean) mean[row] = m;
		}
	}
}

PASS row_norm(Mat y, float *mean, float *rstd, Mat x, Mat w, Mat b, int rows, int cols, float eps) {
	with_kind(mean ? type_of(cols % 8 == 0, y, x, w, b) : type_of(cols % 8 == 0, y, x, w), [&](auto type) { row_norm_of<decltype(type)::is>(y, mean, rstd, x, w, b, rows, cols, eps); });
}
KERNEL(row_norm)

// Gradients of norms set dx to rstd * (g - average(g) - n*average(g*n)), or add that with add, where
// n = (x-mean)*rstd and g = dy*w; RMSNorm has no average(g). dx may be dy or x. In the same pass,
// block i sums dy*n and dy over its rows, each of them, into row i of dw and, if not null, of db (.,
// cols), which sum_parts adds up.

// add_warps adds the warps' sums of 256 columns from c, of which each lane has eight, and writes them
// to a row of cols columns.
__device__ __forceinline__ void add_warps(float *to, float *sums, const Eight &mine, int c, int cols) {
	__syncthreads();
	EIGHT(j) sums[WARP * THREADS + 8 * LANE + j] = mine.v[j];
	__syncthreads();
	float sum = sums[threadIdx.x];
	for (int w = 1; w < WARPS; w++) sum += sums[w * THREADS + threadIdx.x];
	if (c + (int)threadIdx.x < cols) to[c + threadIdx.x] = sum;
}

// norm_grad_rows computes rows of up to 256 N columns, which consist of whole words of eight elements
// of one type. Each warp computes one row at a time and keeps the columns' sums of its rows in
// registers. It reads rows twice, the second time from the cache. Only with B may db not be null.
template <int T, int N, bool B>
__device__ __forceinline__ void norm_grad_rows(const Mat &dx, const Mat &dy, const Mat &x, const Mat &w, const float *mean, const float *rstd, float *dw, float *db, float *sums, int rows, int cols, int each, int add) {
	i64 from = (i64)blockIdx.x * each, end = from + each < rows ? from + each : rows;
	float share = 1 / (float)cols;
	Eight sw[N], sb[B ? N : 1];
#pragma unroll
	for (int k = 0; k < N; k++) EIGHT(j) sw[k].v[j] = sb[B ? k : 0].v[j] = 0;
	for (i64 row = from + WARP; row < end; row += WARPS) {
		Mat d = row_of(dy, row), f = row_of(x, row), to = row_of(dx, row);
		float m = mean ? mean[row] : 0, r = rstd[row], sg = 0, sgn = 0;
#pragma unroll(N > 3 ? 2 : N)
		for (int k = 0; k < N; k++) {
			int c = 256 * k + 8 * LANE;
			bool is = c < cols;
			if (!is) c = 0; // loads without a branch, all at once
			Eight g = get8<T>(d, c, cols), v = get8<T>(w, c, cols), n = get8<T>(f, c, cols);
			EIGHT(j) {
				float y = is ? g.v[j] * v.v[j] : 0;
				sg += y;
				sgn = fmaf(y, (n.v[j] - m) * r, sgn);
			}
		}
		sg = mean ? warp_sum(sg) * share : 0;
		sgn = warp_sum(sgn) * share;
		asm volatile("" ::: "memory"); // or the compiler keeps the row in registers, and spills
#pragma unroll
		for (int k = 0; k < N; k++) {
			int c = 256 * k + 8 * LANE;
			if (c >= cols) break;
			if (N > 3) asm volatile("" ::: "memory"); // limits the loads that are ahead
			Eight g = get8<T>(d, c, cols), n = get8<T>(f, c, cols), v = get8<T>(w, c, cols), old = {{0, 0, 0, 0, 0, 0, 0, 0}};
			if (add) old = get8<T>(to, c, cols);
			EIGHT(j) {
				n.v[j] = (n.v[j] - m) * r;
				if (B) sb[B ? k : 0].v[j] += g.v[j];
				sw[k].v[j] = fmaf(g.v[j], n.v[j], sw[k].v[j]);
				g.v[j] = fmaf(r, fmaf(-n.v[j], sgn, g.v[j] * v.v[j] - sg), old.v[j]);
			}
			put8<T>(to, c, cols, g);
		}
	}
#pragma unroll
	for (int k = 0; k < N; k++) {
		if (256 * k >= cols) break;
		add_warps(dw + (i64)blockIdx.x * cols, sums, sw[k], 256 * k, cols);
		if (B && db) add_warps(db + (i64)blockIdx.x * cols, sums, sb[B ? k : 0], 256 * k, cols);
	}
}

// norm_grad_wide computes wider and other rows, in tiles of as many rows as warps. First, each warp computes the
// averages of a row. Then each thread processes 4 N columns of all rows of the tile, which are now in
// cache, keeping the columns' sums in registers. The averages are double-buffered, so that one barrier
// per tile is enough.
//
// FRESH makes the compiler recompute a thread's column; otherwise it keeps the addresses of several
// columns throughout the loop, and spills.
template <int N> __device__ __forceinline__ void norm_grad_wide(const Mat &dx, const Mat &dy, const Mat &x, const Mat &w, const float *mean, const float *rstd, float *dw, float *db, int rows, int cols, int each, int add) {
	SHARED(float4, places, 2 * WARPS); // mean, rstd, average(g), average(g*n)
	int from = blockIdx.x * each, end = rows - from < each ? rows : from + each;
	Four sw[N], sb[N];
#pragma unroll
	for (int k = 0; k < N; k++)
		for (int j = 0; j < 4; j++) sw[k].v[j] = sb[k].v[j] = 0;
	for (int turn = 0; from < end; from += WARPS, turn = WARPS - turn) {
		if (from + WARP < end) {
			i64 row = from + WARP;
			float m = mean ? mean[row] : 0, r = rstd[row], sg = 0, sgn = 0;
			LANE4(c, cols) {
				Four d = get4(dy, row * dy.ld + c, cols - c), f = get4(x, row * x.ld + c, cols - c), k = get4(w, c, cols - c);
				for (int j = 0; j < 4; j++) {
					float g = d.v[j] * k.v[j];
					sg += g;
					sgn = fmaf(g, (f.v[j] - m) * r, sgn);
				}
			}
			sg = mean ? warp_sum(sg) / cols : 0;
			sgn = warp_sum(sgn) / cols;
			if (LANE == 0) places[turn + WARP].x = m, places[turn + WARP].y = r, places[turn + WARP].z = sg, places[turn + WARP].w = sgn;
		}
		__syncthreads();
		for (int i = 0; i < WARPS && from + i < end; i++) {
			Mat dyr = row_of(dy, from + i), xr = row_of(x, from + i), dxr = row_of(dx, from + i);
			float4 p = places[turn + i];
#pragma unroll
			for (int k = 0; k < N; k++) {
				int c = 4 * (threadIdx.x + THREADS * k);
				if (c >= cols) break;
				FRESH(c);
				Four d = get4(dyr, c, cols - c), f = get4(xr, c, cols - c), g = get4(w, c, cols - c), old = {{0, 0, 0, 0}};
				if (add) old = get4(dxr, c, cols - c);
#pragma unroll
				for (int j = 0; j < 4; j++) {
					float n = (f.v[j] - p.x) * p.y;
					sb[k].v[j] += d.v[j];
					sw[k].v[j] = fmaf(d.v[j], n, sw[k].v[j]);
					d.v[j] = fmaf(p.y, fmaf(-n, p.w, d.v[j] * g.v[j] - p.z), old.v[j]);
				}
				put4(dxr, c, cols - c, d);
			}
		}
	}
#pragma unroll
	for (int k = 0; k < N; k++)
		for (int j = 0; j < 4; j++) {
			int c = 4 * (threadIdx.x + THREADS * k) + j;
			if (c >= cols) continue;
			dw[(i64)blockIdx.x * cols + c] = sw[k].v[j];
			if (db) db[(i64)blockIdx.x * cols + c] = sb[k].v[j];
		}
}

// The number in a kernel's name is its widest row, in 256 columns. Those of RMS have no db.
#define NORM_GRAD_ROWS(NAME, N, B, BLOCKS) \
	extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(Mat dx, Mat dy, Mat x, Mat w, const float *mean, const float *rstd, float *dw, float *db, int rows, int cols, int each, int add) { \
		SHARED(float, sums, WARPS * THREADS); \
		with_type(x.type, [&](auto type) { \
			norm_grad_rows<decltype(type)::is, N, B>(dx, dy, x, w, mean, rstd, dw, db, sums, rows, cols, each, add); \
		}); \
	} \
	KERNEL(NAME)
#define NORM_GRAD_WIDE(N, FOURS, BLOCKS) \
	extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) norm_grad_##N(Mat dx, Mat dy, Mat x, Mat w, const float *mean, const float *rstd, float *dw, float *db, int rows, int cols, int each, int add) { \
		norm_grad_wide<FOURS>(dx, dy, x, w, mean, rstd, dw, db, rows, cols, each, add); \
	} \
	KERNEL(norm_grad_##N)
NORM_GRAD_ROWS(norm_grad_3, 3, true, 2)
NORM_GRAD_ROWS(norm_grad_4, 4, true, 2)
NORM_GRAD_ROWS(norm_grad_8, 8, true, 1)
NORM_GRAD_ROWS(norm_grad_rms_16, 16, false, 1)
NORM_GRAD_WIDE(16, 4, 2)
NORM_GRAD_WIDE(32, 8, 2)
NORM_GRAD_WIDE(64, 16, 1)

// columns sums each column of dy. Block (x, y) sums 256 columns over each rows into row y of db (.,
// cols), which sum_parts adds up.
ENTRY columns(float *db, Mat dy, int rows, int cols, int each) {
	SHARED(float, sums, WARPS * THREADS);
	int c = blockIdx.x * THREADS + 8 * LANE;
	i64 first = (i64)blockIdx.y * each, end = first + each < rows ? first + each : rows;
	with_kind(type_of(cols % 8 == 0, dy), [&](auto type) {
		Eight b = {{0, 0, 0, 0, 0, 0, 0, 0}};
		for (i64 row = first + WARP; row < end && c < cols; row += WARPS) {
			Eight d = get8<decltype(type)::is>(row_of(dy, row), c, cols);
			EIGHT(j) b.v[j] += d.v[j];
		}
		EIGHT(j) sums[WARP * THREADS + 8 * LANE + j] = b.v[j];
	});
	__syncthreads();
	int col = blockIdx.x * THREADS + threadIdx.x;
	if (col >= cols) return;
	float sum = 0;
	for (int i = 0; i < WARPS; i++) sum += sums[i * THREADS + threadIdx.x];
	db[(i64)blockIdx.y * cols + col] = sum;
}
KERNEL(columns)

// sum_parts sets y[j] to the sum of count rows of parts; blocks (., 1) set z[j] to the sum of
// others. Warp w of a block adds the w-th eighth of the rows in order; then the eighths are added
// in order. A block processes 32 columns.
ENTRY sum_parts(float *y, const float *parts, float *z, const float *others, int count, int cols) {
	SHARED(float, sums, THREADS);
	const float *from = blockIdx.y ? others : parts;
	int col = blockIdx.x * 32 + LANE, each = (count + WARPS - 1) / WARPS, end = (WARP + 1) * each < count ? (WARP + 1) * each : count;
	float sum = 0;
#pragma unroll 16
	for (int i = WARP * each; i < end; i++)
		if (col < cols) sum += from[(i64)i * cols + col];
	sums[threadIdx.x] = sum;
	__syncthreads();
	if (WARP > 0 || col >= cols) return;
	for (int w = 1; w < WARPS; w++) sum += sums[32 * w + LANE];
	(blockIdx.y ? z : y)[col] = sum;
}
KERNEL(sum_parts)
