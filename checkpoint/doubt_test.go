//go:build unix

package checkpoint

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"zeroth/checkpoint/vfs"
	"zeroth/tests/nightly"
)

// wentBack creates checkpoints of steps 100, 200 and again 100; the last is the newest commit.
func wentBack(t *testing.T, root string) (first, second, newest string) {
	t.Helper()
	first = tiny(t, vfs.OS{}, root, 100, nil)
	second = tiny(t, vfs.OS{}, root, 200, nil)
	return first, second, tiny(t, vfs.OS{}, root, 100, nil)
}

// refused checks that latest, and the step of the damaged newest checkpoint, give errors that name it
// and the newest intact one, if any.
func refused(t *testing.T, what, root, bad, whole string) {
	t.Helper()
	path, err := Resolve(root, "latest")
	if err == nil {
		t.Errorf("%s: the latest is %s", what, path)
		return
	}
	want := "there is no intact one"
	if whole != "" {
		want = "to continue from an older state, give its path: the newest intact one is " + whole + " (have "
	}
	if !strings.Contains(err.Error(), bad+" is damaged") || !strings.Contains(err.Error(), want) || len(err.Error()) > 1000 {
		t.Errorf("%s: %v, want %s named, and %q", what, err, bad, want)
	}
	if step, ok := parseStepName(filepath.Base(bad)); ok && step == 100 {
		if path, err := Resolve(root, "100"); err == nil {
			t.Errorf("%s: step 100 is %s", what, path)
		}
	}
	if whole != "" {
		if path, err := Resolve(root, whole); err != nil || path != whole {
			t.Errorf("%s: %s by name is %s, %v", what, whole, path, err)
		}
	}
}

// TestDamagedOrder checks, after a run went back, that a flipped bit in anything that determines
// the order of commits makes latest an error if it is in the newest checkpoint. In an older one
// it does too, unless COMMIT and manifest still agree that it is older.
func TestDamagedOrder(t *testing.T) {
	nightly.Long(t)
	root := t.TempDir()
	harmless := 0
	first, second, newest := wentBack(t, root)
	for _, path := range []string{newest, second, first} {
		for _, name := range []string{commitName, manifestName} {
			full := filepath.Join(path, name)
			b, err := os.ReadFile(full)
			must(t, err)
			for i := 0; i < 8*len(b); i += nightly.Of(29, 1) {
				c := append([]byte(nil), b...)
				c[i/8] ^= 1 << (i % 8)
				must(t, os.WriteFile(full, c, 0o644))
				if found, err := Resolve(root, "latest"); path != newest && found == newest && err == nil {
					harmless++
					continue
				}
				whole := newest
				if path == newest {
					whole = second
				}
				refused(t, name, root, path, whole)
				if t.Failed() {
					t.Fatalf("bit %d of %s in %s", i, name, path)
				}
			}
			must(t, os.WriteFile(full, b, 0o644))
		}
	}
	if harmless == 0 {
		t.Error("every flipped bit of an older manifest blocks latest")
	}
	if path, err := Resolve(root, "latest"); err != nil || path != newest {
		t.Errorf("after undoing all flips: the latest is %s, %v", path, err)
	}
}

// TestWrongOrder checks that latest is an error if the newest COMMIT or manifest is missing,
// unreadable, of the wrong kind or of another checkpoint, or if folders were renamed or copied.
func TestWrongOrder(t *testing.T) {
	swap := func(a, b string) error {
		os.Rename(a, a+"x")
		os.Rename(b, a)
		return os.Rename(a+"x", b)
	}
	for what, c := range map[string]struct {
		change     func(first, second, newest string) error
		bad, whole string // names of folders
	}{
		"COMMIT of an older one": {func(_, second, newest string) error {
			return copyFile(filepath.Join(second, commitName), filepath.Join(newest, commitName))
		}, "step-00000100.1", "step-00000200"},
		"COMMIT and manifest of an older one": {func(_, second, newest string) error {
			copyFile(filepath.Join(second, manifestName), filepath.Join(newest, manifestName))
			return copyFile(filepath.Join(second, commitName), filepath.Join(newest, commitName))
		}, "step-00000100.1", "step-00000200"},
		"COMMIT and manifest of an older one of the same step": {func(first, _, newest string) error {
			copyFile(filepath.Join(first, manifestName), filepath.Join(newest, manifestName))
			return copyFile(filepath.Join(first, commitName), filepath.Join(newest, commitName))
		}, "step-00000100", "step-00000200"},
		"a whole older one in its place": {func(first, _, newest string) error {
			os.RemoveAll(newest)
			return os.CopyFS(newest, os.DirFS(first))
		}, "step-00000100", "step-00000200"},
		"an older one under a newer name": {func(first, _, newest string) error {
			return os.CopyFS(filepath.Join(filepath.Dir(newest), "step-00000300"), os.DirFS(first))
		}, "step-00000300", "step-00000100.1"},
		"a copy": {func(_, _, newest string) error {
			return os.CopyFS(newest+"2", os.DirFS(newest))
		}, "step-00000100.1", "step-00000200"},
		"two swapped": {func(_, second, newest string) error { return swap(second, newest) }, "step-00000100.1", "step-00000100"},
		"renamed": {func(_, _, newest string) error {
			return os.Rename(newest, filepath.Join(filepath.Dir(newest), "step-00000050"))
		}, "step-00000050", "step-00000200"},
		"no COMMIT":      {func(_, _, newest string) error { return os.Remove(newest + "/COMMIT") }, "step-00000100.1", "step-00000200"},
		"empty COMMIT":   {func(_, _, newest string) error { return os.Truncate(newest+"/COMMIT", 0) }, "step-00000100.1", "step-00000200"},
		"long COMMIT":    {func(_, _, newest string) error { return os.Truncate(newest+"/COMMIT", 1<<40) }, "step-00000100.1", "step-00000200"},
		"no manifest":    {func(_, _, newest string) error { return os.Remove(newest + "/MANIFEST.json") }, "step-00000100.1", "step-00000200"},
		"huge manifest":  {func(_, _, newest string) error { return os.Truncate(newest+"/MANIFEST.json", 1<<40) }, "step-00000100.1", "step-00000200"},
		"long manifest":  {func(_, _, newest string) error { return os.Truncate(newest+"/MANIFEST.json", 5000) }, "step-00000100.1", "step-00000200"},
		"nothing in it":  {func(_, _, newest string) error { os.RemoveAll(newest); return os.Mkdir(newest, 0o777) }, "step-00000100.1", "step-00000200"},
		"a file instead": {func(_, _, newest string) error { os.RemoveAll(newest); return os.WriteFile(newest, nil, 0o666) }, "step-00000100.1", "step-00000200"},
		"a pipe instead": {func(_, _, newest string) error { os.RemoveAll(newest); return syscall.Mkfifo(newest, 0o666) }, "step-00000100.1", "step-00000200"},
		"a link to nothing": {func(_, _, newest string) error {
			os.RemoveAll(newest)
			return os.Symlink("nowhere", newest)
		}, "step-00000100.1", "step-00000200"},
		"a link to itself": {func(_, _, newest string) error {
			os.RemoveAll(newest)
			return os.Symlink(newest, newest)
		}, "step-00000100.1", "step-00000200"},
		"COMMIT is a pipe": {func(_, _, newest string) error {
			os.Remove(newest + "/COMMIT")
			return syscall.Mkfifo(newest+"/COMMIT", 0o666)
		}, "step-00000100.1", "step-00000200"},
		"COMMIT is a folder": {func(_, _, newest string) error {
			os.Remove(newest + "/COMMIT")
			return os.Mkdir(newest+"/COMMIT", 0o777)
		}, "step-00000100.1", "step-00000200"},
		"COMMIT is a device": {func(_, _, newest string) error {
			os.Remove(newest + "/COMMIT")
			return os.Symlink("/dev/zero", newest+"/COMMIT")
		}, "step-00000100.1", "step-00000200"},
		"the manifest is a pipe": {func(_, _, newest string) error {
			os.Remove(newest + "/MANIFEST.json")
			return syscall.Mkfifo(newest+"/MANIFEST.json", 0o666)
		}, "step-00000100.1", "step-00000200"},
		"the manifest is endless": {func(_, _, newest string) error {
			os.Remove(newest + "/MANIFEST.json")
			return os.Symlink("/dev/zero", newest+"/MANIFEST.json")
		}, "step-00000100.1", "step-00000200"},
		"state.json is a pipe": {func(_, _, newest string) error {
			os.Remove(newest + "/state.json")
			return syscall.Mkfifo(newest+"/state.json", 0o666)
		}, "step-00000100.1", "step-00000200"},
		"data is a pipe": {func(_, _, newest string) error {
			os.Remove(newest + "/data-00000-000.safetensors")
			return syscall.Mkfifo(newest+"/data-00000-000.safetensors", 0o666)
		}, "step-00000100.1", "step-00000200"},
		"all are lost but one": {func(first, second, newest string) error {
			os.Remove(first + "/COMMIT")
			os.Remove(second + "/COMMIT")
			return os.Remove(newest + "/COMMIT")
		}, "step-00000100", ""},
	} {
		root := t.TempDir()
		first, second, newest := wentBack(t, root)
		must(t, c.change(first, second, newest))
		if c.whole != "" {
			c.whole = filepath.Join(root, c.whole)
		}
		refused(t, what, root, filepath.Join(root, c.bad), c.whole)
		// The next save is newer than all existing ones, even if only a manifest contains the number.
		path := tiny(t, vfs.OS{}, root, 400, nil)
		ck, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		ck.Close()
		if manifest := strings.Contains("no COMMIT empty COMMIT long COMMIT COMMIT of an older one", what); manifest && ck.Seq != 4 {
			t.Errorf("%s: the next save has number %d", what, ck.Seq)
		}
	}
}

// TestVerifySwapped checks that Verify detects two step folders that were swapped.
func TestVerifySwapped(t *testing.T) {
	root := t.TempDir()
	a, b := tiny(t, vfs.OS{}, root, 1, nil), tiny(t, vfs.OS{}, root, 2, nil)
	must(t, os.Rename(a, a+"x"))
	must(t, os.Rename(b, a))
	must(t, os.Rename(a+"x", b))
	for _, path := range []string{a, b} {
		bad, err := Verify(context.Background(), path, Walk{})
		if err != nil || len(bad) != 1 || !strings.Contains(bad[0].Error(), "the folder is named for step") {
			t.Errorf("%s: %v, %v", path, bad, err)
		}
		if _, err := Open(path); err == nil {
			t.Errorf("%s was opened", path)
		}
	}
	t.Chdir(a)
	if bad, err := Verify(context.Background(), ".", Walk{}); err != nil || len(bad) != 1 {
		t.Errorf("from inside: %v, %v", bad, err)
	}
}

// TestResolveUncommitted checks that uncommitted checkpoints cannot be loaded by name.
func TestResolveUncommitted(t *testing.T) {
	root := t.TempDir()
	path := tiny(t, vfs.OS{}, root, 1, nil)
	for _, name := range []string{tmpPrefix + "step-00000001-0123456789abcdef", trashPrefix + "step-00000001-0123456789abcdef"} {
		to := filepath.Join(root, name)
		must(t, os.Rename(path, to))
		if _, err := Resolve(root, to); err == nil {
			t.Errorf("%s was accepted", name)
		}
		must(t, os.Rename(to, path))
	}
}
