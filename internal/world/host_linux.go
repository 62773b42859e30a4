package world

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"zeroth/collective/rendezvous"
	"zeroth/internal/launch"
)

// bootID returns a text that is equal in processes that share a kernel, or "" if it is
// unknown.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// pid returns this process's number in /proc, or 0 if it has another there.
func pid() int {
	if name, err := os.Readlink("/proc/self"); err != nil || name != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return os.Getpid()
}

// seesProcesses reports whether two processes see the same /proc.
func seesProcesses(a, b rendezvous.Member) bool {
	return len(a.Sees) == 2 && len(b.Sees) == 2 && a.Sees[0] == b.Sees[0] && a.Pid > 0 && b.Pid > 0
}

// ended reports whether a process has ended, or does so within a second.
func ended(pid int) bool {
	for try := 0; try < 100 && pid != os.Getpid(); try++ {
		if state, err := launch.StateOf(pid); state == 'Z' || state == 'X' || errors.Is(err, fs.ErrNotExist) {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// sees returns names of the files that this process sees. Two processes with a name in common
// see the same files, all of them or those of the folder.
func sees(folder string) (names []string) {
	boot := bootID()
	if boot == "" {
		return nil
	}
	name := func(words ...any) {
		sum := sha256.Sum256(fmt.Append(nil, append(words, boot)...))
		names = append(names, fmt.Sprintf("%x", sum[:8]))
	}
	space, err := os.Readlink("/proc/self/ns/mnt")
	if root, ok := fileID("/"); ok && err == nil {
		name("all", space, root)
	}
	if at, ok := fileID(folder); ok {
		name("folder", folder, at)
	}
	return names
}

// fileID returns a text that identifies a file within a kernel.
func fileID(path string) (id string, ok bool) {
	info, err := os.Stat(path)
	if err != nil {
		return "", false
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", false
	}
	return fmt.Sprint(s.Dev, " ", s.Ino), true
}

const tcpUserTimeout = 18 // from linux/tcp.h

// giveUpAfter makes a TCP connection fail after the peer's system has acknowledged nothing for
// limit. Control messages only go to and from process 0, so nothing else notices that two other
// hosts cannot reach each other.
func giveUpAfter(c net.Conn, limit time.Duration) {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := t.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { // fails if the system has no such limit
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(limit.Milliseconds()))
		})
	}
}
