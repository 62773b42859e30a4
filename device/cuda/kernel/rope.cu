// Rotary positions (Su et al., arXiv 2104.09864). A warp has a row, a lane pairs:
// it computes the angle in float64 once and turns the pair of every head.

struct Frequencies { double of[256]; }; // radians a position, by pair

// rope turns elements j and j+half of each head of x by the angle (past + place(row))
// of[j], times sign, and lengthens them by amplitude. Every product and every sum of two is rounded.
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
