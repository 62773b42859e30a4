//go:build !mpi || !cgo

package mpi

import (
	"errors"

	"zeroth/collective"
)

// Built reports whether this program supports MPI.
const Built = false

// Open returns an error.
func Open([]string) error {
	return errors.New("built without MPI; use CGO_ENABLED=1 go build -tags mpi ./cmd/zeroth")
}

// Version returns "".
func Version() string { return "" }

// Join returns the error of Open.
func Join(rank, size int) error { return Open(nil) }

// Leave does nothing.
func Leave(<-chan struct{}) {}

// Exit does nothing.
func Exit(int) {}

// Net is unused without MPI.
type Net struct{}

// New panics; Join has failed before.
func New(Config) *Net { panic("mpi: not built") }

// Wire panics.
func (*Net) Wire(int, int) collective.Wire { panic("mpi: not built") }

// End does nothing.
func (*Net) End(int) {}

// Close does nothing.
func (*Net) Close() bool { return false }
