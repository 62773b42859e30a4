//go:build unix

package main

import (
	"os/signal"
	"syscall"
)

// tellLarge has a file that grows beyond ulimit -f be an error of its writer's, not the
// end of the process.
func tellLarge() { signal.Ignore(syscall.SIGXFSZ) }
