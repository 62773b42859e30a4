package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zeroth/job/report"
	"zeroth/tests/nightly"
)

// TestTable checks that a rung's rows are below it and that no text can end its cell.
func TestTable(t *testing.T) {
	var x table
	x.add(&result{Rung: "one", Verdict: "ok", Seconds: 1, Rows: []row{{"a", "1", "", ""}, {"b", "4\n5 | 6", "3", "ok"}}})
	x.add(&result{Rung: "two", Verdict: failed("why"), Seconds: 2.5})
	const want = `| rung | what | measured | beside it | verdict     |
|------|------|----------|-----------|-------------|
| one  |      | 1.0 s    |           | ok          |
|      | a    | 1        |           |             |
|      | b    | 4 5 \| 6 | 3         | ok          |
| two  |      | 2.5 s    |           | FAILED: why |
`
	if got := x.markdown(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// sessionIn opens a session whose results are in a folder.
func sessionIn(t *testing.T, out string) *session {
	t.Helper()
	t.Setenv("ZEROTH_LADDER", t.TempDir())
	s, err := newSession(options{out: out, limit: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	s.patience = 500 * time.Millisecond
	t.Cleanup(s.close)
	return s
}

// TestRungsDoNotHideEachOther checks that a rung that fails, hangs or cannot run becomes one line
// and the next one runs. A later run continues where this one ended, and its table contains both.
func TestRungsDoNotHideEachOther(t *testing.T) {
	nightly.Long(t)
	nightly.Needs(t, "sh", "sleep")
	out, ran := t.TempDir(), ""
	s := sessionIn(t, out)
	all := []rung{
		{"fails", 1, time.Minute, func(s *session, _ context.Context) error {
			ran += "1"
			s.row("a", "1", "", "")
			return errors.New("broken\nin two lines")
		}},
		{"hangs", 1, 3 * time.Second, func(s *session, ctx context.Context) error { // long enough to say something on a loaded machine
			ran += "2"
			_, err := s.output(ctx, "sh", "-c", "trap '' INT; echo so far; sleep 1000 & wait; sleep 1000")
			return err
		}},
		{"cannot", 2, time.Minute, func(*session, context.Context) error { ran += "3"; return leftOut("there is none") }},
		{"row", 2, time.Minute, func(s *session, _ context.Context) error { ran += "4"; s.check("b", "", "", false, "bad"); return nil }},
		{"well", 3, time.Minute, func(*session, context.Context) error { ran += "5"; return nil }},
	}
	for _, r := range all {
		s.order = append(s.order, r.name)
	}
	err := s.climb(t.Context(), all[:4])
	if err == nil || !strings.Contains(err.Error(), "3 of 4 rungs failed: fails, hangs, row") || ran != "1234" {
		t.Errorf("ran %s: %v", ran, err)
	}
	log, _ := os.ReadFile(filepath.Join(out, "log.txt")) // an unreadable log counts as empty
	if !strings.Contains(string(log), "so far\n") {
		t.Errorf("the log does not have what a hanging program said:\n%s", log)
	}

	s = sessionIn(t, out)
	picked, err := pick(all, options{}, s.results)
	if err != nil || len(picked) != 1 || picked[0].name != "well" {
		t.Fatalf("%v, %v; want what has no result", picked, err)
	}
	for _, r := range all {
		s.order = append(s.order, r.name)
	}
	if err := s.climb(t.Context(), picked); err == nil || !strings.Contains(err.Error(), "3 of 5 rungs failed") {
		t.Errorf("%v; the failures of the run before count", err)
	}
	s.only = "well"
	if err := s.climb(t.Context(), picked); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(filepath.Join(out, "table.md"))
	for _, want := range []string{"FAILED: broken ", "FAILED: sh: not done within its time limit; it said last: so far", "left out: there is none", "FAILED: b: bad", "| well "} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in the table (%v)\n%s", want, err, text)
		}
	}
}

// TestInterrupted checks that an interrupted rung has no result, so that the next run begins with
// it.
func TestInterrupted(t *testing.T) {
	s := sessionIn(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	err := s.climb(ctx, []rung{{"one", 1, time.Minute, func(s *session, ctx context.Context) error {
		cancel()
		_, err := s.output(ctx, "sleep", "1000")
		return err
	}}, {"two", 1, time.Minute, func(*session, context.Context) error { t.Error("it goes on"); return nil }}})
	if err == nil || !strings.Contains(err.Error(), "--from one") || s.results["one"] != nil {
		t.Errorf("%v, %v", err, s.results)
	}
}

// TestTheTimeIsUp checks that a rung that may not end in time is not started, and that the
// message explains how to continue.
func TestTheTimeIsUp(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("results", 0o777); err != nil {
		t.Fatal(err)
	}
	s := sessionIn(t, "results")
	if name := s.file("machine.json"); !filepath.IsAbs(name) {
		t.Errorf("programs that run elsewhere are given %s", name)
	}
	s.limit = time.Minute
	nothing := func(*session, context.Context) error { return nil }
	err := s.climb(t.Context(), []rung{{"short", 1, time.Second, nothing}, {"long", 1, time.Hour, nothing}, {"after", 1, time.Second, nothing}})
	if err == nil || !strings.Contains(err.Error(), "--from long") || s.results["short"] == nil || s.results["long"] != nil || s.results["after"] != nil {
		t.Errorf("%v, %v", err, s.results)
	}
}

func TestPick(t *testing.T) {
	all := []rung{{name: "open", part: 1}, {name: "kernel/A", part: 1}, {name: "kernel/B", part: 1}, {name: "bench", part: 2}, {name: "torch/plain", part: 3}}
	have := map[string]*result{"open": {}, "bench": {}}
	for _, c := range []struct {
		o    options
		want string
	}{
		{options{}, "kernel/A kernel/B torch/plain"}, {options{part: 2}, "bench"}, {options{from: "kernel/B"}, "kernel/B bench torch/plain"},
		{options{only: "kernel,open"}, "open kernel/A kernel/B"}, {options{from: "kernel", part: 1}, "kernel/A kernel/B"},
	} {
		picked, err := pick(all, c.o, have)
		var names []string
		for _, r := range picked {
			names = append(names, r.name)
		}
		if got := strings.Join(names, " "); got != c.want || err != nil {
			t.Errorf("%+v: %s (%v), want %s", c.o, got, err, c.want)
		}
	}
	for _, o := range []options{{only: "kernel/C"}, {from: "ker"}, {part: 4}} {
		if _, err := pick(all, o, have); !errors.As(err, new(wrongFlag)) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestTestsAreRead checks that the output of tests becomes rows and a reason.
func TestTestsAreRead(t *testing.T) {
	s := &session{now: &result{}}
	s.rowsOf("=== RUN\nrow\ta\t1 ms\tb c\nrow of another kind\n--- PASS: TestA (0.00s)\n")
	if len(s.now.Rows) != 1 || s.now.Rows[0] != (row{"a", "1 ms", "b c", ""}) {
		t.Errorf("%q", s.now.Rows)
	}
	if err := passed("--- PASS: TestA (0.00s)\n"); err != nil {
		t.Error(err)
	}
	if err := passed("=== RUN   TestA\n    a_test.go:7: it needs 3 GPUs\n--- SKIP: TestA (0.00s)\nPASS\n"); err != leftOut("it needs 3 GPUs") {
		t.Error(err)
	}
	if err := passed("testing: warning: no tests to run\nPASS\n"); err == nil {
		t.Error("no test is a test that passes")
	}
	if got := complaint("=== RUN   TestA\n    a_test.go:7: y is 3\n    a_test.go:8: z is 4\n--- FAIL: TestA (0.00s)\n"); got != "y is 3" {
		t.Error(got)
	}
	if got := complaint("=== RUN   TestA\npanic: oh\n\ngoroutine 1\n"); got != "panic: oh" {
		t.Error(got)
	}
}

// TestArchive checks that adding to an archive keeps its files.
func TestArchive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dumps.tar.gz")
	for _, name := range []string{"a", "b"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name+".txt"), []byte(name+name), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := archive(path, dir, "rung-"+name); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	got, r := "", tar.NewReader(z)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got += h.Name + "=" + string(data) + " "
	}
	if want := "rung-a/a.txt=aa rung-b/b.txt=bb "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestApart(t *testing.T) {
	of := func(losses ...float64) (r outcome) {
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
