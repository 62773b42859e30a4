package spectest

import (
	"testing"

	"zeroth/internal/setup"
	"zeroth/job/spec"
)

// Fitted returns a small job to search, on two ranks.
func Fitted(t *testing.T, sets ...string) *spec.Job {
	t.Helper()
	base := []string{"model.layers=4", "model.heads=2", "model.width=64", "model.context=64", "model.vocab=300", "train.batch=16", "train.micro_batch=4", "parallel.ranks=4"}
	c, err := setup.ThisMachine(1, 0).Draft("", append(base, sets...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
