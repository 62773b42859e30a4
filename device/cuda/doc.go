// Package cuda is the device contract on NVIDIA GPUs, with the build tag cuda;
// without it there is nothing here. docs/cuda.md says how to build it.
//
// A Queue is a stream, its marks are CUDA events, and a call of one of its kernels
// is a launch: nothing waits but Do, Wait and Await, and After for work of the
// host's. Errors stick to a queue as on every device; those the driver reports
// stick to the GPU's context, so to all its queues.
//
// Products are cuBLAS's, found when the program runs; all other kernels are those
// of package kernel. Several ranks may share a GPU, each with a Device of its own:
// the context and the kernels are one, memory and queues are not.
//
// What never enters: ranks, groups, stages. Begin with device.go and queue.go.
package cuda
