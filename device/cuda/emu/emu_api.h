// What libemukernels.so exports: the kernels of device/cuda/kernel compiled for
// the processor. The fake libcuda of the tests of device/cuda opens it by the
// path in $ZEROTH_EMU_KERNELS and launches them. All symbols are C and visible.
#pragma once
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct { unsigned x, y, z; } emu_dim3;

// The number of parameters of a kernel, or -1 if there is none of the name. The
// sizes in bytes of the first max of them are written to size.
int emu_params(const char *name, int *size, int max);

// Runs a kernel to its end on the calling thread: params[i] points at parameter i,
// as for cuLaunchKernel; shared is bytes of dynamic shared memory. It may be called
// from several threads at once. Returns NULL, or what went wrong: text that is
// valid until the thread's next launch.
const char *emu_launch(const char *name, emu_dim3 grid, emu_dim3 block, size_t shared, void **params);

#ifdef __cplusplus
}
#endif
