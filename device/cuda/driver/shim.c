//go:build cuda

#include <cuda.h>
#include <string.h>

#include "shim.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define ENTER(ctx) \
	do { \
		int r = cuCtxSetCurrent((CUcontext)(ctx)); \
		if (r) \
			return r; \
	} while (0)

HIDDEN int z_launch(uintptr_t ctx, uintptr_t fn, uintptr_t stream, const uint32_t *grid, uint32_t threads, uint32_t shared, int params, const int32_t *at, char *data) {
	void *p[64];
	if (params > 64)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < params; i++)
		p[i] = data + at[i];
	ENTER(ctx);
	return cuLaunchKernel((CUfunction)fn, grid[0], grid[1], grid[2], threads, 1, 1, shared, (CUstream)stream, p, NULL);
}

HIDDEN int z_shared(uintptr_t ctx, uintptr_t fn, int bytes) {
	ENTER(ctx);
	return cuFuncSetAttribute((CUfunction)fn, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
}

HIDDEN int z_module(uintptr_t ctx, uintptr_t *module, const char *image, char *log, int log_len) {
	CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {log, (void *)(uintptr_t)log_len};
	log[0] = 0;
	ENTER(ctx);
	return cuModuleLoadDataEx((CUmodule *)module, image, 2, names, values);
}

HIDDEN int z_module_end(uintptr_t ctx, uintptr_t module) {
	ENTER(ctx);
	return cuModuleUnload((CUmodule)module);
}

HIDDEN int z_function(uintptr_t ctx, uintptr_t *fn, uintptr_t module, const char *name) {
	ENTER(ctx);
	return cuModuleGetFunction((CUfunction *)fn, (CUmodule)module, name);
}

HIDDEN int z_alloc(uintptr_t ctx, uintptr_t *p, size_t n) {
	CUdeviceptr d = 0;
	ENTER(ctx);
	int r = cuMemAlloc(&d, n);
	*p = (uintptr_t)d;
	return r;
}

HIDDEN int z_free(uintptr_t ctx, uintptr_t p) {
	ENTER(ctx);
	return cuMemFree((CUdeviceptr)p);
}

// Pinned, and addressed alike by all devices.
HIDDEN int z_host_alloc(uintptr_t ctx, uintptr_t *p, size_t n) {
	ENTER(ctx);
	return cuMemHostAlloc((void **)p, n, CU_MEMHOSTALLOC_PORTABLE);
}

HIDDEN int z_host_free(uintptr_t ctx, uintptr_t p) {
	ENTER(ctx);
	return cuMemFreeHost((void *)p);
}

HIDDEN int z_memory(uintptr_t ctx, size_t *free, size_t *total) {
	ENTER(ctx);
	return cuMemGetInfo(free, total);
}

HIDDEN int z_peer(uintptr_t ctx, uintptr_t peer) {
	ENTER(ctx);
	int r = cuCtxEnablePeerAccess((CUcontext)peer, 0);
	return r == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? 0 : r;
}

HIDDEN int z_copy(uintptr_t ctx, uintptr_t stream, int kind, uintptr_t dst, uintptr_t src, size_t n) {
	ENTER(ctx);
	switch (kind) {
	case Z_TO_DEVICE: return cuMemcpyHtoDAsync((CUdeviceptr)dst, (const void *)src, n, (CUstream)stream);
	case Z_TO_HOST: return cuMemcpyDtoHAsync((void *)dst, (CUdeviceptr)src, n, (CUstream)stream);
	}
	return cuMemcpyDtoDAsync((CUdeviceptr)dst, (CUdeviceptr)src, n, (CUstream)stream);
}

HIDDEN int z_zero(uintptr_t ctx, uintptr_t stream, uintptr_t p, size_t n) {
	ENTER(ctx);
	return cuMemsetD8Async((CUdeviceptr)p, 0, n, (CUstream)stream);
}

HIDDEN int z_stream(uintptr_t ctx, uintptr_t *stream) {
	ENTER(ctx);
	return cuStreamCreate((CUstream *)stream, CU_STREAM_NON_BLOCKING);
}

HIDDEN int z_stream_wait(uintptr_t ctx, uintptr_t stream) {
	ENTER(ctx);
	return cuStreamSynchronize((CUstream)stream);
}

HIDDEN int z_stream_end(uintptr_t ctx, uintptr_t stream) {
	ENTER(ctx);
	return cuStreamDestroy((CUstream)stream);
}

// The host sleeps while it waits for an event.
HIDDEN int z_event(uintptr_t ctx, uintptr_t *event, int timed) {
	ENTER(ctx);
	return cuEventCreate((CUevent *)event, CU_EVENT_BLOCKING_SYNC | (timed ? 0 : CU_EVENT_DISABLE_TIMING));
}

HIDDEN int z_event_end(uintptr_t ctx, uintptr_t event) {
	ENTER(ctx);
	return cuEventDestroy((CUevent)event);
}

HIDDEN int z_record(uintptr_t ctx, uintptr_t event, uintptr_t stream) {
	ENTER(ctx);
	return cuEventRecord((CUevent)event, (CUstream)stream);
}

HIDDEN int z_after(uintptr_t ctx, uintptr_t stream, uintptr_t event) {
	ENTER(ctx);
	return cuStreamWaitEvent((CUstream)stream, (CUevent)event, 0);
}

HIDDEN int z_await(uintptr_t ctx, uintptr_t event) {
	ENTER(ctx);
	return cuEventSynchronize((CUevent)event);
}

HIDDEN int z_event_reached(uintptr_t ctx, uintptr_t event) {
	ENTER(ctx);
	return cuEventQuery((CUevent)event);
}

HIDDEN int z_elapsed(uintptr_t ctx, float *ms, uintptr_t from, uintptr_t to) {
	ENTER(ctx);
	return cuEventElapsedTime(ms, (CUevent)from, (CUevent)to);
}

HIDDEN const char *z_error_name(int code) {
	const char *s = NULL;
	return !z_loaded() || cuGetErrorName(code, &s) || !s ? "" : s;
}

HIDDEN const char *z_error_text(int code) {
	const char *s = NULL;
	return !z_loaded() || cuGetErrorString(code, &s) || !s ? "" : s;
}
