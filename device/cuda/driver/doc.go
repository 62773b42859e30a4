// Package driver binds the CUDA driver and cuBLAS, with the build tag cuda; without
// it there is nothing here.
//
// What sets a device up is gorgonia.org/cu's. What a training step calls, and what
// that package lacks, is a thin C shim: each call makes the device's primary
// context the thread's current one and then does one thing, so goroutines need not
// be locked to threads. libcuda and cuBLAS are found when the program runs
// (trampolines.c, libraries.go); where they are missing, what needs them says so.
//
// What never enters: buffers, queues, kernels of ours.
package driver
