package cuda

import (
	"zeroth/device"
	"zeroth/device/cuda/kernel"
)

// What a plan has to know, on machines without a GPU, too.

// productWork is the bytes of work space of products: what cuBLAS recommends for
// Hopper, and more than it takes on others.
const productWork = 32 << 20

// Workspace is the bytes a device takes for kernels of the given sizes.
func Workspace(s device.Sizes) int64 {
	if s == (device.Sizes{}) {
		return 0
	}
	return productWork + 4*int64(partsLen(s))
}

// partsLen is the floats of partial sums of columns: of what is normalised, and of
// biases, none of which is wider than four times that.
func partsLen(s device.Sizes) int {
	return kernel.WorkLen(s.Rows, s.Width, 4*s.Width)
}
