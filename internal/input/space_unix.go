//go:build linux || darwin || freebsd

package input

import "golang.org/x/sys/unix"

// Space returns the bytes that can still be written in a folder, or errors.ErrUnsupported if unknown.
func Space(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}
