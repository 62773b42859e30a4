package input

import (
	"os"
)

// Exists tells whether there is anything at a path, followed if it is a link.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
