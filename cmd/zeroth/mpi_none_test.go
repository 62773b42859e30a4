//go:build unix && (!mpi || !cgo)

package main

import (
	"strings"
	"testing"
)

// TestMPIIsNotBuilt checks that a binary built without the mpi tag refuses a job over MPI and
// gives the build command.
func TestMPIIsNotBuilt(t *testing.T) {
	inFolder(t)
	_, errs := process(t, 2, "launch", "-n", "2", "--", "train", "tiny.yaml", "--set", "parallel.ranks=2", "--set", "parallel.transport=mpi")
	for _, want := range []string{"parallel.transport", "this binary was built without MPI", "go build -tags mpi ./cmd/zeroth"} {
		if !strings.Contains(errs, want) {
			t.Errorf("%s\nwant: %s", errs, want)
		}
	}
}
