package vfs

import (
	"errors"
	"os"

	"zeroth/internal/input"
)

// ScratchFS is a file system with scratch files: large files that one process writes and reads
// while it lives, and that nobody reads afterwards. The lock on such a file shows whether its
// process is alive.
type ScratchFS interface {
	FS
	// CreateLocked creates a new file, accessible only to its owner, and locks it while it is open.
	CreateLocked(name string) (ScratchFile, error)
	// OpenLocked opens an existing file for reading and writing and locks it while it is open.
	// If someone else holds the lock it returns ErrLocked without blocking, and ErrNotFile if
	// the name is not that of a regular file, but for example a link.
	OpenLocked(name string) (ScratchFile, error)
}

// ScratchFile is an open scratch file.
type ScratchFile interface {
	File
	// Reserve sets the length of the file to n bytes and allocates the space.
	Reserve(n int64) error
	// Direct enables or disables bypassing the page cache in later transfers, and returns
	// whether they bypass it. Direct transfers must begin at a multiple of 4096 bytes, in file
	// and memory, and have such a length.
	Direct(on bool) bool
}

// ErrNotFile means that a name is not that of a regular file.
var ErrNotFile = errors.New("not a file")

// CannotLock means that the system or file system does not support file locks.
type CannotLock struct{ Err error }

func (e *CannotLock) Error() string { return e.Err.Error() }

// Unwrap returns the system's error.
func (e *CannotLock) Unwrap() error { return e.Err }

type scratchFile struct {
	osFile
	aio *aio // for direct transfers, if supported
}

// CreateLocked creates and locks a file in two steps. If another process considers it
// abandoned in between and removes it, CreateLocked starts over.
func (OS) CreateLocked(name string) (ScratchFile, error) {
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, err
		}
		locked := lockScratch(f)
		exists, err := input.Still(f, name)
		if locked == nil && exists {
			return &scratchFile{osFile: osFile{f}}, nil
		}
		if locked != nil && !errors.Is(locked, ErrLocked) || err != nil {
			return nil, errors.Join(locked, err, f.Close(), os.Remove(name))
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

func lockScratch(f *os.File) error {
	err := input.Lock(f)
	if err != nil && !errors.Is(err, ErrLocked) {
		return &CannotLock{err}
	}
	return err
}

// OpenLocked implements ScratchFS.
func (OS) OpenLocked(name string) (ScratchFile, error) {
	if st, err := os.Lstat(name); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, ErrNotFile
	}
	f, err := input.OpenOwn(name, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	if err := lockScratch(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &scratchFile{osFile: osFile{f}}, nil
}

// Reserve implements ScratchFile.
func (f *scratchFile) Reserve(n int64) error {
	if err := allocate(f.File, n); !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	zeros := make([]byte, 1<<20)
	for at := int64(0); at < n; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), n-at)], at); err != nil {
			return err
		}
	}
	return nil
}

// Direct implements ScratchFile.
func (f *scratchFile) Direct(on bool) bool {
	f.closeAIO()
	on = direct(f.File, on)
	if on {
		f.aio = newAIO(f.File)
	}
	return on
}

// ReadAt implements File.
func (f *scratchFile) ReadAt(b []byte, off int64) (int, error) {
	if f.aio != nil {
		return f.aio.readAt(b, off)
	}
	return f.File.ReadAt(b, off)
}

// WriteAt implements File.
func (f *scratchFile) WriteAt(b []byte, off int64) (int, error) {
	if f.aio != nil {
		return f.aio.writeAt(b, off)
	}
	return f.File.WriteAt(b, off)
}

// Close implements File.
func (f *scratchFile) Close() error {
	f.closeAIO()
	return f.File.Close()
}

func (f *scratchFile) closeAIO() {
	if f.aio != nil {
		f.aio.close()
		f.aio = nil
	}
}
