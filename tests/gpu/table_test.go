package main

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"zeroth/job/report"
)

// A failure is one line of the table, counted, and ends no cell.
func TestTable(t *testing.T) {
	x := table{part: "one"}
	x.add("a", "1", "", "")
	x.check("b", "2", "3", true, "why")
	x.part = "two"
	x.check("c", "4\n5 | 6", "", false, "why")
	const want = `| part | what | measured | beside it | verdict     |
|------|------|----------|-----------|-------------|
| one  | a    | 1        |           |             |
|      | b    | 2        | 3         | ok          |
| two  | c    | 4 5 \| 6 |           | FAILED: why |
`
	if got := x.markdown(); got != want || x.failed != 1 {
		t.Errorf("%d failed\n%s\nwant\n%s", x.failed, got, want)
	}
}

// A part that fails, or has no time left, is a line, and the next one runs.
func TestPartsDoNotHideEachOther(t *testing.T) {
	s := &session{}
	ran := 0
	fails := part{"one", time.Minute, func(*session, context.Context) error { ran++; return errors.New("broken\nin two lines") }}
	late := part{"two", -time.Second, func(*session, context.Context) error { ran++; return nil }}
	well := part{"three", time.Minute, func(*session, context.Context) error { ran++; return nil }}
	for _, p := range []part{fails, late, well} {
		s.part(t.Context(), p)
	}
	text := s.table.markdown()
	if ran != 2 || s.table.failed != 2 || !strings.Contains(text, "FAILED: broken ") || !strings.Contains(text, "FAILED: context deadline exceeded") {
		t.Errorf("%d parts ran, %d failed\n%s", ran, s.table.failed, text)
	}
}

func TestUnknownPart(t *testing.T) {
	if err := run(time.Minute, "", "kernels,kernel", true); !errors.As(err, new(wrongFlag)) || !strings.Contains(err.Error(), "machine,limits,kernels") {
		t.Errorf("%v", err)
	}
}

// What does not end is ended with its children, and what a program said is in the log.
func TestOutput(t *testing.T) {
	log, err := os.Create(t.TempDir() + "/log.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s := &session{dir: t.TempDir(), log: log}
	if said, err := s.output(t.Context(), "sh", "-c", "echo one; echo two >&2; exit 3"); err == nil || said != "one\ntwo\n" || !strings.Contains(err.Error(), "exit status 3: two") {
		t.Errorf("%q, %v", said, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.output(ctx, "sh", "-c", "sleep 1000 & wait"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	raw, err := os.ReadFile(log.Name())
	if err != nil || !strings.Contains(string(raw), "$ sh -c echo one") || !strings.Contains(string(raw), "\ntwo\n") {
		t.Errorf("%s, %v", raw, err)
	}
}

func TestApart(t *testing.T) {
	of := func(losses ...float64) (r result) {
		for i, x := range losses {
			r.steps = append(r.steps, report.Step{Step: i + 1, Loss: x, StepSeconds: x})
		}
		return r
	}
	if got := apart(of(4, 9), of(5, 10)); math.Abs(got-.2) > 1e-12 {
		t.Errorf("%g, want 0.2", got)
	}
	if got := apart(of(4), of(5, 10)); !math.IsInf(got, 1) {
		t.Errorf("%g of runs that are not as long", got)
	}
	if got := of(9, 9, 1, 7, 2).seconds(); got != 2 {
		t.Errorf("median %g, want 2 of the last 3", got)
	}
	if of(1, 2).curve() == of(1, math.Nextafter(2, 3)).curve() {
		t.Error("a last bit is not in the curve")
	}
}
