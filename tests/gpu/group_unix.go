//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// together has a program and all that it starts end with its context.
func together(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
