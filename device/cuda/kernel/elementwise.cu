// Kernels in which element i depends on elements i alone. An output may be one of
// the inputs: a thread reads all it needs of its four elements before it writes.

ENTRY fill(Mat y, i64 n, float x) {
	Four f = {{x, x, x, x}};
	EACH4(i, n) put4(y, i, n - i, f);
}
KERNEL(fill)

ENTRY cast(Mat y, Mat x, i64 n) {
	EACH4(i, n) put4(y, i, n - i, get4(x, i, n - i));
}
KERNEL(cast)

// round_odd is x cut to float32 with the last bit set where the cut lost
// something: rounding that to 16 bits is rounding x once (Boldo and Melquiond,
// "When double rounding is odd", 2005).
__device__ float round_odd(double x) {
	float f = __double2float_rz(x);
	return (double)f != x && x == x ? __uint_as_float(__float_as_uint(f) | 1) : f;
}

// cast64 is cast where one type, or both, is float64.
ENTRY cast64(Mat y, Mat x, i64 n) {
	EACH(i, n) {
		double v = x.type == F64 ? ((const double *)x.p)[i] : get(x, i);
		if (y.type == F64)
			((double *)y.p)[i] = v;
		else
			put(y, i, y.type == F32 ? (float)v : round_odd(v));
	}
}
KERNEL(cast64)

ENTRY add(Mat y, Mat a, Mat b, i64 n) {
	EACH4(i, n) {
		Four x = get4(a, i, n - i), z = get4(b, i, n - i);
		for (int j = 0; j < 4; j++) x.v[j] += z.v[j];
		put4(y, i, n - i, x);
	}
}
KERNEL(add)

// axpby is y = alpha a + beta b; p, if not null, receives it in its own type.
ENTRY axpby(Mat y, Mat p, Mat a, Mat b, i64 n, float alpha, float beta) {
	EACH4(i, n) {
		Four x = get4(a, i, n - i), z = get4(b, i, n - i);
		for (int j = 0; j < 4; j++) x.v[j] = alpha * x.v[j] + beta * z.v[j];
		put4(y, i, n - i, x);
		if (p.p) put4(p, i, n - i, x);
	}
}
KERNEL(axpby)

// copy_block copies a matrix. A warp has a row.
ENTRY copy_block(Mat dst, Mat src, int rows, int cols) {
	EACH_ROW(row, rows)
		LANE4(c, cols) put4(dst, row * dst.ld + c, cols - c, get4(src, row * src.ld + c, cols - c));
}
KERNEL(copy_block)

ENTRY scale(Mat x, float by, i64 n) {
	EACH4(i, n) {
		Four f = get4(x, i, n - i);
		for (int j = 0; j < 4; j++) f.v[j] *= by;
		put4(x, i, n - i, f);
	}
}
KERNEL(scale)

// sum_many adds count vectors of y's type in their order, in float32.
struct Sources { char *p[128]; };
ENTRY sum_many(Mat y, const __grid_constant__ Sources from, int count, i64 n) {
	EACH4(i, n) {
		Mat x = y;
		x.p = from.p[0];
		Four sum = get4(x, i, n - i);
		for (int k = 1; k < count; k++) {
			x.p = from.p[k];
			Four f = get4(x, i, n - i);
			for (int j = 0; j < 4; j++) sum.v[j] += f.v[j];
		}
		put4(y, i, n - i, sum);
	}
}
KERNEL(sum_many)

ENTRY sum_many64(double *y, const __grid_constant__ Sources from, int count, i64 n) {
	EACH(i, n) {
		double sum = ((const double *)from.p[0])[i];
		for (int k = 1; k < count; k++) sum += ((const double *)from.p[k])[i];
		y[i] = sum;
	}
}
KERNEL(sum_many64)

// add_row adds v to every row of y, or sets every row to it.
ENTRY add_row(Mat y, Mat v, int rows, int cols, int set) {
	EACH_ROW(r, rows) LANE4(c, cols) {
		Four x = get4(v, c, cols - c), old = {{0, 0, 0, 0}};
		if (!set) old = get4(y, r * y.ld + c, cols - c);
		for (int j = 0; j < 4; j++) x.v[j] += old.v[j];
		put4(y, r * y.ld + c, cols - c, x);
	}
}
KERNEL(add_row)

ENTRY mul(Mat y, Mat a, Mat b, i64 n) {
	EACH4(i, n) {
		Four x = get4(a, i, n - i), z = get4(b, i, n - i);
		for (int j = 0; j < 4; j++) x.v[j] *= z.v[j];
		put4(y, i, n - i, x);
	}
}
KERNEL(mul)

ENTRY add_scalar(Mat y, Mat x, float s, i64 n) {
	EACH4(i, n) {
		Four f = get4(x, i, n - i);
		for (int j = 0; j < 4; j++) f.v[j] += s;
		put4(y, i, n - i, f);
	}
}
KERNEL(add_scalar)

enum { GELU_TANH, GELU_ERF, RELU, SILU, TANH }; // device.Activation

// GELU by tanh is x/2 (1 + tanh u) = x s(2u) with s(z) = 1/(1 + e^-z) and u =
// sqrt(2/pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, arXiv 1606.08415).
#define GELU_U 0.7978845608028654f
#define GELU_X 0.044715f

// normal is the distribution function of the standard normal distribution.
__device__ double normal(double x) { return (1 + erf(x * 0.70710678118654752)) / 2; }

__device__ float activated(float x, int f) {
	switch (f) {
	case GELU_TANH: return x / (1 + exp32(-2 * GELU_U * (x + GELU_X * x * x * x)));
	case GELU_ERF: return (float)(x * normal(x));
	case RELU: return x > 0 || x != x ? x : 0;
	case SILU: return x / (1 + exp32(-x));
	default: return (float)tanh((double)x);
	}
}

// Slopes. Of GELU by tanh it is s + x s (1-s) 2u', beyond 9.5 0 or 1 to float32; of
// SiLU s + x s (1-s), beyond 80 0 or 1 to float32: there the factors would overflow.
__device__ float gelu_slope(float x) {
	x = x > 9.5f ? 9.5f : x < -9.5f ? -9.5f : x;
	float e = exp32(-2 * GELU_U * (x + GELU_X * x * x * x)), s = 1 / (1 + e);
	return s * (1 + x * (e * s) * (2 * GELU_U * (1 + 3 * GELU_X * x * x)));
}

__device__ float silu_slope(float x) {
	x = x > 80 ? 80 : x < -80 ? -80 : x;
	float e = exp32(-x), s = 1 / (1 + e);
	return s * (1 + x * (e * s));
}

// slope is dy f'(x).
__device__ float slope(float x, float dy, int f) {
	double y = 0;
	switch (f) {
	case GELU_TANH: return dy * gelu_slope(x);
	case GELU_ERF: return (float)(dy * (normal(x) + x * exp(-(double)x * x / 2) * 0.39894228040143268));
	case RELU: return x > 0 ? dy : 0;
	case SILU: return dy * silu_slope(x);
	default: y = tanh((double)x); return (float)(dy * (1 - y * y));
	}
}

ENTRY activate(Mat y, Mat x, i64 n, int f) {
	EACH4(i, n) {
		Four a = get4(x, i, n - i);
#pragma unroll 1
		for (int j = 0; j < 4; j++) {
			float b = activated(a.v[0], f); // turned, so that no element is chosen by a variable
			a.v[0] = a.v[1], a.v[1] = a.v[2], a.v[2] = a.v[3], a.v[3] = b;
		}
		put4(y, i, n - i, a);
	}
}
KERNEL(activate)

ENTRY activate_grad(Mat dx, Mat x, Mat dy, i64 n, int f) {
	EACH4(i, n) {
		Four a = get4(x, i, n - i), d = get4(dy, i, n - i);
#pragma unroll 1
		for (int j = 0; j < 4; j++) {
			float b = slope(a.v[0], d.v[0], f);
			a.v[0] = a.v[1], a.v[1] = a.v[2], a.v[2] = a.v[3];
			d.v[0] = d.v[1], d.v[1] = d.v[2], d.v[2] = d.v[3], d.v[3] = b;
		}
		put4(dx, i, n - i, d);
	}
}
KERNEL(activate_grad)

// silu(x) = x s(x); y = silu(gate) * up (Shazeer, arXiv 2002.05202).
ENTRY swiglu(Mat y, Mat gate, Mat up, i64 n) {
	EACH4(i, n) {
		Four g = get4(gate, i, n - i), u = get4(up, i, n - i);
		for (int j = 0; j < 4; j++) u.v[j] *= g.v[j] / (1 + exp32(-g.v[j]));
		put4(y, i, n - i, u);
	}
}
KERNEL(swiglu)

ENTRY swiglu_grad(Mat dgate, Mat dup, Mat dy, Mat gate, Mat up, i64 n) {
	EACH4(i, n) {
		Four g = get4(gate, i, n - i), u = get4(up, i, n - i), d = get4(dy, i, n - i), dg;
		for (int j = 0; j < 4; j++) {
			dg.v[j] = d.v[j] * u.v[j] * silu_slope(g.v[j]);
			u.v[j] = d.v[j] * activated(g.v[j], SILU);
		}
		put4(dgate, i, n - i, dg);
		put4(dup, i, n - i, u);
	}
}
KERNEL(swiglu_grad)
