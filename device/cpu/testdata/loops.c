// What BenchmarkPasses compares with: plain loops, as gcc -O3 -march=native
// makes them, over memory that leaves the caches behind. For each line "NAME
// THREADS" on standard input it runs a loop once and writes its seconds.
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef float *restrict floats;
typedef uint16_t *restrict halves;

static char *memory;
static size_t size; // bytes of memory

static void adamw(floats w, floats g, floats m, floats v, long n) {
	const float scale = 1, b1 = 0.9f, c1 = 0.1f, b2 = 0.95f, c2 = 0.05f, shrink = 1, step = 1e-6f, root = 1, eps = 1e-8f;
	for (long i = 0; i < n; i++) {
		float d = g[i] * scale;
		m[i] = b1 * m[i] + c1 * d;
		v[i] = b2 * v[i] + c2 * d * d;
		w[i] = w[i] * shrink - step * m[i] / (sqrtf(v[i]) * root + eps);
	}
}

static void momentum(floats w, floats g, floats m, long n) {
	for (long i = 0; i < n; i++) {
		m[i] = 0.5f * m[i] + g[i];
		w[i] -= 1e-9f * m[i];
	}
}

static void sgd(floats w, floats g, long n) {
	for (long i = 0; i < n; i++) w[i] -= 1e-9f * g[i];
}

static void lion(floats w, floats g, floats m, long n) {
	for (long i = 0; i < n; i++) {
		float u = 0.9f * m[i] + 0.1f * g[i];
		m[i] = 0.99f * m[i] + 0.01f * g[i];
		w[i] -= 1e-9f * (u > 0 ? 1.0f : u < 0 ? -1.0f : u);
	}
}

static void narrow(halves y, floats x, long n) {
	for (long i = 0; i < n; i++) {
		uint32_t u;
		memcpy(&u, &x[i], 4);
		y[i] = x[i] == x[i] ? (u + 0x7fff + (u >> 16 & 1)) >> 16 : u >> 16 | 0x40;
	}
}

static void widen(floats y, halves x, long n) {
	for (long i = 0; i < n; i++) {
		uint32_t u = (uint32_t)x[i] << 16;
		memcpy(&y[i], &u, 4);
	}
}

static void sum2(floats y, floats a, floats b, long n) {
	for (long i = 0; i < n; i++) y[i] = a[i] + b[i];
}

static void sum4(floats y, floats a, floats b, floats c, floats d, long n) {
	for (long i = 0; i < n; i++) y[i] = a[i] + b[i] + c[i] + d[i];
}

static void sum8(floats y, floats a, floats b, floats c, floats d, floats e, floats f, floats g, floats h, long n) {
	for (long i = 0; i < n; i++) y[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i];
}

static const struct kind { const char *name; int bytes; /* of all arrays, an element */ } kinds[] = {
	{"adamw", 16}, {"momentum", 12}, {"sgd", 8}, {"lion", 12}, {"narrow", 6}, {"widen", 6}, {"sum2", 12}, {"sum4", 20}, {"sum8", 36}, {"copy", 8}};
enum { ADAMW, MOMENTUM, SGD, LION, NARROW, WIDEN, SUM2, SUM4, SUM8, COPY, KINDS };

struct share { int kind, thread, threads; };

static void *run(void *arg) {
	struct share *s = arg;
	long n = size / kinds[s->kind].bytes / 4096 * 4096, lo = n * s->thread / s->threads / 4096 * 4096;
	long len = n * (s->thread + 1) / s->threads / 4096 * 4096 - lo;
#define F(i) ((float *)memory + (i) * n + lo)
#define H ((uint16_t *)((float *)memory + n) + lo) // behind one array of floats
	switch (s->kind) {
	case ADAMW: adamw(F(0), F(1), F(2), F(3), len); break;
	case MOMENTUM: momentum(F(0), F(1), F(2), len); break;
	case SGD: sgd(F(0), F(1), len); break;
	case LION: lion(F(0), F(1), F(2), len); break;
	case NARROW: narrow(H, F(0), len); break;
	case WIDEN: widen(F(0), H, len); break;
	case SUM2: sum2(F(0), F(1), F(2), len); break;
	case SUM4: sum4(F(0), F(1), F(2), F(3), F(4), len); break;
	case SUM8: sum8(F(0), F(1), F(2), F(3), F(4), F(5), F(6), F(7), F(8), len); break;
	case COPY: memcpy(F(0), F(1), 4 * len); break;
	}
	return 0;
}

int main(int argc, char **argv) {
	char name[32];
	int threads;
	size = strtoul(argv[argc - 1], 0, 10);
	memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
	if (memory == MAP_FAILED) return 1;
	madvise(memory, size, MADV_HUGEPAGE);
	for (size_t i = 0; i < size / 4; i++) ((float *)memory)[i] = 1e-3f * (i % 1000);
	while (scanf("%31s %d", name, &threads) == 2) {
		int kind = 0;
		while (kind < KINDS && strcmp(name, kinds[kind].name)) kind++;
		if (kind == KINDS || threads < 1 || threads > 64) return 2;
		struct timespec a, b;
		pthread_t id[64];
		struct share s[64];
		clock_gettime(CLOCK_MONOTONIC, &a);
		for (int i = 0; i < threads; i++) {
			s[i] = (struct share){kind, i, threads};
			if (i > 0) pthread_create(&id[i], 0, run, &s[i]);
		}
		run(&s[0]);
		for (int i = 1; i < threads; i++) pthread_join(id[i], 0);
		clock_gettime(CLOCK_MONOTONIC, &b);
		printf("%.9f\n", b.tv_sec - a.tv_sec + 1e-9 * (b.tv_nsec - a.tv_nsec));
		fflush(stdout);
	}
	return 0;
}
