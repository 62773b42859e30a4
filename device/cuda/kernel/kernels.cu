// All kernels as one translation unit, which scripts/build-ptx compiles with NVRTC.
#include "rt.cuh"

#include "dropout.cu" // before attention, which uses it

#include "attention.cu"
#include "elementwise.cu"
#include "embed.cu"
#include "exact.cu"
#include "flash.cu"
#include "experts.cu" // after elementwise and flash, which it uses
#include "loss.cu"
#include "norm.cu"
#include "optim.cu"
#include "rope.cu"
