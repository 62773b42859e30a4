package cuda

import (
	"zeroth/device"
	"zeroth/device/cuda/kernel"
)

// Constants that a plan needs, also on machines without a GPU.

// productWork is the working space for a queue's products in bytes: cuBLAS's recommendation for
// Hopper, and more than it uses on others.
const productWork = 32 << 20

// Workspace returns the bytes that a device allocates for kernels of the given sizes: a constant,
// or 0 without kernels.
func Workspace(s device.Sizes) int64 {
	if s == (device.Sizes{}) {
		return 0
	}
	return int64(multiplying(s))*productWork + 4*kernel.WorkLen
}

// multiplying returns the number of queues that compute products, each in its own work space:
// modules', and updates' of whole matrices.
func multiplying(s device.Sizes) int {
	if s.Whole {
		return 2
	}
	return 1
}

// mostExact is the maximum bounce memory of exact sums in bytes, leastExact the minimum of a slot
// in it: a good minimum for a message.
const mostExact, leastExact = 64 << 20, 64 << 10

// ExactBounce returns the bytes of bounce memory that a communicator needs to add parts of part
// bytes in rank order: a slot for each other rank.
func ExactBounce(ranks, part int) int {
	if ranks == 1 {
		return 0
	}
	slot := (part + memoryAlign - 1) / memoryAlign * memoryAlign
	return (ranks - 1) * min(slot, max(leastExact, mostExact/(ranks-1)/memoryAlign*memoryAlign))
}

// memoryAlign is the alignment of memory from Alloc, which equals the driver's.
const memoryAlign = 256
