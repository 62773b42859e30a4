//go:build !cuda

package setup

import "zeroth/device"

// Open returns an error: GPU support is not built in.
func (b CUDA) Open(int, int, device.Sizes, int64) (Device, error) { return nil, b.Available() }

// OpenHost returns the same error.
func (b CUDA) OpenHost(int, int) (Device, error) { return nil, b.Available() }
