package input

import (
	"os"

	"golang.org/x/sys/unix"
)

// made is where the kernel makes files as they are read. They say that they are regular
// and empty, and some wait for what is to come (/proc/kmsg, trace_pipe).
var made = map[int64]string{unix.PROC_SUPER_MAGIC: "/proc", unix.TRACEFS_MAGIC: "tracefs", unix.DEBUGFS_MAGIC: "debugfs"}

// kernelMade is where an open file is made by the kernel; empty: it is not.
func kernelMade(f *os.File) string {
	var at unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &at) != nil {
		return ""
	}
	return made[int64(at.Type)]
}
