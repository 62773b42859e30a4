//go:build !unix

package main

import "syscall"

// wake does nothing: this system has no signal that continues a process.
const wake = syscall.Signal(0)

// ownGroup returns nil: this system has no process groups.
func ownGroup() *syscall.SysProcAttr { return nil }

// onlyStopped returns false, because this system does not report it.
func (s *supervisor) onlyStopped() bool { return false }
