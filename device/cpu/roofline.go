package cpu

import "zeroth/device/cpu/kernel"

// The machine's limits; see package kernel.
type (
	Peak   = kernel.Peak
	Stream = kernel.Stream
)

// StreamLen is a length in floats that exceeds the caches.
const StreamLen = kernel.StreamLen

// PeakF32 returns the peak rate of float32 multiply-adds.
func PeakF32() Peak { return kernel.PeakF32() }

// PeakBF16 returns the peak rate of bf16 multiply-adds into float32, if the machine supports them.
func PeakBF16() (p Peak, ok bool) { return kernel.PeakBF16() }

// Streams returns passes over memory at the machine's maximum speed.
func Streams() []Stream { return kernel.Streams() }

// Instructions returns the instruction sets used for products of float32 and, if different, of
// bf16.
func Instructions() (f32, bf16 string) { return kernel.Instructions() }
