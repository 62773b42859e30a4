package report

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"math"
	"strings"
	"testing"
)

// TestRecords checks that records contain the numbers of a run by name, one line each, even if a
// loss is NaN.
func TestRecords(t *testing.T) {
	var b bytes.Buffer
	l := NewRecords(slog.New(slog.NewJSONHandler(&b, nil)))
	l.Event(Header{Start: Start{Steps: 1000, Ranks: 2}, Out: "r"})
	for i := 1; i <= 1000; i++ {
		l.Step(Step{Step: i, Loss: 1.5, StepSeconds: 0.25, GradNorm: math.Inf(1)})
	}
	l.Event(Eval{Step: 1000, ValLoss: math.NaN()})
	l.Event(Note("two\nlines"))
	l.Event(Summary{Steps: 1000, Loss: 1.5, ValLoss: math.NaN(), Out: "r"})
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	var told []int
	for _, line := range lines {
		var r struct {
			Time, Level, Msg string
			Step             int
			Loss             *float64
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Time == "" || r.Level != "INFO" {
			t.Fatalf("%s: %v", line, err)
		}
		if r.Msg == "step" {
			told = append(told, r.Step)
			if r.Loss == nil || *r.Loss != 1.5 || !strings.Contains(line, `"grad_norm":null`) {
				t.Error(line)
			}
		}
	}
	if n := len(told); n < 190 || n > 202 || told[0] != 1 || told[n-1] != 1000 || len(lines) != n+4 {
		t.Errorf("%d steps of %d lines: %v", n, len(lines), told)
	}
	b.Reset()
	l = NewRecords(slog.New(slog.NewJSONHandler(&b, &slog.HandlerOptions{Level: slog.LevelWarn})))
	l.Event(Note("all is well"))
	l.Event(Warning("rank 1 is slow"))
	if got := b.String(); !strings.Contains(got, `"level":"WARN","msg":"rank 1 is slow","step":0`) || strings.Contains(got, "well") {
		t.Errorf("of level WARN and above: %s", got)
	}
}
