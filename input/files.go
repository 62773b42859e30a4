package input

import (
	"errors"
	"io/fs"
)

// Cause is a file error without the operation and path.
func Cause(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}
