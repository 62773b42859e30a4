//go:build cuda

package tests

import (
	"testing"

	"zeroth/device/cuda/fake"
)

// runOn has the tests run where there is a GPU, a fake one: ranks of jobs that do not
// say otherwise compute on it.
func runOn(m *testing.M) int { return fake.Main(m) }
