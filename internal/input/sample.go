package input

import (
	"os"
)

// Exists reports whether there is anything at a path, following links.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
