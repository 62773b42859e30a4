//go:build !unix

package socket

import "net"

// rawWriter is unsupported on this system.
type rawWriter struct{}

func (*rawWriter) open(net.Conn)    {}
func (*rawWriter) works() bool      { return false }
func (*rawWriter) write([]byte) int { return 0 }
