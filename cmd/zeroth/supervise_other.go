//go:build unix && !linux

package main

import "syscall"

// wake continues a stopped process, so that it receives the signal that ends it.
const wake = syscall.SIGCONT

// ownGroup makes a process the leader of a new process group.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// onlyStopped returns false, because this system does not report it.
func (s *supervisor) onlyStopped() bool { return false }
