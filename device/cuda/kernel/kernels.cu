// All kernels as one translation unit, which scripts/build-ptx compiles with NVRTC: for every GPU, and
// once more for sm_90a, of which the families wgmma are taken.
#include "rt.cuh"

#include "dropout.cu" // before attention, which uses it

#include "attention.cu"
#include "flash.cu"

#ifndef __CUDA_ARCH_FEAT_SM90_ALL
#include "elementwise.cu"
#include "embed.cu"
#include "exact.cu"
#include "experts.cu" // after elementwise and flash, which it uses
#include "loss.cu"
#include "norm.cu"
#include "optim.cu"
#include "rope.cu"
#endif

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "wgmma.cu"
#endif
