//go:build unix && !linux

package launch

import (
	"os"
	"syscall"
)

// wake continues a stopped process, so that it receives the signal that ends it.
const wake = syscall.SIGCONT

// DumpSignals are the signals that ask for dumps of the last operations; they do not end processes.
var DumpSignals = []os.Signal{syscall.SIGUSR1}

// ownGroup makes a process the leader of a new process group.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// endingSignal returns the number of the signal that ended a process.
func endingSignal(p *os.ProcessState) int { return int(p.Sys().(syscall.WaitStatus).Signal()) }
