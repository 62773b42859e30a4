package cpu

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Waited is how long the threads of this process have been ready to run while
// other threads had the processors, in total. A thread that ends takes its time
// along.
func Waited() (sum time.Duration) {
	files, _ := filepath.Glob("/proc/self/task/*/schedstat") // the pattern is valid
	for _, name := range files {
		raw, _ := os.ReadFile(name) // a thread may have ended, and some kernels have no such statistics
		if fields := strings.Fields(string(raw)); len(fields) > 1 {
			ns, _ := strconv.ParseInt(fields[1], 10, 64) // nanoseconds of waiting
			sum += time.Duration(ns)
		}
	}
	return sum
}
