package job

import (
	"strings"
	"testing"

	"zeroth/input"
	"zeroth/job/config/configtest"
	"zeroth/job/testjob"
)

// A job whose matrices are divided is not begun.
func TestDividedMatricesAreRefused(t *testing.T) {
	testjob.InTinyFolder(t)
	c := configtest.MustLoad(t, "model.heads=2", "parallel.tensor=2", "parallel.ranks=2")
	err := Run(t.Context(), c, Options{Out: "out", Observer: &heard{}})
	if err == nil || !input.IsInput(err) || !strings.Contains(err.Error(), "parallel.tensor: checkpoints cannot hold parts of matrices yet") {
		t.Error(err)
	}
}
