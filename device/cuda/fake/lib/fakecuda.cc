// libcuda.so.1 without a GPU: device memory is the host's, kernels are emulated
// (../../emu/emu_api.h), and what a driver refuses is refused.
//
//   FAKECUDA_MODE=lazy:SEED   nothing runs before somebody waits for it; which
//                             stream goes on next is drawn by SEED
//   FAKECUDA_MODE=threads:US  a thread a stream, which sleeps up to US
//                             microseconds before each piece of work
//   FAKECUDA_MODE=nothing     work in streams, products too, does nothing and takes no
//                             time: what an operation costs is the caller's
//   FAKECUDA_DEVICES=N        GPUs, 1 if it is not set
//   FAKECUDA_MEMORY=BYTES     of each, 4 GiB if it is not set
//   FAKECUDA_CAPABILITY=NN    90 if it is not set
//   FAKECUDA_BROKEN=HOW:NAME  the kernel NAME does nothing ("idle"), never ends
//                             ("hangs") or ends the context ("faults"); with
//                             wrong:NAME:WORD:N its Nth launch gets the 32-bit word
//                             WORD of its first operand wrong
//   FAKECUDA_DRIVER=NNNNN     the newest CUDA it serves, 12040 (12.4) if it is not set: it
//                             loads no newer PTX, and no cubins of a newer major version
//   FAKECUDA_NO_CUBINS=PART   it refuses cubins that have a kernel with PART in its name; all
//                             if that is empty
//   FAKECUDA_KERNELS=FILE     kernel/kernels.txt: registers and shared memory of kernels
//   FAKECUDA_STREAMS=FILE     receives a line for each stream: its priority
//   FAKECUDA_SPINS=FILE       receives a line for each wait that keeps a processor busy
//   FAKECUDA_PINNED=FILE      receives a line for each allocation of pinned memory: how many
//                             processors its thread may use
//   FAKECUDA_NO_PEERS=1       GPUs cannot address each other's memory
//   FAKECUDA_DROP_WAIT=N      the Nth cuStreamWaitEvent of the process does
//                             nothing: a mutation, which tests should notice
//   FAKECUDA_COUNT=FILE       each time a context is released for good the number
//                             of cuStreamWaitEvents so far is appended to FILE
//   ZEROTH_EMU_KERNELS=PATH   the library of emulated kernels
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <elf.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <sched.h>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../../emu/emu_api.h"

#define API extern "C" __attribute__((visibility("default"))) int

typedef unsigned long long Address;
typedef std::unique_lock<std::mutex> Lock;

enum {
	INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY = 209, INVALID_PTX = 218, UNSUPPORTED_PTX = 222,
	INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, PEER_ALREADY = 704, PEER_NOT_ENABLED = 705,
	OUT_OF_RESOURCES = 701, LAUNCH_FAILED = 719, PEER_UNSUPPORTED = 217,
};

struct Context { int device, retained = 0; std::vector<bool> peers; };
struct Event { Context *ctx; bool timed, blocking; unsigned long recorded = 0, done = 0; std::chrono::steady_clock::time_point when; };
struct Op { std::function<int()> work; Event *wait = nullptr, *mark = nullptr; unsigned long seq = 0; };
struct Stream { Context *ctx; unsigned rank; std::deque<Op> q; bool busy = false, dead = false; };
struct Block { size_t size; int device; bool live; };
struct Entry { std::vector<int> params; unsigned most = 1024; }; // bytes of each parameter; threads of a block
struct Module { Context *ctx; std::string kind, first; std::map<std::string, Entry> entries; }; // kind: "ptx", "sm_90"; first: of its kernels
struct Kernel { unsigned shared = 0; int registers[2] = {32, 32}; }; // of its own, bytes; for sm_80 and sm_90
struct Function { Context *ctx; std::string name; std::vector<int> params; unsigned most = 1024; Kernel uses; unsigned dynamic = 48 << 10; };

// What the process has. It is never destroyed, for threads use it to the end.
static struct State {
	std::mutex mu;
	std::condition_variable changed;
	bool started = false, lazy = true, nothing = false, peers = true;
	int delay = 0, sticky = 0, capability = 90, driver = 12040;
	std::map<std::string, Kernel> kernels;
	size_t total = 4ull << 30;
	std::vector<Context *> contexts;
	std::vector<size_t> used;
	std::vector<Stream *> streams;
	std::map<Address, Block> device, pinned; // every block there ever was
	std::mt19937 rng;
	long waits = 0, drop = 0;
	int (*emu_params)(const char *, int *, int) = nullptr;
	const char *(*emu_launch)(const char *, emu_dim3, emu_dim3, size_t, void **) = nullptr;
} &g = *new State;

// Of this thread. It has none after a wait, as if the goroutine that waited had gone on
// on another thread: whoever does not make a context current before each call is refused.
static thread_local Context *current;

static int complain(int code, const char *what, const char *who = "") {
	fprintf(stderr, "fakecuda: %s%s%s\n", who, *who ? ": " : "", what);
	return code;
}

// tell appends a line to the file that a variable names, if any. The caller holds the lock.
static void tell(const char *variable, const std::string &line) {
	const char *path = getenv(variable);
	if (FILE *f = path && *path ? fopen(path, "a") : nullptr) {
		fprintf(f, "%s\n", line.c_str());
		fclose(f);
	}
}

#define NEED_CONTEXT \
	do { \
		if (!current) \
			return complain(INVALID_CONTEXT, "no context is current", __func__); \
		if (g.sticky) \
			return g.sticky; \
	} while (0)

// Streams.

static bool ready(Stream *s) { return !s->q.empty() && !s->busy && (!s->q.front().wait || s->q.front().wait->done >= s->q.front().seq); }
static bool idle(Stream *s) { return s->q.empty() && !s->busy; }

// step runs the first piece of work of a stream.
static void step(Stream *s, Lock &l) {
	Op o = std::move(s->q.front());
	s->q.pop_front();
	s->busy = true;
	int nap = g.delay && o.work ? g.rng() % g.delay : 0, failed = g.sticky;
	l.unlock();
	if (nap)
		usleep(nap);
	int r = o.work && !failed ? o.work() : 0;
	o.work = nullptr; // what it held is freed without the lock
	l.lock();
	s->busy = false;
	if (r && !g.sticky)
		g.sticky = r;
	if (o.mark) {
		o.mark->done = std::max(o.mark->done, o.seq);
		o.mark->when = std::chrono::steady_clock::now();
	}
	g.changed.notify_all();
}

// step_any runs work of the first stream of those that can go on, by ranks that are
// drawn, and drawn again now and then: so a stream may be left far behind.
static bool step_any(Lock &l) {
	std::vector<Stream *> able;
	for (Stream *s : g.streams)
		if (ready(s))
			able.push_back(s);
	if (able.empty())
		return false;
	auto before = [](Stream *a, Stream *b) { return a->rank < b->rank; };
	Stream *next = *std::min_element(able.begin(), able.end(), before);
	if (g.rng() % 16 == 0)
		next->rank = g.rng();
	step(next, l);
	return true;
}

// until returns when done says so: lazily, work is run for that.
template <class F> static int until(F done) {
	Lock l(g.mu);
	while (!done())
		if (!g.lazy || !step_any(l))
			g.changed.wait_for(l, std::chrono::milliseconds(20)); // another thread is at it
	return g.sticky;
}

static void serve(Stream *s) {
	Lock l(g.mu);
	for (;;) {
		g.changed.wait(l, [s] { return ready(s) || (s->dead && s->q.empty()); });
		if (s->q.empty())
			return;
		step(s, l);
	}
}

static int push(Stream *s, Op o, const char *who) {
	if (!s)
		return complain(INVALID_HANDLE, "the default stream, which waits for all others, is not used here", who);
	Lock l(g.mu);
	if (s->dead || s->ctx != current)
		return complain(INVALID_HANDLE, "the stream is not the current context's", who);
	if (g.nothing) {
		if (o.mark)
			o.mark->done = o.seq;
		return 0;
	}
	s->q.push_back(std::move(o));
	g.changed.notify_all();
	return 0;
}

enum { LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5 };

API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
	NEED_CONTEXT;
	return *least = LEAST_PRIORITY, *greatest = GREATEST_PRIORITY, 0;
}

// Priorities are noted; any order of streams may come, whatever they are.
API cuStreamCreateWithPriority(Stream **s, unsigned flags, int priority) {
	NEED_CONTEXT;
	if (flags != 1)
		return complain(INVALID_VALUE, "a stream that waits for the default one", __func__);
	Lock l(g.mu);
	tell("FAKECUDA_STREAMS", "priority " + std::to_string(std::max<int>(GREATEST_PRIORITY, std::min<int>(LEAST_PRIORITY, priority))));
	g.streams.push_back(*s = new Stream{current, (unsigned)g.rng()});
	if (!g.lazy)
		std::thread(serve, *s).detach();
	return 0;
}

API cuStreamCreate(Stream **s, unsigned flags) { return cuStreamCreateWithPriority(s, flags, LEAST_PRIORITY); }

static int waited(int code) { return current = nullptr, code; }

API cuStreamSynchronize(Stream *s) {
	NEED_CONTEXT;
	{
		Lock l(g.mu);
		if (!idle(s))
			tell("FAKECUDA_SPINS", "stream");
	}
	return waited(until([=] { return idle(s); }));
}

API cuStreamQuery(Stream *s) {
	NEED_CONTEXT;
	Lock l(g.mu);
	return idle(s) ? g.sticky : (int)NOT_READY;
}

API cuStreamDestroy_v2(Stream *s) {
	if (!current)
		return complain(INVALID_CONTEXT, "no context is current", __func__);
	until([=] { return idle(s); });
	Lock l(g.mu);
	s->dead = true; // it is never freed: threads may still look at it
	g.streams.erase(std::remove(g.streams.begin(), g.streams.end(), s), g.streams.end());
	g.changed.notify_all();
	return 0;
}

API cuLaunchHostFunc(Stream *s, void (*f)(void *), void *arg) {
	NEED_CONTEXT;
	return push(s, {[=] { f(arg); return 0; }}, __func__);
}

// Events.

API cuEventCreate(Event **e, unsigned flags) {
	NEED_CONTEXT;
	*e = new Event{current, !(flags & 2), bool(flags & 1)};
	return 0;
}

API cuEventDestroy_v2(Event *) { return current ? 0 : complain(INVALID_CONTEXT, "no context is current", __func__); } // pending work may still have it

API cuEventRecord(Event *e, Stream *s) {
	NEED_CONTEXT;
	if (e->ctx != current)
		return complain(INVALID_HANDLE, "the event is another context's", __func__);
	Op o;
	o.mark = e;
	{
		Lock l(g.mu);
		o.seq = ++e->recorded;
	}
	return push(s, std::move(o), __func__);
}

API cuStreamWaitEvent(Stream *s, Event *e, unsigned) {
	NEED_CONTEXT;
	Op o;
	o.wait = e;
	{
		Lock l(g.mu);
		o.seq = e->recorded; // 0: nothing to wait for
		if (++g.waits == g.drop)
			return 0;
	}
	return push(s, std::move(o), __func__);
}

API cuEventSynchronize(Event *e) {
	NEED_CONTEXT;
	unsigned long n;
	{
		Lock l(g.mu);
		n = e->recorded;
		if (e->done < n && !e->blocking)
			tell("FAKECUDA_SPINS", "event");
	}
	return waited(until([=] { return e->done >= n; }));
}

API cuEventQuery(Event *e) {
	NEED_CONTEXT;
	Lock l(g.mu);
	if (e->done >= e->recorded)
		return g.sticky;
	if (g.lazy)
		step_any(l);
	return NOT_READY;
}

API cuEventElapsedTime(float *ms, Event *from, Event *to) {
	NEED_CONTEXT;
	Lock l(g.mu);
	if (!from->timed || !to->timed)
		return INVALID_HANDLE;
	if (from->done < from->recorded || to->done < to->recorded)
		return NOT_READY;
	*ms = std::chrono::duration<float, std::milli>(to->when - from->when).count();
	return 0;
}

// Memory.

static const std::pair<const Address, Block> *holding(const std::map<Address, Block> &blocks, Address p) {
	auto i = blocks.upper_bound(p);
	if (i == blocks.begin() || p >= (--i)->first + i->second.size)
		return nullptr;
	return &*i;
}

// live says whether all n bytes at p are memory that the current device, or one it
// has peer access to, has given out and not taken back.
static bool live(Address p, size_t n) {
	Lock l(g.mu);
	auto b = holding(g.device, p);
	if (!b || !b->second.live || p + n > b->first + b->second.size)
		return false;
	int d = b->second.device;
	return d == current->device || current->peers[d];
}

extern "C" __attribute__((visibility("default"))) int fakecuda_live(const void *p, size_t n) { return current && live((Address)p, n); }

// fakecuda_usage is for libnvidia-ml: the bytes allocated on a GPU, their bound, and
// whether this process has it open.
extern "C" __attribute__((visibility("default"))) int fakecuda_usage(int d, size_t *used, size_t *total, int *open) {
	Lock l(g.mu);
	if (d < 0 || d >= (int)g.contexts.size())
		return 0;
	*used = g.used[d];
	*total = g.total;
	*open = g.contexts[d]->retained > 0;
	return 1;
}

static bool is_pinned(const void *p, size_t n) {
	Lock l(g.mu);
	auto b = holding(g.pinned, (Address)p);
	return b && b->second.live && (Address)p + n <= b->first + b->second.size;
}

enum { PAGE = 4096, ALIGN = 256, PINNED = 512 }; // ALIGN is of device memory, PINNED of small host memory on an H200

static size_t pages(size_t n) { return (n + PAGE - 1) & ~(size_t)(PAGE - 1); }

// take maps memory that begins at a multiple of align bytes and ends less than that before a
// page that nobody may touch; behind one it begins, too. So strays are caught in all modes.
static char *take(size_t n, size_t align) {
	char *p = (char *)mmap(nullptr, pages(n) + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return nullptr;
	mprotect(p, PAGE, PROT_NONE);
	mprotect(p + PAGE + pages(n), PAGE, PROT_NONE);
	p += PAGE + (pages(n) - n) / align * align;
	memset(p, 0xff, n); // NaN in every float type
	return p;
}

API cuMemAlloc_v2(Address *p, size_t n) {
	NEED_CONTEXT;
	if (!n)
		return INVALID_VALUE;
	Lock l(g.mu);
	if (g.used[current->device] + n > g.total)
		return OUT_OF_MEMORY;
	char *m = take(n, ALIGN);
	if (!m)
		return OUT_OF_MEMORY;
	g.device[*p = (Address)m] = {n, current->device, true};
	g.used[current->device] += n;
	return 0;
}

// Freed memory is kept from everybody for good.
static int give_back(std::map<Address, Block> &blocks, Address p, const char *who) {
	Lock l(g.mu);
	auto i = blocks.find(p);
	if (i == blocks.end() || !i->second.live)
		return complain(INVALID_VALUE, "what was not allocated, or is free already", who);
	if (&blocks == &g.device)
		g.used[i->second.device] -= i->second.size;
	i->second.live = false;
	void *first = (void *)(p & ~(Address)(PAGE - 1));
	madvise(first, pages(i->second.size), MADV_DONTNEED); // its address stays taken, so that using it is noticed; its pages do not
	mprotect(first, pages(i->second.size), PROT_NONE);
	return 0;
}

API cuMemFree_v2(Address p) {
	if (!current)
		return complain(INVALID_CONTEXT, "no context is current", __func__);
	until([] { return std::all_of(g.streams.begin(), g.streams.end(), idle); });
	return give_back(g.device, p, __func__);
}

API cuMemHostAlloc(void **p, size_t n, unsigned) {
	NEED_CONTEXT;
	Lock l(g.mu);
	cpu_set_t may;
	if (!sched_getaffinity(0, sizeof may, &may))
		tell("FAKECUDA_PINNED", std::to_string(CPU_COUNT(&may)));
	char *m = take(n, PINNED);
	if (!m)
		return OUT_OF_MEMORY;
	g.pinned[(Address)(*p = m)] = {n, -1, true};
	return 0;
}

API cuMemFreeHost(void *p) { return current ? give_back(g.pinned, (Address)p, __func__) : complain(INVALID_CONTEXT, "no context is current", __func__); }

API cuMemGetInfo_v2(size_t *free, size_t *total) {
	NEED_CONTEXT;
	Lock l(g.mu);
	*free = g.total - g.used[current->device];
	*total = g.total;
	return 0;
}

static int outside(const char *who) { return complain(INVALID_VALUE, "not within device memory that is in use", who); }

// From and to host memory that is not pinned a copy is not asynchronous: the driver
// waits for the stream and copies through memory of its own.
static int copy(Stream *s, void *dst, const void *src, size_t n, const void *host, const char *who) {
	if (!host || is_pinned(host, n))
		return push(s, {[=] { memmove(dst, src, n); return 0; }}, who);
	if (s->ctx != current)
		return complain(INVALID_HANDLE, "the stream is not the current context's", who);
	int r = until([=] { return idle(s); });
	if (!r)
		memmove(dst, src, n);
	return r;
}

API cuMemcpyHtoDAsync_v2(Address d, const void *h, size_t n, Stream *s) {
	NEED_CONTEXT;
	return live(d, n) ? copy(s, (void *)d, h, n, h, __func__) : outside(__func__);
}

API cuMemcpyDtoHAsync_v2(void *h, Address d, size_t n, Stream *s) {
	NEED_CONTEXT;
	return live(d, n) ? copy(s, h, (void *)d, n, h, __func__) : outside(__func__);
}

API cuMemcpyDtoDAsync_v2(Address d, Address from, size_t n, Stream *s) {
	NEED_CONTEXT;
	return live(d, n) && live(from, n) ? copy(s, (void *)d, (void *)from, n, nullptr, __func__) : outside(__func__);
}

API cuMemsetD8Async(Address d, unsigned char c, size_t n, Stream *s) {
	NEED_CONTEXT;
	return live(d, n) ? push(s, {[=] { memset((void *)d, c, n); return 0; }}, __func__) : outside(__func__);
}

// Kernels.

// note writes what becomes of a module, by its first kernel and its kind, into the file
// that FAKECUDA_MODULES names, if any.
static int note(const char *what, const Module &m) {
	const char *path = getenv("FAKECUDA_MODULES");
	FILE *f = path && *path ? fopen(path, "a") : nullptr;
	if (!f)
		return 0;
	fprintf(f, "%s %s %s\n", what, m.first.c_str(), m.kind.c_str());
	fclose(f);
	return 0;
}

// newest is the PTX version, as 84 of 8.4, of a CUDA version.
static int newest(int cuda) {
	static const int all[][2] = {{13000, 90}, {12090, 88}, {12080, 87}, {12070, 86}, {12050, 85}, {12040, 84}, {12030, 83}, {12020, 82}, {12010, 81}, {12000, 80}, {11080, 78}, {11000, 70}};
	for (auto &x : all)
		if (cuda >= x[0])
			return x[1];
	return 65;
}

// refuses is what a driver says of PTX by its first lines.
static int refuses(const std::string &ptx) {
	int major, minor, target;
	size_t version = ptx.find(".version "), to = ptx.find(".target sm_");
	if (version == std::string::npos || to == std::string::npos || sscanf(&ptx[version], ".version %d.%d", &major, &minor) != 2 || sscanf(&ptx[to], ".target sm_%d", &target) != 1)
		return INVALID_PTX;
	if (10 * major + minor > newest(g.driver))
		return UNSUPPORTED_PTX;
	bool exact = ptx[ptx.find_first_not_of("0123456789", to + strlen(".target sm_"))] == 'a';
	return target > g.capability || (exact && target != g.capability) ? NO_BINARY : 0;
}

// size is the bytes of a parameter as PTX declares it: ".param .align 4 .b8 name[32]"
// or ".param .u64 name".
static int size(const std::string &p) {
	size_t at = p.find('[');
	int times = at == std::string::npos ? 1 : atoi(p.c_str() + at + 1);
	for (const char *t : {"64", "32", "16", "8"})
		for (const char *kind : {".u", ".s", ".b", ".f"})
			if (p.find(std::string(kind) + t + " ") != std::string::npos)
				return times * atoi(t) / 8;
	return -1;
}

static int read_ptx(Module &m, const std::string &ptx) {
	m.kind = "ptx";
	const std::string entry = ".entry ";
	for (size_t at = ptx.find(entry); at != std::string::npos; at = ptx.find(entry, at)) {
		at += entry.size();
		std::string name = ptx.substr(at, ptx.find('(', at) - at);
		Entry &e = m.entries[name];
		if (m.first.empty())
			m.first = name;
		size_t end = ptx.find(')', at);
		for (size_t p = ptx.find(".param", at); p < end; p = ptx.find(".param", p + 1))
			e.params.push_back(size(ptx.substr(p, ptx.find_first_of(",)", p) - p)));
		size_t most = ptx.find(".maxntid ", end), body = ptx.find('{', end);
		if (most < body)
			e.most = atoi(ptx.c_str() + most + 9);
	}
	return refuses(ptx);
}

// read_info reads a kernel's section .nv.info: parameters and threads, which ptxas copies from
// PTX. Each attribute is a format, a number and two bytes: of format 4 they are the bytes that
// follow.
static void read_info(Entry &e, const unsigned char *at, size_t bytes) {
	for (const unsigned char *end = at + bytes; at < end;) {
		uint16_t n, ordinal;
		uint32_t word;
		memcpy(&n, at + 2, 2);
		if (at[0] == 4 && at[1] == 0x17) { // a parameter: index, ordinal, offset, flags and size
			memcpy(&ordinal, at + 8, 2);
			memcpy(&word, at + 12, 4);
			e.params.resize(std::max<size_t>(e.params.size(), ordinal + 1));
			e.params[ordinal] = word >> 18;
		}
		if (at[0] == 4 && at[1] == 5) { // .maxntid
			memcpy(&word, at + 4, 4);
			e.most = word;
		}
		at += 4 + (at[0] == 4 ? n : 0);
	}
}

// read_cubin reads the kernels of a cubin, and is what a driver says of it: it runs on GPUs of
// its major compute capability, from its minor one on, and that of sm_90a on no other one.
static int read_cubin(Module &m, const unsigned char *image) {
	auto head = (const Elf64_Ehdr *)image;
	int sm = head->e_flags & 0xff;
	bool exact = head->e_flags & 0x800;
	m.kind = "sm_" + std::to_string(sm) + (exact ? "a" : "");
	auto sections = (const Elf64_Shdr *)(image + head->e_shoff);
	auto names = (const char *)image + sections[head->e_shstrndx].sh_offset;
	for (int i = 0; i < head->e_shnum; i++) {
		const Elf64_Shdr &s = sections[i];
		if (s.sh_type != SHT_SYMTAB)
			continue;
		auto strings = (const char *)image + sections[s.sh_link].sh_offset;
		auto symbols = (const Elf64_Sym *)(image + s.sh_offset);
		for (size_t k = 0; k < s.sh_size / sizeof *symbols; k++)
			if (symbols[k].st_info == ELF64_ST_INFO(STB_GLOBAL, STT_FUNC))
				m.entries[m.first = strings + symbols[k].st_name]; // ptxas turns the order of PTX
	}
	const std::string info = ".nv.info.";
	for (int i = 0; i < head->e_shnum; i++) {
		std::string name = names + sections[i].sh_name;
		if (!name.compare(0, info.size(), info))
			read_info(m.entries.at(name.substr(info.size())), image + sections[i].sh_offset, sections[i].sh_size);
	}
	const char *refused = getenv("FAKECUDA_NO_CUBINS");
	for (auto &e : m.entries)
		if (refused && e.first.find(refused) != std::string::npos)
			return INVALID_IMAGE;
	if ((int)head->e_version / 10 > g.driver / 1000)
		return INVALID_IMAGE;
	return sm / 10 == g.capability / 10 && (exact ? sm == g.capability : sm <= g.capability) ? 0 : NO_BINARY;
}

API cuModuleLoadDataEx(Module **m, const void *image, unsigned n, int *options, void **values) {
	NEED_CONTEXT;
	for (unsigned i = 0; i < n; i++)
		if (options[i] == 3) // the buffer for notes
			strcpy((char *)values[i], "fakecuda: nothing is compiled");
	const char *bad = getenv("FAKECUDA_BAD_KERNEL");
	bool cubin = !memcmp(image, ELFMAG, 4);
	auto made = std::make_unique<Module>(Module{current});
	if (int r = cubin ? read_cubin(*made, (const unsigned char *)image) : read_ptx(*made, (const char *)image))
		return r;
	if (bad && made->entries.count(bad))
		return cubin ? INVALID_IMAGE : INVALID_PTX;
	*m = made.release();
	return note("load", **m);
}

API cuModuleLoadData(Module **m, const void *image) { return cuModuleLoadDataEx(m, image, 0, nullptr, nullptr); }
API cuModuleUnload(Module *m) {
	NEED_CONTEXT;
	if (m->ctx != current)
		return complain(INVALID_HANDLE, "the module is another context's", __func__);
	note("unload", *m);
	delete m;
	return 0;
}

// The module must have the kernel, with parameters of the sizes of the emulated one's.
API cuModuleGetFunction(Function **f, Module *m, const char *name) {
	NEED_CONTEXT;
	auto entry = m->entries.find(name);
	if (m->ctx != current || entry == m->entries.end())
		return NOT_FOUND;
	int sizes[64], n = g.emu_params ? g.emu_params(name, sizes, 64) : -1;
	if (n < 0)
		return complain(NOT_FOUND, "there is no such emulated kernel", name);
	auto fn = std::make_unique<Function>(Function{current, name, {sizes, sizes + n}, entry->second.most});
	if (entry->second.params != fn->params)
		return complain(INVALID_PTX, "it has other parameters than the emulated kernel", name);
	auto known = g.kernels.find(name);
	if (known != g.kernels.end())
		fn->uses = known->second;
	*f = fn.release();
	return 0;
}

// registers are those of a thread, of the kinds of GPU that kernels.txt has.
static int registers(const Function *f) { return f->uses.registers[g.capability >= 90]; }

// most_shared is the bytes of shared memory that a block may have at most, if that was
// announced.
static int most_shared() {
	switch (g.capability) {
	case 80: case 87: return 163 << 10;
	case 86: case 89: case 120: case 121: return 99 << 10;
	}
	return 227 << 10;
}

API cuFuncGetAttribute(int *v, int a, Function *f) {
	NEED_CONTEXT;
	switch (a) {
	case 0: *v = f->most; break;
	case 1: *v = f->uses.shared; break;
	case 3: *v = 0; break; // local memory
	case 4: *v = registers(f); break;
	case 8: *v = f->dynamic; break;
	default: return INVALID_VALUE;
	}
	return 0;
}

API cuFuncSetAttribute(Function *f, int a, int v) {
	NEED_CONTEXT;
	if (a != 8 || v < 0 || v + (int)f->uses.shared > most_shared())
		return INVALID_VALUE;
	f->dynamic = v;
	return 0;
}

// stray says whether an address is of no memory that is in use: neither this context's GPU's,
// nor one's that it reaches, nor pinned. Kernels are given 0 for what they leave alone; what
// is outside of where memory lies is a number.
static bool stray(Address p, const Context *ctx) {
	if (p < 1ull << 40 || p >= 1ull << 47)
		return false;
	Lock l(g.mu);
	if (auto b = holding(g.pinned, p))
		return !b->second.live;
	auto b = holding(g.device, p);
	return !b || !b->second.live || (b->second.device != ctx->device && !ctx->peers[b->second.device]);
}

// strays says whether a parameter has such an address: it is one, or begins with one, as
// matrices and lists of addresses do. What is dropped begins with its seed.
static bool strays(const std::string &param, const Context *ctx) {
	Address p;
	return param.size() >= 8 && param.size() != 32 && (memcpy(&p, &param[0], 8), stray(p, ctx));
}

// broken is whether FAKECUDA_BROKEN is "HOW:NAME" of this kernel.
static bool broken(const char *how, const std::string &name) {
	const char *which = getenv("FAKECUDA_BROKEN");
	return which && std::string(how) + ":" + name == which;
}

// spoil is FAKECUDA_BROKEN=wrong:NAME:WORD:N.
static void spoil(const std::string &name, const void *first) {
	static std::atomic<long> launches;
	const char *which = getenv("FAKECUDA_BROKEN");
	char of[64];
	long word, n;
	if (!which || sscanf(which, "wrong:%63[^:]:%ld:%ld", of, &word, &n) != 3 || name != of || ++launches != n)
		return;
	uint32_t *p;
	memcpy(&p, first, sizeof p);
	p[word] ^= 0x40000000; // of an exponent
}

static int run(const Context *ctx, const std::string &name, emu_dim3 grid, emu_dim3 block, unsigned shared, std::vector<std::string> params) {
	if (broken("hangs", name))
		for (;;)
			sleep(1);
	if (broken("faults", name))
		return ILLEGAL_ADDRESS;
	if (broken("idle", name))
		return 0;
	std::vector<void *> at;
	for (std::string &p : params) {
		if (strays(p, ctx))
			return complain(ILLEGAL_ADDRESS, "memory that is free, or nobody's", name.c_str());
		at.push_back(&p[0]);
	}
	const char *e = g.emu_launch(name.c_str(), grid, block, shared, at.data());
	spoil(name, at.empty() ? nullptr : at[0]);
	return e ? complain(LAUNCH_FAILED, e, name.c_str()) : 0;
}

API cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, Stream *s, void **params, void **) {
	NEED_CONTEXT;
	if (g.nothing)
		return 0;
	if (f->ctx != current)
		return complain(INVALID_HANDLE, "the kernel is another context's", f->name.c_str());
	if (!gx || !gy || !gz || gx > 0x7fffffff || gy > 65535 || gz > 65535 || !bx || !by || !bz || bz > 64 || (unsigned long)bx * by * bz > 1024)
		return complain(INVALID_VALUE, "such a grid cannot be", f->name.c_str());
	unsigned threads = bx * by * bz;
	if (threads > f->most)
		return complain(INVALID_VALUE, "more threads than its .maxntid", f->name.c_str());
	if (shared > f->dynamic || (f->dynamic <= 48 << 10 && shared + f->uses.shared > 48 << 10))
		return complain(INVALID_VALUE, "more shared memory, with its own, than its attribute allows", f->name.c_str());
	if (((threads + 31) / 32) * 32 * ((registers(f) + 7) / 8 * 8) > 64 << 10)
		return complain(OUT_OF_RESOURCES, "more registers than a multiprocessor has", f->name.c_str());
	std::vector<std::string> copies;
	for (size_t i = 0; i < f->params.size(); i++)
		copies.emplace_back((char *)params[i], f->params[i]);
	std::string name = f->name;
	Context *ctx = current;
	return push(s, {[=] { return run(ctx, name, {gx, gy, gz}, {bx, by, bz}, shared, copies); }}, __func__);
}

// The driver and its devices.

static void open_kernels(const char *path) {
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		complain(0, dlerror());
		return;
	}
	g.emu_params = (decltype(g.emu_params))dlsym(lib, "emu_params");
	g.emu_launch = (decltype(g.emu_launch))dlsym(lib, "emu_launch");
}

// read_kernels reads the lines of kernels.txt: a name, bytes of shared memory, and for sm_80
// and sm_90 registers, stack and what is spilled.
static void read_kernels(const char *path) {
	FILE *f = path && *path ? fopen(path, "r") : nullptr;
	if (!f)
		return;
	char line[512], name[128];
	Kernel k;
	int skip;
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "%127s %u %d %d %d %d", name, &k.shared, &k.registers[0], &skip, &skip, &k.registers[1]) == 6)
			g.kernels[name] = k;
	fclose(f);
}

static long number(const char *name, long otherwise) {
	const char *v = getenv(name);
	return v && *v ? atol(v) : otherwise;
}

API cuInit(unsigned) {
	Lock l(g.mu);
	if (g.started)
		return 0;
	g.started = true;
	const char *mode = getenv("FAKECUDA_MODE"), *kernels = getenv("ZEROTH_EMU_KERNELS");
	if (mode && !strncmp(mode, "threads", 7)) {
		g.lazy = false;
		g.delay = mode[7] ? atoi(mode + 8) : 0;
	}
	g.nothing = mode && !strcmp(mode, "nothing");
	if (mode && !strncmp(mode, "lazy:", 5))
		g.rng.seed(atoi(mode + 5));
	int n = number("FAKECUDA_DEVICES", 1);
	g.total = number("FAKECUDA_MEMORY", g.total);
	g.capability = number("FAKECUDA_CAPABILITY", 90);
	g.driver = number("FAKECUDA_DRIVER", g.driver);
	read_kernels(getenv("FAKECUDA_KERNELS"));
	g.peers = !number("FAKECUDA_NO_PEERS", 0);
	g.drop = number("FAKECUDA_DROP_WAIT", 0);
	g.used.assign(n, 0);
	for (int i = 0; i < n; i++)
		g.contexts.push_back(new Context{i, 0, std::vector<bool>(n)});
	if (kernels && *kernels)
		open_kernels(kernels);
	return 0;
}

static bool known(int d) { return d >= 0 && d < (int)g.contexts.size(); }

API cuDriverGetVersion(int *v) { return *v = number("FAKECUDA_DRIVER", g.driver), 0; }
API cuDeviceGetCount(int *n) { return *n = g.contexts.size(), 0; }
API cuDeviceGet(int *d, int i) { return *d = i, known(i) ? 0 : (int)INVALID_DEVICE; }

API cuDeviceGetName(char *s, int n, int d) {
	snprintf(s, n, "Emulated GPU");
	return known(d) ? 0 : (int)INVALID_DEVICE;
}

API cuDeviceTotalMem_v2(size_t *n, int d) { return *n = g.total, known(d) ? 0 : (int)INVALID_DEVICE; }

API cuDeviceGetAttribute(int *v, int a, int d) {
	switch (a) {
	case 75: *v = g.capability / 10; break;
	case 76: *v = g.capability % 10; break;
	case 16: *v = 4; break;          // multiprocessors
	case 33: *v = d; break;          // PCI bus
	case 34: case 50: *v = 0; break; // PCI device and domain
	case 97: *v = most_shared(); break; // shared memory a block may ask for
	default: return complain(INVALID_VALUE, "an attribute that is not emulated", __func__);
	}
	return known(d) ? 0 : (int)INVALID_DEVICE;
}

API cuDevicePrimaryCtxRetain(Context **c, int d) {
	if (!g.started || !known(d))
		return g.started ? INVALID_DEVICE : NOT_INITIALIZED;
	Lock l(g.mu);
	(*c = g.contexts[d])->retained++;
	return 0;
}

API cuDevicePrimaryCtxRelease_v2(int d) {
	Lock l(g.mu);
	if (!known(d) || !g.contexts[d]->retained)
		return INVALID_CONTEXT;
	if (--g.contexts[d]->retained == 0 && getenv("FAKECUDA_COUNT"))
		if (FILE *f = fopen(getenv("FAKECUDA_COUNT"), "a")) {
			fprintf(f, "%ld\n", g.waits);
			fclose(f);
		}
	return 0;
}

API cuCtxSetCurrent(Context *c) {
	Lock l(g.mu);
	if (c && !c->retained)
		return complain(INVALID_CONTEXT, "the context has been released", __func__);
	current = c;
	return 0;
}

API cuCtxGetDevice(int *d) {
	NEED_CONTEXT;
	*d = current->device;
	return 0;
}

API cuCtxGetCurrent(Context **c) { return *c = current, 0; }

API cuDeviceCanAccessPeer(int *can, int d, int peer) { return *can = g.peers && d != peer, known(d) && known(peer) ? 0 : (int)INVALID_DEVICE; }

API cuCtxEnablePeerAccess(Context *peer, unsigned) {
	NEED_CONTEXT;
	if (!g.peers || peer == current)
		return PEER_UNSUPPORTED;
	if (current->peers[peer->device])
		return PEER_ALREADY;
	current->peers[peer->device] = true;
	return 0;
}

static const struct { int code; const char *name, *text; } errors[] = {
	{INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{PEER_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
	{NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
	{INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	{INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
	{UNSUPPORTED_PTX, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
	{OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
	{INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	{ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
};

static int word(int code, const char **s, bool name) {
	for (auto &e : errors)
		if (e.code == code)
			return *s = name ? e.name : e.text, 0;
	return INVALID_VALUE;
}

API cuGetErrorName(int code, const char **s) { return word(code, s, true); }
API cuGetErrorString(int code, const char **s) { return word(code, s, false); }
