//go:build !unix

package main

import "os/exec"

// together does nothing: there are no groups of processes to end together.
func together(*exec.Cmd) {}

// end kills the program itself.
func end(cmd *exec.Cmd, _ ending) { _ = cmd.Process.Kill() }
