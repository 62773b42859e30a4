//go:build unix

package main

import (
	"os/signal"
	"syscall"
)

// ignoreFileSizeSignal makes writes beyond ulimit -f return errors instead of ending the
// process.
func ignoreFileSizeSignal() { signal.Ignore(syscall.SIGXFSZ) }
