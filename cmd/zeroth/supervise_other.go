//go:build unix && !linux

package main

import "syscall"

// ownGroup has a process in a group of its own.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// onlyStopped is not known here: the supervisor waits.
func (s *supervisor) onlyStopped() bool { return false }
