//go:build !linux && !darwin && !freebsd

package input

import "errors"

// Space returns errors.ErrUnsupported.
func Space(string) (int64, error) { return 0, errors.ErrUnsupported }
