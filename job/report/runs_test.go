package report

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func drawRuns(t *testing.T, runs ...Run) string {
	t.Helper()
	var b strings.Builder
	if err := WriteRunsSVG(&b, runs); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(b.String()))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return b.String()
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestRunsSVG checks that one run is drawn like its loss.svg, and that several are drawn in four
// plots with a color for each.
func TestRunsSVG(t *testing.T) {
	steps, evals := falling(2000)
	for i := range steps {
		steps[i].LR, steps[i].GradNorm, steps[i].TokensPerSecond = 1e-3, 2, 5000
	}
	a, b := Run{"run<1>", steps, evals}, Run{"run2", steps[:100], nil}
	one := drawRuns(t, a)
	for _, want := range []string{">Training and validation loss of run&lt;1&gt;<", ">validation<", ">training, mean of 99 steps<", ">Gradient norm<", ">Learning rate<", ">Speed<", "means of up to 5 steps"} {
		if !strings.Contains(one, want) {
			t.Errorf("no %s in the drawing of a run", want)
		}
	}
	two := drawRuns(t, a, b)
	for want, n := range map[string]int{">run&lt;1&gt;</text>": 4, ">run2</text>": 4, runColors[1].Light: 2, runColors[1].Dark: 2, "stroke-dasharray": 1} {
		if got := strings.Count(two, want); got != n {
			t.Errorf("%s is %d times in the drawing of two runs, want %d", want, got, n)
		}
	}
	nan := math.NaN()
	if bad := drawRuns(t, Run{"none", []Step{{Step: 1, Loss: nan, LR: nan, GradNorm: nan, TokensPerSecond: nan}}, []Eval{{Step: 1, ValLoss: nan}}}); strings.Contains(bad, "NaN") {
		t.Error("NaN in a drawing")
	}
	want := "run     steps  last loss  lowest validation loss  median tokens/s\n" +
		"run<1>  2,000     1.8166    1.9000 at step 2,000             5.0k\n" +
		"run2      100     2.5386                       -             5.0k\n"
	if got := RunsTable([]Run{a, b}).String(); got != want {
		t.Errorf("the table is\n%swant\n%s", got, want)
	}
}
