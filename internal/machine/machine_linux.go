package machine

import (
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Resident returns the peak of the process's resident memory, and the part of its current
// resident memory that is mapped from files, in bytes, or 0 if unknown. See
// proc_pid_status(5).
func Resident() (peak, files int64) {
	status := counts("/proc/self/status")
	return status["VmHWM"] << 10, status["RssFile"] << 10
}

// Machine returns the memory this process may use, according to the system and its control
// groups. See proc_meminfo(5) and cgroups(7).
func Machine() Memory { return memoryIn("/") }

// memoryIn reads the files below root, which is "/" except in tests.
func memoryIn(root string) Memory {
	m := Memory{Limit: "this machine"}
	info := counts(filepath.Join(root, "proc/meminfo"))
	m.Free, m.Total = info["MemAvailable"]<<10, info["MemTotal"]<<10
	for _, g := range groupsIn(root) {
		g.bound(&m)
	}
	if m.Total > 0 {
		m.Total += info["SwapTotal"] << 10
	}
	return m
}

// memoryGroup is a control group of version 1 or 2, with the names of its files.
type memoryGroup struct {
	folder, limit, used string
	cached              []string // keys in memory.stat for reclaimable page cache
}

// groupsIn returns the control groups that limit the process's memory: its own and the
// enclosing ones. In a container that sees only its own files, its path may be that of the
// host; then the top is its own.
func groupsIn(root string) (all []memoryGroup) {
	old := memoryGroup{"", "memory.limit_in_bytes", "memory.usage_in_bytes", []string{"total_active_file", "total_inactive_file"}}
	for old.folder = range foldersOf(root, "memory", old.limit, "memory") {
		all = append(all, old)
	}
	g := memoryGroup{"", "memory.max", "memory.current", []string{"active_file", "inactive_file"}}
	for g.folder = range foldersOf(root, "", g.limit, "", "unified") {
		all = append(all, g)
	}
	return all
}

// foldersOf yields the folders, below the mounts in sys/fs/cgroup, of the process's group for a
// controller and of the enclosing groups, if they contain the file. The controller of version 2 is "".
func foldersOf(root, controller, file string, mounts ...string) iter.Seq[string] {
	raw, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup")) // without it there are no groups
	return func(yield func(string) bool) {
		for line := range strings.Lines(string(raw)) {
			id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
			controllers, path, _ := strings.Cut(rest, ":")
			if (controllers == "") != (controller == "") || !slices.Contains(strings.Split(controllers, ","), controller) ||
				controller == "" && id != "0" {
				continue
			}
			for _, mount := range mounts {
				for at := filepath.Clean("/" + path); ; at = filepath.Dir(at) {
					folder := filepath.Join(root, "sys/fs/cgroup", mount, at)
					if _, err := os.Stat(filepath.Join(folder, file)); err == nil && !yield(folder) {
						return
					}
					if at == "/" {
						break
					}
				}
			}
		}
	}
}

// Processors returns the processors that the process may use, according to its affinity and
// its control groups. See sched_setaffinity(2) and cgroups(7).
func Processors() Cores {
	c := coresIn("/")
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil {
		c.Bound = set.Count()
	}
	return c
}

// coresIn reads the quotas of control groups from the files below root.
func coresIn(root string) (c Cores) {
	for folder := range foldersOf(root, "cpu", "cpu.cfs_quota_us", "cpu") {
		quota, _ := number64(filepath.Join(folder, "cpu.cfs_quota_us"))
		period, _ := number64(filepath.Join(folder, "cpu.cfs_period_us"))
		c.bound(quota, period, folder)
	}
	for folder := range foldersOf(root, "", "cpu.max", "") {
		raw, _ := os.ReadFile(filepath.Join(folder, "cpu.max")) // "max 100000", or two numbers
		if words := strings.Fields(string(raw)); len(words) == 2 {
			quota, _ := strconv.ParseInt(words[0], 10, 64)
			period, _ := strconv.ParseInt(words[1], 10, 64)
			c.bound(quota, period, folder)
		}
	}
	return c
}

// bound lowers c to a group's quota, in µs per period.
func (c *Cores) bound(quota, period int64, folder string) {
	if quota <= 0 || period <= 0 {
		return // "max", or -1
	}
	if cores := float64(quota) / float64(period); c.Quota == 0 || cores < c.Quota {
		c.Quota, c.Limit = cores, "the control group "+folder
	}
}

// Ulimits returns the limits of the process. See getrlimit(2).
func Ulimits() Bounds {
	soft := func(which int) uint64 {
		var r unix.Rlimit
		if unix.Getrlimit(which, &r) != nil {
			return 0
		}
		return r.Cur
	}
	return Bounds{Files: soft(unix.RLIMIT_NOFILE), Address: soft(unix.RLIMIT_AS), Locked: soft(unix.RLIMIT_MEMLOCK), File: soft(unix.RLIMIT_FSIZE)}
}

// bound lowers m to the memory left in the group.
func (g memoryGroup) bound(m *Memory) {
	limit, ok := number64(filepath.Join(g.folder, g.limit))
	used, known := number64(filepath.Join(g.folder, g.used))
	if !ok || !known {
		return // "max"
	}
	stat := counts(filepath.Join(g.folder, "memory.stat"))
	for _, key := range g.cached {
		used -= stat[key]
	}
	if free := max(limit-max(used, 0), 1); m.Free == 0 || free < m.Free {
		m.Free, m.Limit = free, "the control group "+g.folder
	}
	if m.Total == 0 || limit < m.Total {
		m.Total = limit
	}
}

// number64 reads a file that consists of a number.
func number64(path string) (n int64, ok bool) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	return n, err == nil
}

// counts reads the lines of a file that consist of a word and a number, with or without a unit.
func counts(path string) map[string]int64 {
	all := map[string]int64{}
	raw, err := os.ReadFile(path)
	if err != nil {
		return all
	}
	for line := range strings.Lines(string(raw)) {
		if words := strings.Fields(line); len(words) >= 2 {
			if n, err := strconv.ParseInt(words[1], 10, 64); err == nil {
				all[strings.TrimSuffix(words[0], ":")] = n
			}
		}
	}
	return all
}
