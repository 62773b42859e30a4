//go:build cuda

// NCCL 2.10 and newer. Its functions have had these names and parameters since, and
// its enumerations these values; those that came later are optional.
#include <cuda.h>
#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"
#include "shim.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define ENTER(ctx) \
	do { \
		int r = cuCtxSetCurrent((CUcontext)(ctx)); \
		if (r) \
			return -r; \
	} while (0)

enum { SUCCESS = 0, SYSTEM_ERROR = 2, IN_PROGRESS = 7, SUM = 0, BYTE = 1, WINDOW_DEFAULT = 0 };

typedef struct { char bytes[Z_NCCL_ID]; } Id; // passed by value

// The beginning of an ncclConfig_t, as it has been since 2.14, and the field that
// came next: a library reads as much as size says, and of later fields takes its
// defaults because of version.
typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking, next;
} Config;

#define MUST \
	F(ncclGetVersion, (int *)) \
	F(ncclGetUniqueId, (Id *)) \
	F(ncclCommInitRank, (void **, int, Id, int)) \
	F(ncclCommDestroy, (void *)) \
	F(ncclCommAbort, (void *)) \
	F(ncclCommGetAsyncError, (void *, int *)) \
	F(ncclAllGather, (const void *, void *, size_t, int, void *, void *)) \
	F(ncclReduceScatter, (const void *, void *, size_t, int, int, void *, void *)) \
	F(ncclReduce, (const void *, void *, size_t, int, int, int, void *, void *)) \
	F(ncclSend, (const void *, size_t, int, int, void *, void *)) \
	F(ncclRecv, (void *, size_t, int, int, void *, void *)) \
	F(ncclGroupStart, (void)) \
	F(ncclGroupEnd, (void))
#define MAY /* since 2.14; registering since 2.19, windows since 2.27 */ \
	F(ncclCommInitRankConfig, (void **, int, Id, int, Config *)) \
	F(ncclCommFinalize, (void *)) \
	F(ncclMemAlloc, (void **, size_t)) \
	F(ncclMemFree, (void *)) \
	F(ncclCommRegister, (void *, void *, size_t, void **)) \
	F(ncclCommDeregister, (void *, void *)) \
	F(ncclCommWindowRegister, (void *, void *, size_t, void **, int)) \
	F(ncclCommWindowDeregister, (void *, void *))

#define F(name, args) static int(*name) args;
MUST MAY
#undef F
static const char *(*ncclGetErrorString)(int), *(*ncclGetLastError)(void *);

// Returns 0 if all is there that must be.
HIDDEN int z_nccl_open(const char *path, char *why, int why_len) {
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		snprintf(why, why_len, "%s", dlerror());
		return 1;
	}
#define F(name, args) \
	if (!(*(void **)&name = dlsym(lib, #name))) { \
		snprintf(why, why_len, "it has no %s", #name); \
		return 1; \
	}
	MUST
#undef F
#define F(name, args) *(void **)&name = dlsym(lib, #name);
	MAY
#undef F
	*(void **)&ncclGetErrorString = dlsym(lib, "ncclGetErrorString");
	*(void **)&ncclGetLastError = dlsym(lib, "ncclGetLastError");
	return 0;
}

HIDDEN int z_nccl_version(int *v) { return ncclGetVersion(v); }

HIDDEN int z_nccl_id(char *id) {
	Id i;
	int r = ncclGetUniqueId(&i);
	memcpy(id, &i, sizeof i);
	return r;
}

// Begins, where the library can; z_nccl_state tells when it is done.
HIDDEN int z_nccl_init(uintptr_t ctx, uintptr_t *comm, int ranks, const char *id, int rank) {
	Id i;
	memcpy(&i, id, sizeof i);
	ENTER(ctx);
	if (!ncclCommInitRankConfig)
		return ncclCommInitRank((void **)comm, ranks, i, rank);
	Config c = {sizeof c, 0xcafebeef, 21400, 0, INT_MIN};
	return ncclCommInitRankConfig((void **)comm, ranks, i, rank, &c);
}

HIDDEN int z_nccl_state(uintptr_t comm) {
	int state = 0, r = ncclCommGetAsyncError((void *)comm, &state);
	return r ? r : state;
}

// Polls until nothing is in progress, for some microseconds: NCCL takes a few, and a sleep of Go's at
// least a thousand.
HIDDEN int z_nccl_settle(uintptr_t comm, int us) {
	int r = z_nccl_state(comm);
	for (int64_t end = z_us() + us; r == IN_PROGRESS && z_us() < end; r = z_nccl_state(comm))
		sched_yield();
	return r;
}

HIDDEN int z_nccl_all_gather(uintptr_t ctx, uintptr_t comm, uintptr_t stream, uintptr_t in, uintptr_t out, size_t n, int type) {
	ENTER(ctx);
	return ncclAllGather((const void *)in, (void *)out, n, type, (void *)comm, (void *)stream);
}

HIDDEN int z_nccl_reduce_scatter(uintptr_t ctx, uintptr_t comm, uintptr_t stream, uintptr_t in, uintptr_t out, size_t n, int type) {
	ENTER(ctx);
	return ncclReduceScatter((const void *)in, (void *)out, n, type, SUM, (void *)comm, (void *)stream);
}

// Sends n bytes of rank 0's to every other rank: in one group, likewise.
HIDDEN int z_nccl_broadcast(uintptr_t ctx, uintptr_t comm, uintptr_t stream, int rank, int ranks, uintptr_t b, size_t n) {
	ENTER(ctx);
	int r = ncclGroupStart();
	if (r)
		return r;
	if (rank)
		r = ncclRecv((void *)b, n, BYTE, 0, (void *)comm, (void *)stream);
	for (int to = 1; !rank && to < ranks && (!r || r == IN_PROGRESS); to++)
		r = ncclSend((const void *)b, n, BYTE, to, (void *)comm, (void *)stream);
	int end = ncclGroupEnd();
	return r && r != IN_PROGRESS ? r : end;
}

// Sends n bytes of each other rank's part, of which rank 0's is at whole and each next
// one stride bytes further, to that rank, and receives as much from each, in slots one
// behind the other: in one group, for a send alone waits for its receiver.
HIDDEN int z_nccl_send_parts(uintptr_t ctx, uintptr_t comm, uintptr_t stream, int rank, int ranks, uintptr_t whole, size_t stride, uintptr_t slots, size_t slot, size_t n) {
	ENTER(ctx);
	int r = ncclGroupStart();
	if (r)
		return r;
	for (int i = 1; i < ranks && (!r || r == IN_PROGRESS); i++) {
		int to = (rank + i) % ranks, from = (rank - i + ranks) % ranks;
		r = ncclSend((const void *)(whole + to * stride), n, BYTE, to, (void *)comm, (void *)stream);
		if (!r || r == IN_PROGRESS)
			r = ncclRecv((void *)(slots + (from - (from > rank)) * slot), n, BYTE, from, (void *)comm, (void *)stream);
	}
	int end = ncclGroupEnd();
	return r && r != IN_PROGRESS ? r : end;
}

// Adds n elements of each rank in rank 0's; the others' are only read.
HIDDEN int z_nccl_reduce(uintptr_t ctx, uintptr_t comm, uintptr_t stream, int rank, uintptr_t b, size_t n, int type) {
	ENTER(ctx);
	return ncclReduce((const void *)b, rank ? NULL : (void *)b, n, type, SUM, 0, (void *)comm, (void *)stream);
}

// Sends n bytes at whole of each other rank to rank 0, which receives them in slots one
// behind the other: in one group.
HIDDEN int z_nccl_collect(uintptr_t ctx, uintptr_t comm, uintptr_t stream, int rank, int ranks, uintptr_t whole, uintptr_t slots, size_t slot, size_t n) {
	ENTER(ctx);
	int r = ncclGroupStart();
	if (r)
		return r;
	if (rank)
		r = ncclSend((const void *)whole, n, BYTE, 0, (void *)comm, (void *)stream);
	for (int from = 1; !rank && from < ranks && (!r || r == IN_PROGRESS); from++)
		r = ncclRecv((void *)(slots + (from - 1) * slot), n, BYTE, from, (void *)comm, (void *)stream);
	int end = ncclGroupEnd();
	return r && r != IN_PROGRESS ? r : end;
}

// How memory can be registered.
HIDDEN int z_nccl_registers(void) {
	if (!ncclMemAlloc || !ncclMemFree)
		return Z_NCCL_NOTHING;
	if (ncclCommWindowRegister && ncclCommWindowDeregister)
		return Z_NCCL_WINDOWS;
	return ncclCommRegister && ncclCommDeregister ? Z_NCCL_BUFFERS : Z_NCCL_NOTHING;
}

HIDDEN int z_nccl_alloc(uintptr_t ctx, uintptr_t *at, size_t n) {
	ENTER(ctx);
	return ncclMemAlloc((void **)at, n);
}

HIDDEN int z_nccl_free(uintptr_t ctx, uintptr_t at) {
	ENTER(ctx);
	return ncclMemFree((void *)at);
}

// The registration is written later where the library does not block, so it has memory
// of its own, which z_nccl_deregister gives back.
HIDDEN int z_nccl_register(uintptr_t ctx, uintptr_t comm, uintptr_t at, size_t n, uintptr_t *registration) {
	ENTER(ctx);
	void **handle = calloc(1, sizeof *handle);
	if (!handle)
		return SYSTEM_ERROR;
	*registration = (uintptr_t)handle;
	if (z_nccl_registers() == Z_NCCL_WINDOWS)
		return ncclCommWindowRegister((void *)comm, (void *)at, n, handle, WINDOW_DEFAULT);
	return ncclCommRegister((void *)comm, (void *)at, n, handle);
}

// Where NCCL has made nothing of the memory there is no handle.
HIDDEN int z_nccl_deregister(uintptr_t ctx, uintptr_t comm, uintptr_t registration) {
	void *handle = *(void **)registration;
	free((void *)registration);
	ENTER(ctx);
	if (!handle)
		return SUCCESS;
	if (z_nccl_registers() == Z_NCCL_WINDOWS)
		return ncclCommWindowDeregister((void *)comm, handle);
	return ncclCommDeregister((void *)comm, handle);
}

HIDDEN int z_nccl_finalize(uintptr_t ctx, uintptr_t comm) {
	ENTER(ctx);
	return ncclCommFinalize ? ncclCommFinalize((void *)comm) : SUCCESS;
}

HIDDEN int z_nccl_destroy(uintptr_t ctx, uintptr_t comm) {
	ENTER(ctx);
	return ncclCommDestroy((void *)comm);
}

HIDDEN int z_nccl_abort(uintptr_t ctx, uintptr_t comm) {
	ENTER(ctx);
	return ncclCommAbort((void *)comm);
}

HIDDEN const char *z_nccl_text(int code) {
	const char *s = ncclGetErrorString ? ncclGetErrorString(code) : NULL;
	return s ? s : "";
}

// What the library said last of an error in this process.
HIDDEN const char *z_nccl_last(uintptr_t comm) {
	const char *s = ncclGetLastError ? ncclGetLastError((void *)comm) : NULL;
	return s ? s : "";
}
