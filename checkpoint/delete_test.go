//go:build unix

package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"zeroth/checkpoint/vfs"
	"zeroth/checkpoint/vfs/vfstest"
	"zeroth/tests/nightly"
)

// tree lists every name under a folder with its kind or link target.
func tree(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		link, _ := os.Readlink(path)
		names = append(names, path+" "+d.Type().String()+" "+link)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// intruders put foreign things into a folder; outside is a folder elsewhere, containing files and
// folders.
var intruders = map[string]func(dir, outside string) error{
	"a link to a folder":       func(dir, outside string) error { return os.Symlink(outside, filepath.Join(dir, "link")) },
	"a link to a file":         func(dir, outside string) error { return os.Symlink(outside+"/file", filepath.Join(dir, "link")) },
	"a link with a name of us": func(dir, outside string) error { return os.Symlink(outside, filepath.Join(dir, "part-00007.json")) },
	"a link to the parent":     func(dir, outside string) error { return os.Symlink("..", filepath.Join(dir, "up")) },
	"a file moved elsewhere": func(dir, outside string) error {
		name := filepath.Join(dir, stateName)
		if err := os.Rename(name, outside+"/state"); err != nil {
			return err
		}
		return os.Symlink(outside+"/state", name)
	},
	"a folder":                  func(dir, outside string) error { return os.MkdirAll(dir+"/sub/deep", 0o777) },
	"a folder with our name":    func(dir, outside string) error { return os.MkdirAll(dir+"/data-00009-000.safetensors/x", 0o777) },
	"a file":                    func(dir, outside string) error { return os.WriteFile(dir+"/notes.txt", []byte("mine"), 0o666) },
	"a file with escapes":       func(dir, outside string) error { return os.WriteFile(dir+"/\x1b[31m\n", nil, 0o666) },
	"a file almost of our name": func(dir, outside string) error { return os.WriteFile(dir+"/data-0-0.safetensors", nil, 0o666) },
	"a pipe":                    func(dir, outside string) error { return syscall.Mkfifo(dir+"/COMMIT.old", 0o666) },
	"a pipe with our name":      func(dir, outside string) error { return syscall.Mkfifo(dir+"/part-00003.json", 0o666) },
}

// TestDeletesOnlyOurs checks that deleting old checkpoints, interrupted saves and trash removes
// only files of the format and never follows a link. A folder that contains anything else is
// unchanged and reported; all others are deleted.
func TestDeletesOnlyOurs(t *testing.T) {
	nightly.Long(t)
	tmp := tmpPrefix + stepName(9, 0) + "-0123456789abcdef"
	for what, intrude := range intruders {
		for _, where := range []string{stepName(1, 0), tmp, trashPrefix + stepName(3, 1) + "-0123456789abcdef", trashPrefix + tmp + "-0123456789abcdef"} {
			dir := t.TempDir()
			root, outside := filepath.Join(dir, "ckpt"), filepath.Join(dir, "outside")
			must(t, os.MkdirAll(outside+"/folder", 0o777))
			must(t, os.WriteFile(outside+"/file", []byte("precious"), 0o666))
			must(t, os.WriteFile(outside+"/COMMIT", []byte("precious"), 0o666))
			for step := range int64(3) {
				tiny(t, vfs.OS{}, root, step+1, nil)
			}
			victim := filepath.Join(root, where)
			if where != stepName(1, 0) {
				must(t, os.CopyFS(victim, os.DirFS(filepath.Join(root, stepName(1, 0)))))
			}
			must(t, intrude(victim, outside))
			kept, far := tree(t, victim), tree(t, outside)
			for _, delete := range []func() (Pruned, error){
				func() (Pruned, error) { return Prunable(root, Keep{Last: 1}) },
				func() (Pruned, error) { return Prune(root, Keep{Last: 1}) },
				func() (Pruned, error) {
					s, err := Begin(root, 4, Options{})
					if err != nil {
						return Pruned{}, err
					}
					return s.Cleaned, s.Abort()
				},
			} {
				gone, err := delete()
				if now := tree(t, victim); !slices.Equal(now, kept) {
					t.Fatalf("%s in %s: the folder changed from\n%s\nto\n%s", what, where, strings.Join(kept, "\n"), strings.Join(now, "\n"))
				}
				if now := tree(t, outside); !slices.Equal(now, far) {
					t.Fatalf("%s in %s: outside changed from\n%s\nto\n%s", what, where, strings.Join(far, "\n"), strings.Join(now, "\n"))
				}
				begins := len(gone.Deleted) == 0 && where == stepName(1, 0) // Begin does not delete checkpoints
				if err != nil || !begins && (len(gone.Left) != 1 || gone.Left[0].Name != where || strings.ContainsAny(gone.Left[0].String(), "\x1b\n")) {
					t.Errorf("%s in %s: %+v, %v", what, where, gone, err)
				}
				if slices.Contains(gone.Deleted, where) {
					t.Errorf("%s in %s: is reported as deleted", what, where)
				}
			}
			if _, err := os.Lstat(filepath.Join(root, stepName(2, 0))); err == nil {
				t.Errorf("%s in %s: step 2 was not deleted", what, where)
			}
			if path, err := Resolve(root, "latest"); err != nil || path != filepath.Join(root, stepName(3, 0)) {
				t.Errorf("%s in %s: the latest is %s, %v", what, where, path, err)
			}
		}
	}
}

// TestLinkedCheckpoint checks that a checkpoint behind a symbolic link can be read, and that
// neither the link nor its target is ever deleted.
func TestLinkedCheckpoint(t *testing.T) {
	dir := t.TempDir()
	root, far := filepath.Join(dir, "ckpt"), filepath.Join(dir, "other-disk")
	tiny(t, vfs.OS{}, root, 1, nil)
	moved := tiny(t, vfs.OS{}, root, 2, nil)
	must(t, os.Rename(moved, far))
	must(t, os.Symlink(far, moved))
	if path, err := Resolve(root, "latest"); err != nil || path != moved {
		t.Errorf("the latest is %s, %v", path, err)
	}
	if err := loads(bigModel(1, Master), moved); err != nil {
		t.Error(err)
	}
	tiny(t, vfs.OS{}, root, 3, nil)
	list, err := List(root)
	if err != nil || len(list) != 3 || list[2].Seq != 3 {
		t.Errorf("%+v, %v", list, err)
	}
	tmp := filepath.Join(root, tmpPrefix+stepName(9, 0)+"-0123456789abcdef")
	must(t, os.Symlink(far, tmp))
	for range 2 {
		gone, err := Prune(root, Keep{Last: 1})
		if err != nil || len(gone.Left) != 2 || gone.Left[0].Name != filepath.Base(moved) || !strings.Contains(gone.Left[0].String(), "symbolic link") {
			t.Errorf("%+v, %v", gone, err)
		}
	}
	if err := loads(bigModel(1, Master), moved); err != nil {
		t.Errorf("the target of the link: %v", err)
	}
	// A dangling link may have been the newest.
	must(t, os.RemoveAll(far))
	if _, err := Resolve(root, "latest"); err == nil || !strings.Contains(err.Error(), "step-00000002 is damaged and may be the newest: it is a dangling symbolic link") {
		t.Errorf("the latest with a dangling link: %v", err)
	}
	if path := tiny(t, vfs.OS{}, root, 2, nil); path != moved+".1" {
		t.Errorf("step 2 again is %s", path)
	}
}

// TestIntruderInTheMiddle checks that files added to a folder while it is being deleted are kept
// and reported.
func TestIntruderInTheMiddle(t *testing.T) {
	dir := t.TempDir()
	old := tiny(t, vfs.OS{}, dir, 1, nil)
	tiny(t, vfs.OS{}, dir, 2, nil)
	hook := vfstest.Hook{FS: vfs.OS{}, Before: func(o vfstest.Op) error {
		if o.Do == "rename" && o.Name == old {
			return os.WriteFile(filepath.Join(old, "mine"), nil, 0o666)
		}
		return nil
	}}
	if _, err := PruneIn(hook, dir, Keep{Last: 1}); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("pruned: %v", err)
	}
	gone, err := Prune(dir, Keep{Last: 1})
	if err != nil || len(gone.Left) != 1 || !strings.Contains(gone.Left[0].Why, `"mine"`) {
		t.Errorf("pruned again: %+v, %v", gone, err)
	}
	if remaining, _ := filepath.Glob(filepath.Join(dir, trashPrefix+"*", "*")); len(remaining) != 1 || filepath.Base(remaining[0]) != "mine" {
		t.Errorf("remaining: %v", remaining)
	}
}
