package driver

// LeastMajor is the compute capability for which our kernels are compiled: 8.0 of Ampere, the first
// with bf16 products. They run on all newer ones.
const LeastMajor = 8
