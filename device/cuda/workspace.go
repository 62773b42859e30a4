package cuda

import (
	"zeroth/device"
	"zeroth/device/cuda/kernel"
)

// What a plan has to know, on machines without a GPU, too.

// productWork is the bytes of work space of products: what cuBLAS recommends for
// Hopper, and more than it takes on others.
const productWork = 32 << 20

// Workspace is the bytes a device takes for kernels of the given sizes, whatever
// they are: none where there are none.
func Workspace(s device.Sizes) int64 {
	if s == (device.Sizes{}) {
		return 0
	}
	return productWork + 4*kernel.WorkLen
}
