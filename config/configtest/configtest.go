package configtest

import (
	"testing"

	"zeroth/config"
	"zeroth/job/setup"
)

// MustLoad loads job.yaml of the current folder with some keys set; a problem
// ends the test.
func MustLoad(t *testing.T, sets ...string) *config.Config {
	t.Helper()
	c, err := setup.ThisMachine(1, 0).Load("job.yaml", sets)
	if err != nil {
		t.Fatalf("Load(%q): %v", sets, err)
	}
	return c
}
