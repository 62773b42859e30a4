//go:build unix

package main

import (
	"fmt"
	"regexp"
	"testing"

	"zeroth/tests/nightly"
)

// TestStuckRankIsNamedByAll checks that every other process names a stuck rank with its host and
// its last operation, even those that only wait for a rank that waits for it.
func TestStuckRankIsNamedByAll(t *testing.T) {
	nightly.Long(t)
	s := inShell(t)
	const victim = 3
	for _, at := range []int{40, 43}[:nightly.Of(1, 2)] {
		args := append(append([]string{"launch", "-n", "4", "--"}, steady(endless, fmt.Sprint("r", at))...),
			"--set", "parallel={ranks: 4, shard: 2, replicate: 2, timeout: 5s}", "--set", "checkpoint.every=2")
		_, errs := s.with(fmt.Sprint("ZEROTH_FAULT=", victim, " stuck ", at)).process(75, args...)
		named := map[string]bool{}
		for _, m := range regexp.MustCompile(`(?m)^(?:\[(\d)\] )?zeroth: .*root cause: rank 3 \(".*"\) has not reached operation \d+ of (?:world|shard|replica) \(.*\), in which ranks? \d.* waits?: its last was operation \d+ of \w+ \(.*\), \w+ .* ago`).FindAllStringSubmatch(errs, -1) {
			named[m[1]] = true
		}
		if !named[""] || !named["1"] || !named["2"] {
			t.Errorf("stuck at %d: only processes %v name the rank and its host:\n%s", at, named, errs)
		}
	}
}
