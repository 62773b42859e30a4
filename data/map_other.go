//go:build !(linux || darwin || freebsd)

package data

// mapFile reads the file into memory.
func mapFile(f file) (data []byte, unmap func() error, err error) {
	data = make([]byte, f.size)
	return data, func() error { return nil }, readFile(data, f)
}
