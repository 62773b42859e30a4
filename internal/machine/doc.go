// Package machine reports what the operating system allows a process to use: memory, how much
// is free and how much this process has resident, processors, and the limits of ulimit.
//
// Begin with machine.go; machine_linux.go queries Linux.
package machine
