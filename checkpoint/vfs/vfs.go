// Package vfs is the file operations of checkpoints and of offloaded state, as
// interfaces, so that a test can stand between them and the disk. OS is the machine's
// file system; vfstest has one in memory and one that fails. FS is what checkpoints
// need; ScratchFS adds files that a process uses alone while it lives.
//
// Reads are ranged: ReadAt reads any part of a file. Two operations are conditional
// commits, which succeed for at most one of several processes that race for a name:
// Create, of a file that must not exist, and Rename of a folder to the name of one
// with contents, which fails. Checkpoints commit by Rename, the last step after all
// in the folder is durable. A store of objects, which has no folders to rename, has
// Create as a write that fails if the object exists.
//
// What an operation promises is what POSIX promises and no more: contents of a
// file survive a power loss after Sync, the names in a folder after SyncDir.
//
// Reading follows symbolic links, deletion never does: Remove takes one name
// away, and there is no operation that deletes a folder with what is in it.
package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"zeroth/input"
)

// FS is a file system. Names are paths as in package path/filepath. All
// methods may be called from several goroutines at once.
type FS interface {
	// Create makes a file that does not exist yet, for writing and reading.
	Create(name string) (File, error)
	// Open opens an existing regular file for reading. Anything else (a pipe, a
	// device, a folder) is refused without waiting for it.
	Open(name string) (File, error)
	// Mkdir makes one folder; its parent must exist.
	Mkdir(name string) error
	// Rename moves a file or folder; a file of the new name is replaced in the
	// same instant, a folder is not.
	Rename(from, to string) error
	// Remove deletes a file, a link (not what it leads to) or an empty folder.
	Remove(name string) error
	// List is a folder's entries, sorted by name. Links in it are Links.
	List(dir string) ([]Entry, error)
	// Stat describes what a name leads to; it follows links.
	Stat(name string) (Entry, error)
	// Lstat describes what has a name, which may be a Link.
	Lstat(name string) (Entry, error)
	// SyncDir makes the names in a folder survive a power loss.
	SyncDir(dir string) error
	// Lock takes an exclusive lock that ends with Close or with the process.
	// It returns ErrLocked at once when another holder has it.
	Lock(name string) (io.Closer, error)
	// Space is the bytes that can still be written in a folder; errors.ErrUnsupported
	// where nobody knows.
	Space(dir string) (int64, error)
}

// File is an open file. ReadAt and WriteAt may run concurrently on ranges that
// do not overlap.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Sync makes the contents survive a power loss, the name not.
	Sync() error
	// Size is the length in bytes.
	Size() (int64, error)
	Close() error
}

// Entry is a name in a folder.
type Entry struct {
	Name  string // without the folder
	Kind  Kind
	Bytes int64 // of a file
}

// Kind is what has a name.
type Kind uint8

// Kinds of entries.
const (
	Regular Kind = iota
	Dir
	Link  // symbolic
	Other // a pipe, a device, a socket
)

var kindNames = [...]string{"a file", "a folder", "a symbolic link", "neither a file nor a folder"}

// String is the kind in words.
func (k Kind) String() string { return kindNames[k] }

// ErrLocked means that another holder has the lock.
var ErrLocked = input.ErrLocked

// MkdirAll makes a folder and those above it that are missing, and syncs the
// parents of those it made.
func MkdirAll(f FS, dir string) error {
	if e, err := f.Stat(dir); err == nil {
		if e.Kind != Dir {
			return &fs.PathError{Op: "mkdir", Path: dir, Err: errors.New("is a file, not a folder")}
		}
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := MkdirAll(f, parent); err != nil {
			return err
		}
	}
	if err := f.Mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return f.SyncDir(parent)
}

// ReadFile is the contents of a file of at most limit bytes.
func ReadFile(f FS, name string, limit int64) ([]byte, error) {
	in, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	n, err := in.Size()
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, fmt.Errorf("%s: %d bytes, at most %d expected", name, n, limit)
	}
	b := make([]byte, n)
	if err := ReadFull(in, b, 0); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// ReadFull fills b from the bytes at off. A file that ends before is
// io.ErrUnexpectedEOF.
func ReadFull(f io.ReaderAt, b []byte, off int64) error {
	n, err := f.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == io.EOF {
		return fmt.Errorf("%d of %d bytes at offset %d: %w", n, len(b), off, io.ErrUnexpectedEOF)
	}
	return err
}

// WriteFile makes a new file with the contents b and syncs it.
func WriteFile(f FS, name string, b []byte) (err error) {
	out, err := f.Create(name)
	if err != nil {
		return err
	}
	defer func() {
		if e := out.Close(); err == nil {
			err = e
		}
	}()
	if _, err := out.WriteAt(b, 0); err != nil {
		return err
	}
	return out.Sync()
}
