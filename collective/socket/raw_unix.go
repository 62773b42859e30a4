//go:build unix

package socket

import (
	"net"
	"syscall"
)

// rawWriter writes to a connection without blocking.
type rawWriter struct {
	conn syscall.RawConn // nil if not supported
	once func(fd uintptr) bool
	b    []byte
	n    int
}

// open sets the connection, if it is a plain socket.
func (w *rawWriter) open(c net.Conn) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := s.SyscallConn(); err == nil {
		w.conn, w.once = raw, w.try
	}
}

func (w *rawWriter) works() bool { return w.conn != nil }

// write returns the number of bytes written: 0 if the connection is broken, which the next regular
// write will detect.
func (w *rawWriter) write(b []byte) int {
	w.b, w.n = b, 0
	_ = w.conn.Write(w.once) // an error means that nothing was written
	w.b = nil
	return w.n
}

func (w *rawWriter) try(fd uintptr) bool {
	if n, err := syscall.Write(int(fd), w.b); err == nil {
		w.n = n
	}
	return true
}
