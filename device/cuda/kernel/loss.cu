// Softmax cross-entropy of rows of logits: a block has a row.

// Sum is the largest of a row's logits and the sum of exponentials relative to it.
struct Sum {
	float top;
	double sum;
};

// sum_row is a row's, whose logits begin at at. A thread keeps the largest of its logits and
// the sum of exponentials relative to it (Milakov and Gimelshein, arXiv 1805.02867); threads
// are added in float64.
__device__ Sum sum_row(Mat logits, i64 at, int cols, float cap, float *tops, double *sums) {
	float top = -INF, part = 0;
	for (int c = 4 * threadIdx.x; c < cols; c += 4 * THREADS) {
		Four x = get4(logits, at + c, cols - c);
		for (int j = 0; j < 4; j++) x.v[j] = capped(x.v[j], cap);
		float most = top;
		for (int j = 0; j < 4; j++)
			if (c + j < cols) most = fmaxf(most, x.v[j]);
		part *= exp32(top - most);
		top = most;
		for (int j = 0; j < 4; j++)
			if (c + j < cols) part += exp32(x.v[j] - top);
	}
	float all = warp_max(top);
	if (LANE == 0) tops[WARP] = all;
	__syncthreads();
	for (int w = 0; w < WARPS; w++) all = fmaxf(all, tops[w]);
	double sum = warp_sum((double)part * exp32(top - all)); // a thread without logits has 0 * 0
	if (LANE == 0) sums[WARP] = sum;
	__syncthreads();
	sum = 0;
	for (int w = 0; w < WARPS; w++) sum += sums[w];
	Sum s = {all, sum};
	return s;
}

// zero_row replaces a row by zeros.
__device__ void zero_row(Mat logits, i64 at, int cols) {
	Four none = {{0, 0, 0, 0}};
	for (int c = 4 * threadIdx.x; c < cols; c += 4 * THREADS) put4(logits, at + c, cols - c, none);
}

// grad_row replaces a row by scale*(softmax - onehot(want)); a want below 0 or from cols on is
// not among the logits.
__device__ void grad_row(Mat logits, i64 at, int cols, Sum s, int want, float scale, float cap) {
	float r = (float)((double)scale / s.sum);
	for (int c = 4 * threadIdx.x; c < cols; c += 4 * THREADS) {
		Four x = get4(logits, at + c, cols - c);
		for (int j = 0; j < 4; j++) {
			float y = capped(x.v[j], cap), g = exp32(y - s.top) * r;
			if (c + j == want) g -= scale;
			x.v[j] = g * cap_slope(y, cap);
		}
		put4(logits, at + c, cols - c, x);
	}
}

// cross_entropy sets loss[row] (nats) to -log softmax(logits)[target], 0 where the
// target is -1. With grad it replaces the logits by scale*(softmax - onehot), or
// by zeros. With a cap a logit x counts as cap tanh(x/cap).
ENTRY cross_entropy(float *loss, Mat logits, const int *target, int rows, int cols, float scale, float cap, int grad) {
	SHARED(float, tops, WARPS);
	SHARED(double, sums, WARPS);
	for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
		int want = target[row];
		i64 at = row * logits.ld;
		if (want < -1 || want >= cols) TRAP("a target that is not in the vocabulary");
		if (want == -1) {
			if (threadIdx.x == 0) loss[row] = 0;
			if (grad) zero_row(logits, at, cols);
			continue;
		}
		float own = capped(get(logits, at + want), cap);
		Sum s = sum_row(logits, at, cols, cap, tops, sums);
		if (threadIdx.x == 0) loss[row] = (float)(log(s.sum) + (double)s.top - (double)own);
		if (grad) grad_row(logits, at, cols, s, want, scale, cap);
	}
}
KERNEL(cross_entropy)

// cross_entropy_part sets the stats of each row, whose logits are those of part of the
// vocabulary, from first on: the largest, the sum of exponentials relative to it, and the
// target's, or 0.
ENTRY cross_entropy_part(float *stats, Mat logits, const int *target, int rows, int cols, int first, int size, float cap) {
	SHARED(float, tops, WARPS);
	SHARED(double, sums, WARPS);
	for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
		int want = target[row];
		i64 at = row * logits.ld;
		if (want < -1 || want >= size) TRAP("a target that is not in the vocabulary");
		if (want == -1) continue;
		Sum s = sum_row(logits, at, cols, cap, tops, sums);
		want -= first;
		if (threadIdx.x == 0) {
			stats[3 * row] = s.top;
			stats[3 * row + 1] = (float)s.sum;
			stats[3 * row + 2] = want >= 0 && want < cols ? capped(get(logits, at + want), cap) : 0;
		}
	}
}
KERNEL(cross_entropy_part)

// cross_entropy_merge sets losses from the stats of all parts, in their order, and with grad
// replaces this part's logits by their gradient.
ENTRY cross_entropy_merge(float *loss, const float *stats, int parts, Mat logits, const int *target, int rows, int cols, int first, int size, float scale, float cap, int grad) {
	for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
		int want = target[row];
		i64 at = row * logits.ld;
		if (want < -1 || want >= size) TRAP("a target that is not in the vocabulary");
		if (want == -1) {
			if (threadIdx.x == 0) loss[row] = 0;
			if (grad) zero_row(logits, at, cols);
			continue;
		}
		Sum s = {-INF, 0};
		float own = 0;
		for (int p = 0; p < parts; p++) s.top = fmaxf(s.top, stats[3 * ((i64)p * rows + row)]);
		for (int p = 0; p < parts; p++) {
			const float *part = stats + 3 * ((i64)p * rows + row);
			s.sum += (double)part[1] * exp32(part[0] - s.top);
			own += part[2];
		}
		if (threadIdx.x == 0) loss[row] = (float)(log(s.sum) + (double)s.top - (double)own);
		if (grad) grad_row(logits, at, cols, s, want - first, scale, cap);
	}
}
KERNEL(cross_entropy_merge)
