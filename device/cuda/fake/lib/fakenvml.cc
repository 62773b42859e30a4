// libnvidia-ml.so.1 beside the fake driver: what this process has on a GPU is what
// it has allocated there and, while the GPU is open, FAKENVML_CONTEXT bytes (300 MiB
// if that is not set) of context, kernels and libraries. Another process is there,
// too. FAKENVML_HIDE=1 has this process not in the list, as in a container.
#include <cstdlib>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <unistd.h>

#define API extern "C" __attribute__((visibility("default"))) int

enum { UNINITIALIZED = 1, INVALID_ARGUMENT = 2, INSUFFICIENT_SIZE = 7 };

struct Process { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; };
struct Memory { unsigned long long total, free, used; };

static const unsigned long long another = 100ull << 20; // another process's bytes
static int users;

// usage asks the driver, which the program has loaded: the bytes allocated on a GPU,
// their bound, and whether it is open.
static bool usage(int device, size_t *used, size_t *total, int *open) {
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	auto ask = driver ? (int (*)(int, size_t *, size_t *, int *))dlsym(driver, "fakecuda_usage") : nullptr;
	return ask && ask(device, used, total, open);
}

static unsigned long long ours(size_t used, int open) {
	const char *context = getenv("FAKENVML_CONTEXT");
	return open ? used + (context ? strtoull(context, nullptr, 10) : 300ull << 20) : 0;
}

static int number(const void *device) { return (int)(long)device - 1; }

API nvmlInit_v2() { return users++, 0; }
API nvmlShutdown() { return users ? users--, 0 : (int)UNINITIALIZED; }

extern "C" __attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
	switch (code) {
	case 0: return "The operation was successful";
	case UNINITIALIZED: return "NVML was not first initialized with nvmlInit()";
	case INVALID_ARGUMENT: return "A supplied argument is invalid";
	case INSUFFICIENT_SIZE: return "The supplied buffer is not large enough";
	}
	return "Unknown Error";
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device) {
	unsigned bus, n;
	size_t used, total;
	int open;
	if (!users)
		return UNINITIALIZED;
	if (sscanf(pci, "%x:%x:%x", &n, &bus, &n) != 3 || !usage(bus, &used, &total, &open))
		return INVALID_ARGUMENT;
	*device = (void *)(long)(bus + 1);
	return 0;
}

API nvmlDeviceGetMemoryInfo(void *device, Memory *m) {
	size_t used, total;
	int open;
	if (!users || !usage(number(device), &used, &total, &open))
		return UNINITIALIZED;
	m->total = total;
	m->used = ours(used, open) + another;
	m->free = m->total - m->used;
	return 0;
}

API nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, Process *list) {
	size_t used, total;
	int open;
	if (!users || !usage(number(device), &used, &total, &open))
		return UNINITIALIZED;
	bool listed = open && !getenv("FAKENVML_HIDE");
	unsigned room = *n;
	*n = listed ? 2 : 1;
	if (room < *n)
		return INSUFFICIENT_SIZE;
	list[0] = {1, another, ~0u, ~0u};
	if (listed)
		list[1] = {(unsigned)getpid(), ours(used, open), ~0u, ~0u};
	return 0;
}
