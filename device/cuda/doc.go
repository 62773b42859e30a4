// Package cuda implements the device interfaces on NVIDIA GPUs, with the build tag cuda; without it
// the package is empty. docs/cuda.md describes how to build it.
//
// A Queue is a stream, its marks are CUDA events, and a call of one of its kernels is a launch:
// only Do, Wait, Await, and After for host work block. Errors stick to a queue as on every device;
// those reported by the driver stick to the GPU's context, so to all its queues.
//
// Products use cuBLAS, loaded at run time; all other kernels are those of package kernel. Several
// ranks may share a GPU, each with its own Device: they share the context and the kernels, but not
// memory and queues.
//
// Start reading with device.go and queue.go.
package cuda
