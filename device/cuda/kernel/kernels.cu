// All kernels, as one translation unit: kernels.ptx is what NVRTC makes of it, see
// scripts/build-ptx.
#include "rt.cuh"

#include "dropout.cu" // before attention, which drops too

#include "attention.cu"
#include "elementwise.cu"
#include "embed.cu"
#include "exact.cu"
#include "flash.cu"
#include "loss.cu"
#include "norm.cu"
#include "optim.cu"
#include "rope.cu"
