//go:build !linux

package world

import (
	"net"
	"time"
)

// bootID returns "": it is unknown on this system.
func bootID() string { return "" }

// sees returns nil: it is unknown on this system.
func sees(string) []string { return nil }

// giveUpAfter does nothing: the system's own, longer limits apply.
func giveUpAfter(net.Conn, time.Duration) {}
