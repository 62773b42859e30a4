//go:build cuda

package tests

import (
	"os"
	"testing"

	"zeroth/device/cuda/fake"
)

// TestMain runs the tests where there is a GPU, a fake one: ranks of jobs that do not say otherwise
// compute on it.
func TestMain(m *testing.M) { os.Exit(fake.Main(m)) }
