// Rotary positions (Su et al., arXiv 2104.09864). Each warp processes a row, 32 pairs of each head
// at a time: a lane computes the angle of one of them once, in float64. Then four lanes rotate the
// pairs of a head, eight each.

struct Frequencies { double of[256]; }; // radians per position, by pair

// rope rotates elements j and j+half of each head of x by the angle sign * (past + place(row)) *
// of[j] and multiplies them by amplitude. Every product and every sum of two is rounded.
template <int K> __device__ __forceinline__ void rope_of(const Mat &x, const Frequencies &freq, const int *start, int rows, int heads, int D, int half, int T, int past, float sign, double amplitude) {
	EACH_ROW(row, rows)
		for (int block = 0; block < half; block += 32) {
			double s64 = 0, c64 = 0;
			if (block + LANE < half) sincos((double)(past + place(start, row, T)) * freq.of[block + LANE], &s64, &c64);
			float cosine = (float)(amplitude * c64), sine = sign * (float)(amplitude * s64);
			int j = 8 * (LANE % 4);
			Eight c, s;
			EIGHT(k) c.v[k] = __shfl_sync(ALL, cosine, j + k), s.v[k] = __shfl_sync(ALL, sine, j + k);
			j += block;
			for (int h = LANE / 4; h < heads && j < half; h += 8) {
				i64 at = row * x.ld + (i64)h * D, end = at + half;
				Eight a = get8<K>(x, at + j, end), b = get8<K>(x, end + j, end + half);
				EIGHT(k) {
					float u = a.v[k], v = b.v[k];
					a.v[k] = u * c.v[k] - v * s.v[k];
					b.v[k] = v * c.v[k] + u * s.v[k];
				}
				put8<K>(x, at + j, end, a);
				put8<K>(x, end + j, end + half, b);
			}
		}
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) rope(Mat x, const __grid_constant__ Frequencies freq, const int *start, int rows, int heads, int D, int half, int T, int past, float sign, double amplitude) {
	if (D % 4 || half % 4) x.wide = 0; // heads are not whole words
	with_kind(type_of(D % 8 == 0 && half % 8 == 0, x), [&](auto type) { rope_of<decltype(type)::is>(x, freq, start, rows, heads, D, half, T, past, sign, amplitude); });
}
KERNEL(rope)
