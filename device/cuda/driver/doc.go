// Package driver binds the CUDA driver and cuBLAS, with the build tag cuda; without it the package
// is empty.
//
// Devices are set up with gorgonia.org/cu. Calls during a training step, and functions missing in
// that package, use a thin C shim: each call makes the device's primary context the thread's
// current one and then performs one operation, so goroutines need not be locked to threads. libcuda
// and cuBLAS are loaded at run time (trampolines.c, libraries.go); if they are missing, functions
// that need them return errors.
package driver
