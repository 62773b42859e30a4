package cuda

import (
	"zeroth/device"
	"zeroth/device/cuda/kernel"
)

// What a plan has to know, on machines without a GPU, too.

// productWork is the bytes of work space of the products of a queue: what cuBLAS
// recommends for Hopper, and more than it takes on others.
const productWork = 32 << 20

// Workspace is the bytes a device takes for kernels of the given sizes, whatever
// they are: none where there are none.
func Workspace(s device.Sizes) int64 {
	if s == (device.Sizes{}) {
		return 0
	}
	return int64(multiplying(s))*productWork + 4*kernel.WorkLen
}

// multiplying is how many queues have products, each with work space of its own: that
// of modules, and that of updates of whole matrices.
func multiplying(s device.Sizes) int {
	if s.Whole {
		return 2
	}
	return 1
}

// mostExact is the bytes of bounce memory of exact sums at most, leastExact of a slot in
// it: what a message should have at the least.
const mostExact, leastExact = 64 << 20, 64 << 10

// ExactBounce is the bytes of bounce memory that a communicator of so many ranks takes to
// add up parts of so many bytes in rank order: a slot for each other rank.
func ExactBounce(ranks, part int) int {
	if ranks == 1 {
		return 0
	}
	slot := (part + memoryAlign - 1) / memoryAlign * memoryAlign
	return (ranks - 1) * min(slot, max(leastExact, mostExact/(ranks-1)/memoryAlign*memoryAlign))
}

// memoryAlign is what memory that Alloc gives begins at a multiple of, as the
// driver's own does.
const memoryAlign = 256
