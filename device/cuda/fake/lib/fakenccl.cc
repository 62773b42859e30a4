// libnccl.so.2 without GPUs: the ranks of a communicator, of one process or of
// several, exchange through a file in memory that its id names. What NCCL refuses is
// refused. Like NCCL on one host it does not notice when a peer dies: an operation
// then hangs until its own rank aborts.
//
//   NCCL_HOSTID=NAME          processes with other names are on other hosts, which may have
//                             GPUs of the same number
//   FAKENCCL_DIR=FOLDER       where the files are, $TMPDIR if it is not set
//   FAKENCCL_VERSION=NNNNN    what it says it is, VERSION if it is not set
//   FAKENCCL_RING=1           sums begin behind the rank whose part it is and are
//                             rounded at each hop, as on a ring; without it they are
//                             in rank order and rounded once
//   FAKENCCL_FAULT="PROCESS HOW FILE"  what befalls an operation of that ZEROTH_RANK once
//                             the file is there: "error", which the library finds out
//                             by itself, or "hang", for ever; or, "stuck", the next
//                             abort, which does not return and takes the file away
//
// Operations block a stream, so FAKECUDA_MODE has to be threads. A communicator that does
// not block enqueues and finalizes in a thread of its own, a moment later: until then it
// is in progress and takes nothing else. Also refused is what NCCL does not check and a GPU
// may survive or not: a send or a receive outside of a group, which would wait for the
// peer's, which may come behind one that waits for this rank; calls that ranks disagree
// about; addresses that are null, nobody's, or no multiple of an element; operands that
// overlap otherwise than in place; and calls after finalizing. VERSION, when it is compiled, decides what there is: memory
// can be registered since 21900, as windows since 22700.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#ifndef VERSION
#define VERSION 22809
#endif
#define API extern "C" __attribute__((visibility("default")))

enum { SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, F16, F32, F64, BF16 };
enum { MOST_RANKS = 16, SLOT = 64 << 10, PIECE = 16 << 10, WINDOWS = 8, MAGIC = 0x6e63636c };

struct Id { char bytes[128]; };
struct Config { size_t size; unsigned magic, version; int blocking, next; };

// Call is what ranks have to agree on.
struct Call { int op, type; size_t n; };

// Channel carries messages between two ranks, piece by piece: what is written is read
// before more is.
struct Channel {
	std::atomic<uint64_t> wrote, took; // pieces
	size_t message;                    // bytes of the message that the piece is of
	char piece[PIECE];
};

// Shared is the file. Chunks are counted from the communicator's begin; number c is
// in slot c mod 2, once all have read number c - 2.
struct Shared {
	std::atomic<int> ranks, joined[MOST_RANKS];
	std::atomic<int> device[MOST_RANKS];
	std::atomic<size_t> host[MOST_RANKS];
	std::atomic<uint64_t> wrote[MOST_RANKS], took[MOST_RANKS];
	Call call[MOST_RANKS][2];
	char slot[MOST_RANKS][2][SLOT];
	std::atomic<uint64_t> windows[MOST_RANKS];
	std::atomic<size_t> window[MOST_RANKS][WINDOWS]; // bytes
	Channel channel[MOST_RANKS][MOST_RANKS]; // by sender and receiver
};

struct Comm {
	std::atomic<int> magic{MAGIC}, state{SUCCESS}, pending{0}, users{0};
	std::atomic<bool> abort{false};
	bool blocking = true, finalized = false;
	Shared *s = nullptr;
	int n, rank, device;
	uint64_t chunks = 0; // done by this rank's stream
	uint64_t windows = 0;
	std::string file;
};

// The fake driver, found by the name the program loaded it by.
static void *driver(const char *name) {
	static void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *f = lib ? dlsym(lib, name) : nullptr;
	if (!f) {
		fprintf(stderr, "fakenccl: the fake libcuda has no %s\n", name);
		abort();
	}
	return f;
}

static int host_func(void *stream, void (*f)(void *), void *arg) {
	static auto call = (int (*)(void *, void (*)(void *), void *))driver("cuLaunchHostFunc");
	return call(stream, f, arg);
}

// Context is what a thread that does a communicator's work makes current.
struct Context {
	void *current = nullptr;
	Context() { ((int (*)(void **))driver("cuCtxGetCurrent"))(&current); }
	void enter() const { ((int (*)(void *))driver("cuCtxSetCurrent"))(current); }
};

static int current_device() {
	static auto call = (int (*)(int *))driver("cuCtxGetDevice");
	int d = -1;
	return call(&d) ? -1 : d;
}

static bool live(const void *p, size_t n) {
	static auto call = (int (*)(const void *, size_t))driver("fakecuda_live");
	return !n || call(p, n);
}

// What went wrong last in this process, as ncclGetLastError has it.
static std::mutex last_mu;
static char last[256];

static int complain(int code, const char *format, ...) {
	std::lock_guard<std::mutex> l(last_mu);
	va_list args;
	va_start(args, format);
	vsnprintf(last, sizeof last, format, args);
	va_end(args);
	return code;
}

static size_t size(int type) {
	switch (type) {
	case INT8: case UINT8: return 1;
	case F16: case BF16: return 2;
	case INT64: case UINT64: case F64: return 8;
	}
	return 4;
}

// Waiting: briefly awake, then in naps.
template <class F> static bool wait_until(Comm *c, F done) {
	for (int i = 0; !done(); i++) {
		if (c->abort)
			return false;
		if (i < 100)
			std::this_thread::yield();
		else
			usleep(50);
	}
	return !c->abort;
}

template <class F> static bool all(Comm *c, F has) {
	for (int r = 0; r < c->n; r++)
		if (!has(r))
			return false;
	return true;
}

static std::string folder() {
	for (const char *name : {"FAKENCCL_DIR", "TMPDIR"})
		if (const char *v = getenv(name); v && *v)
			return v;
	return "/tmp";
}

API const char *ncclGetErrorString(int code) {
	static const char *texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument", "invalid usage", "remote process exited or there was a network error", "NCCL operation in progress"};
	return code >= 0 && code <= IN_PROGRESS ? texts[code] : "unknown result code";
}

API const char *ncclGetLastError(Comm *) {
	static thread_local char copy[sizeof last];
	std::lock_guard<std::mutex> l(last_mu);
	memcpy(copy, last, sizeof last);
	return copy;
}

API int ncclGetVersion(int *v) {
	const char *said = getenv("FAKENCCL_VERSION");
	*v = said && *said ? atoi(said) : VERSION;
	return SUCCESS;
}

API int ncclGetUniqueId(Id *id) {
	memset(id, 0, sizeof *id);
	std::random_device random;
	snprintf(id->bytes, sizeof id->bytes, "fakenccl-%d-%08x%08x", getpid(), random(), random());
	std::string file = folder() + "/" + id->bytes;
	int f = open(file.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
	if (f < 0 || ftruncate(f, sizeof(Shared)))
		return complain(SYSTEM_ERROR, "cannot make %s", file.c_str());
	close(f);
	return SUCCESS;
}

// join returns when all ranks have come.
static int join(Comm *c) {
	int f = open(c->file.c_str(), O_RDWR);
	struct stat st;
	if (f < 0 || fstat(f, &st) || st.st_size != sizeof(Shared)) // NCCL calls a bootstrap address that nobody listens at
		return complain(SYSTEM_ERROR, "no root answers for this id");
	c->s = (Shared *)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
	close(f);
	int none = 0;
	if (!c->s->ranks.compare_exchange_strong(none, c->n) && none != c->n)
		return complain(INVALID_ARGUMENT, "rank %d says there are %d ranks, others %d", c->rank, c->n, none);
	c->s->device[c->rank] = c->device;
	const char *host = getenv("NCCL_HOSTID");
	c->s->host[c->rank] = std::hash<std::string>()(host ? host : "");
	if (c->s->joined[c->rank].exchange(1))
		return complain(INVALID_USAGE, "two ranks are number %d", c->rank);
	if (!wait_until(c, [=] { return all(c, [=](int r) { return c->s->joined[r].load() > 0; }); }))
		return REMOTE_ERROR;
	for (int r = 0; r < c->n; r++)
		for (int q = 0; q < r; q++)
			if (c->s->host[r] == c->s->host[q] && c->s->device[r] == c->s->device[q])
				return complain(INVALID_USAGE, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", q, r, c->device);
	c->s->joined[c->rank] = 2;
	if (c->rank == 0) {
		if (!wait_until(c, [=] { return all(c, [=](int r) { return c->s->joined[r] == 2; }); }))
			return REMOTE_ERROR;
		unlink(c->file.c_str());
	}
	return SUCCESS;
}

API int ncclCommInitRankConfig(Comm **out, int n, Id id, int rank, Config *config) {
	const char *mode = getenv("FAKECUDA_MODE");
	if (!mode || strncmp(mode, "threads", 7))
		return complain(INTERNAL_ERROR, "fakenccl wants FAKECUDA_MODE=threads:N");
	if (config && (config->magic != 0xcafebeef || config->size < 20))
		return complain(INVALID_ARGUMENT, "ncclConfig_t was not initialized");
	int device = current_device();
	if (n < 1 || n > MOST_RANKS || rank < 0 || rank >= n)
		return complain(INVALID_ARGUMENT, "rank %d of %d", rank, n);
	if (device < 0)
		return complain(CUDA_ERROR, "no context is current");
	if (strncmp(id.bytes, "fakenccl-", 9))
		return complain(INVALID_ARGUMENT, "this is no id");
	Comm *c = *out = new Comm;
	c->n = n, c->rank = rank, c->device = device, c->file = folder() + "/" + id.bytes;
	c->blocking = !config || config->blocking;
	if (c->blocking)
		return c->state = join(c);
	c->state = IN_PROGRESS;
	c->users++;
	std::thread([=] {
		c->state = join(c);
		c->users--;
	}).detach();
	return IN_PROGRESS;
}

API int ncclCommInitRank(Comm **out, int n, Id id, int rank) { return ncclCommInitRankConfig(out, n, id, rank, nullptr); }

static int checked(Comm *c, const char *call) {
	if (!c || c->magic != MAGIC)
		return complain(INVALID_ARGUMENT, "%s: the communicator has been destroyed", call);
	return SUCCESS;
}

// entered wants a context, too.
static int entered(Comm *c, const char *name) {
	if (int r = checked(c, name))
		return r;
	return current_device() < 0 ? complain(INVALID_USAGE, "%s: no context is current", name) : (int)SUCCESS;
}

// usable checks what every operation wants.
static int usable(Comm *c, const char *name) {
	if (int r = entered(c, name))
		return r;
	if (int state = c->state) // of one that has failed it is its error, as in ncclCommEnsureReady
		return state == IN_PROGRESS ? complain(INVALID_ARGUMENT, "%s: the communicator is not ready", name) : state;
	if (c->finalized)
		return complain(INVALID_USAGE, "%s: the communicator has been finalized", name);
	if (current_device() != c->device)
		return complain(INVALID_ARGUMENT, "%s: the current device is %d, the communicator's %d", name, current_device(), c->device);
	return SUCCESS;
}

static bool failed(Comm *c) {
	int state = c->state; // once: it may become SUCCESS meanwhile
	return state && state != IN_PROGRESS;
}

// later does work and sets the state to its result: now, or if the communicator does not
// block in a thread, a moment later.
static int later(Comm *c, std::function<int()> work) {
	if (c->blocking)
		return work();
	c->state = IN_PROGRESS;
	c->users++;
	std::thread([=, context = Context()] {
		context.enter();
		usleep(20);
		int r = work(), busy = IN_PROGRESS;
		c->state.compare_exchange_strong(busy, r); // unless an operation has failed meanwhile
		c->users--;
	}).detach();
	return IN_PROGRESS;
}

API int ncclCommGetAsyncError(Comm *c, int *state) {
	if (int r = checked(c, "ncclCommGetAsyncError"))
		return r;
	*state = c->state;
	return SUCCESS;
}

// release gives the memory back, but for the handle, whose use is to be noticed, and
// for what a stream still has.
static void forget_all(Comm *c);

static int release(Comm *c) {
	c->magic = 0;
	forget_all(c);
	for (int i = 0; c->users > 0 && i < 1000; i++)
		usleep(1000);
	if (c->s && c->users == 0)
		munmap(c->s, sizeof(Shared));
	return SUCCESS;
}

// Fault is what befalls this process.
struct Fault {
	std::string how, file;
	Fault() {
		const char *text = getenv("FAKENCCL_FAULT"), *me = getenv("ZEROTH_RANK");
		char h[16], f[512];
		int process;
		if (text && me && sscanf(text, "%d %15s %511s", &process, h, f) == 3 && process == atoi(me))
			how = h, file = f;
	}
};
static Fault fault;

API int ncclCommAbort(Comm *c) {
	if (int r = entered(c, "ncclCommAbort"))
		return r;
	if (fault.how == "stuck" && !unlink(fault.file.c_str()))
		for (;;)
			pause();
	c->abort = true;
	unlink(c->file.c_str()); // it is gone if all have come
	return release(c);
}

API int ncclCommFinalize(Comm *c) {
	if (int r = entered(c, "ncclCommFinalize"))
		return r;
	if (c->finalized)
		return complain(INVALID_ARGUMENT, "ncclCommFinalize: the communicator has been finalized");
	if (c->state)
		return complain(INVALID_USAGE, "ncclCommFinalize: the communicator is not ready");
	c->finalized = true;
	return later(c, [=] { return wait_until(c, [=] { return c->pending == 0; }) ? SUCCESS : REMOTE_ERROR; });
}

API int ncclCommDestroy(Comm *c) {
	if (int r = entered(c, "ncclCommDestroy"))
		return r;
	wait_until(c, [=] { return c->pending == 0; });
	return release(c);
}

#if VERSION >= 21900
// Memory that can be registered, and by how many communicators it is.
enum { GRANULARITY = 2 << 20 };
static std::mutex memory_mu;
static std::map<void *, std::pair<void *, size_t>> allocated; // where its driver memory begins, and how much is usable
struct Known {
	Comm *c;
	void *at;
	size_t n;
};
static std::vector<Known *> known;

API int ncclMemAlloc(void **at, size_t n) {
	static auto alloc = (int (*)(unsigned long long *, size_t))driver("cuMemAlloc_v2");
	size_t whole = (n + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
	unsigned long long p;
	if (int failed = alloc(&p, whole + GRANULARITY))
		return complain(CUDA_ERROR, "ncclMemAlloc of %zu bytes: CUDA error %d", n, failed);
	*at = (void *)((p + GRANULARITY - 1) / GRANULARITY * GRANULARITY);
	std::lock_guard<std::mutex> l(memory_mu);
	allocated[*at] = {(void *)p, whole};
	return SUCCESS;
}

API int ncclMemFree(void *at) {
	static auto free = (int (*)(unsigned long long))driver("cuMemFree_v2");
	std::lock_guard<std::mutex> l(memory_mu);
	auto a = allocated.find(at);
	if (a == allocated.end())
		return complain(INVALID_ARGUMENT, "ncclMemFree: %p is not what ncclMemAlloc gave", at);
	for (auto k : known)
		if (k->at == at)
			return complain(INVALID_USAGE, "ncclMemFree: memory that rank %d of a communicator has registered is freed", k->c->rank);
	unsigned long long p = (unsigned long long)a->second.first;
	allocated.erase(a);
	return free(p) ? CUDA_ERROR : SUCCESS;
}

static int know(const char *name, Comm *c, void *at, size_t n, void **handle) {
	if (int r = usable(c, name))
		return r;
	std::lock_guard<std::mutex> l(memory_mu);
	auto a = allocated.find(at);
	if (a == allocated.end() || n > a->second.second || n % GRANULARITY)
		return complain(INVALID_ARGUMENT, "%s: %zu bytes that ncclMemAlloc did not give, or not in whole pages", name, n);
	for (auto k : known)
		if (k->c == c && k->at == at)
			return complain(INVALID_USAGE, "%s: memory that is registered already", name);
	known.push_back(new Known{c, at, n});
	*handle = known.back();
	return SUCCESS;
}

static int forget(const char *name, Comm *c, void *handle) {
	if (int r = checked(c, name))
		return r;
	std::lock_guard<std::mutex> l(memory_mu);
	for (size_t i = 0; i < known.size(); i++)
		if (known[i] == handle && known[i]->c == c) {
			bool gone = !live(known[i]->at, known[i]->n);
			delete known[i];
			known.erase(known.begin() + i);
			return gone ? complain(INVALID_USAGE, "%s: the memory was freed before", name) : SUCCESS;
		}
	return complain(INVALID_ARGUMENT, "%s: nothing is registered as %p", name, handle);
}

// forget_all is what the end of a communicator does.
static void forget_all(Comm *c) {
	std::lock_guard<std::mutex> l(memory_mu);
	for (size_t i = known.size(); i-- > 0;)
		if (known[i]->c == c) {
			delete known[i];
			known.erase(known.begin() + i);
		}
}

API int ncclCommRegister(Comm *c, void *at, size_t n, void **handle) { return know("ncclCommRegister", c, at, n, handle); }
API int ncclCommDeregister(Comm *c, void *handle) { return forget("ncclCommDeregister", c, handle); }
#else
static void forget_all(Comm *) {}
#endif

#if VERSION >= 22700
// meet has all ranks register as much, as their number k.
static int meet(Comm *c, uint64_t k, size_t n) {
	c->s->window[c->rank][k % WINDOWS] = n;
	c->s->windows[c->rank] = k;
	if (!wait_until(c, [=] { return all(c, [=](int r) { return c->s->windows[r] >= k; }); }))
		return REMOTE_ERROR;
	for (int r = 0; r < c->n; r++)
		if (c->s->window[r][k % WINDOWS] != n)
			return complain(INVALID_USAGE, "ncclCommWindowRegister: rank %d has %zu bytes, rank %d %zu", c->rank, n, r, c->s->window[r][k % WINDOWS].load());
	return SUCCESS;
}

// A window is all ranks' together; the communicator is busy until all have come.
API int ncclCommWindowRegister(Comm *c, void *at, size_t n, void **window, int flags) {
	if (flags & ~1)
		return complain(INVALID_ARGUMENT, "ncclCommWindowRegister: flags %d", flags);
	void *handle;
	if (int r = know("ncclCommWindowRegister", c, at, n, &handle))
		return r;
	uint64_t k = ++c->windows;
	c->state = IN_PROGRESS;
	c->users++;
	std::thread([=] {
		int r = meet(c, k, n);
		*window = handle;
		c->state = r;
		c->users--;
	}).detach();
	return IN_PROGRESS;
}

API int ncclCommWindowDeregister(Comm *c, void *handle) { return forget("ncclCommWindowDeregister", c, handle); }
#endif

static float widen(int type, const char *p) {
	uint16_t h;
	memcpy(&h, p, 2);
	uint32_t bits = (uint32_t)h << 16;
	float f;
	if (type == F16) {
		int e = h >> 10 & 31, m = h & 1023;
		f = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf(m + 1024, e - 25) : ldexpf(m, -24);
		return h & 0x8000 ? -f : f;
	}
	memcpy(&f, &bits, 4);
	return f;
}

static uint16_t narrow(int type, float x) {
	uint32_t u;
	memcpy(&u, &x, 4);
	if (std::isnan(x))
		return type == F16 ? 0x7e00 : 0x7fc0;
	if (type == BF16)
		return (u + 0x7fff + (u >> 16 & 1)) >> 16;
	float a = fabsf(x);
	uint16_t sign = u >> 16 & 0x8000;
	if (a == 0)
		return sign;
	if (a >= 65520)
		return sign | 0x7c00;
	int e;
	frexpf(a, &e); // a < 2^e
	int unit = e - 11 < -24 ? -24 : e - 11;
	long m = lrintf(ldexpf(a, -unit)); // ties to even
	if (unit == -24)
		return sign | m;
	return sign | (uint16_t)(((unit + 24) << 10) + m);
}

// add sets n elements of out to a sum of the ranks' slots, for the rank whose part
// they are.
static void add(Comm *c, int type, size_t n, char *out, int slot) {
	static bool ring = getenv("FAKENCCL_RING");
	for (size_t i = 0; i < n; i++) {
		float f = 0;
		double d = 0;
		for (int k = 0; k < c->n; k++) {
			int r = ring ? (c->rank + 1 + k) % c->n : k;
			const char *from = c->s->slot[r][slot] + i * size(type);
			if (type == F64) {
				double x;
				memcpy(&x, from, 8);
				d = k ? d + x : x;
				continue;
			}
			float x;
			if (type == F32)
				memcpy(&x, from, 4);
			else
				x = widen(type, from);
			f = k ? f + x : x;
			if (ring && type != F32)
				{ uint16_t h = narrow(type, f); f = widen(type, (char *)&h); }
		}
		uint16_t h = type == F32 || type == F64 ? 0 : narrow(type, f);
		const void *result = type == F64 ? (void *)&d : type == F32 ? (void *)&f : (void *)&h;
		memcpy(out + i * size(type), result, size(type));
	}
}

enum { GATHER = 1, REDUCE_SCATTER, REDUCE };

// exchange passes one chunk from each rank to all.
static bool exchange(Comm *c, const Call &call, const char *in, size_t bytes, std::function<void(int slot)> take) {
	Shared *s = c->s;
	uint64_t k = c->chunks;
	int slot = k % 2;
	if (!wait_until(c, [=] { return all(c, [=](int r) { return s->took[r] + 1 >= k; }); }))
		return false;
	s->call[c->rank][slot] = call;
	memcpy(s->slot[c->rank][slot], in, bytes);
	s->wrote[c->rank] = k + 1;
	if (!wait_until(c, [=] { return all(c, [=](int r) { return s->wrote[r] >= k + 1; }); }))
		return false;
	for (int r = 0; r < c->n; r++)
		if (memcmp(&s->call[r][slot], &call, sizeof call)) {
			c->state = complain(INVALID_USAGE, "rank %d calls operation %d of %zu elements of type %d, rank %d %d of %zu of type %d",
				c->rank, call.op, call.n, call.type, r, s->call[r][slot].op, s->call[r][slot].n, s->call[r][slot].type);
			return false;
		}
	take(slot);
	s->took[c->rank] = k + 1;
	c->chunks++;
	return true;
}

static void gather(Comm *c, Call call, const char *in, char *out) {
	size_t part = call.n * size(call.type);
	for (size_t lo = 0; lo < part; lo += SLOT) {
		size_t n = std::min<size_t>(SLOT, part - lo);
		if (!exchange(c, call, in + lo, n, [=](int slot) {
				for (int r = 0; r < c->n; r++)
					memcpy(out + r * part + lo, c->s->slot[r][slot], n);
			}))
			return;
	}
}

// reduce sets the owner's out to the sum of all ranks' in.
static bool reduce(Comm *c, Call call, int owner, const char *in, char *out) {
	size_t e = size(call.type), step = SLOT / e;
	for (size_t lo = 0; lo < call.n; lo += step) {
		size_t n = std::min(step, call.n - lo);
		if (!exchange(c, call, in + lo * e, n * e, [=](int slot) {
				if (owner == c->rank)
					add(c, call.type, n, out + lo * e, slot);
			}))
			return false;
	}
	return true;
}

static void reduce_scatter(Comm *c, Call call, const char *in, char *out) {
	for (int owner = 0; owner < c->n; owner++)
		if (!reduce(c, call, owner, in + owner * call.n * size(call.type), out))
			return;
}

// befall has an operation fail or hang that is to; one of a single rank is let pass.
static void befall(Comm *c) {
	if (fault.how.empty() || c->n == 1 || access(fault.file.c_str(), F_OK))
		return;
	if (fault.how == "hang")
		wait_until(c, [] { return false; });
	if (fault.how == "error")
		c->state = complain(SYSTEM_ERROR, "a link is down");
}

// A group of calls of a thread, from ncclGroupStart to ncclGroupEnd.
struct Item {
	Comm *c;
	void *stream;
	std::function<void()> work; // empty of a message
	int peer;
	const char *in; // of a send
	char *out;      // of a receive
	size_t bytes;
};
static thread_local int depth;
static thread_local int group_failed;
static thread_local std::vector<Item> group;

// launch puts work into a stream.
static int launch(Comm *c, void *stream, std::function<void()> work) {
	c->pending++;
	c->users++;
	auto f = new std::function<void()>([=] {
		befall(c);
		if (!failed(c) && !c->abort)
			work();
		c->pending--;
		c->users--;
	});
	int failed = host_func(stream, [](void *p) {
		auto f = (std::function<void()> *)p;
		(*f)();
		delete f;
	}, f);
	if (!failed)
		return SUCCESS;
	c->pending--;
	c->users--;
	delete f;
	return complain(CUDA_ERROR, "the stream is not of device %d", c->device);
}

// message moves what is left of one as far as it goes now, and says whether that is all.
struct Message {
	Item i;
	size_t at = 0;
	bool begun = false;
};

static bool moved(Comm *c, Message &m) {
	Channel &ch = m.i.in ? c->s->channel[c->rank][m.i.peer] : c->s->channel[m.i.peer][c->rank];
	while (!m.begun || m.at < m.i.bytes) {
		size_t n = std::min<size_t>(PIECE, m.i.bytes - m.at);
		if (m.i.in) {
			if (ch.wrote != ch.took)
				return false;
			ch.message = m.i.bytes;
			memcpy(ch.piece, m.i.in + m.at, n);
			ch.wrote++;
		} else {
			if (ch.wrote == ch.took)
				return false;
			if (ch.message != m.i.bytes) {
				c->state = complain(INVALID_USAGE, "rank %d receives %zu bytes of rank %d, which sends %zu", c->rank, m.i.bytes, m.i.peer, ch.message);
				return false;
			}
			memcpy(m.i.out + m.at, ch.piece, n);
			ch.took++;
		}
		m.at += n, m.begun = true;
	}
	return true;
}

// converse does all messages of a group at once; of one pair and direction in order.
static void converse(Comm *c, std::vector<Item> items) {
	std::vector<Message> left;
	for (auto &i : items)
		left.push_back({i});
	wait_until(c, [&] {
		std::vector<Message> rest;
		for (auto &m : left) {
			bool behind = false;
			for (auto &r : rest)
				behind |= r.i.peer == m.i.peer && !r.i.in == !m.i.in;
			if (behind || !moved(c, m))
				rest.push_back(m);
		}
		left = rest;
		return left.empty() || failed(c);
	});
}

API int ncclGroupStart() {
	depth++;
	return SUCCESS;
}

// launch_group puts the work of a group into its streams, the messages of each at once.
static int launch_group(std::vector<Item> items) {
	int code = SUCCESS;
	while (!code && !items.empty()) {
		Item first = items[0];
		if (first.work) {
			code = launch(first.c, first.stream, first.work);
			items.erase(items.begin());
			continue;
		}
		std::vector<Item> messages, rest;
		for (auto &i : items)
			(!i.work && i.c == first.c && i.stream == first.stream ? messages : rest).push_back(i);
		code = launch(first.c, first.stream, [=] { converse(first.c, messages); });
		items = rest;
	}
	return code;
}

static bool overlap(const void *a, size_t n, const void *b, size_t m) { return (const char *)a < (const char *)b + m && (const char *)b < (const char *)a + n; }

// clash says whether a message of a group is received where another one is.
static bool clash(const std::vector<Item> &items) {
	for (auto &a : items)
		for (auto &b : items)
			if (a.out && &a != &b && overlap(a.out, a.bytes, b.in ? b.in : b.out, b.bytes))
				return true;
	return false;
}

API int ncclGroupEnd() {
	if (depth == 0)
		return complain(INVALID_USAGE, "ncclGroupEnd: not in a group call.");
	if (--depth > 0)
		return SUCCESS;
	std::vector<Item> items;
	items.swap(group);
	int code = group_failed;
	group_failed = 0;
	if (code || items.empty())
		return code;
	for (auto &i : items)
		if (i.c != items[0].c)
			return complain(INVALID_USAGE, "ncclGroupEnd: a group of several communicators is not emulated");
	if (clash(items))
		return complain(INVALID_USAGE, "ncclGroupEnd: a message is received in memory of another one");
	return later(items[0].c, [=] { return launch_group(items); });
}

// noted has the end of the thread's group know of what failed in it.
static int noted(int code) {
	if (depth > 0 && code)
		group_failed = code;
	return code;
}

// operand checks the memory of n elements.
static int operand(Comm *c, const char *name, int type, const void *p, size_t n) {
	if (type < INT8 || type > BF16)
		return complain(INVALID_ARGUMENT, "%s: there is no type %d", name, type);
	if (n && (uintptr_t)p % size(type))
		return complain(INVALID_ARGUMENT, "%s: %p is no address of elements of %zu bytes", name, p, size(type));
	if (!live(p, n * size(type)))
		return complain(INVALID_ARGUMENT, "%s: an argument is not memory of device %d", name, c->device);
	return SUCCESS;
}

// enqueue checks an operation and puts it into the stream. in_parts and out_parts are 1 or,
// of an operand with a part for each rank, their number.
static int enqueue(Comm *c, const char *name, Call call, const void *in, size_t in_parts, const void *out, size_t out_parts, void *stream, std::function<void()> work) {
	if (int r = usable(c, name))
		return noted(r);
	for (auto o : {std::make_pair(in, in_parts), std::make_pair(out, out_parts)})
		if (int r = operand(c, name, call.type, o.first, o.second * call.n))
			return noted(r);
	size_t part = call.n * size(call.type), own = in_parts == out_parts ? 0 : c->rank * part;
	const char *place = (const char *)(in_parts > out_parts ? in : out) + own;
	if (overlap(in, in_parts * part, out, out_parts * part) && place != (in_parts > out_parts ? out : in))
		return noted(complain(INVALID_USAGE, "%s: its operands overlap, and not in place", name));
	if (!call.n)
		work = [] {};
	if (depth > 0) {
		group.push_back({c, stream, work, 0, nullptr, nullptr, 0});
		return SUCCESS;
	}
	return later(c, [=] { return launch(c, stream, work); });
}

static int message(Comm *c, const char *name, int type, Item i) {
	if (int r = usable(c, name))
		return noted(r);
	if (depth == 0)
		return complain(INVALID_USAGE, "%s outside of a group: it would wait for rank %d, which may wait for this one", name, i.peer);
	if (i.peer < 0 || i.peer >= c->n)
		return noted(complain(INVALID_ARGUMENT, "%s: rank %d of %d", name, i.peer, c->n));
	if (int r = operand(c, name, type, i.in ? i.in : i.out, i.bytes / size(type)))
		return noted(r);
	if (i.bytes)
		group.push_back(i);
	return SUCCESS;
}

API int ncclSend(const void *in, size_t n, int type, int peer, Comm *c, void *stream) {
	return message(c, "ncclSend", type, {c, stream, nullptr, peer, (const char *)in, nullptr, n * size(type)});
}

API int ncclRecv(void *out, size_t n, int type, int peer, Comm *c, void *stream) {
	return message(c, "ncclRecv", type, {c, stream, nullptr, peer, nullptr, (char *)out, n * size(type)});
}

API int ncclAllGather(const void *in, void *out, size_t n, int type, Comm *c, void *stream) {
	Call call{};
	call.op = GATHER, call.type = type, call.n = n;
	return enqueue(c, "ncclAllGather", call, in, 1, out, c ? c->n : 0, stream, [=] { gather(c, call, (const char *)in, (char *)out); });
}

API int ncclReduceScatter(const void *in, void *out, size_t n, int type, int op, Comm *c, void *stream) {
	if (op || (type != F16 && type != F32 && type != F64 && type != BF16))
		return complain(INVALID_ARGUMENT, "ncclReduceScatter: operation %d on type %d is not emulated", op, type);
	Call call{};
	call.op = REDUCE_SCATTER, call.type = type, call.n = n;
	return enqueue(c, "ncclReduceScatter", call, in, c ? c->n : 0, out, 1, stream, [=] { reduce_scatter(c, call, (const char *)in, (char *)out); });
}

API int ncclReduce(const void *in, void *out, size_t n, int type, int op, int root, Comm *c, void *stream) {
	if (op || root || (type != F16 && type != F32 && type != F64 && type != BF16))
		return complain(INVALID_ARGUMENT, "ncclReduce: operation %d on type %d to rank %d is not emulated", op, type, root);
	Call call{};
	call.op = REDUCE, call.type = type, call.n = n;
	return enqueue(c, "ncclReduce", call, in, 1, out, c && !c->rank, stream, [=] { reduce(c, call, 0, (const char *)in, (char *)out); });
}
