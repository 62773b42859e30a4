//go:build !unix

package main

import "syscall"

// wake is no signal here.
const wake = syscall.Signal(0)

// ownGroup has nothing to say here, where there are no groups of processes.
func ownGroup() *syscall.SysProcAttr { return nil }

// onlyStopped is not known here: the supervisor waits.
func (s *supervisor) onlyStopped() bool { return false }
