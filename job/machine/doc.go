// Package machine is what the operating system says of what a process may take:
// memory, how much is free and how much this process has resident, processors, and
// the bounds of ulimit.
//
// What never enters: jobs, plans and any other package of ours.
//
// Begin with machine.go; machine_linux.go asks Linux.
package machine
