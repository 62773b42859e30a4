//go:build cuda

package cuda_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"zeroth/device/cuda"
	"zeroth/device/cuda/fake"
)

// TestNUMA checks, with machines described in a folder, that memory is pinned by a thread on the
// processors of the GPU's node, and that Bind binds to these, as far as this process may use them,
// and only if there are several nodes.
func TestNUMA(t *testing.T) {
	fake.Only(t)
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	first := 0
	for !may.IsSet(first) {
		first++
	}
	for _, c := range []struct {
		name, online, node, processors string
		bound                          bool
	}{
		{"two nodes", "0-1", "0", "FIRST", true}, {"a list", "0,2", "0", "2000,FIRST-FIRST,1022-1023", true},
		{"one node", "0", "0", "FIRST", false}, {"an unknown node", "0-1", "-1", "FIRST", false},
		{"none of its processors", "0-1", "0", "1023", false}, {"no processors", "0-1", "0", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for path, text := range map[string]string{
				"devices/system/node/online": c.online, "devices/system/node/node0/cpulist": c.processors, "bus/pci/devices/0000:00:00.0/numa_node": c.node,
			} {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, path), []byte(strings.ReplaceAll(text, "FIRST", strconv.Itoa(first))+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			defer cuda.Sysfs(cuda.Sysfs(dir))
			p, err := cuda.OpenPinned(0)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			want, done, file := may, make(chan bool), filepath.Join(dir, "pinned")
			if c.bound {
				want.Zero()
				want.Set(first)
			}
			t.Setenv("FAKECUDA_PINNED", file)
			mem, err := p.Take(1 << 20)
			if err != nil {
				t.Fatal(err)
			}
			p.Give(mem)
			if raw, _ := os.ReadFile(file); string(raw) != fmt.Sprintln(want.Count()) {
				t.Errorf("memory is pinned by a thread of %q processors, want %d", raw, want.Count())
			}
			go func() { // its thread ends with it
				runtime.LockOSThread()
				defer close(done)
				p.Bind()
				var now unix.CPUSet
				if err := unix.SchedGetaffinity(0, &now); err != nil || now != want {
					t.Errorf("bound to %v, %v, want %v", now, err, want)
				}
			}()
			<-done
		})
	}
}
