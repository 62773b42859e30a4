//go:build unix && !linux

package main

import (
	"os"
	"syscall"
)

// wake continues a stopped process, so that it receives the signal that ends it.
const wake = syscall.SIGCONT

// ownGroup makes a process the leader of a new process group.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// endingSignal returns the number of the signal that ended a process.
func endingSignal(p *os.ProcessState) int { return int(p.Sys().(syscall.WaitStatus).Signal()) }

// onlyStopped returns false, because this system does not report it.
func (s *supervisor) onlyStopped() bool { return false }
