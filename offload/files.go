package offload

import (
	"errors"
	"io"
	"os"
)

// Files is the few file operations a Store needs, so that a test can stand
// between it and the disk. All may be called from several goroutines.
type Files interface {
	// Create makes a file that does not exist yet and locks it while it is open.
	Create(name string) (File, error)
	// Claim opens an existing file and locks it; ErrInUse if somebody else has,
	// ErrNoFile if the name is that of something else, such as a link.
	Claim(name string) (File, error)
	// List is the names in a folder.
	List(dir string) ([]string, error)
	Remove(name string) error
	// Space is the bytes that can still be written in a folder; errors.ErrUnsupported
	// where nobody knows.
	Space(dir string) (int64, error)
}

// File is an open file. ReadAt and WriteAt may run at once on ranges that do
// not overlap.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Reserve makes the file n bytes long and takes the space for them.
	Reserve(n int64) error
	// Direct asks that transfers from now on go past the page cache, or again
	// through it; whether they do is the result. Direct transfers must begin at
	// a multiple of 4096 bytes in file and memory and be one long.
	Direct(on bool) bool
	Close() error
}

// ErrInUse means that a file's run is alive.
var ErrInUse = errors.New("in use by a run")

// ErrNoFile means that a name is not that of a file itself.
var ErrNoFile = errors.New("not a file")

// OS is the machine's file system.
type OS struct{}

type osFile struct {
	*os.File
	aio *aio // of direct transfers, where there is such a thing
}

// Create makes and locks a file in two steps. Between them another run may
// take it for a dead run's and remove it: then it is made anew.
func (OS) Create(name string) (File, error) {
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, err
		}
		if err := lock(f); err == nil && still(f, name) {
			return &osFile{File: f}, nil
		} else if err != nil && !errors.Is(err, ErrInUse) {
			return nil, errors.Join(err, f.Close(), os.Remove(name))
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// still says whether the name is that of the open file.
func still(f *os.File, name string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(name)
	return err == nil && os.SameFile(a, b)
}

// Claim implements Files.
func (OS) Claim(name string) (File, error) {
	if st, err := os.Lstat(name); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, ErrNoFile
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &osFile{File: f}, nil
}

// List implements Files.
func (OS) List(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// Remove implements Files.
func (OS) Remove(name string) error { return os.Remove(name) }

// Space implements Files.
func (OS) Space(dir string) (int64, error) { return space(dir) }

// Reserve implements File.
func (f *osFile) Reserve(n int64) error {
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

// Direct implements File.
func (f *osFile) Direct(on bool) bool {
	f.end()
	on = direct(f.File, on)
	if on {
		f.aio = newAIO(f.File)
	}
	return on
}

// ReadAt implements File.
func (f *osFile) ReadAt(b []byte, off int64) (int, error) {
	if f.aio != nil {
		return f.aio.readAt(b, off)
	}
	return f.File.ReadAt(b, off)
}

// WriteAt implements File.
func (f *osFile) WriteAt(b []byte, off int64) (int, error) {
	if f.aio != nil {
		return f.aio.writeAt(b, off)
	}
	return f.File.WriteAt(b, off)
}

// Close implements File.
func (f *osFile) Close() error {
	f.end()
	return f.File.Close()
}

func (f *osFile) end() {
	if f.aio != nil {
		f.aio.close()
		f.aio = nil
	}
}

// Op is a file operation about to happen.
type Op struct {
	Do    string // create, claim, list, remove, space, reserve, read, write
	Name  string
	Off   int64 // of a read or write, bytes
	Bytes int64 // of a read, write or reserve
}

// Hook is a file system that asks Before ahead of every operation; an error
// from it is the operation's result. After, if it is set, sees what a read has
// brought and may change it.
type Hook struct {
	Files
	Before func(Op) error
	After  func(op Op, read []byte)
}

// Create implements Files.
func (h Hook) Create(name string) (File, error) { return h.open("create", name, h.Files.Create) }

// Claim implements Files.
func (h Hook) Claim(name string) (File, error) { return h.open("claim", name, h.Files.Claim) }

func (h Hook) open(do, name string, open func(string) (File, error)) (File, error) {
	if err := h.Before(Op{Do: do, Name: name}); err != nil {
		return nil, err
	}
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	return hookFile{f, h, name}, nil
}

// List implements Files.
func (h Hook) List(dir string) ([]string, error) {
	if err := h.Before(Op{Do: "list", Name: dir}); err != nil {
		return nil, err
	}
	return h.Files.List(dir)
}

// Remove implements Files.
func (h Hook) Remove(name string) error {
	if err := h.Before(Op{Do: "remove", Name: name}); err != nil {
		return err
	}
	return h.Files.Remove(name)
}

// Space implements Files.
func (h Hook) Space(dir string) (int64, error) {
	if err := h.Before(Op{Do: "space", Name: dir}); err != nil {
		return 0, err
	}
	return h.Files.Space(dir)
}

type hookFile struct {
	File
	h    Hook
	name string
}

func (f hookFile) Reserve(n int64) error {
	if err := f.h.Before(Op{Do: "reserve", Name: f.name, Bytes: n}); err != nil {
		return err
	}
	return f.File.Reserve(n)
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
		return 0, err
	}
	return f.File.WriteAt(b, off)
}
