//go:build !separate

package cpu

// Separate reports whether New allocates memory that the host cannot address, like a GPU's: a test
// mode enabled by the build tag separate. Kernels of the device's queues and copies can access it;
// any other access panics.
const Separate = false
