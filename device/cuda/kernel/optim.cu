// Update rules; see device.AdamW, device.SGD and device.Lion. w (master copy), g, m
// and v are float32; p, if not null, receives w rounded to its type in the same
// pass. Every product and sum is rounded, as on the CPU, whose bits these are.

struct AdamW { float scale, l2, b1, c1, b2, c2, shrink, step, root, eps; }; // c is 1 - b

ENTRY adamw(Mat w, Mat p, Mat g, Mat m, Mat v, i64 n, AdamW k) {
	EACH4(i, n) {
		Four x = get4(w, i, n - i), d = get4(g, i, n - i), a = get4(m, i, n - i), b = get4(v, i, n - i);
		for (int j = 0; j < 4; j++) {
			float e = d.v[j] * k.scale + k.l2 * x.v[j];
			a.v[j] = k.b1 * a.v[j] + k.c1 * e;
			b.v[j] = k.b2 * b.v[j] + k.c2 * e * e;
			x.v[j] = x.v[j] * k.shrink - k.step * a.v[j] / (sqrtf(b.v[j]) * k.root + k.eps);
		}
		put4(m, i, n - i, a);
		put4(v, i, n - i, b);
		put4(w, i, n - i, x);
		if (p.p) put4(p, i, n - i, x);
	}
}
KERNEL(adamw)

struct SGD { float scale, decay, lr, momentum; };

// sgd keeps no momentum where m is null.
ENTRY sgd(Mat w, Mat p, Mat g, Mat m, i64 n, SGD k) {
	EACH4(i, n) {
		Four x = get4(w, i, n - i), d = get4(g, i, n - i);
		for (int j = 0; j < 4; j++) d.v[j] = d.v[j] * k.scale + k.decay * x.v[j];
		if (m.p) {
			Four a = get4(m, i, n - i);
			for (int j = 0; j < 4; j++) d.v[j] = k.momentum * a.v[j] + d.v[j];
			put4(m, i, n - i, d);
		}
		for (int j = 0; j < 4; j++) x.v[j] = x.v[j] - k.lr * d.v[j];
		put4(w, i, n - i, x);
		if (p.p) put4(p, i, n - i, x);
	}
}
KERNEL(sgd)

struct Lion { float scale, b1, c1, b2, c2, shrink, lr; };

// sign_of is 1, -1 or 0; NaN stays NaN, so that a bad gradient shows.
__device__ float sign_of(float x) { return x > 0 ? 1 : x < 0 ? -1 : x; }

ENTRY lion(Mat w, Mat p, Mat g, Mat m, i64 n, Lion k) {
	EACH4(i, n) {
		Four x = get4(w, i, n - i), d = get4(g, i, n - i), a = get4(m, i, n - i);
		for (int j = 0; j < 4; j++) {
			float e = d.v[j] * k.scale, u = sign_of(k.b1 * a.v[j] + k.c1 * e);
			a.v[j] = k.b2 * a.v[j] + k.c2 * e;
			x.v[j] = x.v[j] * k.shrink - k.lr * u;
		}
		put4(m, i, n - i, a);
		put4(w, i, n - i, x);
		if (p.p) put4(p, i, n - i, x);
	}
}
KERNEL(lion)
