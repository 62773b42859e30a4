// Rotary positions (Su et al., arXiv 2104.09864). Each warp processes a row, each lane some pairs:
// it computes the angle once in float64 and rotates the pair in every head.

struct Frequencies { double of[256]; }; // radians per position, by pair

// rope rotates elements j and j+half of each head of x by the angle sign * (past + place(row)) *
// of[j] and multiplies them by amplitude. Every product and every sum of two is rounded.
ENTRY rope(Mat x, const __grid_constant__ Frequencies freq, const int *start, int rows, int heads, int D, int half, int T, int past, float sign, double amplitude) {
	EACH_ROW(row, rows)
		for (int j = LANE; j < half; j += 32) {
			double s64, c64;
			sincos((double)(past + place(start, row, T)) * freq.of[j], &s64, &c64);
			float c = (float)(amplitude * c64), s = sign * (float)(amplitude * s64);
			for (int h = 0; h < heads; h++) {
				i64 at = row * x.ld + (i64)h * D + j;
				float a = get(x, at), b = get(x, at + half);
				put(x, at, a * c - b * s);
				put(x, at + half, b * c + a * s);
			}
		}
}
KERNEL(rope)
