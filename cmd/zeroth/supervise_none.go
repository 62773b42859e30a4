//go:build !unix

package main

import (
	"os"
	"syscall"
)

// wake does nothing: this system has no signal that continues a process.
const wake = syscall.Signal(0)

// ownGroup returns nil: this system has no process groups.
func ownGroup() *syscall.SysProcAttr { return nil }

// endingSignal returns 0: no signal ends a process on this system.
func endingSignal(*os.ProcessState) int { return 0 }

// onlyStopped returns false, because this system does not report it.
func (s *supervisor) onlyStopped() bool { return false }
