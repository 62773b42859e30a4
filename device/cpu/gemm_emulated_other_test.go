//go:build !amd64

package cpu

import "zeroth/device/cpu/kernel"

func emulatedBF16() []*kernel.ISA { return nil }
