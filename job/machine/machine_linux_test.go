package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/job/testjob"
)

// What a process may take is the least of what its machine and the control
// groups above it leave, of either version, with the page cache that gives way.
func TestMemoryThereIs(t *testing.T) {
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
			testjob.Write(t, path, text)
		}
		want := Memory{Free: c.free, Total: c.total, Limit: strings.ReplaceAll(c.limit, "ROOT", root)}
		if got := memoryIn(root); got != want {
			t.Errorf("%s: %+v, want %+v", c.name, got, want)
		}
	}
	if got := memoryIn(t.TempDir()); got.Free != 0 || got.Total != 0 {
		t.Errorf("a system that tells nothing: %+v", got)
	}
	if m := Machine(); m.Free < 10*MB || m.Total < m.Free {
		t.Errorf("this machine: %+v", m)
	}
}
