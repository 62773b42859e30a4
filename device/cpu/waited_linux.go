package cpu

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Waited returns the total time for which this process's threads have been ready to run while
// others used the processors. Threads that have ended do not count.
func Waited() (sum time.Duration) {
	files, _ := filepath.Glob("/proc/self/task/*/schedstat") // the pattern is valid
	for _, name := range files {
		raw, _ := os.ReadFile(name) // a thread may have ended, and some kernels lack these statistics
		if fields := strings.Fields(string(raw)); len(fields) > 1 {
			ns, _ := strconv.ParseInt(fields[1], 10, 64) // nanoseconds of waiting
			sum += time.Duration(ns)
		}
	}
	return sum
}
