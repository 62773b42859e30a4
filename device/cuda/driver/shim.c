//go:build cuda

#include <cuda.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shim.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define ENTER(ctx) \
	do { \
		int r = cuCtxSetCurrent((CUcontext)(ctx)); \
		if (r) \
			return r; \
	} while (0)

// log is two buffers of log_len bytes: for what the compiler notes, and for its errors.
HIDDEN int z_module(uintptr_t ctx, uintptr_t *module, const char *image, char *log, int log_len) {
	CUjit_option names[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *size = (void *)(uintptr_t)log_len, *values[] = {log, size, log + log_len, size};
	log[0] = log[log_len] = 0;
	ENTER(ctx);
	return cuModuleLoadDataEx((CUmodule *)module, image, 4, names, values);
}

HIDDEN int z_module_end(uintptr_t ctx, uintptr_t module) {
	ENTER(ctx);
	return cuModuleUnload((CUmodule)module);
}

HIDDEN int z_function(uintptr_t ctx, z_kernel **kernel, uintptr_t module, const char *name, uint32_t threads, const int32_t *at, int params, int shared) {
	if (params > Z_PARAMS)
		return CUDA_ERROR_INVALID_VALUE;
	z_kernel *k = calloc(1, sizeof *k);
	if (!k)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*kernel = k;
	k->threads = threads;
	k->params = params;
	memcpy(k->at, at, params * sizeof *at);
	snprintf(k->name, sizeof k->name, "%s", name);
	ENTER(ctx);
	int r = cuModuleGetFunction((CUfunction *)&k->fn, (CUmodule)module, name);
	if (r || !shared)
		return r;
	return cuFuncSetAttribute((CUfunction)k->fn, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared);
}

HIDDEN int z_function_uses(uintptr_t ctx, const z_kernel *k, int *registers, int *local) {
	ENTER(ctx);
	int r = cuFuncGetAttribute(registers, CU_FUNC_ATTRIBUTE_NUM_REGS, (CUfunction)k->fn);
	return r ? r : cuFuncGetAttribute(local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, (CUfunction)k->fn);
}

HIDDEN void z_function_end(z_kernel *kernel) { free(kernel); }

HIDDEN const char *z_kernel_name(uintptr_t kernel) { return ((const z_kernel *)kernel)->name; }

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

// If first, its kernels go before those of other streams wherever both could go on.
HIDDEN int z_stream(uintptr_t ctx, uintptr_t *stream, int first) {
	int least = 0, greatest = 0;
	ENTER(ctx);
	int r = first ? cuCtxGetStreamPriorityRange(&least, &greatest) : 0;
	return r ? r : cuStreamCreateWithPriority((CUstream *)stream, CU_STREAM_NON_BLOCKING, first ? greatest : least);
}

HIDDEN int z_stream_wait(uintptr_t ctx, uintptr_t stream) {
	ENTER(ctx);
	return cuStreamSynchronize((CUstream)stream);
}

HIDDEN int z_stream_end(uintptr_t ctx, uintptr_t stream) {
	ENTER(ctx);
	return cuStreamDestroy((CUstream)stream);
}

// The host sleeps while it waits for an event, and never waits for a timed one.
HIDDEN int z_event(uintptr_t ctx, uintptr_t *event, int timed) {
	ENTER(ctx);
	return cuEventCreate((CUevent *)event, timed ? CU_EVENT_DEFAULT : CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
}

HIDDEN int z_event_end(uintptr_t ctx, uintptr_t event) {
	ENTER(ctx);
	return cuEventDestroy((CUevent)event);
}

HIDDEN int64_t z_us(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

// Polls for some microseconds before the host sleeps.
HIDDEN int z_await(uintptr_t ctx, uintptr_t event, int us) {
	ENTER(ctx);
	int r = us ? cuEventQuery((CUevent)event) : CUDA_ERROR_NOT_READY;
	for (int64_t end = z_us() + us; r == CUDA_ERROR_NOT_READY && z_us() < end; r = cuEventQuery((CUevent)event))
		sched_yield();
	return r == CUDA_ERROR_NOT_READY ? cuEventSynchronize((CUevent)event) : r;
}

HIDDEN int z_event_reached(uintptr_t ctx, uintptr_t event) {
	ENTER(ctx);
	return cuEventQuery((CUevent)event);
}

HIDDEN int z_elapsed(uintptr_t ctx, float *ms, uintptr_t from, uintptr_t to) {
	ENTER(ctx);
	return cuEventElapsedTime(ms, (CUevent)from, (CUevent)to);
}

static int launch(const z_launch *l, CUstream stream) {
	const z_kernel *k = (const z_kernel *)l->kernel;
	void *p[Z_PARAMS];
	for (int i = 0; i < k->params; i++)
		p[i] = (char *)(l + 1) + k->at[i];
	return cuLaunchKernel((CUfunction)k->fn, l->grid[0], l->grid[1], l->grid[2], k->threads, 1, 1, l->shared, stream, p, NULL);
}

static int run(const z_command *c, CUstream stream) {
	const z_copy *m = (const z_copy *)c;
	const z_event_command *e = (const z_event_command *)c;
	switch (c->kind) {
	case Z_LAUNCH: return launch((const z_launch *)c, stream);
	case Z_TO_DEVICE: return cuMemcpyHtoDAsync((CUdeviceptr)m->dst, (const void *)m->src, m->n, stream);
	case Z_TO_HOST: return cuMemcpyDtoHAsync((void *)m->dst, (CUdeviceptr)m->src, m->n, stream);
	case Z_ON_DEVICE: return cuMemcpyDtoDAsync((CUdeviceptr)m->dst, (CUdeviceptr)m->src, m->n, stream);
	case Z_ZERO: return cuMemsetD8Async((CUdeviceptr)m->dst, 0, m->n, stream);
	case Z_RECORD: return cuEventRecord((CUevent)e->event, stream);
	case Z_AFTER: return cuStreamWaitEvent(stream, (CUevent)e->event, 0);
	case Z_PRODUCT: return z_product_run((const z_product *)c);
	case Z_FUSED: return z_fused_run((const z_fused *)c, (uintptr_t)stream);
	}
	return CUDA_ERROR_INVALID_VALUE;
}

HIDDEN z_result z_run(uintptr_t ctx, uintptr_t stream, const z_command *commands, uint32_t bytes) {
	z_result first = {-1, cuCtxSetCurrent((CUcontext)ctx)};
	if (first.code)
		return first;
	const z_command *c;
	for (uint32_t at = 0; at < bytes; at += c->bytes) {
		c = (const z_command *)((const char *)commands + at);
		if (first.code && c->kind != Z_RECORD && c->kind != Z_AFTER)
			continue;
		int r = run(c, (CUstream)stream);
		if (r && !first.code)
			first = (z_result){at, r};
	}
	return first;
}

HIDDEN const char *z_error_name(int code) {
	const char *s = NULL;
	return !z_loaded() || cuGetErrorName(code, &s) || !s ? "" : s;
}

HIDDEN const char *z_error_text(int code) {
	const char *s = NULL;
	return !z_loaded() || cuGetErrorString(code, &s) || !s ? "" : s;
}
