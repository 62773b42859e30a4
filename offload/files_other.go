//go:build !linux

package offload

import (
	"errors"
	"os"
)

func allocate(*os.File, int64) error { return errors.ErrUnsupported }

func direct(*os.File, bool) bool { return false }
