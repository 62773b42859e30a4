package job

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tracked is a track of spans [start, end) in milliseconds by task.
func tracked(name string, spans ...ran) *track {
	k := &track{name: name, spans: make([]ran, 8)}
	for _, s := range spans {
		s.start, s.end = s.start*1e6, s.end*1e6
		k.add(s)
	}
	return k
}

// Communication is exposed where the comm queue runs something other than a
// wait and the compute queue does not.
func TestExposure(t *testing.T) {
	run := func(task string, start, end int64) ran { return ran{"", task, start, end} }
	tr := &Trace{ranks: [][]*track{{
		tracked("compute", run("matmul", 0, 60), run("wait", 60, 100), run("matmul", 100, 130), run("wait", 130, 150), run("matmul", 150, 180)),
		tracked("comm", run("wait", 0, 50), run("wait for peers", 50, 65), run("all-gather", 65, 90), run("wait", 90, 120), run("reduce-scatter", 120, 140), run("wait for peers", 140, 160), run("copy", 190, 195)),
		tracked("update"),
		tracked("step", run("step 1", -50, 0), run("step 2", 0, 100), run("step 3", 100, 200)),
	}}}
	// Step 2: exposed 60..90, of it waiting 60..65. Step 3: 130..150 and 190..195, waiting 140..150.
	want := Exposure{Steps: 2, Seconds: 0.100, Compute: 0.060, Exposed: 0.0275, Peers: 0.0075}
	got := tr.exposure()
	if got.Steps != want.Steps || math.Abs(got.Seconds-want.Seconds)+math.Abs(got.Compute-want.Compute)+math.Abs(got.Exposed-want.Exposed)+math.Abs(got.Peers-want.Peers) > 1e-9 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	const line = "a step of 100.0 ms: computing 60.0 ms, communication not hidden 27.5 ms (27.5 %, 7.5 ms of it waiting for other ranks), neither 12.5 ms (over 2 steps)"
	if got.line() != line {
		t.Errorf("got  %s\nwant %s", got.line(), line)
	}
	if e := (*Trace)(nil).exposure(); e != (Exposure{}) {
		t.Errorf("without a trace: %+v", e)
	}
}

// What is offloaded is exposed where only its queues run something.
func TestExposureOfOffload(t *testing.T) {
	run := func(task string, start, end int64) ran { return ran{"", task, start, end} }
	tr := &Trace{ranks: [][]*track{{
		tracked("compute", run("matmul", 0, 30)),
		tracked("comm", run("all-gather", 20, 40), run("wait", 40, 90)),
		tracked("update", run("adamw", 50, 55)),
		tracked("host", run("adamw", 10, 45), run("adamw", 60, 70)),
		tracked("to device", run("wait", 0, 65), run("copy", 65, 75), run("copy", 75, 80)),
		tracked("step", run("step 1", 0, 100)),
	}}}
	// 40..45, and 60..80 by both.
	e := tr.exposure()
	if math.Abs(e.Offload-0.025) > 1e-9 || math.Abs(e.Exposed-0.010) > 1e-9 {
		t.Errorf("got %+v", e)
	}
	const line = "a step of 100.0 ms: computing 30.0 ms, communication not hidden 10.0 ms (10.0 %), offload not hidden 25.0 ms (25.0 %), neither 35.0 ms (over 1 steps)"
	if e.line() != line {
		t.Errorf("got  %s\nwant %s", e.line(), line)
	}
}

// A full track keeps the newest, and steps of which something is lost are not
// looked at.
func TestTraceKeepsTheLast(t *testing.T) {
	k := tracked("compute")
	for i := range int64(11) {
		k.add(ran{"", "matmul", i * 10, i*10 + 10})
	}
	if all := k.all(); len(all) != 8 || all[0].start != 30 || all[7].start != 100 || kept(k) != 40 {
		t.Errorf("kept since %d: %v", kept(k), all)
	}
	steps := &track{spans: []ran{{"", "step 1", 0, 20}, {"", "step 2", 20, 50}, {"", "step 3", 50, 80}}, n: 3}
	tr := &Trace{ranks: [][]*track{{k, tracked("comm"), steps}}}
	if e := tr.exposure(); e.Steps != 1 || math.Abs(e.Compute-30e-9) > 1e-15 {
		t.Errorf("got %+v, want step 3 alone", e)
	}
}

// A run's trace has every rank's queues, what they did for which unit, and the
// steps; the run's summary tells what was exposed. Without a trace it does not.
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
		c, err := Load(file, []string{"zero.offload.optimizer=host"})
		if err != nil {
			t.Fatal(err)
		}
		tr, ctx := NewTrace(), context.Background()
		if traced {
			ctx = WithTrace(ctx, tr)
		}
		var out strings.Builder
		if err := Train(ctx, c, filepath.Join(dir, fmt.Sprint(traced)), NewLines(&out)); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "communication not hidden") != traced || traced && !strings.Contains(out.String(), "(over 3 steps)") {
			t.Errorf("traced %v: %s", traced, &out)
		}
		if traced {
			checkTrace(t, tr)
			checkCounters(t, tr.Write, c, 2, 4)
		}
	}
}

// Counters of a trace show the plan: in every step the peak is reached, and what
// is allocated is never exceeded; also of many micro-batches, and of a forecast.
// A step may begin while the gradients of the last are still in use, which no
// plan of a single step has.
func TestCounters(t *testing.T) {
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
		c, err := Load(file, append([]string{"model.layers=3", "model.heads=2", "model.width=32", "model.context=8",
			"train.micro_batch=1", "train.steps=4", "parallel.ranks=2", "train.eval_every=2"}, sets...))
		if err != nil {
			t.Fatal(err)
		}
		tr := NewTrace()
		if err := Train(WithTrace(t.Context(), tr), c, filepath.Join(dir, fmt.Sprint(i)), Observers{}); err != nil {
			t.Fatal(err)
		}
		checkCounters(t, tr.Write, c, 2, 4)
		h, err := OpenHardware("h100")
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.Plan(Machine{})
		if err != nil {
			t.Fatal(err)
		}
		if p.Forecast, err = c.Forecast(&Hardware{Name: "any", Flops: map[string]float64{"bf16": 1e6}, Memory: 1e6, Links: h.Links, HostLink: 1e6, HostMemory: 1e6}); err != nil {
			t.Fatal(err)
		}
		checkCounters(t, p.WriteTrace, p.Forecast.of, 1, replayed)
	}
}

func checkCounters(t *testing.T, write func(io.Writer) error, c *Config, ranks, steps int) {
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
	p, err := c.Plan(Machine{})
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
		if sum > p.Allocated.Total() || e.Args[Params.String()] != float64(p.AtRest[Params]) {
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

func checkTrace(t *testing.T, tr *Trace) {
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
	} {
		if !slices.Contains(seen, want) {
			t.Errorf("no %q in the trace", want)
		}
	}
	if n := strings.Count(text.String(), `"name":"step `); n != 2*4 {
		t.Errorf("%d steps in the trace, want 4 of 2 ranks", n)
	}
}

// A run has in use, in each category, what was planned, at every event of its
// step, whatever the job; and the files show it.
func TestMeasuredIsPlanned(t *testing.T) {
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
		{"zero.stage=3", "zero.offload.optimizer=host", "zero.offload.parameters=host", "train.accumulate=2"},
		{"zero.stage=1", "zero.offload.optimizer=disk", "zero.offload.path=" + dir, "checkpoint.every=1"},
	} {
		c, err := Load(file, append([]string{"model.layers=3", "model.heads=2", "model.width=32", "model.context=8",
			"train.micro_batch=2", "train.steps=3", "parallel.ranks=2", "train.eval_every=1"}, sets...))
		if err != nil {
			t.Fatal(err)
		}
		o := &Observation{}
		if err := Train(WithObservation(t.Context(), o), c, filepath.Join(dir, fmt.Sprint(i)), Observers{}); err != nil {
			t.Fatal(err)
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
		svg := filepath.Join(dir, fmt.Sprint(i, ".svg"))
		if err := o.Plan.WriteSVG(svg); err != nil {
			t.Fatal(err)
		}
		if drawn, err := os.ReadFile(svg); err != nil || !strings.Contains(string(drawn), "measured") {
			t.Errorf("%v: the drawing tells of nothing measured (%v)", sets, err)
		}
	}
}
