// LayerNorm and RMSNorm: a warp has a row. Where mean is null the norm is RMSNorm
// (Zhang and Sennrich, arXiv 1910.07467), which takes no mean off and has no bias.

// row_norm sets y = (x-mean)*rstd*w + b with rstd = 1/sqrt(variance + eps); y may be x.
ENTRY row_norm(Mat y, float *mean, float *rstd, Mat x, Mat w, Mat b, int rows, int cols, float eps) {
	EACH_ROW(row, rows) {
		i64 at = row * x.ld;
		float m = 0, v = 0;
		if (mean) {
			LANE4(c, cols) {
				Four f = get4(x, at + c, cols - c);
				m += (f.v[0] + f.v[1]) + (f.v[2] + f.v[3]);
			}
			m = warp_sum(m) / cols;
		}
		LANE4(c, cols) {
			Four f = get4(x, at + c, cols - c);
			for (int j = 0; j < 4; j++) {
				float d = c + j < cols ? f.v[j] - m : 0;
				v = fmaf(d, d, v);
			}
		}
		float r = 1 / sqrtf(warp_sum(v) / cols + eps);
		LANE4(c, cols) {
			Four f = get4(x, at + c, cols - c), g = get4(w, c, cols - c), h = {{0, 0, 0, 0}};
			if (mean) h = get4(b, c, cols - c);
			for (int j = 0; j < 4; j++) f.v[j] = fmaf((f.v[j] - m) * r, g.v[j], h.v[j]);
			put4(y, row * y.ld + c, cols - c, f);
		}
		if (LANE == 0) {
			rstd[row] = r;
			if (mean) mean[row] = m;
		}
	}
}
KERNEL(row_norm)

// row_norm_grad sets dx, or with add adds to it, rstd * (g - average(g) - n*average(g*n))
// with n = (x-mean)*rstd and g = dy*w; RMSNorm's has no average(g). dx may be dy.
ENTRY row_norm_grad(Mat dx, Mat dy, Mat x, Mat w, const float *mean, const float *rstd, int rows, int cols, int add) {
	EACH_ROW(row, rows) {
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
		LANE4(c, cols) {
			Four d = get4(dy, row * dy.ld + c, cols - c), f = get4(x, row * x.ld + c, cols - c), k = get4(w, c, cols - c);
			Four old = {{0, 0, 0, 0}};
			if (add) old = get4(dx, row * dx.ld + c, cols - c);
			for (int j = 0; j < 4; j++) {
				float g = d.v[j] * k.v[j] - sg, n = (f.v[j] - m) * r;
				d.v[j] = fmaf(r, fmaf(-n, sgn, g), old.v[j]);
			}
			put4(dx, row * dx.ld + c, cols - c, d);
		}
	}
}
KERNEL(row_norm_grad)

// columns sums rows of dy, and of dy*(x-mean)*rstd if dw is not null, down each
// column. A block has 128 columns and each rows; block (., i) writes row i of db
// and dw (., cols), those that are not null, for sum_parts to add up.
ENTRY columns(float *dw, float *db, Mat dy, Mat x, const float *mean, const float *rstd, int rows, int cols, int each) {
	SHARED(float, sums, 2 * WARPS * 128);
	int c = blockIdx.x * 128 + 4 * LANE;
	i64 first = (i64)blockIdx.y * each, end = first + each < rows ? first + each : rows;
	Four w = {{0, 0, 0, 0}}, b = w;
	for (i64 row = first + WARP; row < end; row += WARPS) {
		Four d = get4(dy, row * dy.ld + c, cols - c);
		for (int j = 0; j < 4; j++) b.v[j] += d.v[j];
		if (!dw) continue;
		Four f = get4(x, row * x.ld + c, cols - c);
		float m = mean ? mean[row] : 0, r = rstd[row];
		for (int j = 0; j < 4; j++) w.v[j] = fmaf(d.v[j], (f.v[j] - m) * r, w.v[j]);
	}
	for (int j = 0; j < 4; j++) {
		sums[WARP * 128 + 4 * LANE + j] = b.v[j];
		sums[(WARPS + WARP) * 128 + 4 * LANE + j] = w.v[j];
	}
	__syncthreads();
	int mine = threadIdx.x % 128, col = blockIdx.x * 128 + mine, which = threadIdx.x / 128;
	float *to = which ? dw : db;
	if (!to || col >= cols) return;
	float sum = 0;
	for (int i = 0; i < WARPS; i++) sum += sums[(which * WARPS + i) * 128 + mine];
	to[(i64)blockIdx.y * cols + col] = sum;
}
KERNEL(columns)

// sum_parts sets dst[j] to the sum of count rows of parts, in their order.
ENTRY sum_parts(float *dst, const float *parts, int count, int cols) {
	EACH(j, cols) {
		float sum = 0;
#pragma unroll 16
		for (int i = 0; i < count; i++) sum += parts[(i64)i * cols + j];
		dst[j] = sum;
	}
}
KERNEL(sum_parts)
