package report

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"zeroth/tests/nightly"
)

// TestMetricsOfAnyNumber checks that steps with any number, also NaN and infinities, are written
// as JSON and read back.
func TestMetricsOfAnyNumber(t *testing.T) {
	t.Chdir(t.TempDir())
	m, err := OpenMetrics("m")
	if err != nil {
		t.Fatal(err)
	}
	odd := []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64, math.Copysign(0, -1)}
	for i, x := range odd {
		m.Step(Step{Step: i + 1, Loss: x, LR: x, GradNorm: x, TokensPerSecond: x, StepSeconds: x})
		m.Event(Eval{Step: i + 1, ValLoss: x})
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

// limited is a disk with a number of free bytes.
type limited struct {
	bytes.Buffer
	free int
}

func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.free)
	l.free -= n
	l.Buffer.Write(b[:n])
	if n < len(b) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

// TestMetricsCatchUp checks that lines a full disk did not accept are written once there is
// space, in order and complete.
func TestMetricsCatchUp(t *testing.T) {
	var want bytes.Buffer
	disk := &limited{free: 150}
	m, whole := &Metrics{file: disk, end: func() error { return nil }}, &Metrics{file: &want}
	for step := 1; step <= 20; step++ {
		if step == 15 {
			disk.free = 1 << 20
		}
		whole.Step(Step{Step: step})
		m.Step(Step{Step: step})
		if full := step > 1 && step < 15; (m.Err() != nil) != full || full != (m.Late() > 0) {
			t.Errorf("step %d: %v, late are %d", step, m.Err(), m.Late())
		}
	}
	if err := m.Close(); err != nil || disk.String() != want.String() {
		t.Errorf("%v\n%s", err, disk)
	}
}

// TestTrimMetrics checks that a trimmed log contains each step up to the given one once, the
// starts that made them, and the name of the run, and that an end of a start is not taken for a
// step.
func TestTrimMetrics(t *testing.T) {
	t.Chdir(t.TempDir())
	write := func(from, to int, run string) {
		m, err := OpenMetrics("m")
		if err != nil {
			t.Fatal(err)
		}
		m.Event(Start{Step: from, Run: run, Time: float64(from)})
		for i := from + 1; i <= to; i++ {
			m.Step(Step{Step: i, Loss: float64(i)})
		}
		m.Event(Eval{Step: to, ValLoss: 1})
		m.Event(&Account{Step: to, Ranks: []Held{{}}})
		m.Event(End{Step: to, State: "failed", Why: "a \"disk\""})
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write(0, 6, "a")
	if l, err := ReadLog("m"); err != nil || l.Damage != nil || l.Ended != 6 || l.End == nil || l.End.Why != `a "disk"` || l.End.Step != 6 {
		t.Fatalf("%+v %v", l, err)
	}
	for _, cut := range []struct{ at, starts int }{{4, 1}, {4, 2}, {7, 3}, {2, 1}, {0, 1}} {
		l, err := TrimMetrics("m", cut.at, func(string) {})
		if err != nil || l.Run() != "a" || len(l.Starts) != cut.starts || len(l.Steps) != cut.at {
			t.Fatalf("cut to step %d: %+v %v", cut.at, l, err)
		}
		write(cut.at, cut.at+4, "b")
		if l, err = ReadLog("m"); err != nil || l.Damage != nil || len(l.Steps) != cut.at+4 || len(l.Starts) != cut.starts+1 || l.Run() != "a" {
			t.Fatalf("after step %d: %+v %v", cut.at, l, err)
		}
		for i, s := range l.Steps {
			if s.Step != i+1 {
				t.Fatalf("step %d at %d", s.Step, i)
			}
		}
	}
}

// TestTrimMetricsInPlace checks that a log ends with the lines of a step, and that half a line is removed.
func TestTrimMetricsInPlace(t *testing.T) {
	t.Chdir(t.TempDir())
	if l, err := TrimMetrics("m", 3, nil); err != nil || l.Steps != nil {
		t.Fatalf("without a file: %+v %v", l, err)
	}
	text := `{"step":0,"start":{"run":"a"}}` + "\n"
	for i := range 5 {
		text += fmt.Sprintf("{\"step\":%[1]d,\"memory\":{}}\n{\"step\":%[1]d,\"loss\":1}\n{\"step\":%[1]d,\"val_loss\":1}\n", i+1)
	}
	for _, step := range []int{9, 5, 3, 3, 0} {
		if err := os.WriteFile("m", []byte(text+`{"step":6,"loss"`), 0o666); err != nil {
			t.Fatal(err)
		}
		l, err := TrimMetrics("m", step, nil)
		if n := min(step, 5); err != nil || l.Damage != nil || len(l.Steps) != n || len(l.Evals) != n || l.Run() != "a" {
			t.Fatalf("after step %d: %+v %v", step, l, err)
		}
		if b, _ := os.ReadFile("m"); !strings.HasPrefix(text, string(b)) || len(l.Steps) == 5 && string(b) != text {
			t.Fatalf("after step %d:\n%s", step, b)
		}
	}
}

// TestReadRecent checks that a long log is read without its early steps, but with all starts.
func TestReadRecent(t *testing.T) {
	nightly.Long(t)
	path := filepath.Join(t.TempDir(), "m")
	m, err := OpenMetrics(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20_000 {
		if i%5_000 == 0 {
			m.Event(Start{Step: i, Run: "a", Stage: i / 5_000})
		}
		m.Step(Step{Step: i + 1, Loss: float64(i), StepSeconds: 1. / 3})
	}
	m.Event(End{Step: 20_000, State: "done"})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := ReadLog(path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := ReadRecent(path)
	if err != nil {
		t.Fatal(err)
	}
	n := len(l.Steps)
	if n < 1_000 || n > 15_000 || !reflect.DeepEqual(l.Steps, whole.Steps[20_000-n:]) || !reflect.DeepEqual(l.Starts, whole.Starts) || len(l.Starts) != 4 || !reflect.DeepEqual(l.End, whole.End) {
		t.Errorf("%d steps, starts %+v, end %+v", n, l.Starts, l.End)
	}
}
