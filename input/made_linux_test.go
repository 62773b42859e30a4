package input_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zeroth/input"
)

// TestKernelMade refuses files of the kernel, some of which are waited for, also behind
// a link; a descriptor of a file that is open is that file.
func TestKernelMade(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/proc/self/maps", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/proc/kmsg", "/proc/self/maps", link} {
		if _, err := os.Stat(path); err != nil {
			t.Skip(err)
		}
		_, err := input.Read(path, 1<<30)
		if err == nil || !os.IsPermission(err) && !strings.Contains(err.Error(), path+": it is a file of /proc, which the kernel makes") {
			t.Errorf("%s: %v", path, err)
		}
	}
	f, err := os.Open(write(t, []byte("abc")))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := input.Read(fmt.Sprint("/proc/self/fd/", f.Fd()), 3); err != nil || string(got) != "abc" {
		t.Errorf("%q, %v", got, err)
	}
}
