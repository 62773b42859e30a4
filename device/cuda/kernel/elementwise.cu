// Kernels in which element i of the output depends only on elements i of the inputs. An output may
// be one of the inputs: a thread reads its eight elements of all inputs before it writes.

ENTRY fill(Mat y, i64 n, float x) {
	Eight f;
	EIGHT(j) f.v[j] = x;
	with_kind(type_of(n % 8 == 0, y), [&](auto type) { EACH8(i, n) put8<decltype(type)::is>(y, i, n, f); });
}
KERNEL(fill)

// cast is specialized for both types, except for unaligned words.
ENTRY cast(Mat y, Mat x, i64 n) {
	if (type_of(n % 8 == 0, x) == ANY || type_of(n % 8 == 0, y) == ANY) {
		EACH8(i, n) put8<ANY>(y, i, n, get8<ANY>(x, i, n));
		return;
	}
	with_type(x.type, [&](auto from) {
		with_type(y.type, [&](auto to) { EACH8(i, n) put8<decltype(to)::is>(y, i, n, get8<decltype(from)::is>(x, i, n)); });
	});
}
KERNEL(cast)

// round_odd truncates x to float32 and sets the last bit if that lost something. Rounding the
// result to 16 bits rounds x once (Boldo and Melquiond, "When double rounding is odd", 2005).
__device__ float round_odd(double x) {
	float f = __double2float_rz(x);
	return (double)f != x && x == x ? __uint_as_float(__float_as_uint(f) | 1) : f;
}

// cast64 is cast for float64 on either side.
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

// NF4 is the values of the codes of device.NF4, and of those of magnitudes.
struct NF4 { float elements[16], magnitudes[256]; };

// decode_nf4 decodes a matrix, eight elements from each word; see device.Code.
ENTRY decode_nf4(Mat y, const unsigned *words, i64 n, NF4 code) {
	SHARED(float, value, 16);
	SHARED(float, magnitude, 256);
	if (threadIdx.x < 16) value[threadIdx.x] = code.elements[threadIdx.x];
	magnitude[threadIdx.x] = code.magnitudes[threadIdx.x];
	__syncthreads();
	float mean = __uint_as_float(words[0]);
	with_kind(type_of(n % 8 == 0, y), [&](auto type) {
		EACH8(i, n) {
			const unsigned *group = words + 1 + i / 16384 * 2113;
			int at = i % 16384, block = at / 64;
			float most = magnitude[group[1 + block / 4] >> 8 * (block % 4) & 255] * __uint_as_float(group[0]) + mean;
			unsigned w = group[65 + at / 8];
			Eight f;
			EIGHT(j) f.v[j] = value[w >> (8 * (j / 2) + 4 * (1 - j % 2)) & 15] * most;
			put8<decltype(type)::is>(y, i, n, f);
		}
	});
}
KERNEL(decode_nf4)

// decode_int8 decodes a matrix, one row per warp; see device.Int8.
ENTRY decode_int8(Mat y, const unsigned *words, int rows, int cols) {
	with_kind(type_of(cols % 8 == 0, y), [&](auto type) {
		EACH_ROW(row, rows) {
			const unsigned *w = words + row * (1 + (cols + 3) / 4);
			float most = __uint_as_float(w[0]);
			LANE8(c, cols) {
				Eight f;
				EIGHT(j) f.v[j] = c + j < cols ? (signed char)(w[1 + (c + j) / 4] >> 8 * (j % 4)) * most * (1.0f / 127) : 0;
				put8<decltype(type)::is>(row_of(y, row), c, cols, f);
			}
		}
	});
}
KERNEL(decode_int8)

ENTRY add(Mat y, Mat a, Mat b, i64 n) {
	with_kind(type_of(n % 8 == 0, y, a, b), [&](auto type) {
		const int T = decltype(type)::is;
		EACH8(i, n) {
			Eight x = get8<T>(a, i, n), z = get8<T>(b, i, n);
			EIGHT(j) x.v[j] += z.v[j];
			put8<T>(y, i, n, x);
		}
	});
}
KERNEL(add)

// axpby sets y = alpha a + beta b and, if p is not null, p to the same in its own type.
ENTRY axpby(Mat y, Mat p, Mat a, Mat b, i64 n, float alpha, float beta) {
	EACH4(i, n) {
		Four x = get4(a, i, n - i), z = get4(b, i, n - i);
		for (int j = 0; j < 4; j++) x.v[j] = alpha * x.v[j] + beta * z.v[j];
		put4(y, i, n - i, x);
		if (p.p) put4(p, i, n - i, x);
	}
}
KERNEL(axpby)

// copy_block copies a matrix, one row per warp.
ENTRY copy_block(Mat dst, Mat src, int rows, int cols) {
	with_kind(type_of(cols % 8 == 0, dst, src), [&](auto type) {
		const int T = decltype(type)::is;
		EACH_ROW(row, rows) LANE8(c, cols) put8<T>(row_of(dst, row), c, cols, get8<T>(row_of(src, row), c, cols));
	});
}
KERNEL(copy_block)

ENTRY scale(Mat x, float by, i64 n) {
	with_kind(type_of(n % 8 == 0, x), [&](auto type) {
		const int T = decltype(type)::is;
		EACH8(i, n) {
			Eight f = get8<T>(x, i, n);
			EIGHT(j) f.v[j] *= by;
			put8<T>(x, i, n, f);
		}
	});
}
KERNEL(scale)

// sum_many adds count vectors of y's type in order, in float32.
struct Sources { char *p[128]; };
ENTRY sum_many(Mat y, const __grid_constant__ Sources from, int count, i64 n) {
	with_kind(type_of(n % 8 == 0, y), [&](auto type) {
		const int T = decltype(type)::is;
		EACH8(i, n) {
			Mat x = y;
			x.p = from.p[0];
			Eight sum = get8<T>(x, i, n);
			for (int k = 1; k < count; k++) {
				x.p = from.p[k];
				Eight f = get8<T>(x, i, n);
				EIGHT(j) sum.v[j] += f.v[j];
			}
			put8<T>(y, i, n, sum);
		}
	});
}
KERNEL(sum_many)

// sum_peers is sum_many for memory of other GPUs: few blocks, because they wait for the links, with
// WORDS times eight elements of a source per thread in flight.
ENTRY sum_peers(Mat y, const __grid_constant__ Sources from, int count, i64 n) {
	with_kind(type_of(n % 8 == 0, y), [&](auto type) {
		const int T = decltype(type)::is, WORDS = T == ANY ? 1 : 4;
		const i64 step = 8 * (i64)gridDim.x * THREADS;
		for (i64 i = 8 * (blockIdx.x * (i64)THREADS + threadIdx.x); i < n; i += WORDS * step) {
			Eight sum[WORDS], f[WORDS];
#pragma unroll 1
			for (int k = 0; k < count; k++) {
				Mat x = y;
				x.p = from.p[k];
#pragma unroll
				for (int w = 0; w < WORDS; w++)
					if (i + w * step < n) f[w] = get8<T>(x, i + w * step, n);
#pragma unroll
				for (int w = 0; w < WORDS; w++) EIGHT(j) sum[w].v[j] = k ? sum[w].v[j] + f[w].v[j] : f[w].v[j];
			}
#pragma unroll
			for (int w = 0; w < WORDS; w++)
				if (i + w * step < n) put8<T>(y, i + w * step, n, sum[w]);
		}
	});
}
KERNEL(sum_peers)

ENTRY sum_many64(double *y, const __grid_constant__ Sources from, int count, i64 n) {
	EACH(i, n) {
		double sum = ((const double *)from.p[0])[i];
		for (int k = 1; k < count; k++) sum += ((const double *)from.p[k])[i];
		y[i] = sum;
	}
}
KERNEL(sum_many64)

// add_row adds v to every row of y or, with set, copies v to every row.
PASS add_row(Mat y, Mat v, int rows, int cols, int set) {
	with_kind(type_of(cols % 8 == 0, y, v), [&](auto type) {
		const int T = decltype(type)::is;
		EACH_ROW(r, rows) LANE8(c, cols) {
			Mat to = row_of(y, r);
			Eight x = get8<T>(v, c, cols);
			if (!set) {
				Eight old = get8<T>(to, c, cols);
				EIGHT(j) x.v[j] += old.v[j];
			}
			put8<T>(to, c, cols, x);
		}
	});
}
KERNEL(add_row)

ENTRY mul(Mat y, Mat a, Mat b, i64 n) {
	with_kind(type_of(n % 8 == 0, y, a, b), [&](auto type) {
		const int T = decltype(type)::is;
		EACH8(i, n) {
			Eight x = get8<T>(a, i, n), z = get8<T>(b, i, n);
			EIGHT(j) x.v[j] *= z.v[j];
			put8<T>(y, i, n, x);
		}
	});
}
KERNEL(mul)

ENTRY add_scalar(Mat y, Mat x, float s, i64 n) {
	with_kind(type_of(n % 8 == 0, y, x), [&](auto type) {
		const int T = decltype(type)::is;
		EACH8(i, n) {
			Eight f = get8<T>(x, i, n);
			EIGHT(j) f.v[j] += s;
			put8<T>(y, i, n, f);
		}
	});
}
KERNEL(add_scalar)

enum { GELU_TANH, GELU_ERF, RELU, SILU, TANH }; // device.Activation

// GELU by tanh is x/2 (1 + tanh u) = x s(2u) with s(z) = 1/(1 + e^-z) and u =
// sqrt(2/pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, arXiv 1606.08415).
#define GELU_U 0.7978845608028654f
#define GELU_X 0.044715f

// normal returns the distribution function of the standard normal distribution.
__device__ double normal(double x) { return (1 + erf(x * 0.70710678118654752)) / 2; }

__device__ __forceinline__ float activated(float x, int f) {
	switch (f) {
	case GELU_TANH: return x * inverse(1 + exp_fast(-2 * GELU_U * (x + GELU_X * x * x * x)));
	case GELU_ERF: return (float)(x * normal(x));
	case RELU: return x > 0 || x != x ? x : 0;
	case SILU: return x * inverse(1 + exp_fast(-x));
	default: return (float)tanh((double)x);
	}
}

// Slopes. GELU by tanh has s + x s (1-s) 2u', which is 0 or 1 in float32 beyond 9.5. SiLU has s + x
// s (1-s), which is 0 or 1 beyond 80. The arguments are clamped there, because the factors would
// overflow.
__device__ __forceinline__ float gelu_slope(float x) {
	x = x > 9.5f ? 9.5f : x < -9.5f ? -9.5f : x;
	float e = exp_fast(-2 * GELU_U * (x + GELU_X * x * x * x)), s = inverse(1 + e);
	return s * (1 + x * (e * s) * (2 * GELU_U * (1 + 3 * GELU_X * x * x)));
}

__device__ __forceinline__ float silu_slope(float x) {
	x = x > 80 ? 80 : x < -80 ? -80 : x;
	float e = exp_fast(-x), s = inverse(1 + e);
	return s * (1 + x * (e * s));
}

// slope returns dy f'(x).
__device__ __forceinline__ float slope(float x, float dy, int f) {
	double y = 0;
	switch (f) {
	case GELU_TANH: return dy * gelu_slope(x);
	case GELU_ERF: return (float)(dy * (normal(x) + x * exp(-(double)x * x / 2) * 0.39894228040143268));
	case RELU: return x > 0 ? dy : 0;
	case SILU: return dy * silu_slope(x);
	default: y = tanh((double)x); return (float)(dy * (1 - y * y));
	}
}

// with_function calls f with the Type of a cheap function. Functions in float64 are evaluated in a
// loop with a switch, one element at a time, so that their code exists once.
template <class F> __device__ __forceinline__ void with_function(int function, F f) {
	if (function == GELU_TANH)
		f(Type<GELU_TANH>());
	else if (function == SILU)
		f(Type<SILU>());
	else
		f(Type<RELU>());
}
__device__ __forceinline__ bool is_double(int function) { return function == GELU_ERF || function == TANH; }

ENTRY activate(Mat y, Mat x, i64 n, int f) {
	if (is_double(f)) {
		EACH(i, n) put(y, i, activated(get(x, i), f == TANH ? TANH : GELU_ERF));
		return;
	}
	with_function(f, [&](auto function) {
		with_kind(type_of(n % 8 == 0, y, x), [&](auto type) {
			const int T = decltype(type)::is;
			EACH8(i, n) {
				Eight a = get8<T>(x, i, n);
				EIGHT(j) a.v[j] = activated(a.v[j], decltype(function)::is);
				put8<T>(y, i, n, a);
			}
		});
	});
}
KERNEL(activate)

ENTRY activate_grad(Mat dx, Mat x, Mat dy, i64 n, int f) {
	if (is_double(f)) {
		EACH(i, n) put(dx, i, slope(get(x, i), get(dy, i), f == TANH ? TANH : GELU_ERF));
		return;
	}
	with_function(f, [&](auto function) {
		with_kind(type_of(n % 8 == 0, dx, x, dy), [&](auto type) {
			const int T = decltype(type)::is;
			EACH8(i, n) {
				Eight a = get8<T>(x, i, n), d = get8<T>(dy, i, n);
				EIGHT(j) d.v[j] = slope(a.v[j], d.v[j], decltype(function)::is);
				put8<T>(dx, i, n, d);
			}
		});
	});
}
KERNEL(activate_grad)

// gate multiplies f of gate by up (Shazeer, arXiv 2002.05202), one row per warp. Functions in
// float64 and rows that are not whole words are processed one element at a time.
ENTRY gate(Mat y, Mat gate, Mat up, int rows, int cols, int f) {
	int kind = type_of(cols % 8 == 0, y, gate, up);
	if (is_double(f) || kind == ANY) {
		EACH(i, (i64)rows * cols) {
			i64 r = i / cols, c = i % cols;
			put(row_of(y, r), c, activated(get(row_of(gate, r), c), f) * get(row_of(up, r), c));
		}
		return;
	}
	with_function(f, [&](auto function) {
		with_type(kind, [&](auto type) {
			const int T = decltype(type)::is;
			EACH_ROW(r, rows) LANE8(c, cols) {
				Eight g = load8<T>(row_of(gate, r).p, c), u = load8<T>(row_of(up, r).p, c);
				EIGHT(j) u.v[j] *= activated(g.v[j], decltype(function)::is);
				store8<T>(row_of(y, r).p, c, u);
			}
		});
	});
}
KERNEL(gate)

ENTRY gate_grad(Mat dgate, Mat dup, Mat dy, Mat gate, Mat up, int rows, int cols, int f) {
	int kind = type_of(cols % 8 == 0, dgate, dup, dy, gate, up);
	if (is_double(f) || kind == ANY) {
		EACH(i, (i64)rows * cols) {
			i64 r = i / cols, c = i % cols;
			float x = get(row_of(gate, r), c), d = get(row_of(dy, r), c), u = get(row_of(up, r), c);
			put(row_of(dgate, r), c, slope(x, d * u, f));
			put(row_of(dup, r), c, d * activated(x, f));
		}
		return;
	}
	with_function(f, [&](auto function) {
		with_type(kind, [&](auto type) {
			const int T = decltype(type)::is;
			EACH_ROW(r, rows) LANE8(c, cols) {
				Eight g = load8<T>(row_of(gate, r).p, c), u = load8<T>(row_of(up, r).p, c), d = load8<T>(row_of(dy, r).p, c);
				EIGHT(j) {
					float x = g.v[j];
					g.v[j] = slope(x, d.v[j] * u.v[j], decltype(function)::is);
					u.v[j] = d.v[j] * activated(x, decltype(function)::is);
				}
				store8<T>(row_of(dgate, r).p, c, g);
				store8<T>(row_of(dup, r).p, c, u);
			}
		});
	});
}
KERNEL(gate_grad)
