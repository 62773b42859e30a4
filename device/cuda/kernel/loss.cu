// Softmax cross-entropy of rows of logits. A block processes one row in two passes, the second
// backwards, starting from what is in cache. Blocks are large, and two share a multiprocessor, so that
// the rows of all concurrent blocks fit in half of an H200's cache: 27 MB for GPT-2. Threads load two
// words at once instead. Rows may begin anywhere: a thread reads and
// writes aligned words of 16 bytes, and single elements before the first and after the last word.

#define LOSS_THREADS 512
#define LOSS_WARPS (LOSS_THREADS / 32)
#define LOSS_WIDTH (8 * LOSS_THREADS) // elements that a block's threads load at a time, a word each
#define LOSS extern "C" __global__ void __launch_bounds__(LOSS_THREADS, 2)

// Sum holds the largest logit of a row and the sum of exponentials relative to it.
struct Sum {
	float top;
	double sum;
};

// lead returns how many elements the first aligned word begins before a row of type T.
template <int T> __device__ __forceinline__ int lead(const char *row) { return (int)((u64)row % 16) / (T == F32 ? 4 : 2); }

// capped_fast returns cap tanh(x/cap) without divisions, and slope_fast its derivative where its
// value is y. Near 0, where 1 - 2/(e^2x + 1) loses precision, tanh is tanh32's polynomial.
__device__ __forceinline__ float capped_fast(float x, float cap) {
	float y = x * inverse(cap), a = fabsf(y);
	return cap * (a < 0.625f ? tanh_small(y) : copysignf(1 - 2 * inverse(exp2_fast(a * (2 * LOG2E)) + 1), y));
}
__device__ __forceinline__ float slope_fast(float y, float cap) {
	float t = y * inverse(cap);
	return 1 - t * t;
}

// pair8 loads words c and d of a row, together if both are whole.
template <int T> __device__ __forceinline__ void pair8(Eight *x, const char *row, int c, int d, int cols) {
	if (min(c, d) >= 0 && max(c, d) + 8 <= cols)
		x[0] = load8<T>(row, c), x[1] = load8<T>(row, d);
	else
		x[0] = part8<T>(row, c, cols), x[1] = part8<T>(row, d, cols);
}

// sum_row returns the Sum of a row. Each thread keeps the largest of its logits and the sum of
// exponentials relative to it (Milakov and Gimelshein, arXiv 1805.02867); threads are added in
// float64.
template <int T, bool CAP> __device__ Sum sum_row(const char *row, int cols, float cap, float *tops, double *sums) {
	float top = -INF, part = 0;
	for (int first = 8 * threadIdx.x - lead<T>(row); first < cols; first += 2 * LOSS_WIDTH) {
		Eight x[2];
		pair8<T>(x, row, first, first + LOSS_WIDTH, cols);
#pragma unroll
		for (int k = 0; k < 2; k++) {
			int c = first + k * LOSS_WIDTH;
			if (c >= cols) break;
			float most = top;
#pragma unroll
			for (int j = 0; j < 8; j++) {
				x[k].v[j] = c + j >= 0 && c + j < cols ? CAP ? capped_fast(x[k].v[j], cap) : x[k].v[j] : -INF;
				most = fmaxf(most, x[k].v[j]);
			}
			part *= exp_fast(top - most);
			top = most;
#pragma unroll
			for (int j = 0; j < 8; j++) part += exp_fast(x[k].v[j] - top);
		}
	}
	float all = warp_max(top);
	if (LANE == 0) tops[WARP] = all;
	__syncthreads();
	for (int w = 0; w < LOSS_WARPS; w++) all = fmaxf(all, tops[w]);
	double sum = warp_sum((double)part * exp_fast(top - all)); // 0 * 0 for a thread without logits
	if (LANE == 0) sums[WARP] = sum;
	__syncthreads();
	sum = 0;
	for (int w = 0; w < LOSS_WARPS; w++) sum += sums[w];
	Sum s = {all, sum};
	return s;
}

// zero_row sets a row to zeros.
template <int T> __device__ void zero_row(char *row, int cols) {
	Eight none = {{0, 0, 0, 0, 0, 0, 0, 0}};
	for (int c = 8 * threadIdx.x - lead<T>(row); c < cols; c += LOSS_WIDTH) put_part8<T>(row, c, cols, none);
}

// grad_row replaces a row by scale*(softmax - onehot(want)). A want outside [0, cols) is not among
// these logits.
template <int T, bool CAP> __device__ void grad_row(char *row, int cols, Sum s, int want, float scale, float cap) {
	float r = (float)((double)scale / s.sum);
	int first = 8 * threadIdx.x - lead<T>(row), words = (cols - first + LOSS_WIDTH - 1) / LOSS_WIDTH;
	for (int last = first + (words - 1) * LOSS_WIDTH; last >= first; last -= 2 * LOSS_WIDTH) {
		Eight x[2];
		pair8<T>(x, row, last, last - LOSS_WIDTH, cols);
#pragma unroll
		for (int k = 0; k < 2; k++) {
			int c = last - k * LOSS_WIDTH;
			if (c < first) break;
#pragma unroll
			for (int j = 0; j < 8; j++) {
				float y = CAP ? capped_fast(x[k].v[j], cap) : x[k].v[j], g = exp_fast(y - s.top) * r;
				if (c + j == want) g -= scale;
				x[k].v[j] = CAP ? g * slope_fast(y, cap) : g;
			}
			put_part8<T>(row, c, cols, x[k]);
		}
	}
}

template <int T, bool CAP>
__device__ void loss_of(float *loss, const Mat &logits, const int *target, int rows, int cols, float scale, float cap, int grad, float *tops, double *sums) {
	for (i64 i = blockIdx.x; i < rows; i += gridDim.x) {
		char *row = row_of(logits, i).p;
		int want = target[i];
		if (want < -2 || want >= cols) TRAP("a target that is not in the vocabulary");
		if (want < 0) {
			if (threadIdx.x == 0) loss[i] = 0;
			if (grad) zero_row<T>(row, cols);
			continue;
		}
		float own = (cap > 0 ? capped_fast(get_as<T>(row, want), cap) : get_as<T>(row, want));
		Sum s = sum_row<T, CAP>(row, cols, cap, tops, sums);
		if (threadIdx.x == 0) loss[i] = (float)(log(s.sum) + (double)s.top - (double)own);
		if (grad) grad_row<T, CAP>(row, cols, s, want, scale, cap);
	}
}

// cross_entropy sets loss[row] (nats) to -log softmax(logits)[target], or 0 if the target is negative.
// With grad it replaces the logits by scale*(softmax - onehot), or by zeros. With a cap it uses cap
// tanh(x/cap) for a logit x.
LOSS cross_entropy(float *loss, Mat logits, const int *target, int rows, int cols, float scale, float cap, int grad) {
	SHARED(float, tops, LOSS_WARPS);
	SHARED(double, sums, LOSS_WARPS);
	with_type(logits.type, [&](auto t) {
		if (cap > 0)
			loss_of<decltype(t)::is, true>(loss, logits, target, rows, cols, scale, cap, grad, tops, sums);
		else
			loss_of<decltype(t)::is, false>(loss, logits, target, rows, cols, scale, cap, grad, tops, sums);
	});
}
KERNEL(cross_entropy)

template <int T, bool CAP>
__device__ void loss_part(float *stats, const Mat &logits, const int *target, int rows, int cols, int first, int size, float cap, float *tops, double *sums) {
	for (i64 i = blockIdx.x; i < rows; i += gridDim.x) {
		const char *row = row_of(logits, i).p;
		int want = target[i];
		if (want < -2 || want >= size) TRAP("a target that is not in the vocabulary");
		if (want < 0) continue;
		Sum s = sum_row<T, CAP>(row, cols, cap, tops, sums);
		want -= first;
		if (threadIdx.x == 0) {
			stats[3 * i] = s.top;
			stats[3 * i + 1] = (float)s.sum;
			stats[3 * i + 2] = want >= 0 && want < cols ? (cap > 0 ? capped_fast(get_as<T>(row, want), cap) : get_as<T>(row, want)) : 0;
		}
	}
}

// cross_entropy_part sets each row's stats for a part of the vocabulary, starting at first: the
// largest logit, the sum of exponentials relative to it, and the target's logit, or 0.
LOSS cross_entropy_part(float *stats, Mat logits, const int *target, int rows, int cols, int first, int size, float cap) {
	SHARED(float, tops, LOSS_WARPS);
	SHARED(double, sums, LOSS_WARPS);
	with_type(logits.type, [&](auto t) {
		if (cap > 0)
			loss_part<decltype(t)::is, true>(stats, logits, target, rows, cols, first, size, cap, tops, sums);
		else
			loss_part<decltype(t)::is, false>(stats, logits, target, rows, cols, first, size, cap, tops, sums);
	});
}
KERNEL(cross_entropy_part)

template <int T>
__device__ void loss_merge(float *loss, const float *stats, int parts, const Mat &logits, const int *target, int rows, int cols, int first, int size, float scale, float cap, int grad) {
	for (i64 i = blockIdx.x; i < rows; i += gridDim.x) {
		char *row = row_of(logits, i).p;
		int want = target[i];
		if (want < -2 || want >= size) TRAP("a target that is not in the vocabulary");
		if (want < 0) {
			if (threadIdx.x == 0) loss[i] = 0;
			if (grad) zero_row<T>(row, cols);
			continue;
		}
		Sum s = {-INF, 0};
		float own = 0;
		for (int p = 0; p < parts; p++) s.top = fmaxf(s.top, stats[3 * ((i64)p * rows + i)]);
		for (int p = 0; p < parts; p++) {
			const float *part = stats + 3 * ((i64)p * rows + i);
			s.sum += (double)part[1] * exp_fast(part[0] - s.top);
			own += part[2];
		}
		if (threadIdx.x == 0) loss[i] = (float)(log(s.sum) + (double)s.top - (double)own);
		if (!grad) continue;
		if (cap > 0)
			grad_row<T, true>(row, cols, s, want - first, scale, cap);
		else
			grad_row<T, false>(row, cols, s, want - first, scale, cap);
	}
}

// cross_entropy_merge computes losses from the stats of all parts, in order. With grad it replaces
// this part's logits by their gradients.
LOSS cross_entropy_merge(float *loss, const float *stats, int parts, Mat logits, const int *target, int rows, int cols, int first, int size, float scale, float cap, int grad) {
	with_type(logits.type, [&](auto t) { loss_merge<decltype(t)::is>(loss, stats, parts, logits, target, rows, cols, first, size, scale, cap, grad); });
}
KERNEL(cross_entropy_merge)
