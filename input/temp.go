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

// ErrLocked means that another process, or another open file, holds the lock.
var ErrLocked = errors.New("locked by another process")

// tempPrefix and a random text are the name of a file that is not yet whole.
const tempPrefix = ".zeroth-tmp-"

// IsTemp reports whether a name, without its folder, is that of a temporary file.
func IsTemp(name string) bool {
	nonce, ok := strings.CutPrefix(name, tempPrefix)
	return ok && len(nonce) == 26 && strings.Trim(nonce, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// temporary creates a file with a name that nobody can foresee, and locks it, so that
// Sweep of another process leaves it alone. A Sweep that runs between the two steps may
// remove it; then the next one is created.
func temporary(dir string) (*os.File, error) {
	for {
		name := filepath.Join(dir, tempPrefix+rand.Text())
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|noFollow, 0o666)
		if err != nil {
			return nil, err
		}
		swept := errors.Is(Lock(f), ErrLocked) // a system without locks sweeps nothing
		there, err := Still(f, name)
		if there && !swept {
			return f, nil
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
}

// Sweep removes the temporary files that dead processes have left in a folder. Files
// that are being written, and everything that cannot be removed, stay.
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
			if there, _ := Still(f, name); there { // it was not completed meanwhile
				_ = os.Remove(name)
			}
		}
		_ = f.Close() // it was not written to
	}
}

// Still reports whether a name is that of an open file, and no link to it.
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

// open are the files and folders that Abandon removes.
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

// RemoveTemp removes a folder of TempDir and everything in it.
func RemoveTemp(dir string) error {
	defer forget(dir)
	return os.RemoveAll(dir)
}

// Abandon removes the temporary files and folders of this process, which is about to
// exit without finishing them.
func Abandon() {
	open.Lock() // for good: none is created or completed after this
	for path := range open.paths {
		_ = os.RemoveAll(path) // the process is asked to end, not to complain
	}
}
