package job

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"zeroth/forecast"
	"zeroth/internal/setup"
	"zeroth/job/report"
	"zeroth/job/spec"
	"zeroth/job/trace"
	"zeroth/tests/nightly"
	"zeroth/zero"
)

// TestTraceOfARun checks that a run's trace contains every rank's queues, their tasks with units,
// and the steps, and that the run's summary reports exposed communication only with a trace.
func TestTraceOfARun(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("to be, or not to be; ", 300)), 0o666); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "j.yaml")
	body := fmt.Sprintf("data: {text: [%s]}\nmodel: {layers: 2, heads: 1, width: 8, context: 8}\ntrain: {steps: 4, micro_batch: 1}\nparallel: {ranks: 2}\nzero: {stage: 3}\n", text)
	if err := os.WriteFile(file, []byte(body), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, traced := range []bool{true, false} {
		c, err := spec.Load(file, []string{"device=cpu", "zero.offload.optimizer=host"})
		if err != nil {
			t.Fatal(err)
		}
		tr, o := trace.New(), Options{Out: filepath.Join(dir, fmt.Sprint(traced))}
		if traced {
			o.Trace, o.NoModel = tr, true
		}
		var out strings.Builder
		o.Observer = report.NewProgress(&out)
		if err := Run(t.Context(), c, o); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "exposed communication") != traced || traced && !strings.Contains(out.String(), "(over 3 steps)") {
			t.Errorf("traced %v: %s", traced, &out)
		}
		if _, err := os.Stat(filepath.Join(o.Out, "model")); (err == nil) == o.NoModel {
			t.Errorf("without a model %v, its folder: %v", o.NoModel, err)
		}
		if traced {
			checkTrace(t, tr)
			checkCounters(t, tr.Write, c, 2, 4)
		}
	}
}

// TestCounters checks that the counters of a trace follow the plan: every step reaches the peak and
// never exceeds the allocation, with many micro-batches and in a forecast, too. A step may begin
// while the last one's gradients are still in use, which no plan of a single step shows.
func TestCounters(t *testing.T) {
	nightly.Long(t)
	dir := t.TempDir()
	text := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("to be, or not to be; ", 300)), 0o666); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "j.yaml")
	if err := os.WriteFile(file, []byte("data: {text: ["+text+"]}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	for i, sets := range [][]string{
		{"zero.stage=3", "zero.recompute=block", "train.accumulate=5"},
		{"zero.stage=1", "train.accumulate=3", "model.family=llama"},
		{"zero.stage=0"},
		{"zero.stage=2", "zero.offload.optimizer=host", "train.accumulate=2"},
	} {
		c, err := spec.Load(file, append([]string{"model.layers=3", "model.heads=2", "model.width=32", "model.context=8",
			"train.micro_batch=1", "train.steps=4", "parallel.ranks=2", "train.eval_every=2"}, sets...))
		if err != nil {
			t.Fatal(err)
		}
		tr := trace.New()
		if err := Run(t.Context(), c, Options{Out: filepath.Join(dir, fmt.Sprint(i)), Trace: tr}); err != nil {
			t.Fatal(err)
		}
		checkCounters(t, tr.Write, c, 2, 4)
		h, err := forecast.OpenHardware("h100")
		if err != nil {
			t.Fatal(err)
		}
		p, err := forecast.NewPlan(c, forecast.Machine{})
		if err != nil {
			t.Fatal(err)
		}
		if p.Simulated, err = forecast.Simulate(setup.Planned(c), &forecast.Hardware{Name: "any", Flops: map[string]float64{"bf16": 1e6}, Memory: 1e6, Links: h.Links, HostLink: 1e6, HostMemory: 1e6}); err != nil {
			t.Fatal(err)
		}
		checkCounters(t, p.WriteTrace, p.Simulated.Job, 1, 2)
	}
}

func checkCounters(t *testing.T, write func(io.Writer) error, c *spec.Job, ranks, steps int) {
	t.Helper()
	var text strings.Builder
	if err := write(&text); err != nil {
		t.Fatal(err)
	}
	var got struct {
		TraceEvents []struct {
			Name, Ph string
			Pid      int
			Ts       float64
			Args     map[string]any
		}
	}
	if err := json.Unmarshal([]byte(text.String()), &got); err != nil {
		t.Fatal(err)
	}
	p, err := forecast.NewPlan(c, forecast.Machine{})
	if err != nil {
		t.Fatal(err)
	}
	peaks, last := make([]int, ranks), make([]int64, ranks)
	for _, e := range got.TraceEvents {
		if e.Ph != "C" {
			continue
		}
		var sum int64
		for _, n := range e.Args {
			sum += int64(n.(float64))
		}
		params, _ := e.Args[forecast.Params.String()].(float64) // missing if there are none, at stage 3
		if sum > p.Allocated.Total() || params != float64(p.AtRest[forecast.Params]) {
			t.Errorf("%d bytes in use at %v, allocated are %d", sum, e.Ts, p.Allocated.Total())
		}
		if sum == p.Peak.InUse.Total() && last[e.Pid] != sum {
			peaks[e.Pid]++
		}
		last[e.Pid] = sum
	}
	for rank, n := range peaks {
		if n < steps {
			t.Errorf("%v: rank %d comes to its peak %d times in %d steps", c.Zero, rank, n, steps)
		}
	}
}

// TestMeasuredIsPlanned checks that the memory in use equals the plan in each category at every
// event of a step, for any job, and that the files show it.
func TestMeasuredIsPlanned(t *testing.T) {
	nightly.Long(t)
	dir := t.TempDir()
	text := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("to be, or not to be; ", 300)), 0o666); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "j.yaml")
	if err := os.WriteFile(file, []byte("data: {text: ["+text+"]}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	for i, sets := range [][]string{
		{"zero.stage=3", "zero.recompute=block", "train.accumulate=4"},
		{"zero.stage=3", "zero.prefetch=2", "model.family=llama", "train.accumulate=2", "precision=fp32"},
		{"zero.stage=1", "train.accumulate=3", "train.loss_chunk=5"},
		{"zero.stage=0", "train.steps=1"},
		{"zero.stage=2", "parallel.ranks=4", "parallel.replicate=2"},
		{"zero.stage=3", "parallel.ranks=4", "parallel.replicate=2", "optimizer.type=muon", "device=cpu"},
		{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host", "train.accumulate=2"},
		{"zero.stage=1", "zero.offload.optimizer=disk", "zero.offload.path=" + dir, "checkpoint.every=1"},
	} {
		c, err := spec.Load(file, append([]string{"model.layers=3", "model.heads=2", "model.width=32", "model.context=8",
			"train.micro_batch=2", "train.steps=3", "parallel.ranks=2", "train.eval_every=1"}, sets...))
		if err != nil {
			t.Fatal(err)
		}
		o, wrapped := &Observation{}, 0
		hook := func(int, *zero.Config) { wrapped++ }
		if err := Run(t.Context(), c, Options{Out: filepath.Join(dir, fmt.Sprint(i)), Timeline: o, Hooks: setup.Hooks{WrapTrainer: hook}}); err != nil {
			t.Fatal(err)
		}
		if wrapped != c.Parallel.Ranks {
			t.Errorf("a test hook saw %d of %d ranks", wrapped, c.Parallel.Ranks)
		}
		m := o.Plan.Measured
		if m == nil || m.Step != 1 || m.Allocated != o.Plan.Allocated || len(m.Timeline) != len(o.Plan.Timeline) {
			t.Fatalf("%v: measured %+v", sets, m)
		}
		for j, x := range m.Timeline {
			if p := o.Plan.Timeline[j]; x.InUse != p.InUse {
				t.Errorf("%v: %s: %v in use, planned are %v", sets, p.Name, x.InUse, p.InUse)
			}
		}
		var table, page strings.Builder
		if err := errors.Join(o.Plan.WriteCSV(&table), o.Plan.WriteHTML(&page)); err != nil {
			t.Fatal(err)
		}
		lines, err := csv.NewReader(strings.NewReader(table.String())).ReadAll()
		if err != nil || len(lines) != len(m.Timeline)+1 || lines[0][len(lines[0])-2] != "measured_in_use" {
			t.Fatalf("%d lines: %v", len(lines), err)
		}
		for j, x := range m.Timeline {
			if line := lines[j+1]; line[len(line)-2] != fmt.Sprint(x.InUse.Total()) || line[len(line)-1] != fmt.Sprint(m.Allocated.Total()) {
				t.Errorf("%v: line %d is %v", sets, j, line)
			}
		}
		if want := fmt.Sprintf(`"measured":[%d,`, m.Timeline[0].InUse.Total()); !strings.Contains(page.String(), want) {
			t.Errorf("%v: no %s on the page", sets, want)
		}
		var drawn strings.Builder
		if err := o.Plan.WriteSVG(&drawn); err != nil || !strings.Contains(drawn.String(), ">measured in step 1<") {
			t.Errorf("%v: the drawing tells of nothing measured (%v)", sets, err)
		}
	}
}

func checkTrace(t *testing.T, tr *trace.Trace) {
	t.Helper()
	var text strings.Builder
	if err := tr.Write(&text); err != nil {
		t.Fatal(err)
	}
	var got struct {
		TraceEvents []struct {
			Name, Cat, Ph string
			Pid, Tid      int
			Ts, Dur       float64
			Args          struct{ Name, For string }
		}
	}
	if err := json.Unmarshal([]byte(text.String()), &got); err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	var seen []string
	for _, e := range got.TraceEvents {
		what := fmt.Sprintf("%s%d%d %s%s", e.Ph, e.Pid, e.Tid, e.Name, e.Args.Name)
		if e.Ph == "X" {
			what += " " + e.Cat + " " + strings.Fields(e.Args.For + " - -")[1]
			if e.Dur < 0 || e.Ts < 0 {
				t.Errorf("%+v", e)
			}
		}
		seen = append(seen, what)
	}
	for _, want := range []string{
		"M00 process_namerank 0", "M11 thread_namecompute", "M12 thread_namecomm", "M13 thread_nameupdate", "M15 thread_nameto host", "M10 thread_namestep",
		"X11 matmul compute h.1:", "X12 all-gather comm h.0:", "X12 wait for peers comm h.0:", "X02 reduce-scatter comm root:", "X14 adamw host h.0:", "X00 step 4 step -", "X10 step 1 step -",
		"M17 thread_namehost waits", "X07 wait host waits norm",
	} {
		if !slices.Contains(seen, want) {
			t.Errorf("no %q in the trace", want)
		}
	}
	if n := strings.Count(text.String(), `"name":"step `); n != 2*4 {
		t.Errorf("%d steps in the trace, want 4 of 2 ranks", n)
	}
}
