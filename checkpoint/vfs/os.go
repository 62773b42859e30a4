package vfs

import (
	"io/fs"
	"math"
	"os"

	"zeroth/internal/input"
)

// OS is the machine's file system.
type OS struct{}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func wrap(f *os.File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (OS) Create(name string) (File, error) {
	return wrap(os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644))
}

func (OS) Open(name string) (File, error) { return wrap(input.Open(name, math.MaxInt64)) }
func (OS) Mkdir(name string) error        { return os.Mkdir(name, 0o755) }
func (OS) Rename(from, to string) error   { return os.Rename(from, to) }
func (OS) Remove(name string) error       { return os.Remove(name) }

func (OS) Stat(name string) (Entry, error)  { return describe(os.Stat(name)) }
func (OS) Lstat(name string) (Entry, error) { return describe(os.Lstat(name)) }

func describe(st fs.FileInfo, err error) (Entry, error) {
	if err != nil {
		return Entry{}, err
	}
	e := Entry{st.Name(), Other, st.Size()}
	switch m := st.Mode(); {
	case m.IsRegular():
		e.Kind = Regular
	case m.IsDir():
		e.Kind = Dir
	case m&fs.ModeSymlink != 0:
		e.Kind = Link
	}
	return e, nil
}

func (OS) List(dir string) ([]Entry, error) {
	in, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := make([]Entry, 0, len(in))
	for _, d := range in {
		e, err := describe(d.Info())
		if os.IsNotExist(err) {
			continue // removed after it was listed
		}
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// Space implements FS.
func (OS) Space(dir string) (int64, error) { return input.Space(dir) }

func (OS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
