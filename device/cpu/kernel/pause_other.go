//go:build !amd64

package kernel

import "runtime"

// Pause yields the processor; n is ignored.
func Pause(int) { runtime.Gosched() }
