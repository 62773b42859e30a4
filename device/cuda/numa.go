//go:build cuda

package cuda

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sysfs is where the system describes its devices and nodes.
var sysfs = "/sys"

// near returns the processors of this process that belong to the NUMA node of a GPU, given its PCI
// address: memory and threads of other nodes reach the GPU through the link between processors.
// There are none if the node is unknown or the only one.
func near(pci string) (all unix.CPUSet) {
	read := func(path string) string {
		raw, _ := os.ReadFile(filepath.Join(sysfs, path)) // without it, the node is unknown
		return strings.TrimSpace(string(raw))
	}
	node := read("bus/pci/devices/" + strings.ToLower(pci[4:]) + "/numa_node")
	if node == "" || node == "-1" || !strings.ContainsAny(read("devices/system/node/online"), ",-") {
		return all
	}
	var may unix.CPUSet
	_ = unix.SchedGetaffinity(0, &may) // else none
	for _, part := range strings.Split(read("devices/system/node/node"+node+"/cpulist"), ",") {
		first, last, several := strings.Cut(part, "-")
		lo, err := strconv.Atoi(first)
		hi, err2 := strconv.Atoi(last)
		for i := lo; err == nil && (i == lo || several && err2 == nil && i <= hi); i++ {
			if may.IsSet(i) {
				all.Set(i)
			}
		}
	}
	return all
}

// Bind implements cpu.Near: it binds the goroutine to a thread on processors near the GPU, where the
// system gives it memory of the same node.
func (p Pinned) Bind() {
	if p.near.Count() > 0 {
		runtime.LockOSThread()
		_ = unix.SchedSetaffinity(0, p.near) // where it is forbidden, the thread is bound to nothing
	}
}
