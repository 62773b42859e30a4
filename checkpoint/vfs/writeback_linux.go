package vfs

import "golang.org/x/sys/unix"

// writeback is how many bytes must be written at once for the disk to be given
// them at once.
const writeback = 1 << 20

// WriteAt also has the disk begin to write what it was given, so that it works
// while the next bytes are made ready: otherwise Linux keeps a save of less
// than a tenth of memory until Sync, and copying and writing take turns.
// Whether this is possible changes nothing about what is durable when.
func (f osFile) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(b, off)
	if err == nil && n >= writeback {
		_ = unix.SyncFileRange(int(f.Fd()), off, int64(n), unix.SYNC_FILE_RANGE_WRITE)
	}
	return n, err
}
