//go:build unix && (!mpi || !cgo)

package main

import (
	"strings"
	"testing"
)

// Without the tag a job over MPI is refused, with what to build.
func TestMPIIsNotBuilt(t *testing.T) {
	inFolder(t)
	_, errs := process(t, 2, "launch", "-n", "2", "--", "train", "tiny.yaml", "--set", "parallel.ranks=2", "--set", "parallel.transport=mpi")
	for _, want := range []string{"parallel.transport", "this binary was built without MPI", "go build -tags mpi ./cmd/zeroth"} {
		if !strings.Contains(errs, want) {
			t.Errorf("%s\nwant: %s", errs, want)
		}
	}
}
