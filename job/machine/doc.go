// Package machine is what the operating system says about memory: how much this
// machine has, how much is free, and how much this process has resident.
//
// What never enters: jobs, plans and any other package of ours.
//
// Begin with machine.go; machine_linux.go asks Linux.
package machine
