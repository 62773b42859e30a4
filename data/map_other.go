//go:build !(linux || darwin || freebsd)

package data

// identity identifies a file by its name.
func identity(f file) any { return f.path }

// mapFile reads the file into memory.
func mapFile(f file) (data []byte, unmap func() error, err error) {
	data = make([]byte, f.size)
	return data, func() error { return nil }, readFile(data, f)
}
