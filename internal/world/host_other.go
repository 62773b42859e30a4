//go:build !linux

package world

import (
	"net"
	"os"
	"time"

	"zeroth/collective/rendezvous"
)

// bootID returns "": it is unknown on this system.
func bootID() string { return "" }

func pid() int { return os.Getpid() }

// seesProcesses returns false: it is unknown on this system.
func seesProcesses(a, b rendezvous.Member) bool { return false }

func ended(int) bool { return false }

// sees returns nil: it is unknown on this system.
func sees(string) []string { return nil }

// giveUpAfter does nothing: the system's own, longer limits apply.
func giveUpAfter(net.Conn, time.Duration) {}
