//go:build unix && !linux

package main

import "syscall"

// wake is for processes that are to end and may be stopped.
const wake = syscall.SIGCONT

// ownGroup has a process in a group of its own.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// onlyStopped is not known here: the supervisor waits.
func (s *supervisor) onlyStopped() bool { return false }
