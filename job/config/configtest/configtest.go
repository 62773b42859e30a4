package configtest

import (
	"testing"

	"zeroth/job/config"
)

func MustLoad(t *testing.T, sets ...string) *config.Config {
	t.Helper()
	c, err := config.Load("job.yaml", sets)
	if err != nil {
		t.Fatalf("Load(%q): %v", sets, err)
	}
	return c
}
