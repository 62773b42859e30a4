//go:build campaign && linux

package campaign

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// tree holds the contents of a folder by path: the type and the bytes of each file. Links are not
// followed.
type tree map[string]string

// look reads a folder; a missing folder is empty.
func look(root string) tree {
	t := tree{}
	filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // unreadable files count as missing
		}
		t[strings.TrimPrefix(strings.TrimPrefix(name, root), "/")] = what(name, d.Type())
		return nil
	})
	return t
}

func what(name string, mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "folder"
	case mode&fs.ModeSymlink != 0:
		to, _ := os.Readlink(name)
		return "link to " + to
	case !mode.IsRegular():
		return mode.String()
	}
	raw, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d bytes %x", len(raw), sha256.Sum256(raw))
}

// without returns the tree without some subtrees.
func (t tree) without(prefixes ...string) tree {
	out := tree{}
	for name, w := range t {
		if !slices.ContainsFunc(prefixes, func(p string) bool { return name == p || strings.HasPrefix(name, p+"/") }) {
			out[name] = w
		}
	}
	return out
}

// changes lists the differences between two trees.
func (t tree) changes(now tree) (list []string) {
	for name, was := range t {
		switch is, ok := now[name]; {
		case !ok:
			list = append(list, "gone: "+name)
		case is != was:
			list = append(list, fmt.Sprintf("changed: %s, was %s, is %s", name, was, is))
		}
	}
	for name := range now {
		if _, ok := t[name]; !ok {
			list = append(list, "new: "+name)
		}
	}
	slices.Sort(list)
	return list
}

// same fails the trial if a tree has changed.
func (x *trial) same(was, is tree, after string) {
	x.Helper()
	if list := was.changes(is); len(list) > 0 {
		x.Errorf("after %s: %s", after, brief(strings.Join(list, "; ")))
	}
}

// plant fills a folder with files that a user may have next to a run.
func plant(x *trial, folder string) {
	x.Helper()
	x.mkdir(filepath.Join(folder, "deep/er"))
	x.write(filepath.Join(folder, "thesis.txt"), "four years of work\n")
	x.write(filepath.Join(folder, "deep/weights.bin"), strings.Repeat("\x01\x02\x03", 999))
	x.write(filepath.Join(folder, "deep/er/COMMIT"), "not ours\n")
	x.must(os.Symlink("thesis.txt", filepath.Join(folder, "link")))
}

// copyTree copies folders, files and links.
func (x *trial) copyTree(from, to string) {
	x.Helper()
	x.must(os.CopyFS(to, os.DirFS(from)))
}

func (x *trial) mkdir(path string) {
	x.Helper()
	x.must(os.MkdirAll(path, 0o777))
}

func (x *trial) write(path, content string) {
	x.Helper()
	x.must(os.WriteFile(path, []byte(content), 0o666))
}

func (x *trial) read(path string) []byte {
	x.Helper()
	raw, err := os.ReadFile(path)
	x.must(err)
	return raw
}

// mknod creates a special file at a path.
func (x *trial) mknod(path, kind string) {
	x.Helper()
	x.must(os.RemoveAll(path))
	x.mkdir(filepath.Dir(path))
	mode := map[string]uint32{"FIFO": syscall.S_IFIFO, "socket": syscall.S_IFSOCK, "device": syscall.S_IFCHR}[kind]
	err := syscall.Mknod(path, mode|0o666, 1<<8|7) // the device is another /dev/full
	if errors.Is(err, syscall.EPERM) {
		err = syscall.Mkfifo(path, 0o666)
	}
	x.must(err)
}

// specials are the kinds of special files that mknod creates.
var specials = []string{"FIFO", "socket", "device"}

// must ends the trial on an error of the trial itself.
func (x *trial) must(err error) {
	x.Helper()
	if err != nil {
		x.Fatal("the trial itself: ", err)
	}
}

// swept checks that no temporary files are left.
func (x *trial) swept() {
	x.Helper()
	for name := range look(x.dir) {
		if strings.HasPrefix(filepath.Base(name), ".zeroth-tmp-") {
			x.Errorf("left behind: %s", name)
		}
	}
}
