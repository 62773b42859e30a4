package vfs

import "io"

// Op is an operation about to happen.
type Op struct {
	Do    string // create, open, mkdir, rename, remove, list, stat, lstat, syncdir, lock, space, read, write, sync
	Name  string // of the file or folder; the old name of a rename
	Off   int64  // of a read or write, bytes
	Bytes int    // of a read or write
}

// Changes is whether the operation changes the disk or makes a change durable.
func (o Op) Changes() bool {
	switch o.Do {
	case "open", "list", "stat", "lstat", "lock", "space", "read":
		return false
	}
	return true
}

// Hook is a file system that asks Before ahead of every operation. An error
// from it is the operation's result: nothing happens, except that a write
// leaves its first half, as a full disk does.
type Hook struct {
	FS
	Before func(Op) error
}

func (h Hook) Create(name string) (File, error) {
	return h.file(Op{Do: "create", Name: name}, h.FS.Create)
}

func (h Hook) Open(name string) (File, error) {
	return h.file(Op{Do: "open", Name: name}, h.FS.Open)
}

func (h Hook) file(o Op, open func(string) (File, error)) (File, error) {
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

func (h Hook) List(dir string) ([]Entry, error) {
	if err := h.Before(Op{Do: "list", Name: dir}); err != nil {
		return nil, err
	}
	return h.FS.List(dir)
}

func (h Hook) Stat(name string) (Entry, error) {
	if err := h.Before(Op{Do: "stat", Name: name}); err != nil {
		return Entry{}, err
	}
	return h.FS.Stat(name)
}

func (h Hook) Lstat(name string) (Entry, error) {
	if err := h.Before(Op{Do: "lstat", Name: name}); err != nil {
		return Entry{}, err
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
	File
	h    Hook
	name string
}

func (f hookFile) ReadAt(b []byte, off int64) (int, error) {
	if err := f.h.Before(Op{"read", f.name, off, len(b)}); err != nil {
		return 0, err
	}
	return f.File.ReadAt(b, off)
}

func (f hookFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.h.Before(Op{"write", f.name, off, len(b)}); err != nil {
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
