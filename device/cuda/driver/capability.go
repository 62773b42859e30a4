package driver

// LeastMajor is the compute capability that our kernels are compiled for, 8.0 of
// Ampere: the first with bf16 products. It runs on all that are newer.
const LeastMajor = 8
