// Package vfstest provides a vfs.FS in memory and one that injects faults, for tests.
//
// Mem logs every operation that changes it, and can build from the log every state that a
// power loss could leave. Hook wraps a file system and fails, delays or counts its operations.
package vfstest

import (
	"errors"
	"io"

	"zeroth/checkpoint/vfs"
)

// Op is an operation about to be executed.
type Op struct {
	Do    string // create, open, mkdir, rename, remove, list, stat, lstat, syncdir, lock, space, read, write, sync, createlocked, openlocked, reserve
	Name  string // of the file or folder; the old name in a rename
	Off   int64  // byte offset of a read or write
	Bytes int64  // size of a read, write or reserve
}

// Changes reports whether the operation changes the disk or makes a change durable.
func (o Op) Changes() bool {
	switch o.Do {
	case "open", "list", "stat", "lstat", "lock", "space", "read", "openlocked":
		return false
	}
	return true
}

// Hook is a file system that calls Before ahead of every operation. An error from Before
// becomes the result of the operation, which is then not executed, except that a write writes
// its first half, as on a full disk. After, if set, receives the bytes of a read and may
// change them.
//
// A Hook supports scratch files if its FS is a vfs.ScratchFS.
type Hook struct {
	vfs.FS
	Before func(Op) error
	After  func(op Op, read []byte)
}

func (h Hook) Create(name string) (vfs.File, error) {
	return h.file(Op{Do: "create", Name: name}, h.FS.Create)
}

func (h Hook) Open(name string) (vfs.File, error) {
	return h.file(Op{Do: "open", Name: name}, h.FS.Open)
}

func (h Hook) file(o Op, open func(string) (vfs.File, error)) (vfs.File, error) {
	if err := h.Before(o); err != nil {
		return nil, err
	}
	f, err := open(o.Name)
	if err != nil {
		return nil, err
	}
	return hookFile{f, h, o.Name}, nil
}

func (h Hook) Mkdir(name string) error {
	if err := h.Before(Op{Do: "mkdir", Name: name}); err != nil {
		return err
	}
	return h.FS.Mkdir(name)
}

func (h Hook) Rename(from, to string) error {
	if err := h.Before(Op{Do: "rename", Name: from}); err != nil {
		return err
	}
	return h.FS.Rename(from, to)
}

func (h Hook) Remove(name string) error {
	if err := h.Before(Op{Do: "remove", Name: name}); err != nil {
		return err
	}
	return h.FS.Remove(name)
}

func (h Hook) List(dir string) ([]vfs.Entry, error) {
	if err := h.Before(Op{Do: "list", Name: dir}); err != nil {
		return nil, err
	}
	return h.FS.List(dir)
}

func (h Hook) Stat(name string) (vfs.Entry, error) {
	if err := h.Before(Op{Do: "stat", Name: name}); err != nil {
		return vfs.Entry{}, err
	}
	return h.FS.Stat(name)
}

func (h Hook) Lstat(name string) (vfs.Entry, error) {
	if err := h.Before(Op{Do: "lstat", Name: name}); err != nil {
		return vfs.Entry{}, err
	}
	return h.FS.Lstat(name)
}

func (h Hook) SyncDir(dir string) error {
	if err := h.Before(Op{Do: "syncdir", Name: dir}); err != nil {
		return err
	}
	return h.FS.SyncDir(dir)
}

func (h Hook) Lock(name string) (io.Closer, error) {
	if err := h.Before(Op{Do: "lock", Name: name}); err != nil {
		return nil, err
	}
	return h.FS.Lock(name)
}

func (h Hook) Space(dir string) (int64, error) {
	if err := h.Before(Op{Do: "space", Name: dir}); err != nil {
		return 0, err
	}
	return h.FS.Space(dir)
}

type hookFile struct {
	vfs.File
	h    Hook
	name string
}

func (f hookFile) ReadAt(b []byte, off int64) (int, error) {
	op := Op{"read", f.name, off, int64(len(b))}
	if err := f.h.Before(op); err != nil {
		return 0, err
	}
	n, err := f.File.ReadAt(b, off)
	if f.h.After != nil {
		f.h.After(op, b[:n])
	}
	return n, err
}

func (f hookFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.h.Before(Op{"write", f.name, off, int64(len(b))}); err != nil {
		n, _ := f.File.WriteAt(b[:len(b)/2], off)
		return n, err
	}
	return f.File.WriteAt(b, off)
}

func (f hookFile) Sync() error {
	if err := f.h.Before(Op{Do: "sync", Name: f.name}); err != nil {
		return err
	}
	return f.File.Sync()
}

func (h Hook) CreateLocked(name string) (vfs.ScratchFile, error) {
	return h.scratch(Op{Do: "createlocked", Name: name}, vfs.ScratchFS.CreateLocked)
}

func (h Hook) OpenLocked(name string) (vfs.ScratchFile, error) {
	return h.scratch(Op{Do: "openlocked", Name: name}, vfs.ScratchFS.OpenLocked)
}

func (h Hook) scratch(o Op, open func(vfs.ScratchFS, string) (vfs.ScratchFile, error)) (vfs.ScratchFile, error) {
	if err := h.Before(o); err != nil {
		return nil, err
	}
	fsys, ok := h.FS.(vfs.ScratchFS)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	f, err := open(fsys, o.Name)
	if err != nil {
		return nil, err
	}
	return hookScratch{hookFile{f, h, o.Name}, f}, nil
}

type hookScratch struct {
	hookFile
	scratch vfs.ScratchFile
}

func (f hookScratch) Reserve(n int64) error {
	if err := f.h.Before(Op{Do: "reserve", Name: f.name, Bytes: n}); err != nil {
		return err
	}
	return f.scratch.Reserve(n)
}

func (f hookScratch) Direct(on bool) bool { return f.scratch.Direct(on) }
