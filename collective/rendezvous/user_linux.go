package rendezvous

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// sameUser returns an error if the peer on a Unix socket belongs to another user. It accepts other
// kinds of connections.
func sameUser(c net.Conn) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if int(cred.Uid) != os.Getuid() {
		return fmt.Errorf("a process of user %d", cred.Uid)
	}
	return nil
}
