// Package nightly selects how much of a long test runs. By default a test that could run hundreds
// of cases runs a few fixed ones; with ZEROTH_NIGHTLY=1, as set by .ci/nightly, it runs all of
// them.
//
// Tests that import it collect garbage only above a heap of 16 MiB, not 4: most of them allocate
// much and retain little, and spent a tenth of their processor time on collections.
package nightly

import (
	"os"
	"os/exec"
	"runtime/debug"
	"testing"
)

func init() { debug.SetGCPercent(400) }

// All reports whether tests run all of their cases.
func All() bool { return os.Getenv("ZEROTH_NIGHTLY") != "" }

// Long skips a test that needs about a fifth of a second of a processor, or waits for seconds, if go
// test has -short.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes long")
	}
}

// Parallel is Long and t.Parallel, for tests that neither measure this process nor change what it shares.
func Parallel(t *testing.T) {
	t.Helper()
	Long(t)
	t.Parallel()
}

// Of returns how many of all cases run: some by default.
func Of(some, all int) int {
	if All() {
		return all
	}
	return some
}

// Needs skips a test on a machine that lacks one of the programs. Go alone must suffice.
func Needs(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip(err)
		}
	}
}

// Every reports whether case i runs: by default one of each n.
func Every(n, i int) bool { return All() || i%n == 0 }
