//go:build cuda

package tests

import (
	"os"
	"testing"

	"zeroth/device/cuda/fake"
)

// runOn has the tests run where there is a GPU, a fake one: ranks of jobs that do not
// say otherwise compute on it. They are the short ones: what -short leaves out is more
// worlds, faults and topologies of the same claims, on kernels that take much
// longer emulated.
func runOn(m *testing.M) int {
	os.Args = append(os.Args, "-test.short")
	return fake.Main(m)
}
