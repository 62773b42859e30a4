//go:build !mpi || !cgo

package mpi

import (
	"errors"

	"zeroth/collective"
)

// Built is whether this program can use MPI.
const Built = false

// Open is an error: this program has no MPI in it.
func Open([]string) error {
	return errors.New("this zeroth has no MPI: build it with CGO_ENABLED=1 go build -tags mpi ./cmd/zeroth")
}

// Version is empty.
func Version() string { return "" }

// Join is Open's error.
func Join(rank, size int) error { return Open(nil) }

// Leave does nothing.
func Leave(<-chan struct{}) {}

// Exit does nothing.
func Exit(int) {}

// Net is of programs with MPI alone.
type Net struct{}

// New is never called: Join has failed.
func New(Config) *Net { panic("mpi: not built") }

// Wire is never called.
func (*Net) Wire(int, int) collective.Wire { panic("mpi: not built") }

// End is never called.
func (*Net) End(int) {}

// Close is never called.
func (*Net) Close() bool { return false }
