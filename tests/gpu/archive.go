package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// mostArchive is the maximum size of dumps.tar.gz in bytes, compressed; files that would not fit
// are omitted.
const mostArchive = 14 << 20

// archive adds the files of a folder to a compressed archive and keeps the files already in it.
func archive(path, dir, under string) error {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	if err := keep(w, path); err != nil {
		return err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		if err := errors.Join(w.Flush(), z.Flush()); err != nil {
			return err
		}
		if packed.Len()+len(data) > mostArchive {
			continue
		}
		if err := put(w, under+"/"+f.Name(), data); err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		return err
	}
	return replace(path, packed.String())
}

func put(w *tar.Writer, name string, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o666, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

// keep copies the files of an existing archive, if there is one.
func keep(w *tar.Writer, path string) error {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := io.ReadAll(r)
		if err == nil {
			err = put(w, h.Name, data)
		}
		if err != nil {
			return err
		}
	}
}
