//go:build cuda

// Stands in for libcuda at link time, so that one binary starts with and without
// a driver. Each driver function that gorgonia.org/cu or this package calls is
// defined here as a jump through a pointer; a constructor, which runs before any
// Go init, fills the pointers from libcuda.so.1. Where there is none, all
// functions return CUDA_ERROR_NO_DEVICE.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "shim.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define NO_DEVICE 100
#define NOT_FOUND 500

// The symbols of gorgonia.org/cu v0.9.6, as it compiles against cuda.h 12.4 and
// 11.8 (nm -u), and those of shim.c; but cuInit and cuDeviceGetCount.
#define SYMBOLS \
	X(cuArray3DCreate_v2) X(cuArray3DGetDescriptor_v2) X(cuArrayCreate_v2) X(cuArrayDestroy) X(cuArrayGetDescriptor_v2) \
	X(cuCtxCreate_v2) X(cuCtxDestroy_v2) X(cuCtxDisablePeerAccess) X(cuCtxEnablePeerAccess) X(cuCtxGetApiVersion) \
	X(cuCtxGetCacheConfig) X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuCtxGetFlags) X(cuCtxGetLimit) X(cuCtxGetSharedMemConfig) \
	X(cuCtxGetStreamPriorityRange) X(cuCtxPopCurrent_v2) X(cuCtxPushCurrent_v2) X(cuCtxResetPersistingL2Cache) \
	X(cuCtxSetCacheConfig) X(cuCtxSetCurrent) X(cuCtxSetLimit) X(cuCtxSetSharedMemConfig) X(cuCtxSynchronize) \
	X(cuDeviceCanAccessPeer) X(cuDeviceGet) X(cuDeviceGetAttribute) X(cuDeviceGetName) X(cuDeviceGetP2PAttribute) \
	X(cuDeviceGetUuid) X(cuDevicePrimaryCtxGetState) X(cuDevicePrimaryCtxRelease_v2) X(cuDevicePrimaryCtxReset_v2) \
	X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxSetFlags_v2) X(cuDeviceTotalMem_v2) X(cuDriverGetVersion) \
	X(cuEventCreate) X(cuEventDestroy_v2) X(cuEventElapsedTime) X(cuEventQuery) X(cuEventRecord) X(cuEventSynchronize) \
	X(cuFuncGetAttribute) X(cuFuncSetAttribute) X(cuFuncSetCacheConfig) X(cuFuncSetSharedMemConfig) X(cuGetErrorName) \
	X(cuGetErrorString) X(cuGraphAddChildGraphNode) X(cuGraphAddDependencies) X(cuGraphAddEmptyNode) X(cuGraphAddHostNode) \
	X(cuGraphAddKernelNode_v2) X(cuGraphAddMemcpyNode) X(cuGraphAddMemsetNode) X(cuGraphClone) X(cuGraphCreate) \
	X(cuGraphDestroy) X(cuGraphDestroyNode) X(cuGraphExecDestroy) X(cuGraphGetEdges) X(cuLaunchKernel) X(cuLinkAddData_v2) \
	X(cuLinkAddFile_v2) X(cuLinkComplete) X(cuLinkCreate_v2) X(cuLinkDestroy) X(cuMemAdvise) X(cuMemAllocManaged) \
	X(cuMemAllocPitch_v2) X(cuMemAlloc_v2) X(cuMemFreeHost) X(cuMemFree_v2) X(cuMemGetAddressRange_v2) X(cuMemGetInfo_v2) \
	X(cuMemHostAlloc) X(cuMemPrefetchAsync) X(cuMemcpy) X(cuMemcpy2DAsync_v2) X(cuMemcpy2DUnaligned_v2) X(cuMemcpy2D_v2) \
	X(cuMemcpy3DAsync_v2) X(cuMemcpy3DPeer) X(cuMemcpy3DPeerAsync) X(cuMemcpy3D_v2) X(cuMemcpyAsync) X(cuMemcpyAtoA_v2) \
	X(cuMemcpyAtoD_v2) X(cuMemcpyAtoHAsync_v2) X(cuMemcpyAtoH_v2) X(cuMemcpyDtoA_v2) X(cuMemcpyDtoDAsync_v2) \
	X(cuMemcpyDtoD_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoH_v2) X(cuMemcpyHtoAAsync_v2) X(cuMemcpyHtoA_v2) \
	X(cuMemcpyHtoDAsync_v2) X(cuMemcpyHtoD_v2) X(cuMemcpyPeer) X(cuMemcpyPeerAsync) X(cuMemsetD16Async) X(cuMemsetD16_v2) \
	X(cuMemsetD2D16Async) X(cuMemsetD2D16_v2) X(cuMemsetD2D32Async) X(cuMemsetD2D32_v2) X(cuMemsetD2D8Async) \
	X(cuMemsetD2D8_v2) X(cuMemsetD32Async) X(cuMemsetD32_v2) X(cuMemsetD8Async) X(cuMemsetD8_v2) X(cuModuleGetFunction) \
	X(cuModuleGetGlobal_v2) X(cuModuleGetSurfRef) X(cuModuleGetTexRef) X(cuModuleLoad) X(cuModuleLoadData) \
	X(cuModuleLoadDataEx) X(cuModuleLoadFatBinary) X(cuModuleUnload) X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
	X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) X(cuPointerGetAttribute) X(cuPointerSetAttribute) \
	X(cuStreamAttachMemAsync) X(cuStreamCreate) X(cuStreamCreateWithPriority) X(cuStreamDestroy_v2) X(cuStreamGetFlags) \
	X(cuStreamGetPriority) X(cuStreamQuery) X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuStreamWaitValue32_v2) \
	X(cuStreamWriteValue32_v2) X(cuSurfRefGetArray) X(cuSurfRefSetArray) X(cuTexRefGetAddressMode) X(cuTexRefGetAddress_v2) \
	X(cuTexRefGetArray) X(cuTexRefGetBorderColor) X(cuTexRefGetFilterMode) X(cuTexRefGetFlags) X(cuTexRefGetFormat) \
	X(cuTexRefGetMaxAnisotropy) X(cuTexRefSetAddress2D_v3) X(cuTexRefSetAddressMode) X(cuTexRefSetAddress_v2) \
	X(cuTexRefSetArray) X(cuTexRefSetBorderColor) X(cuTexRefSetFilterMode) X(cuTexRefSetFlags) X(cuTexRefSetFormat) \
	X(cuTexRefSetMaxAnisotropy) X(cuTexRefSetMipmapFilterMode) X(cuTexRefSetMipmapLevelBias) X(cuTexRefSetMipmapLevelClamp) \
	

#if defined(__x86_64__)
#define JUMP(f) ".type " #f ",@function\n" #f ":\n jmp *slot_" #f "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(f) ".type " #f ",%function\n" #f ":\n adrp x16,slot_" #f "\n ldr x16,[x16,:lo12:slot_" #f "]\n br x16\n"
#else
#error "no trampolines for this processor: use amd64 or arm64"
#endif
#define X(f) \
	HIDDEN void *slot_##f; \
	__asm__(".text\n.globl " #f "\n.hidden " #f "\n" JUMP(f) ".size " #f ",.-" #f "\n");
SYMBOLS
#undef X

static const struct { const char *name; void **slot; } symbols[] = {
#define X(f) {#f, &slot_##f},
	SYMBOLS
#undef X
};

static int no_device(void) { return NO_DEVICE; }
static int not_found(void) { return NOT_FOUND; }

static struct {
	void *lib;
	char path[1024], why[512]; // of the library; why it was not loaded
	int (*init)(unsigned), (*count)(int *);
	int code; // that the library's cuInit returned
} driver = {.code = NO_DEVICE};

__attribute__((constructor)) static void load(void) {
	const char *path = getenv("ZEROTH_CUDA_PATH");
	if (!path || !*path)
		path = "libcuda.so.1";
	snprintf(driver.path, sizeof driver.path, "%s", path);
	driver.lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!driver.lib) {
		const char *why = dlerror();
		snprintf(driver.why, sizeof driver.why, "%s", why ? why : "it cannot be opened");
	}
	for (unsigned i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		void *f = driver.lib ? dlsym(driver.lib, symbols[i].name) : NULL;
		*symbols[i].slot = f ? f : driver.lib ? (void *)not_found : (void *)no_device;
	}
	if (driver.lib) {
		driver.init = (int (*)(unsigned))dlsym(driver.lib, "cuInit");
		driver.count = (int (*)(int *))dlsym(driver.lib, "cuDeviceGetCount");
	}
}

// gorgonia.org/cu ends the process where cuInit fails, from its init. So this one
// never does; without a driver that works there are no devices.
HIDDEN int cuInit(unsigned flags) {
	if (driver.init)
		driver.code = driver.init(flags);
	return 0;
}

HIDDEN int cuDeviceGetCount(int *n) {
	*n = 0;
	return driver.code || !driver.count ? 0 : driver.count(n);
}

HIDDEN int z_loaded(void) { return driver.lib != NULL; }
HIDDEN int z_init_code(void) { return driver.code; }
HIDDEN const char *z_path(void) { return driver.path; }
HIDDEN const char *z_why(void) { return driver.why; }
