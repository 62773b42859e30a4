package input

import (
	"os"

	"golang.org/x/sys/unix"
)

// generated names the file systems whose files the kernel generates when they are read.
// Such files claim to be regular and empty, and some block until there is something to
// read (/proc/kmsg, trace_pipe).
var generated = map[int64]string{unix.PROC_SUPER_MAGIC: "/proc", unix.TRACEFS_MAGIC: "tracefs", unix.DEBUGFS_MAGIC: "debugfs"}

// kernelMade returns the name of the kernel file system that an open file is in, or "".
func kernelMade(f *os.File) string {
	var at unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &at) != nil {
		return ""
	}
	return generated[int64(at.Type)]
}
