//go:build cuda

// NCCL 2.10 and newer. Its functions have had these names and parameters since, and
// its enumerations these values; those that came later are optional.
#include <cuda.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "nccl.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define ENTER(ctx) \
	do { \
		int r = cuCtxSetCurrent((CUcontext)(ctx)); \
		if (r) \
			return -r; \
	} while (0)

enum { SUCCESS = 0, SUM = 0 };

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
	F(ncclReduceScatter, (const void *, void *, size_t, int, int, void *, void *))
#define MAY /* since 2.14, but ncclGetLastError since 2.13 */ \
	F(ncclCommInitRankConfig, (void **, int, Id, int, Config *)) \
	F(ncclCommFinalize, (void *))

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

HIDDEN int z_nccl_all_gather(uintptr_t ctx, uintptr_t comm, uintptr_t stream, uintptr_t in, uintptr_t out, size_t n, int type) {
	ENTER(ctx);
	return ncclAllGather((const void *)in, (void *)out, n, type, (void *)comm, (void *)stream);
}

HIDDEN int z_nccl_reduce_scatter(uintptr_t ctx, uintptr_t comm, uintptr_t stream, uintptr_t in, uintptr_t out, size_t n, int type) {
	ENTER(ctx);
	return ncclReduceScatter((const void *)in, (void *)out, n, type, SUM, (void *)comm, (void *)stream);
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
