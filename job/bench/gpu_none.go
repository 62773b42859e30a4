//go:build !cuda

package bench

import "zeroth/internal/machine"

// measureGPU does nothing in a build without GPU support.
func (b *bench) measureGPU([]machine.GPU) error { return nil }
