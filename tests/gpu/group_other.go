//go:build !unix

package main

import "os/exec"

// together does nothing: the program itself ends with its context, and there are no
// groups of processes to end what it has started.
func together(*exec.Cmd) {}
