//go:build unix

package socket

import (
	"net"
	"syscall"
)

// rawWriter writes to a connection as far as that takes it without waiting.
type rawWriter struct {
	conn syscall.RawConn // nil: it cannot
	once func(fd uintptr) bool
	b    []byte
	n    int
}

// open has it write to a connection, if that is a socket itself.
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

// write returns how many bytes it has written: none where the connection is broken, as
// who writes the rest will find.
func (w *rawWriter) write(b []byte) int {
	w.b, w.n = b, 0
	_ = w.conn.Write(w.once) // what it cannot write it has not written
	w.b = nil
	return w.n
}

func (w *rawWriter) try(fd uintptr) bool {
	if n, err := syscall.Write(int(fd), w.b); err == nil {
		w.n = n
	}
	return true
}
