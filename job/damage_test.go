package job

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"zeroth/internal/input"
	"zeroth/job/jobtest"
	"zeroth/job/report"
	"zeroth/job/spec/spectest"
	"zeroth/tests/nightly"
)

// TestDamagedMetrics checks that a damaged metrics file does not keep a run from continuing: the
// whole file is renamed, and its readable lines are continued.
func TestDamagedMetrics(t *testing.T) {
	nightly.Long(t)
	jobtest.InTinyFolder(t)
	var want []int
	for step := 1; step <= 7; step++ {
		want = append(want, step)
	}
	line := func(raw []byte, n int) (lo, hi int) {
		for range n {
			lo = hi
			hi += bytes.IndexByte(raw[hi:], '\n') + 1
		}
		return lo, hi
	}
	for i, c := range []struct {
		name string
		lost []int // steps
		do   func([]byte) []byte
	}{
		{"a flipped bit", []int{2}, func(raw []byte) []byte { lo, _ := line(raw, 4); raw[lo] ^= 1; return raw }},
		{"zeros", []int{2, 3}, func(raw []byte) []byte {
			lo, _ := line(raw, 4)
			_, hi := line(raw, 5)
			clear(raw[lo:hi])
			return raw
		}},
		{"a line that never ends", nil, func(raw []byte) []byte {
			lo, _ := line(raw, 3)
			return slices.Concat(raw[:lo], bytes.Repeat([]byte("x"), 3<<20), []byte("\n"), raw[lo:])
		}},
		{"another file", nil, func(raw []byte) []byte { return append([]byte("%PDF-1.4\n\xff\xfe\n"), raw...) }},
		{"a line of nothing", nil, func(raw []byte) []byte {
			return append([]byte("null\n{}\n[]\n\n{\"step\":-4}\n{\"step\":1e300}\n"), raw...)
		}},
	} {
		out := fmt.Sprint("run", i)
		if err := Run(t.Context(), spectest.MustLoad(t, "checkpoint.every=5", "checkpoint.save_on_exit=false"), Options{Out: out, Observer: &heard{}}); err != nil {
			t.Fatal(err)
		}
		path := out + "/metrics.jsonl"
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		raw = c.do(raw)
		jobtest.Write(t, path, string(raw))
		h := &heard{}
		if err := Run(t.Context(), spectest.MustLoad(t, "checkpoint.every=5"), Options{Out: out, Resume: "latest", Observer: h}); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		aside, err := os.ReadFile(path + ".damaged-1")
		if err != nil || !bytes.Equal(aside, raw) {
			t.Errorf("%s: the file that was set aside: %v", c.name, err)
		}
		if told := strings.Join(h.notes, "\n"); !strings.Contains(told, "metrics: "+path+":") || !strings.Contains(told, "the file was moved to "+path+".damaged-1, and a new one contains the readable lines") {
			t.Errorf("%s: %s", c.name, told)
		}
		steps, _, err := report.ReadMetrics(path)
		var got []int
		for _, s := range steps {
			got = append(got, s.Step)
		}
		left := slices.DeleteFunc(slices.Clone(want), func(s int) bool { return slices.Contains(c.lost, s) })
		if err != nil || !slices.Equal(got, left) {
			t.Errorf("%s: steps %v, want %v (%v)", c.name, got, left, err)
		}
	}
	if err := os.Rename("run0/metrics.jsonl", "gone"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("run0/metrics.jsonl", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), spectest.MustLoad(t, "train.steps=9", "checkpoint.every=5"), Options{Out: "run0", Resume: "latest", Observer: &heard{}}); err != nil || !input.Exists("run0/metrics.jsonl.damaged-2") {
		t.Errorf("a folder in the file's place: %v", err)
	}
}

// TestMetricsDamagedMeanwhile checks that damage during a run costs part of the plot, not the run.
func TestMetricsDamagedMeanwhile(t *testing.T) {
	jobtest.InTinyFolder(t)
	h := &heard{onStep: func(s report.Step) {
		if s.Step != 4 {
			return
		}
		raw, err := os.ReadFile("run/metrics.jsonl")
		if err != nil {
			t.Error(err)
			return
		}
		jobtest.Write(t, "run/metrics.jsonl", strings.Replace(string(raw), `{"step":2,`, `#"step":2,`, 1))
	}}
	if err := Run(t.Context(), spectest.MustLoad(t), Options{Out: "run", Observer: h}); err != nil || !input.Exists("run/loss.svg") {
		t.Fatal(err)
	}
	if told := strings.Join(h.notes, "\n"); !strings.Contains(told, "unreadable lines are not drawn") {
		t.Errorf("told %q", told)
	}
}
