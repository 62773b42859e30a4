package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// wake is for processes that are to end and may be stopped.
const wake = syscall.SIGCONT

// ownGroup has a process in a group of its own, and end where its launcher does.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// onlyStopped tells whether every process that has not ended is stopped by a
// signal.
func (s *supervisor) onlyStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.children {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(c.cmd.Process.Pid) + "/stat")
		if err != nil {
			continue // it has ended
		}
		_, state, _ := strings.Cut(string(b), ") ")
		if !strings.HasPrefix(state, "T") && !strings.HasPrefix(state, "Z") {
			return false
		}
	}
	return true
}
