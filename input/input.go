// Package input opens the files a user names, and writes files whole or not at all.
// It opens regular files of at most a stated size, and nothing else. A folder, a pipe, a
// device, a file of /proc or one that is too large is refused before anything is read or
// allocated, and without waiting for a writer that a pipe may never have.
package input

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Open opens a regular file of at most limit bytes for reading. Symbolic links
// are followed. Its errors are *fs.PathError: those of the system, or an Err
// that says what the file is and what is wanted.
func Open(path string, limit int64) (*os.File, error) {
	if err := check(path, limit, os.Stat); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may have become a pipe
	if err != nil {
		return nil, err
	}
	err = check(path, limit, func(string) (fs.FileInfo, error) { return f.Stat() })
	if where := kernelMade(f); err == nil && where != "" {
		err = refuse(path, "it is a file of %s, which the kernel makes as it is read, not a regular file", where)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Read is the content of a regular file of at most limit bytes, also where the
// file grows while it is read or does not tell its size.
func Read(path string, limit int64) ([]byte, error) {
	f, err := Open(path, limit)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(raw)) > limit {
		err = large(path, limit)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return raw, nil
}

func check(path string, limit int64, stat func(string) (fs.FileInfo, error)) error {
	info, err := stat(path)
	switch {
	case err != nil:
		return &fs.PathError{Op: "open", Path: path, Err: Cause(err)} // which is what was to be done
	case !info.Mode().IsRegular():
		return refuse(path, "it is %s, not a regular file", kind(info.Mode()))
	case info.Size() > limit:
		return large(path, limit)
	}
	return nil
}

func large(path string, limit int64) error {
	return refuse(path, "it is larger than the %d bytes that are read of such a file", limit)
}

func refuse(path, format string, args ...any) error {
	return &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf(format, args...)}
}

// kind is what a file is that is not a regular one.
func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeSymlink != 0:
		return "a link"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "a file of mode " + m.String()
}
