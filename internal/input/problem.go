package input

import (
	"errors"
	"fmt"
)

// inputError marks an error as the user's to correct.
type inputError struct{ error }

func (e inputError) Unwrap() error { return e.error }

// UserInput marks the error for IsInput.
func (e inputError) UserInput() {}

// BadInput marks an error as one the user can correct. It returns nil for nil.
func BadInput(err error) error {
	if err == nil {
		return nil
	}
	return inputError{err}
}

// Problems collects errors that the user can correct, to report them at once. nil errors are none.
type Problems []error

// If adds an error if bad is set.
func (p *Problems) If(bad bool, format string, args ...any) {
	if bad {
		*p = append(*p, fmt.Errorf(format, args...))
	}
}

// Err returns all errors as one, or nil.
func (p Problems) Err() error { return BadInput(errors.Join(p...)) }

// IsInput reports whether the user can correct an error: in the job file, the data it
// names, or a flag.
func IsInput(err error) bool {
	var in interface{ UserInput() }
	return errors.As(err, &in)
}
