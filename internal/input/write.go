package input

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// File is an output being written. Its content goes to a temporary file in the same folder,
// which Keep renames: the name never leads to a partial file, and an older file survives
// until then. Call either Keep or Drop.
type File struct {
	f    *os.File
	path string // the final name, also used in errors
}

// Create begins a file that replaces the regular file at path, if there is one. It refuses
// anything else there: links, folders, pipes, sockets, devices. It also removes the
// temporary files of killed processes from the folder.
func Create(path string) (*File, error) {
	if err := Replaceable(path); err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	Sweep(dir)
	f, err := temporary(dir)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: Cause(err)}
	}
	remember(f.Name())
	return &File{f, path}, nil
}

// Replaceable returns an error if path names anything but a regular file.
func Replaceable(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return &fs.PathError{Op: "open", Path: path, Err: Cause(err)}
	case !info.Mode().IsRegular():
		return refuse(path, "it is %s, not a regular file", kind(info.Mode()))
	}
	return nil
}

// OpenOwn opens a regular file as os.OpenFile does. Like Create it follows no link and
// does not block.
func OpenOwn(path string, flags int) (*os.File, error) {
	if err := Replaceable(path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, flags|noFollow|noWait, 0o666)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() { // changed since Replaceable
		err = refuse(path, "it is %s, not a regular file", kind(info.Mode()))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Folder creates a folder and its parents if needed. It refuses a symbolic link.
func Folder(path string) error {
	if err := os.MkdirAll(path, 0o777); err != nil {
		return err
	}
	return OwnFolder(path)
}

// OwnFolder returns an error if path names anything but a folder; a symbolic link is not
// followed.
func OwnFolder(path string) error {
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() {
		return &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("it is %s, not a folder", kind(info.Mode()))}
	}
	return nil
}

// Write implements io.Writer.
func (f *File) Write(b []byte) (int, error) {
	n, err := f.f.Write(b)
	return n, f.named("write", err)
}

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(b []byte, off int64) (int, error) { return f.f.ReadAt(b, off) }

// WriteAt implements io.WriterAt.
func (f *File) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.f.WriteAt(b, off)
	return n, f.named("write", err)
}

// named returns an error of the temporary file under the final name, or nil.
func (f *File) named(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: f.path, Err: Cause(err)}
}

// Keep syncs and closes the completed file and renames it to its final name. If that
// fails, the file is dropped. Syncing first ensures that the file is complete after a loss
// of power. The file stays locked until it is renamed, so that Sweep spares it.
func (f *File) Keep() error { return f.keep(os.Rename) }

// KeepNew is Keep for a file that must not replace another. If path exists by now, the
// error is fs.ErrExist.
func (f *File) KeepNew() error { return f.keep(renameNew) }

func (f *File) keep(rename func(from, to string) error) error {
	err := f.named("sync", f.f.Sync())
	if err == nil && runtime.GOOS == "windows" { // it cannot rename an open file, and Sweep does nothing there
		err = f.named("close", f.f.Close())
	}
	if err == nil {
		err = f.named("rename", rename(f.f.Name(), f.path))
	}
	if err != nil {
		_ = f.Drop() // err is the one to report
		return err
	}
	forget(f.f.Name())
	return f.end()
}

// renameNew renames a file unless the new name is in use. On a file system without hard
// links another process may use the name between check and rename.
func renameNew(from, to string) error {
	err := os.Link(from, to)
	if err == nil {
		return os.Remove(from)
	}
	if _, statErr := os.Lstat(to); statErr == nil || errors.Is(err, fs.ErrExist) {
		return fs.ErrExist
	}
	return os.Rename(from, to)
}

// end closes the file unless it is closed already.
func (f *File) end() error {
	if err := f.f.Close(); !errors.Is(err, os.ErrClosed) {
		return f.named("close", err)
	}
	return nil
}

// Drop closes the file and removes it.
func (f *File) Drop() error {
	defer forget(f.f.Name())
	return errors.Join(f.end(), f.named("remove", os.Remove(f.f.Name())))
}

// Write creates or replaces a file with the output of write.
func Write(path string, write func(io.Writer) error) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	return f.Fill(write)
}

// Fill runs write and keeps its output, or drops the file if write fails.
func (f *File) Fill(write func(io.Writer) error) error {
	if err := write(f); err != nil {
		_ = f.Drop() // err is the one to report
		return err
	}
	return f.Keep()
}

// WriteBytes creates or replaces a file with the given content.
func WriteBytes(path string, content []byte) error {
	return Write(path, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}
