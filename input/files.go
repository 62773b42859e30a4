package input

import (
	"errors"
	"io/fs"
	"os"
)

// Cause is a file error without the operation and paths.
func Cause(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	if e := (*os.LinkError)(nil); errors.As(err, &e) { // of a rename
		return e.Err
	}
	return err
}
