package input

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// ErrLocked means that another process, or another open file, holds a lock.
var ErrLocked = errors.New("locked by another process")

// tempPrefix begins the name of a temporary file; 26 random characters follow.
const tempPrefix = ".zeroth-tmp-"

// IsTemp reports whether name, without its folder, is that of a temporary file.
func IsTemp(name string) bool {
	nonce, ok := strings.CutPrefix(name, tempPrefix)
	return ok && len(nonce) == 26 && strings.Trim(nonce, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// temporary creates a file with an unpredictable name and locks it, so that a Sweep by
// another process spares it. A Sweep between these two steps may remove the file; then
// another one is created.
func temporary(dir string) (*os.File, error) {
	for {
		name := filepath.Join(dir, tempPrefix+rand.Text())
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|noFollow, 0o666)
		if err != nil {
			return nil, err
		}
		swept := errors.Is(Lock(f), ErrLocked) // without locks Sweep does nothing
		exists, err := Still(f, name)
		if exists && !swept {
			return f, nil
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
}

// Sweep removes the temporary files of dead processes from a folder. It skips files that
// are being written or cannot be removed.
func Sweep(dir string) {
	names, _ := os.ReadDir(dir)
	for _, e := range names {
		if !IsTemp(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		name := filepath.Join(dir, e.Name())
		f, err := OpenOwn(name, os.O_RDONLY)
		if err != nil {
			continue
		}
		if Lock(f) == nil {
			if exists, _ := Still(f, name); exists { // not renamed meanwhile
				_ = os.Remove(name)
			}
		}
		_ = f.Close() // never written to
	}
}

// Still reports whether name still names the open file f, and not a link to it.
func Still(f *os.File, name string) (bool, error) {
	a, err := f.Stat()
	if err != nil {
		return false, err
	}
	b, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(a, b), err
}

// open lists the files and folders that Abandon removes.
var open struct {
	sync.Mutex
	paths map[string]bool
}

func remember(path string) {
	open.Lock()
	defer open.Unlock()
	if open.paths == nil {
		open.paths = map[string]bool{}
	}
	open.paths[path] = true
}

func forget(path string) {
	open.Lock()
	defer open.Unlock()
	delete(open.paths, path)
}

// TempDir creates a temporary folder, as os.MkdirTemp does. Remove it with RemoveTemp.
func TempDir(pattern string) (string, error) {
	dir, err := os.MkdirTemp("", pattern)
	if err == nil {
		remember(dir)
	}
	return dir, err
}

// RemoveTemp removes a folder created by TempDir, with its content.
func RemoveTemp(dir string) error {
	defer forget(dir)
	return os.RemoveAll(dir)
}

// Abandon removes the temporary files and folders of this process, which is about to exit.
func Abandon() {
	open.Lock() // never unlocked: no file is created or completed from now on
	for path := range open.paths {
		_ = os.RemoveAll(path) // the process is exiting
	}
}
