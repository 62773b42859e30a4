package report

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"zeroth/tests/nightly"
)

// TestDamagedLinesAreCheap checks that unreadable lines, of which there may be very many, use
// little memory: the first is named and the others are counted. All readable lines are returned.
func TestDamagedLinesAreCheap(t *testing.T) {
	nightly.Long(t)
	t.Chdir(t.TempDir())
	good := `{"step":1,"loss":2,"lr":1e-3,"grad_norm":1,"tokens":1,"tokens_per_second":1,"step_seconds":1,"skipped":0}` + "\n"
	for _, line := range []string{"\n", "x\n", "{\n", "{}\n", " {x}\n"} {
		lost := 1 << 20 / len(line)
		if err := os.WriteFile("m", append(bytes.Repeat([]byte(line), lost), good...), 0o600); err != nil {
			t.Fatal(err)
		}
		allocated := testing.AllocsPerRun(1, func() {
			l, err := ReadLog("m")
			if err != nil || len(l.Steps) != 1 || l.Lost != lost || !strings.Contains(l.Damage.Error(), "m:1: ") {
				t.Fatalf("%q: %+v, %v", line, l, err)
			}
		})
		if allocated > 1000 {
			t.Errorf("%q: %v allocations for %d lines", line, allocated, lost)
		}
	}
}
