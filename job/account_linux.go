package job

import (
	"os"
	"strconv"
	"strings"
)

// resident is the most of the process's memory that was resident so far, and
// what of it now is mapped from files, in bytes; 0 if the system does not tell.
// See proc_pid_status(5).
func resident() (peak, files int64) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		kB, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch key {
		case "VmHWM":
			peak = kB << 10
		case "RssFile":
			files = kB << 10
		}
	}
	return peak, files
}

// machineMemory is the bytes of memory that could be taken now; 0 if the system
// does not tell. See proc_meminfo(5).
func machineMemory() (bytes int64) {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(info)) {
		key, value, _ := strings.Cut(line, ":")
		if kB, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64); err == nil && key == "MemAvailable" {
			bytes = kB << 10
		}
	}
	return bytes
}
