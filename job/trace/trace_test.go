package trace

import (
	"math"
	"strings"
	"testing"

	"zeroth/internal/setup"
)

// tracked returns a track of spans [start, end) in milliseconds by task.
func tracked(name string, spans ...Span) *Track {
	k := &Track{name: name, spans: make([]Span, 8)}
	for role := range setup.Save {
		if role.String() == name {
			k.role = role
		}
	}
	for _, s := range spans {
		s.Start, s.End = s.Start*1e6, s.End*1e6
		k.Add(s)
	}
	return k
}

// TestExposure checks that communication is exposed while the comm queue runs something other than
// a wait and the compute queue does not.
func TestExposure(t *testing.T) {
	run := func(task string, start, end int64) Span { return Span{"", task, start, end} }
	tr := &Trace{ranks: []tracks{{
		tracked("compute", run("matmul", 0, 60), run("wait", 60, 100), run("matmul", 100, 130), run("wait", 130, 150), run("matmul", 150, 180)),
		tracked("comm", run("wait", 0, 50), run("wait for peers", 50, 65), run("all-gather", 65, 90), run("wait", 90, 120), run("reduce-scatter", 120, 140), run("wait for peers", 140, 160), run("copy", 190, 195)),
		tracked("update"),
		tracked("step", run("step 1", -50, 0), run("step 2", 0, 100), run("step 3", 100, 200)),
	}}}
	// Step 2: exposed 60..90, waiting 60..65. Step 3: exposed 130..150 and 190..195, waiting
	// 140..150.
	want := Exposure{Steps: 2, Seconds: 0.100, Compute: 0.060, Exposed: 0.0275, Peers: 0.0075}
	got := tr.Exposure()
	if got.Steps != want.Steps || math.Abs(got.Seconds-want.Seconds)+math.Abs(got.Compute-want.Compute)+math.Abs(got.Exposed-want.Exposed)+math.Abs(got.Peers-want.Peers) > 1e-9 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	const line = "a step of 100.0 ms: computing 60.0 ms, exposed communication 27.5 ms (27.5 %, 7.5 ms of it waiting for other ranks), neither 12.5 ms (over 2 steps)"
	if got.Line() != line {
		t.Errorf("got  %s\nwant %s", got.Line(), line)
	}
	if all := tr.After(1); len(all) != 2 || math.Abs(all[0].Exposed-0.030)+math.Abs(all[1].Exposed-0.025)+math.Abs(all[0].Idle-0.010)+math.Abs(all[1].Idle-0.015) > 1e-9 {
		t.Errorf("step by step: %+v", all)
	}
	if e := (*Trace)(nil).Exposure(); e != (Exposure{}) {
		t.Errorf("without a trace: %+v", e)
	}
}

// TestExposureOfTheNorm checks that the cost of the host's wait for the norm lasts from its
// beginning, or from the end of computation if later, until computation continues, possibly in the
// next step.
func TestExposureOfTheNorm(t *testing.T) {
	run := func(task string, start, end int64) Span { return Span{"", task, start, end} }
	tr := &Trace{ranks: []tracks{{
		tracked("compute", run("matmul", 0, 60), run("wait", 60, 105), run("matmul", 105, 150), run("matmul", 202, 210)),
		tracked("comm"),
		tracked(waits, run("wait", 50, 90), run("wait", 160, 190)),
		tracked("step", run("step 1", 0, 92), run("step 2", 92, 195)),
	}}}
	// The first step does not count; 160..202 in the second does.
	e := tr.Exposure()
	if e.Steps != 1 || math.Abs(e.Norm-0.042) > 1e-9 {
		t.Errorf("got %+v", e)
	}
	tr.ranks[0][3] = tracked("step", run("step 1", -9, 0), run("step 2", 0, 92), run("step 3", 92, 195)) // 60..105, too
	if e = tr.Exposure(); math.Abs(e.Norm-(0.045+0.042)/2) > 1e-9 {
		t.Errorf("got %+v", e)
	}
	const want = "(over 2 steps); for 43.5 ms nothing is computed while the host waits for the norm"
	if line := e.Line(); !strings.HasSuffix(line, want) {
		t.Errorf("%q, want %q at its end", line, want)
	}
}

// TestExposureOfOffload checks that offloading is exposed while only its queues are running.
func TestExposureOfOffload(t *testing.T) {
	run := func(task string, start, end int64) Span { return Span{"", task, start, end} }
	tr := &Trace{ranks: []tracks{{
		tracked("compute", run("matmul", 0, 30)),
		tracked("comm", run("all-gather", 20, 40), run("wait", 40, 90)),
		tracked("update", run("adamw", 50, 55)),
		tracked("host", run("adamw", 10, 45), run("adamw", 60, 70)),
		tracked("to device", run("wait", 0, 65), run("copy", 65, 75), run("copy", 75, 80)),
		tracked("step", run("step 1", 0, 100)),
	}}}
	// 40..45, and 60..80 by both.
	e := tr.Exposure()
	if math.Abs(e.Offload-0.025) > 1e-9 || math.Abs(e.Exposed-0.010) > 1e-9 || math.Abs(e.Idle-0.030) > 1e-9 {
		t.Errorf("got %+v", e)
	}
	const line = "a step of 100.0 ms: computing 30.0 ms, exposed communication 10.0 ms (10.0 %), exposed offload 25.0 ms (25.0 %), neither 35.0 ms (over 1 steps)"
	if e.Line() != line {
		t.Errorf("got  %s\nwant %s", e.Line(), line)
	}
}

// TestTraceKeepsTheLast checks that a full track keeps its newest spans, and that incomplete steps
// are ignored.
func TestTraceKeepsTheLast(t *testing.T) {
	k := tracked("compute")
	for i := range int64(11) {
		k.Add(Span{"", "matmul", i * 10, i*10 + 10})
	}
	if all := k.All(); len(all) != 8 || all[0].Start != 30 || all[7].Start != 100 || kept(k) != 40 {
		t.Errorf("kept since %d: %v", kept(k), all)
	}
	steps := &Track{spans: []Span{{"", "step 1", 0, 20}, {"", "step 2", 20, 50}, {"", "step 3", 50, 80}}, n: 3}
	tr := &Trace{ranks: []tracks{{k, tracked("comm"), steps}}}
	if e := tr.Exposure(); e.Steps != 1 || math.Abs(e.Compute-30e-9) > 1e-15 {
		t.Errorf("got %+v, want step 3 alone", e)
	}
	if all := tr.After(0); len(all) != 1 || math.Abs(all[0].Compute-30e-9) > 1e-15 {
		t.Errorf("%+v, want step 3 alone", all)
	}
}
