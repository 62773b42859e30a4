//go:build cuda

package tests

import (
	"os"
	"testing"

	"zeroth/device/cuda/fake"
)

// TestMain runs the tests with a fake GPU, which is the default device of their jobs.
func TestMain(m *testing.M) { os.Exit(fake.Main(m)) }
