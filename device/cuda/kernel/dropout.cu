// Dropout, see device.Dropout: y is x where kept, times scale, and 0 elsewhere, plus add if that is
// not null. The decisions for the eight columns of a group are the halves of the four words of
// Philox4x32-10 (Salmon et al., SC 2011).

struct Drop {
	unsigned key0, key1, place, drop;
	u64 row; // number of the first row
	int cols;
	float scale;
};

struct Words { unsigned v[4]; };

__device__ Words philox(unsigned a, unsigned b, unsigned c, unsigned d, unsigned k0, unsigned k1) {
	for (int i = 0; i < 10; i++) {
		u64 p0 = (u64)0xD2511F53u * a, p1 = (u64)0xCD9E8D57u * c;
		a = (unsigned)(p1 >> 32) ^ b ^ k0, c = (unsigned)(p0 >> 32) ^ d ^ k1;
		b = (unsigned)p1, d = (unsigned)p0;
		k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
	}
	Words w = {{a, b, c, d}};
	return w;
}

struct Halves { unsigned x, y; };

// halves returns the two words that decide columns col to col+3 of a row; col is a multiple of
// four.
__device__ Halves halves(const Drop &d, i64 row, int col) {
	u64 r = d.row + row;
	Words w = philox(col / 8, d.place, (unsigned)r, (unsigned)(r >> 32), d.key0, d.key1);
	Halves h;
	h.x = col % 8 ? w.v[2] : w.v[0], h.y = col % 8 ? w.v[3] : w.v[1];
	return h;
}

// kept8 sets a bit for each column of a group of eight that is kept.
__device__ unsigned kept8(const Drop &d, u64 row, int group) {
	Words w = philox(group, d.place, (unsigned)row, (unsigned)(row >> 32), d.key0, d.key1);
	unsigned limit = d.drop << 16, bits = 0;
#pragma unroll
	for (int i = 0; i < 4; i++) bits |= (w.v[i] << 16 >= limit ? 1u << 2 * i : 0) | (w.v[i] >= limit ? 2u << 2 * i : 0);
	return bits;
}

// first is the number of the first column, a multiple of 8.
ENTRY dropout(Mat y, Mat x, Mat add, i64 n, Drop d, int first) {
	if (d.cols % 8 == 0 && n >> 31 == 0) { // eight elements are one group
		with_kind(add.p ? type_of(true, y, x, add) : type_of(true, y, x), [&](auto type) {
			const int T = decltype(type)::is;
			EACH8(i, n) {
				Eight f = get8<T>(x, i, n), more = {{0, 0, 0, 0, 0, 0, 0, 0}};
				if (add.p) more = get8<T>(add, i, n);
				unsigned row = (unsigned)i / (unsigned)d.cols, kept = kept8(d, d.row + row, ((unsigned)i - row * d.cols + first) / 8);
				EIGHT(j) f.v[j] = (kept >> j & 1 ? f.v[j] * d.scale : 0) + more.v[j];
				put8<T>(y, i, n, f);
			}
		});
		return;
	}
	EACH4(i, n) {
		Four f = get4(x, i, n - i), more = {{0, 0, 0, 0}};
		if (add.p) more = get4(add, i, n - i);
		i64 row = i / d.cols;
		int col = (int)(i - row * d.cols), at = -1;
		Halves h = {0, 0};
		for (int j = 0; j < 4; j++) {
			if (col / 4 != at) at = col / 4, h = halves(d, row, first + 4 * at);
			unsigned word = col % 4 < 2 ? h.x : h.y, half = col % 2 ? word >> 16 : word & 0xffff;
			f.v[j] = (half < d.drop ? 0 : f.v[j] * d.scale) + more.v[j];
			if (++col == d.cols) col = 0, row++, at = -1;
		}
		put4(y, i, n - i, f);
	}
}
KERNEL(dropout)
