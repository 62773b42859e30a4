//go:build !unix

package jobtest

import "testing"

// Pipe leaves the test out: pipes have no names in folders here.
func Pipe(t *testing.T, _ string) {
	t.Helper()
	t.Skip("named pipes are not supported here")
}
