//go:build unix

package main

import (
	"os"
	"syscall"
)

// dumpSignals ask for dumps of what ranks did last.
var dumpSignals = []os.Signal{syscall.SIGUSR1}
