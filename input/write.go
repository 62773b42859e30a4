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

// File is an output that is being written. Its content grows in a temporary file in the
// same folder and takes its name in Keep, so there is never half a file under that name,
// and an older file stays until then. Either Keep or Drop ends it.
type File struct {
	f    *os.File
	path string // the name it will have; errors have it, too
}

// Create begins a file that replaces what is at the path: a regular file, or nothing.
// It refuses everything else at once: links, folders, pipes, sockets, devices.
// It also removes what killed processes have left in the folder.
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

// Replaceable returns an error unless there is a regular file at a path, or nothing.
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

// OpenOwn opens a regular file as os.OpenFile does, with these flags. Like Create it
// follows no link and waits for nothing.
func OpenOwn(path string, flags int) (*os.File, error) {
	if err := Replaceable(path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, flags|noFollow|noWait, 0o644)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() { // it has changed since
		err = refuse(path, "it is %s, not a regular file", kind(info.Mode()))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Folder creates a folder, if need be with those above it, and refuses one that is a
// symbolic link.
func Folder(path string) error {
	if err := os.MkdirAll(path, 0o777); err != nil {
		return err
	}
	return OwnFolder(path)
}

// OwnFolder returns an error unless there is a folder at a path, which is no symbolic
// link, or nothing.
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

// WriteAt implements io.WriterAt.
func (f *File) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.f.WriteAt(b, off)
	return n, f.named("write", err)
}

// named is an error of the temporary file, or nil, under the file's own name.
func (f *File) named(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: f.path, Err: Cause(err)}
}

// Keep closes the file, which is whole, and gives it its name. If that fails, the file is
// dropped. Its content is on the disk before its name is, so that after a loss of power
// it is not empty. Until it has its name it stays locked, and Sweep leaves it alone.
func (f *File) Keep() error { return f.keep(os.Rename) }

// KeepNew is Keep for a file that replaces nothing. If there is something at the path by
// now, it stays, and the error is fs.ErrExist.
func (f *File) KeepNew() error { return f.keep(renameNew) }

func (f *File) keep(rename func(from, to string) error) error {
	err := f.named("sync", f.f.Sync())
	if err == nil && runtime.GOOS == "windows" { // it renames no open file, and has no Sweep
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

// renameNew renames a file to a name that nothing has. A file system without hard links
// leaves a moment in which another process may take the name.
func renameNew(from, to string) error {
	err := os.Link(from, to)
	if err == nil {
		return os.Remove(from)
	}
	if _, there := os.Lstat(to); there == nil || errors.Is(err, fs.ErrExist) {
		return fs.ErrExist
	}
	return os.Rename(from, to)
}

// end closes the file unless it is closed.
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

// Write creates a file with what write writes to it, as Create does.
func Write(path string, write func(io.Writer) error) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	return f.Fill(write)
}

// Fill keeps what write writes, or drops the file.
func (f *File) Fill(write func(io.Writer) error) error {
	if err := write(f); err != nil {
		_ = f.Drop() // err is the one to report
		return err
	}
	return f.Keep()
}

// WriteBytes is Write of a content.
func WriteBytes(path string, content []byte) error {
	return Write(path, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}
