// Command carry packs and unpacks what tests/gpu runs on a machine with a GPU: the machine may have
// no zstd, so this program is carried with the archive.
//
//	carry pack FOLDER >FILE    writes the folder's files as one archive
//	carry unpack FOLDER <FILE  writes the archive's files into a new folder
//
// The archive is a tar file compressed with zstd as a whole, because the programs have most of their
// code in common.
package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

func main() {
	err := errors.New("usage: carry pack FOLDER >FILE, carry unpack FOLDER <FILE")
	if len(os.Args) == 3 && os.Args[1] == "pack" {
		err = pack(os.Stdout, os.Args[2])
	} else if len(os.Args) == 3 && os.Args[1] == "unpack" {
		err = unpack(os.Args[2], os.Stdin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "carry:", err)
		os.Exit(1)
	}
}

// window is the distance in bytes within which equal code is found: at least all programs together.
const window = 256 << 20

func pack(to io.Writer, dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	z, err := zstd.NewWriter(to, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	w := tar.NewWriter(z)
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err == nil {
			err = w.WriteHeader(&tar.Header{Name: f.Name(), Mode: 0o700, Size: int64(len(data))})
		}
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), z.Close())
}

func unpack(dir string, from io.Reader) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	z, err := zstd.NewReader(from, zstd.WithDecoderMaxWindow(window))
	if err != nil {
		return err
	}
	defer z.Close()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		w, err := os.OpenFile(filepath.Join(dir, filepath.Base(h.Name)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, r)
		if err := errors.Join(err, w.Close()); err != nil {
			return err
		}
	}
}
