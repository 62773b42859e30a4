package bench

import (
	"slices"
	"strings"
	"testing"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/forecast"
	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/jobtest"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
)

// small loads a job that trains for a moment, and refuses some settings.
func small(t *testing.T, sets ...string) Load {
	jobtest.InTinyFolder(t)
	return func(more []string) (*spec.Job, error) {
		return setup.ThisMachine(1, 0).Load("job.yaml", slices.Concat(sets, more))
	}
}

// TestCompare checks that a job trained in several ways has the planned memory and traffic, and that the
// stages have the same losses. A way that the job does not support is listed with the reason.
func TestCompare(t *testing.T) {
	nightly.Long(t)
	h, err := forecast.OpenHardware("../../examples/machine.json") // before the folder changes
	if err != nil {
		t.Fatal(err)
	}
	load := small(t, "parallel.ranks=2", "precision=fp32", "checkpoint={every: null}")
	names := []string{"ddp", "zero3", "zbh1"}
	x, err := Compare(t.Context(), load, names, 1, h, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	for i, y := range x.Ways {
		if y.Way != names[i] || (y.Refused == "") != (y.Way != "zbh1") {
			t.Errorf("%+v", y)
		}
		if y.Refused != "" {
			continue
		}
		if y.Run.Memory != y.Predicted.Memory || y.Run.Sent != y.Predicted.Sent || y.Difference != 0 || y.Run.Tokens <= 0 || y.Predicted.Tokens <= 0 {
			t.Errorf("%s: ran %+v, planned %+v, losses differ by %g", y.Way, y.Run, y.Predicted, y.Difference)
		}
	}
	var table, markdown strings.Builder
	if x.Table(&table, false) != nil || x.Table(&markdown, true) != nil || !x.Ran() {
		t.Error("no tables")
	}
	for _, want := range []string{"2 ranks, ", "losses of all ways are equal", "not available:\n- zbh1: "} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, &table)
		}
	}
	if !strings.Contains(markdown.String(), "|---|---|---:|") || !strings.Contains(markdown.String(), "\n| zero3 | ") {
		t.Errorf("%s", &markdown)
	}
	if _, err := Compare(t.Context(), small(t, "parallel.ranks=1"), names, 1, h, func(string) {}); !input.IsInput(err) {
		t.Errorf("one rank: %v", err)
	}
	other := Comparison{Ways: []Compared{{Way: "a", Run: &Figures{Sent: -1}, Predicted: &Figures{}}, {Way: "b", Run: &Figures{}, Predicted: &Figures{}, Difference: largestDifference([]float64{1, 2}, []float64{1, 2.5})}}}
	table.Reset()
	if err := other.Table(&table, false); err != nil || !strings.Contains(table.String(), "agree within 0.5; b differs most") {
		t.Errorf("%v\n%s", err, &table)
	}
}

// TestOnGroup checks that the collectives that are measured have the results of collectives.
func TestOnGroup(t *testing.T) {
	const ranks, n = 2, 64
	err := onGroup(ranks, n, func(each func(op func(collective.Group, device.Queue, device.Buffer)) error) error {
		set := func(_ collective.Group, q device.Queue, b device.Buffer) {
			q.Do(func() error {
				for i := range b.F32() {
					b.F32()[i] = 1.5
				}
				return nil
			})
		}
		if err := each(set); err != nil {
			return err
		}
		if err := each(func(g collective.Group, q device.Queue, b device.Buffer) { collective.ReduceScatter(g, q, b) }); err != nil {
			return err
		}
		if err := each(func(g collective.Group, q device.Queue, b device.Buffer) { collective.AllGather(g, q, b) }); err != nil {
			return err
		}
		return each(func(_ collective.Group, q device.Queue, b device.Buffer) {
			q.Do(func() error {
				if i := slices.IndexFunc(b.F32(), func(x float32) bool { return x != 3 }); i >= 0 {
					t.Errorf("element %d is %g, want 3", i, b.F32()[i])
				}
				return nil
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}
