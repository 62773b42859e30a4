//go:build !separate

package job_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/job"
	"zeroth/job/jobtest"
	"zeroth/job/report"
)

// TestModuleOnHost checks that a module in Go trains to the same losses at all stages, and with
// recomputed activations.
func TestModuleOnHost(t *testing.T) {
	jobtest.InFolder(t, tiny)
	jobtest.Write(t, "a.txt", strings.Repeat("to be, or not to be; ", 100))
	var want []float64
	for i, sets := range [][]string{{"zero.stage=0"}, {"zero.stage=1"}, {"zero.stage=2"}, {"zero.stage=3"}, {"zero.stage=3", "zero.recompute=block"}} {
		sets = append(sets, "device=cpu") // modules of the host are the CPU's
		out := fmt.Sprint("run", i)
		if err := job.Run(t.Context(), load("job.yaml", sets...), job.Options{Model: gated(16, 8), Out: out}); err != nil {
			t.Fatal(err)
		}
		steps, _, err := report.ReadMetrics(filepath.Join(out, "metrics.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		var losses []float64
		for _, s := range steps {
			losses = append(losses, s.Loss)
		}
		if want == nil {
			want = losses
		}
		if len(losses) != 3 || !slices.Equal(losses, want) {
			t.Errorf("%v: losses %v, want %v", sets, losses, want)
		}
	}
}
