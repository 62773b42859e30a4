package report

import (
	"math"
	"testing"
)

// Whatever number a step has, its line is JSON and reads back.
func TestMetricsOfAnyNumber(t *testing.T) {
	t.Chdir(t.TempDir())
	m, err := OpenMetrics("m")
	if err != nil {
		t.Fatal(err)
	}
	odd := []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64, math.Copysign(0, -1)}
	for i, x := range odd {
		m.Step(Step{Step: i + 1, Loss: x, LR: x, GradNorm: x, TokensPerSecond: x, StepSeconds: x})
		m.Eval(Eval{i + 1, x})
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	steps, evals, err := ReadMetrics("m")
	if err != nil || len(steps) != len(odd) || len(evals) != len(odd) {
		t.Fatalf("%d steps, %d evaluations, %v", len(steps), len(evals), err)
	}
	for i, x := range odd {
		if finite := !math.IsNaN(x) && !math.IsInf(x, 0); finite != (steps[i].Loss == x) || finite != (evals[i].ValLoss == x) {
			t.Errorf("%v came back as %v and %v", x, steps[i].Loss, evals[i].ValLoss)
		}
	}
}
