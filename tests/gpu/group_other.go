//go:build !unix

package main

import "os/exec"

// together does nothing: these systems have no process groups.
func together(*exec.Cmd) {}

// end kills the program itself.
func end(cmd *exec.Cmd, _ ending) { _ = cmd.Process.Kill() }
