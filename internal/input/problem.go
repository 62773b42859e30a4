package input

import (
	"errors"
)

// inputError marks an error as the user's to correct.
type inputError struct{ error }

func (e inputError) Unwrap() error { return e.error }

// UserInput marks the error for IsInput.
func (e inputError) UserInput() {}

// BadInput marks an error as one the user can correct.
func BadInput(err error) error { return inputError{err} }

// IsInput reports whether the user can correct an error: in the job file, the data it
// names, or a flag.
func IsInput(err error) bool {
	var in interface{ UserInput() }
	return errors.As(err, &in)
}
