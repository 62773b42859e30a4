// Softmax cross-entropy of rows of logits: a block has a row.

// cross_entropy sets loss[row] (nats) to -log softmax(logits)[target], 0 where the
// target is -1. With grad it replaces the logits by scale*(softmax - onehot), or
// by zeros. With a cap a logit x counts as cap tanh(x/cap). A thread keeps the largest of its logits and the sum of exponentials
// relative to it (Milakov and Gimelshein, arXiv 1805.02867); threads are added in
// float64.
ENTRY cross_entropy(float *loss, Mat logits, const int *target, int rows, int cols, float scale, float cap, int grad) {
	SHARED(float, tops, WARPS);
	SHARED(double, sums, WARPS);
	for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
		int want = target[row];
		i64 at = row * logits.ld;
		if (want < -1 || want >= cols) TRAP("a target that is not in the vocabulary");
		if (want == -1) {
			if (threadIdx.x == 0) loss[row] = 0;
			Four none = {{0, 0, 0, 0}};
			for (int c = 4 * threadIdx.x; grad && c < cols; c += 4 * THREADS) put4(logits, at + c, cols - c, none);
			continue;
		}
		float own = capped(get(logits, at + want), cap), top = -INF, part = 0;
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
		if (threadIdx.x == 0) loss[row] = (float)(log(sum) + (double)all - (double)own);
		if (!grad) continue;
		float r = (float)((double)scale / sum);
		for (int c = 4 * threadIdx.x; c < cols; c += 4 * THREADS) {
			Four x = get4(logits, at + c, cols - c);
			for (int j = 0; j < 4; j++) {
				float y = capped(x.v[j], cap), g = exp32(y - all) * r;
				if (c + j == want) g -= scale;
				x.v[j] = g * cap_slope(y, cap);
			}
			put4(logits, at + c, cols - c, x);
		}
	}
}
KERNEL(cross_entropy)
