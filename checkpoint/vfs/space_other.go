//go:build !linux && !darwin && !freebsd

package vfs

import "errors"

func space(string) (int64, error) { return 0, errors.ErrUnsupported }
