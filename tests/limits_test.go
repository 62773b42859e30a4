package tests

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zeroth/job"
)

// docs/limits.md has the limits that the program has.
// go test ./tests -run Limits -update writes them.
func TestLimitsPage(t *testing.T) {
	const page, begin, end = "../docs/limits.md", "<!-- limits -->\n", "<!-- end limits -->\n"
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), begin)
	is, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatal("docs/limits.md has no part for the limits")
	}
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+job.LimitsReference()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(job.LimitsReference(), is); d != "" {
		t.Errorf("limits (-program +page):\n%s", d)
	}
}
