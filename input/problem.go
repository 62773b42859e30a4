package input

import (
	"errors"
)

// inputError is an error the user can mend: the program did what it should.
type inputError struct{ error }

func (e inputError) Unwrap() error { return e.error }

// UserInput tells IsInput.
func (e inputError) UserInput() {}

// BadInput marks an error as the user's to mend.
func BadInput(err error) error { return inputError{err} }

// IsInput tells whether what failed is the user's to mend: the job file, the
// data it names, a flag.
func IsInput(err error) bool {
	var in interface{ UserInput() }
	return errors.As(err, &in)
}
