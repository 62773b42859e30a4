//go:build !amd64

package kernel

import "runtime"

// Pause gives others a chance; n is of no use here.
func Pause(int) { runtime.Gosched() }
