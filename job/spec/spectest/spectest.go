package spectest

import (
	"testing"

	"zeroth/internal/setup"
	"zeroth/job/spec"
)

// MustLoad loads job.yaml of the current folder with some keys set; a problem
// ends the test.
func MustLoad(t *testing.T, sets ...string) *spec.Job {
	t.Helper()
	c, err := setup.ThisMachine(1, 0).Load("job.yaml", sets)
	if err != nil {
		t.Fatalf("Load(%q): %v", sets, err)
	}
	return c
}
