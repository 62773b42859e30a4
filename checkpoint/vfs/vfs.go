// Package vfs defines the file operations of checkpoints and of offloaded state as interfaces,
// so that tests can intercept them. OS is the machine's file system; vfstest has one in memory
// and one that fails. FS is sufficient for checkpoints; ScratchFS adds files that only one
// process uses, while it lives.
//
// ReadAt reads any range of a file. Two operations are conditional commits, which succeed for
// at most one of several processes that race for a name: Create of a file that must not exist,
// and Rename of a folder to the name of a non-empty one, which fails. Checkpoints commit by
// Rename, as the last step after everything in the folder is durable. Package store adds object
// storage, which cannot rename folders.
//
// Operations guarantee only what POSIX does: the content of a file survives a power loss after
// Sync, the names in a folder after SyncDir.
//
// Reading follows symbolic links, deletion never does: Remove removes a single name, and no
// operation deletes a folder with its content.
package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"zeroth/internal/input"
)

// FS is a file system. Names are paths as in package path/filepath. All methods are safe for
// concurrent use.
type FS interface {
	// Create creates a new file for writing and reading. It fails if the file exists.
	Create(name string) (File, error)
	// Open opens an existing regular file for reading. It refuses anything else (a pipe, a
	// device, a folder) without blocking.
	Open(name string) (File, error)
	// Mkdir creates one folder, in an existing parent.
	Mkdir(name string) error
	// Rename moves a file or folder. It atomically replaces a file with the new name, but not
	// a folder.
	Rename(from, to string) error
	// Remove deletes a file, a link (not its target) or an empty folder.
	Remove(name string) error
	// List returns a folder's entries, sorted by name. It does not follow links.
	List(dir string) ([]Entry, error)
	// Stat describes a name, following links.
	Stat(name string) (Entry, error)
	// Lstat describes a name without following links.
	Lstat(name string) (Entry, error)
	// SyncDir makes the names in a folder survive a power loss.
	SyncDir(dir string) error
	// Lock acquires an exclusive lock, released by Close or when the process ends. If someone
	// else holds it, Lock returns ErrLocked without blocking.
	Lock(name string) (io.Closer, error)
	// Space returns the bytes that can still be written in a folder, or errors.ErrUnsupported
	// if unknown.
	Space(dir string) (int64, error)
}

// File is an open file. ReadAt and WriteAt may run concurrently on disjoint ranges.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Sync makes the content survive a power loss, but not the name.
	Sync() error
	// Size returns the length in bytes.
	Size() (int64, error)
	Close() error
}

// Entry is a name in a folder.
type Entry struct {
	Name  string // without the folder
	Kind  Kind
	Bytes int64 // of a file
}

// Kind is the kind of an entry.
type Kind uint8

// Kinds of entries.
const (
	Regular Kind = iota
	Dir
	Link  // symbolic
	Other // a pipe, a device, a socket
)

var kindNames = [...]string{"a file", "a folder", "a symbolic link", "neither a file nor a folder"}

// String describes the kind.
func (k Kind) String() string { return kindNames[k] }

// ErrLocked means that another holder has the lock.
var ErrLocked = input.ErrLocked

// MkdirAll creates a folder and its missing parents, and syncs the parents of the folders it creates.
func MkdirAll(f FS, dir string) error {
	if e, err := f.Stat(dir); err == nil {
		if e.Kind != Dir {
			return &fs.PathError{Op: "mkdir", Path: dir, Err: errors.New("is a file, not a folder")}
		}
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := Parent(dir)
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

// Join is filepath.Join, except that s3://BUCKET stays at the beginning of a name.
func Join(dir string, names ...string) string {
	if rest, ok := strings.CutPrefix(dir, "s3://"); ok {
		return "s3://" + path.Join(append([]string{rest}, names...)...)
	}
	return filepath.Join(append([]string{dir}, names...)...)
}

// Parent is filepath.Dir for names as of Join.
func Parent(name string) string {
	if strings.HasPrefix(name, "s3://") {
		return Join(name, "..")
	}
	return filepath.Dir(name)
}

// ReadFile returns the content of a file of at most limit bytes.
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
		return nil, fmt.Errorf("%s: %d bytes, but at most %d expected", name, n, limit)
	}
	b := make([]byte, n)
	if err := ReadFull(in, b, 0); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// ReadFull reads len(b) bytes at off. If the file ends before, the error is io.ErrUnexpectedEOF.
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

// WriteFile creates a new file with content b and syncs it.
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
