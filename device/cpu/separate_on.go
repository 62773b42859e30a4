//go:build separate

package cpu

// Separate is whether New gives out memory that the host cannot address, as a
// GPU's: a mode for tests, by the build tag separate. Kernels of the device's
// queues reach it, and copies; whoever else looks panics.
const Separate = true
