//go:build unix

package main

import (
	"os"
	"syscall"
)

// dumpSignals are the signals that ask for dumps of the last operations.
var dumpSignals = []os.Signal{syscall.SIGUSR1}
