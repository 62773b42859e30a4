package input

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// Write makes a file of what write gives, of which there is never half under its
// name: it grows beside it, under that name with ".tmp" behind it, and an older file
// stays until then, and if anything fails. A symbolic link is followed. What is no
// regular file, such as a pipe or a device, is written to where it is.
func Write(path string, write func(io.Writer) error) error {
	if behind, err := filepath.EvalSymlinks(path); err == nil {
		path = behind
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return fill(path, os.O_WRONLY, write)
	}
	tmp := path + ".tmp"
	err := fill(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, write)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp) // err is the one to report
	}
	return err
}

func fill(path string, flag int, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, flag, 0o666)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// WriteBytes is Write of a content.
func WriteBytes(path string, content []byte) error {
	return Write(path, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}
