//go:build !amd64

package cpu

import "runtime"

// pause gives others a chance; n is of no use here.
func pause(int) { runtime.Gosched() }
