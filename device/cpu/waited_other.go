//go:build !linux

package cpu

import "time"

// Waited returns 0: the system does not report it.
func Waited() time.Duration { return 0 }
