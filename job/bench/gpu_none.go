//go:build !cuda

package bench

import "zeroth/job/machine"

// measureGPU has none to measure.
func (b *bench) measureGPU([]machine.GPU) error { return nil }
