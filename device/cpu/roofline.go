package cpu

import "zeroth/device/cpu/kernel"

// What the machine's limits are; see package kernel.
type (
	Peak   = kernel.Peak
	Stream = kernel.Stream
)

// StreamLen is a length, in floats, for which a pass leaves the caches behind.
const StreamLen = kernel.StreamLen

// PeakF32 is multiply-adds of float32.
func PeakF32() Peak { return kernel.PeakF32() }

// PeakBF16 is multiply-adds of bf16 into float32, where the machine has them.
func PeakBF16() (p Peak, ok bool) { return kernel.PeakBF16() }

// Streams are passes over memory that are as fast as the machine can.
func Streams() []Stream { return kernel.Streams() }

// Instructions names the instruction sets products run on: of float32 and, if
// it is another, of bf16.
func Instructions() (f32, bf16 string) { return kernel.Instructions() }
