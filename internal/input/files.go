package input

import (
	"errors"
	"io/fs"
	"os"
)

// Cause returns the reason of a file error, without the operation and the paths.
func Cause(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	if e := (*os.LinkError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}
