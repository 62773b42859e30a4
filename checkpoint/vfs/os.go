package vfs

import "os"

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

func (OS) Open(name string) (File, error) { return wrap(os.Open(name)) }
func (OS) Mkdir(name string) error        { return os.Mkdir(name, 0o755) }
func (OS) Rename(from, to string) error   { return os.Rename(from, to) }
func (OS) Remove(name string) error       { return os.Remove(name) }

func (OS) Stat(name string) (Entry, error) {
	st, err := os.Stat(name)
	if err != nil {
		return Entry{}, err
	}
	return Entry{st.Name(), st.IsDir(), st.Size()}, nil
}

func (OS) List(dir string) ([]Entry, error) {
	in, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := make([]Entry, 0, len(in))
	for _, d := range in {
		st, err := d.Info()
		if os.IsNotExist(err) {
			continue // removed since it was listed
		}
		if err != nil {
			return nil, err
		}
		out = append(out, Entry{d.Name(), d.IsDir(), st.Size()})
	}
	return out, nil
}

// Space implements FS.
func (OS) Space(dir string) (int64, error) { return space(dir) }

func (OS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
