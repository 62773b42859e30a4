//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// together puts a program and all its child processes in a process group of their own.
func together(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// end sends the group a signal.
func end(cmd *exec.Cmd, how ending) {
	signal := map[ending]syscall.Signal{interrupted: syscall.SIGINT, traced: syscall.SIGQUIT, killed: syscall.SIGKILL}[how]
	_ = syscall.Kill(-cmd.Process.Pid, signal)
}
