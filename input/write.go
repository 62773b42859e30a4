package input

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// File is a file that is being written, of which there is never half under its name: it
// grows beside it, under that name with ".tmp" behind it, and an older file stays until
// Keep. A symbolic link is followed. What is no regular file, such as a pipe or a device,
// is written to where it is. Either Keep or Drop ends it.
type File struct {
	*os.File
	path string // that it is to have; empty: it has it
}

// Create begins a file.
func Create(path string) (*File, error) {
	if behind, err := filepath.EvalSymlinks(path); err == nil {
		path = behind
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		return &File{File: f}, err
	}
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	return &File{f, path}, err
}

// Keep closes the file, which is whole, and gives it its name. Where that fails it is
// dropped. Its content is on the disk before its name is, so that after a loss of power
// it is not empty.
func (f *File) Keep() error {
	if f.path == "" {
		return f.Close()
	}
	err := errors.Join(f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), f.path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // err is the one to report
	}
	return err
}

// Drop closes the file and takes it away.
func (f *File) Drop() error {
	err := f.Close()
	if f.path != "" {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// Write makes a file of what write gives, as Create has it.
func Write(path string, write func(io.Writer) error) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	return f.Fill(write)
}

// Fill keeps what write gives, or drops the file.
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
