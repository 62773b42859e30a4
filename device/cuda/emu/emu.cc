// The emulator: blocks of fibers. A fiber runs CUDA threads one after the other
// until one blocks, so kernels that never meet are plain loops.
//
// EMU_SEED in the environment draws the order in which threads go on; without
// it the order is fixed. Shared memory is full of NaN when a block begins.
// EMU_ROUGH has what a GPU's units round otherwise than IEEE 754 as coarse as there.
// With EMU_ASAN and EMU_TSAN the sanitizers are told of fibers and rendezvous;
// then this file itself is compiled without TSan.
#include "emu.h"
#include "emu_api.h"
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

const bool emu_rough = getenv("EMU_ROUGH");

#ifdef EMU_TSAN
extern "C" {
void *__tsan_create_fiber(unsigned);
void *__tsan_get_current_fiber();
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_acquire(void *);
void __tsan_release(void *);
}
#define ACQUIRE(p) __tsan_acquire(p)
#define RELEASE(p) __tsan_release(p)
#else
#define ACQUIRE(p) ((void)(p))
#define RELEASE(p) ((void)(p))
#endif
#ifdef EMU_ASAN
extern "C" {
void __asan_poison_memory_region(void const volatile *, size_t);
void __asan_unpoison_memory_region(void const volatile *, size_t);
void __sanitizer_start_switch_fiber(void **, const void *, size_t);
void __sanitizer_finish_switch_fiber(void *, const void **, size_t *);
}
#define POISON(p, n) __asan_poison_memory_region(p, n)
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define POISON(p, n) ((void)0)
#define UNPOISON(p, n) ((void)0)
#endif

EmuKernel *emu_kernels;
thread_local EmuThread *emu_cur;

enum { STACK = 128 << 10, MAXTHREADS = 1024, MAXSHARED = 227 << 10, MAXVARS = 32 };

struct Fiber {
	void *sp;
	EmuThread t;
	char *stack;
	void *tsan, *fake;
	const void *bottom;
	size_t size;
};

// Group is the lanes of a warp that meet under one mask. What they bring lies in
// two places by turns: a lane may still read the last while others come again.
struct Group {
	unsigned mask = 0, here = 0, meetings = 0;
	int line = 0;
	EmuSlot slot[2][32];
	Fiber *waiting[32];
	int waits = 0;
};

// Sums are what products under way add to: each lane's registers and what they will hold.
struct Sums { float *d[32], to[32][32]; };
struct Warp {
	Group group[4];
	EmuProduct products[64];
	Sums *sums[64], all[8]; // of each product; those under way
	int n = 0, ran = 0, kept = 0; // products under way, those done early, sums in all
	unsigned groups = 0, lines = 0; // groups closed; what the warp issued, in a number
	bool fenced = false;
};

// Core is one thread's emulated multiprocessor.
struct Core {
	Fiber main, *self;
	Fiber *idle[MAXTHREADS], *ready[MAXTHREADS], *spent[MAXTHREADS], *barred[MAXTHREADS];
	int idles = 0, readies = 0, spents = 0, barreds = 0;
	int threads, next, done; // of the block; threads begun; threads that have ended
	int barline;
	unsigned barriers;
	char bartag[2], begin, end; // what TSan knows rendezvous by
	Warp warp[32];
	EmuDim bid, bdim, gdim;
	const EmuKernel *kernel;
	void **params;
	const char *error;
	char text[240];
	unsigned seed;
	bool shuffled;
	char *shared;
	struct { const void *key; char *at; } var[MAXVARS];
	int vars = 0;
	size_t top = 0; // bytes of shared memory in use
	bool unfenced = false; // a thread met others with copies that wgmma does not see
};
static thread_local Core *core __attribute__((tls_model("initial-exec")));

// emu_switch keeps what a call must keep on the stack and goes on where another stack
// was left. A stack that begins goes on at fiber_main: emu_fresh is what it was left with.
extern "C" void emu_switch(void **save, void *to);
#if defined(__x86_64__)
asm(".text\n.type emu_switch,@function\nemu_switch:\n"
    " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
static void *emu_fresh(void **top, void (*begin)()) {
	top[-1] = 0;
	top[-2] = (void *)begin;
	return top - 8;
}
#elif defined(__aarch64__)
#define EMU_KEPT(op) \
	op " x19,x20,[sp]\n" op " x21,x22,[sp,16]\n" op " x23,x24,[sp,32]\n" op " x25,x26,[sp,48]\n" op " x27,x28,[sp,64]\n" op " x29,x30,[sp,80]\n" \
	op " d8,d9,[sp,96]\n" op " d10,d11,[sp,112]\n" op " d12,d13,[sp,128]\n" op " d14,d15,[sp,144]\n"
asm(".text\n.type emu_switch,%function\nemu_switch:\n sub sp,sp,160\n" EMU_KEPT(" stp")
    " mov x9,sp\n str x9,[x0]\n mov sp,x1\n" EMU_KEPT(" ldp") " add sp,sp,160\n ret\n");
static void *emu_fresh(void **top, void (*begin)()) {
	void **sp = top - 20;
	sp[10] = 0; // x29
	sp[11] = (void *)begin; // x30
	return sp;
}
#else
#error "the emulator of CUDA kernels switches fibers on x86-64 and arm64: write emu_switch for this processor"
#endif

static void go(Fiber *f) {
	Core *c = core;
	Fiber *me = c->self;
	c->self = f;
	emu_cur = &f->t;
#ifdef EMU_ASAN
	__sanitizer_start_switch_fiber(&me->fake, f->bottom, f->size);
#endif
#ifdef EMU_TSAN
	__tsan_switch_to_fiber(f->tsan, 1);
#endif
	emu_switch(&me->sp, f->sp);
#ifdef EMU_ASAN
	const void *bottom;
	size_t size;
	__sanitizer_finish_switch_fiber(me->fake, &bottom, &size);
#endif
}

static unsigned draw(Core *c) {
	c->seed = c->seed * 1664525 + 1013904223;
	return c->seed >> 8;
}

static void fiber_main();

static Fiber *make_fiber() {
	Fiber *f = new Fiber();
	f->stack = (char *)mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	f->bottom = f->stack;
	f->size = STACK;
	f->sp = emu_fresh((void **)(f->stack + STACK - 64), fiber_main);
#ifdef EMU_TSAN
	f->tsan = __tsan_create_fiber(0);
#endif
	return f;
}

static Fiber *take_fiber(Core *c) { return c->idles ? c->idle[--c->idles] : make_fiber(); }

static void wake(Core *c, Fiber *f) { c->ready[c->readies++] = f; }

// pick is who goes on: a fiber that can, a fresh one for threads not begun, or
// the launch when there is neither.
static Fiber *pick(Core *c) {
	bool unbegun = c->next < c->threads;
	if (!c->readies) return unbegun ? take_fiber(c) : &c->main;
	if (c->shuffled) {
		if (unbegun && draw(c) % (c->readies + 1) == 0) return take_fiber(c);
		std::swap(c->ready[draw(c) % c->readies], c->ready[c->readies - 1]);
	}
	return c->ready[--c->readies];
}

static void park(Core *c) {
	if (c->error) go(&c->main);
	Fiber *f = pick(c);
	if (f != c->self) go(f);
}

// yield lets others go on before this fiber does, in a shuffled order.
static void yield(Core *c) {
	if (!c->shuffled) return;
	wake(c, c->self);
	park(c);
}

static void begin_thread(Core *c, Fiber *f) {
	unsigned i = c->next++;
	f->t.bid = c->bid, f->t.bdim = c->bdim, f->t.gdim = c->gdim;
	f->t.tid = {i % c->bdim.x, i / c->bdim.x % c->bdim.y, i / c->bdim.x / c->bdim.y};
	f->t.lane = i % 32, f->t.warp = i / 32;
	f->t.copies.n = f->t.copies.groups = f->t.unfenced = 0;
	ACQUIRE(&c->begin);
}

[[noreturn]] static void fail(Core *c, const char *what, int line) {
	if (!c->error) {
		snprintf(c->text, sizeof c->text, "%s: %s at line %d (block %u,%u,%u, thread %u)", c->kernel->name, what, line,
			c->bid.x, c->bid.y, c->bid.z, emu_cur->tid.x);
		c->error = c->text;
	}
	RELEASE(&c->end);
	go(&c->main);
	abort(); // nobody comes back here
}

void emu_trap(const char *why, int line) { fail(core, why, line); }

static void fiber_main() {
	Core *c = core;
#ifdef EMU_ASAN
	const void *bottom;
	size_t size;
	__sanitizer_finish_switch_fiber(0, &bottom, &size);
	if (!c->main.bottom) c->main.bottom = bottom, c->main.size = size;
#endif
	for (;;) {
		Fiber *f = c->self;
		while (c->next < c->threads) {
			begin_thread(c, f);
			c->kernel->call(c->params);
			if (f->t.copies.n) fail(c, "copies into shared memory that nobody has waited for", 0);
			c->done++;
			RELEASE(&c->end);
#ifdef EMU_TSAN
			break; // two threads of a block on one fiber would be in an order that hides their races
#endif
			if (c->shuffled && c->next < c->threads) yield(c);
		}
#ifdef EMU_TSAN
		c->spent[c->spents++] = f;
#else
		c->idle[c->idles++] = f; // it goes on here when it is taken again
#endif
		Fiber *g = pick(c);
		if (g != f) go(g);
	}
}

void emu_sync(int line) {
	Core *c = core;
	if (c->done) fail(c, "barrier after a thread has returned", line);
	if (c->barreds && c->barline != line) fail(c, "threads at different barriers", line);
	c->barline = line;
	c->unfenced = c->unfenced || emu_cur->unfenced;
	char *tag = &c->bartag[c->barriers & 1];
	RELEASE(tag);
	if (c->barreds + 1 < c->threads) {
		c->barred[c->barreds++] = c->self;
		park(c);
	} else {
		c->barriers++;
		while (c->barreds) wake(c, c->barred[--c->barreds]);
		yield(c);
	}
	ACQUIRE(tag);
}

static Group *group_of(Core *c, unsigned mask, int line) {
	Warp *w = &c->warp[emu_cur->warp];
	for (auto &g : w->group)
		if (g.mask == mask) return &g;
	for (auto &g : w->group)
		if (!g.here) {
			g.mask = mask;
			return &g;
		}
	fail(c, "too many masks", line);
}

EmuSlot *emu_warp(unsigned mask, const EmuSlot *mine, int line, void (*work)(EmuSlot *)) {
	Core *c = core;
	EmuThread *t = emu_cur;
	unsigned left = c->threads - t->warp * 32;
	mask &= left >= 32 ? ~0u : (1u << left) - 1;
	if (!(mask >> t->lane & 1)) fail(c, "lane not in its mask", line);
	Group *g = group_of(c, mask, line);
	if (g->here && g->line != line) fail(c, "lanes of a warp at different places", line);
	g->line = line;
	EmuSlot *all = g->slot[g->meetings & 1];
	all[t->lane] = *mine;
	g->here |= 1u << t->lane;
	RELEASE(all);
	if (g->here != mask) {
		g->waiting[g->waits++] = c->self;
		park(c);
	} else {
		ACQUIRE(all);
		if (work) work(all);
		RELEASE(all);
		g->meetings++;
		g->here = 0;
		while (g->waits) wake(c, g->waiting[--g->waits]);
		yield(c);
	}
	ACQUIRE(all);
	return all;
}

// emu_shared is the block's variable that key stands for.
void *emu_shared(const void *key, size_t bytes) {
	Core *c = core;
	for (int i = 0; i < c->vars; i++)
		if (c->var[i].key == key) return c->var[i].at;
	if (c->vars == MAXVARS) fail(c, "more than 32 shared variables", 0);
	size_t room = (bytes + 127) & ~(size_t)63; // a gap after each
	char *at = c->shared + c->top;
	c->top += room;
	if (c->top > MAXSHARED) fail(c, "more shared memory than there is", 0);
	for (size_t i = 0; i < bytes; i++) ((volatile char *)at)[i] = 0xff;
	POISON(at + bytes, room - bytes);
	c->var[c->vars++] = {key, at};
	return at;
}

void *emu_dynamic_shared() { return core->shared; }

const char *emu_at(unsigned address) {
	if (address >= core->top) fail(core, "a product reads behind shared memory", 0);
	return core->shared + address;
}

unsigned emu_address(const void *p) { return (const char *)p - core->shared; }

// sums_of returns the sums of a product whose lanes brought their registers. Those that no product
// under way adds to are read, and NaN from then on.
static Sums *sums_of(Core *c, Warp *w, const EmuSlot *s) {
	float *d[32];
	for (int l = 0; l < 32; l++) memcpy(&d[l], s[l].w, sizeof *d);
	for (int i = 0; i < w->kept; i++)
		if (!memcmp(w->all[i].d, d, sizeof d)) return &w->all[i];
	if (!w->fenced) fail(c, "wgmma without a fence since the last wait", emu_cur->product.line);
	if (w->kept == 8) fail(c, "more sums under way than the emulator keeps", emu_cur->product.line);
	Sums *to = &w->all[w->kept++];
	memcpy(to->d, d, sizeof d);
	for (int l = 0; l < 32; l++) {
		memcpy(to->to[l], d[l], sizeof *to->to);
		memset(d[l], 0xff, sizeof *to->to);
	}
	return to;
}

static void run_products(Warp *w, int until) {
	for (; w->ran < until; w->ran++) w->products[w->ran].run(w->products[w->ran], w->sums[w->ran]->to);
}

void emu_issue(EmuSlot *s) {
	Core *c = core;
	Warp *w = &c->warp[emu_cur->warp];
	if (c->unfenced) fail(c, "wgmma of copies that were not fenced before the barrier", emu_cur->product.line);
	if (w->n == 64) fail(c, "more products under way than the emulator keeps", emu_cur->product.line);
	EmuProduct &p = w->products[w->n];
	p = {emu_cur->product.run, emu_cur->product.b, {}, {}, emu_cur->product.add, emu_cur->warp, w->groups};
	for (int l = 0; l < 32; l++) memcpy(p.a[l], s[l].w + 2, sizeof p.a[l]), memcpy(&p.from[l], s[l].w + 6, sizeof p.from[l]);
	w->sums[w->n++] = sums_of(c, w, s);
	w->lines = w->lines * 31 + emu_cur->product.line;
	if (c->shuffled && draw(c) % 2) run_products(w, w->n);
}

void emu_commit(EmuSlot *) { core->warp[emu_cur->warp].groups++; }
void emu_fence(EmuSlot *) { core->warp[emu_cur->warp].fenced = true; }

// emu_await does the products of all groups but the last ones and writes the sums that no other
// product adds to.
void emu_await(EmuSlot *s) {
	Warp *w = &core->warp[emu_cur->warp];
	int done = 0, kept = 0;
	while (done < w->n && w->products[done].group + s[0].w[0] < w->groups) done++;
	run_products(w, done);
	for (int i = 0; i < w->kept; i++) {
		Sums *a = &w->all[i];
		bool used = false;
		for (int j = done; j < w->n; j++) used = used || w->sums[j] == a;
		if (used) {
			for (int j = done; j < w->n; j++)
				if (w->sums[j] == a) w->sums[j] = &w->all[kept];
			if (kept != i) w->all[kept] = *a;
			kept++;
		} else
			for (int l = 0; l < 32; l++) memcpy(a->d[l], a->to[l], sizeof *a->to);
	}
	for (int j = done; j < w->n; j++) w->products[j - done] = w->products[j], w->sums[j - done] = w->sums[j];
	w->n -= done, w->ran -= done, w->kept = kept, w->fenced = false;
}

static Core *make_core() {
	Core *c = new Core();
	c->shared = (char *)aligned_alloc(1024, (MAXSHARED + 1023) / 1024 * 1024);
#ifdef EMU_TSAN
	c->main.tsan = __tsan_get_current_fiber();
#endif
	const char *seed = getenv("EMU_SEED");
	c->shuffled = seed;
	c->seed = seed ? atoi(seed) : 0;
	return c;
}

// begin_block forgets the block before.
static void begin_block(Core *c, EmuDim at, size_t shared) {
	c->bid = at;
	c->next = c->done = c->barreds = c->readies = c->vars = 0;
	while (c->spents) c->idle[c->idles++] = c->spent[--c->spents];
	for (auto &w : c->warp) {
		for (auto &g : w.group) g.here = g.mask = g.waits = 0;
		w.n = w.ran = w.kept = w.groups = w.lines = w.fenced = 0;
	}
	c->unfenced = false;
	ACQUIRE(&c->end);
	c->top = (shared + 127) & ~(size_t)63;
	UNPOISON(c->shared, MAXSHARED);
	if (shared) memset(c->shared, 0xff, shared);
	POISON(c->shared + shared, c->top - shared);
	RELEASE(&c->begin);
}

static void run_block(Core *c, EmuDim at, size_t shared) {
	begin_block(c, at, shared);
	go(take_fiber(c));
	if (!c->error && c->done != c->threads) {
		snprintf(c->text, sizeof c->text, "%s: block %u,%u,%u hangs: %d of %d threads ended, %d wait at the barrier of line %d",
			c->kernel->name, at.x, at.y, at.z, c->done, c->threads, c->barreds, c->barline);
		c->error = c->text;
	}
	for (int i = 0; !c->error && i < c->threads / 32; i++)
		if (c->warp[i].n || c->warp[i].lines != c->warp[i / 4 * 4].lines) {
			snprintf(c->text, sizeof c->text, "%s: block %u,%u,%u: %s", c->kernel->name, at.x, at.y, at.z,
				c->warp[i].n ? "products that nobody has waited for" : "four warps issued different products");
			c->error = c->text;
		}
	ACQUIRE(&c->end);
}

static const EmuKernel *find(const char *name) {
	for (const EmuKernel *k = emu_kernels; k; k = k->next)
		if (!strcmp(k->name, name)) return k;
	return 0;
}

#define API __attribute__((visibility("default")))

extern "C" API int emu_params(const char *name, int *size, int max) {
	const EmuKernel *k = find(name);
	if (!k) return -1;
	for (int i = 0; i < k->params && i < max; i++) size[i] = k->size[i];
	return k->params;
}

extern "C" API const char *emu_launch(const char *name, emu_dim3 grid, emu_dim3 block, size_t shared, void **params) {
	if (!core) core = make_core();
	Core *c = core;
	c->kernel = find(name);
	if (!c->kernel) return "no kernel of this name";
	size_t threads = (size_t)block.x * block.y * block.z;
	if (threads < 1 || threads > MAXTHREADS || shared > MAXSHARED) return "invalid launch";
	c->params = params;
	c->bdim = {block.x, block.y, block.z};
	c->gdim = {grid.x, grid.y, grid.z};
	c->threads = threads;
	c->error = 0;
	c->self = &c->main;
#ifdef EMU_TSAN
	while (c->spents) c->idle[c->idles++] = c->spent[--c->spents];
	while (c->idles < c->threads) { // making a fiber orders it after its maker: so all are made here
		Fiber *f = make_fiber();
		c->idle[c->idles++] = f;
	}
#endif
	for (unsigned z = 0; z < grid.z; z++)
		for (unsigned y = 0; y < grid.y; y++)
			for (unsigned x = 0; x < grid.x; x++) {
				run_block(c, {x, y, z}, shared);
				if (c->error) {
					core = 0; // its fibers are lost
					return c->error;
				}
			}
	return 0;
}
