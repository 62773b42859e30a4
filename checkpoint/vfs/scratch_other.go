//go:build !linux

package vfs

import (
	"errors"
	"os"
)

func allocate(*os.File, int64) error { return errors.ErrUnsupported }

func direct(*os.File, bool) bool { return false }

// aio is only supported on Linux.
type aio struct{}

func newAIO(*os.File) *aio { return nil }

func (*aio) readAt([]byte, int64) (int, error)  { panic("vfs: no aio") }
func (*aio) writeAt([]byte, int64) (int, error) { panic("vfs: no aio") }
func (*aio) close()                             {}
