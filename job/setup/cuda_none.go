//go:build !cuda

package setup

import "zeroth/device"

// Open says that GPUs are not built in.
func (b CUDA) Open(int, int, device.Sizes, int64) (Device, error) { return nil, b.Available() }

// OpenHost says it, too.
func (b CUDA) OpenHost(int, int) (Device, error) { return nil, b.Available() }
