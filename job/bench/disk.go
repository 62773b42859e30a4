package bench

import (
	"errors"
	"io"
	"os"

	"zeroth/device"
)

const (
	diskBytes = 256 << 20
	diskBlock = 8 << 20
)

// disk measures writing a file to the disk and reading it back, from the disk if the system
// can drop its cache.
func (b *bench) disk() (err error) {
	f, err := os.CreateTemp(b.Dir, "zeroth-bench-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	floats := device.OfF32(make([]float32, diskBlock/4))
	fillNoise(floats.F32())
	block := floats.Raw()
	err = b.line("disk", "write and fsync", diskBytes, "", func() error {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		for range diskBytes / diskBlock {
			if _, err := f.Write(block); err != nil {
				return err
			}
		}
		return f.Sync()
	})
	if err != nil {
		return err
	}
	name := "read, cached"
	if forget(f) {
		name = "read"
	}
	return b.line("disk", name, diskBytes, "", func() error {
		forget(f)
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		for range diskBytes / diskBlock {
			if _, err := io.ReadFull(f, block); err != nil {
				return err
			}
		}
		return nil
	})
}
