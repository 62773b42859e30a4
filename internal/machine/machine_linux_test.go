package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zeroth/job/jobtest"
)

// The memory of a process is the minimum of what the machine and its control groups, of either
// version, allow, including reclaimable page cache.
func TestAvailableMemory(t *testing.T) {
	const kB, MB, none = 1 << 10, 1 << 20, "9223372036854771712"
	meminfo := "MemTotal:       2048 kB\nMemFree:  5 kB\nMemAvailable:   1024 kB\nSwapTotal:      512 kB\n"
	group := func(dir, limit, used string, cached int) map[string]string {
		v2 := !strings.HasPrefix(dir, "memory")
		names := map[bool][3]string{true: {"memory.max", "memory.current", ""}, false: {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"}}[v2]
		return map[string]string{
			"sys/fs/cgroup/" + dir + "/" + names[0]: limit + "\n",
			"sys/fs/cgroup/" + dir + "/" + names[1]: used + "\n",
			"sys/fs/cgroup/" + dir + "/memory.stat": fmt.Sprintf("anon 77\n%[1]sactive_file %[2]d\n%[1]sinactive_file %[2]d\n", names[2], cached),
		}
	}
	both := func(all ...map[string]string) map[string]string {
		files := map[string]string{}
		for _, m := range all {
			for name, text := range m {
				files[name] = text
			}
		}
		return files
	}
	for _, c := range []struct {
		name        string
		self        string // proc/self/cgroup
		files       map[string]string
		free, total int64
		limit       string
	}{
		{"no groups", "", nil, 1 * MB, 2560 * kB, "this machine"},
		{"v2 without a limit", "0::/a\n", group("a", "max", "1000", 0), 1 * MB, 2560 * kB, "this machine"},
		{"v2", "0::/a/b\n", group("a/b", "500000", "300000", 50000), 300000, 500000 + 512*kB, "the control group ROOT/sys/fs/cgroup/a/b"},
		{"v2, the one above is tighter", "0::/a/b\n", both(group("a/b", "500000", "300000", 50000), group("a", "400000", "300000", 0)), 100000, 400000 + 512*kB, "the control group ROOT/sys/fs/cgroup/a"},
		{"v2 in a container", "0::/host/path\n", group("", "600000", "100000", 0), 500000, 600000 + 512*kB, "the control group ROOT/sys/fs/cgroup"},
		{"v2 beside v1", "4:cpu:/\n0::/a\n", group("unified/a", "600000", "100000", 0), 500000, 600000 + 512*kB, "the control group ROOT/sys/fs/cgroup/unified/a"},
		{"v2 that is full", "0::/a\n", group("a", "600000", "700000", 0), 1, 600000 + 512*kB, "the control group ROOT/sys/fs/cgroup/a"},
		{"v1 without a limit", "4:memory:/a\n0::/\n", group("memory/a", none, "1000", 0), 1 * MB, 2560 * kB, "this machine"},
		{"v1", "9:name=systemd:/\n4:memory:/a\n", group("memory/a", "500000", "300000", 50000), 300000, 500000 + 512*kB, "the control group ROOT/sys/fs/cgroup/memory/a"},
		{"v1 with other controllers", "4:cpu,memory:/docker/x\n", group("memory", "500000", "300000", 0), 200000, 500000 + 512*kB, "the control group ROOT/sys/fs/cgroup/memory"},
		{"more than the machine has", "0::/a\n", group("a", "99000000", "1000", 0), 1 * MB, 2560 * kB, "this machine"},
		{"no numbers", "0::/a\n:::\nx\n", group("a", "many", "few", 0), 1 * MB, 2560 * kB, "this machine"},
	} {
		root := t.TempDir()
		for name, text := range both(c.files, map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": c.self}) {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			jobtest.Write(t, path, text)
		}
		want := Memory{Free: c.free, Total: c.total, Limit: strings.ReplaceAll(c.limit, "ROOT", root)}
		if got := memoryIn(root); got != want {
			t.Errorf("%s: %+v, want %+v", c.name, got, want)
		}
	}
	if got := memoryIn(t.TempDir()); got.Free != 0 || got.Total != 0 {
		t.Errorf("a system without these files: %+v", got)
	}
	if m := Machine(); m.Free < 10*MB || m.Total < m.Free {
		t.Errorf("this machine: %+v", m)
	}
}

// The number of processors is the minimum of the quotas of the control groups, of either version.
func TestQuotas(t *testing.T) {
	for _, c := range []struct {
		name, self string
		files      map[string]string
		quota      float64
		limit      string
	}{
		{"no groups", "", nil, 0, ""},
		{"v2 without a quota", "0::/a\n", map[string]string{"a/cpu.max": "max 100000\n"}, 0, ""},
		{"v2", "0::/a/b\n", map[string]string{"a/b/cpu.max": "150000 100000\n"}, 1.5, "ROOT/sys/fs/cgroup/a/b"},
		{"v2, the one above is tighter", "0::/a/b\n", map[string]string{"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "200000 100000\n"}, 2, "ROOT/sys/fs/cgroup/a"},
		{"v1", "4:cpu,cpuacct:/d\n", map[string]string{"cpu/d/cpu.cfs_quota_us": "50000\n", "cpu/d/cpu.cfs_period_us": "100000\n"}, 0.5, "ROOT/sys/fs/cgroup/cpu/d"},
		{"v1 without a quota", "4:cpu:/d\n", map[string]string{"cpu/d/cpu.cfs_quota_us": "-1\n", "cpu/d/cpu.cfs_period_us": "100000\n"}, 0, ""},
		{"no numbers", "0::/a\n", map[string]string{"a/cpu.max": "many 0\n"}, 0, ""},
	} {
		root := t.TempDir()
		files := map[string]string{"proc/self/cgroup": c.self}
		for name, text := range c.files {
			files["sys/fs/cgroup/"+name] = text
		}
		for name, text := range files {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			jobtest.Write(t, path, text)
		}
		want := Cores{Quota: c.quota}
		if c.limit != "" {
			want.Limit = "the control group " + strings.ReplaceAll(c.limit, "ROOT", root)
		}
		if got := coresIn(root); got != want {
			t.Errorf("%s: %+v, want %+v", c.name, got, want)
		}
	}
	if c := Processors(); c.Bound < 1 || c.Bound > 1<<16 {
		t.Errorf("this machine: %+v", c)
	}
}

// The limits are those that the process has set itself.
func TestUlimits(t *testing.T) {
	was := Ulimits()
	if was.Files < 3 || was.Address == 0 {
		t.Errorf("%+v", was)
	}
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		t.Fatal(err)
	}
	lower := r
	lower.Cur = was.Files - 1
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lower); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &r)
	if now := Ulimits(); now.Files != was.Files-1 {
		t.Errorf("%+v, was %+v", now, was)
	}
}
