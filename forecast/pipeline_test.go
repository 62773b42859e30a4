package forecast

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"zeroth/collective"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
)

// passes returns a cost model in which only passes through blocks take time.
func passes(forward, backward float64) CostModel {
	return CostModel{There: 1, Wants: func(setup.QueueRole) float64 { return 0 }, Seconds: func(_ setup.QueueRole, k Kernel, _ Work) float64 {
		switch k.Op {
		case attention:
			return forward
		case attentionGrad:
			return backward
		}
		return 0
	}}
}

// staged returns a job with one block per pipeline stage.
func staged(t *testing.T, schedule string, ranks, virtual, micros int, sets ...string) *spec.Job {
	t.Helper()
	sets = append([]string{"parallel.ranks=" + fmt.Sprint(ranks), "parallel.pipeline=" + fmt.Sprint(ranks), "pipeline.schedule=" + schedule, "zero.stage=1",
		"model.layers=" + fmt.Sprint(ranks*virtual), "train.micro_batch=1", "train.batch=null", "train.accumulate=" + fmt.Sprint(micros), "device=cpu"}, sets...)
	if virtual > 1 {
		sets = append(sets, "pipeline.virtual="+fmt.Sprint(virtual))
	}
	return spectest.Fitted(t, sets...)
}

// TestBubbles checks the bubbles of schedules against the formulas in pipe's package comment, with
// all micro-batches simulated and with some.
func TestBubbles(t *testing.T) {
	const f, b = 0.010, 0.020 // of a rank's blocks
	for _, test := range []struct {
		schedule               string
		ranks, virtual, micros int
	}{
		{"GPipe", 4, 1, 8}, {"GPipe", 2, 1, 3}, {"1F1B", 4, 1, 8}, {"1F1B", 4, 1, 2}, {"1F1B", 3, 1, 7},
		{"Interleaved1F1B", 4, 2, 8}, {"Interleaved1F1B", 2, 3, 4},
		{"GPipe", 2, 1, 37}, {"1F1B", 3, 1, 50}, {"Interleaved1F1B", 2, 2, 64},
	} {
		c := staged(t, test.schedule, test.ranks, test.virtual, test.micros)
		v, p, m := float64(test.virtual), float64(test.ranks-1), float64(test.micros)
		r, err := SimulateWith(setup.Planned(c), passes(f/v, b/v))
		if err != nil {
			t.Fatal(err)
		}
		computing, filling := m*(f+b), p*(f+b)/v
		for what, x := range map[string][2]float64{
			"seconds": {r.Seconds, computing + filling}, "computing": {r.Compute, computing}, "bubble": {r.Bubble, filling / (computing + filling)},
			"exposed": {r.Exposed, 0}, "offload": {r.Offload, 0}, "tokens": {r.Tokens * r.Seconds, m * float64(c.Model.Context)},
		} {
			if math.Abs(x[0]-x[1]) > 1e-6 {
				t.Errorf("%+v: %s %v, want %v", test, what, x[0], x[1])
			}
		}
		if lines := strings.Join(r.Lines(), "\n"); !strings.Contains(lines, ", pipeline bubble ") || !strings.Contains(lines, fmt.Sprintf("(%.1f %%)", 100*r.Bubble)) {
			t.Errorf("%+v: no bubble in\n%s", test, lines)
		}
	}
}

// TestPlacesShareProcessors checks that busy places use the processors of idle ones if they share
// them: a single processor computes all passes one after another.
func TestPlacesShareProcessors(t *testing.T) {
	const f, b, ranks, micros = 0.010, 0.020, 4, 8
	costs := passes(f, b)
	costs.There, costs.Wants = 1.0/ranks, func(setup.QueueRole) float64 { return 1 }
	for shared, want := range map[bool]float64{true: ranks * micros * (f + b), false: ranks * (micros + ranks - 1) * (f + b)} {
		costs.Shared = shared
		r, err := SimulateWith(setup.Planned(staged(t, "1F1B", ranks, 1, micros)), costs)
		if err != nil || math.Abs(r.Seconds-want) > 1e-6 {
			t.Errorf("shared %v: a step takes %+v, want %v; %v", shared, r, want, err)
		}
	}
}

// TestTransfersDelay checks that a transfer delays the receiving stage, and that computation hides
// it once the pipeline is full.
func TestTransfersDelay(t *testing.T) {
	const f, b, link, micros = 0.010, 0.020, 0.004, 8
	costs := passes(f, b)
	seconds := costs.Seconds
	costs.Seconds = func(on setup.QueueRole, k Kernel, w Work) float64 {
		if k.isLink() {
			return link
		}
		return seconds(on, k, w)
	}
	r, err := SimulateWith(setup.Planned(staged(t, "GPipe", 2, 1, micros)), costs)
	if err != nil {
		t.Fatal(err)
	}
	if want := (micros+1)*(f+b) + 2*link; math.Abs(r.Seconds-want) > 1e-6 {
		t.Errorf("a step takes %v, want %v", r.Seconds, want)
	}
	if e := r.Trace.Exposure(); math.Abs(e.Offload) > 1e-9 || !(e.Exposed > 0) || !(r.Exposed > 0) {
		t.Errorf("%+v, by its trace %+v", r, e)
	}
}

// TestTransferSeconds checks the cost of transfers between two ranks of a link.
func TestTransferSeconds(t *testing.T) {
	h := &Hardware{Flops: map[string]float64{"fp32": 1}, Memory: 1, Links: []Link{{2, 100, 1}, {4, 10, 2}, {0, 5, 3}}}
	m := h.moving(h.Spread(ranked(8)).Of(ranked(8)))
	for link, want := range map[[2]int]float64{{0, 1}: 1 + 4, {1, 0}: 1 + 4, {1, 2}: 2 + 40, {3, 4}: 3 + 80, {7, 0}: 3 + 80} {
		k := Kernel{Op: "broadcast", N: 400 / 4, Group: Group{2, 1}, Link: link}
		if got := m.seconds(setup.LinkQueue(collective.ToNext), k, Work{}); got != want {
			t.Errorf("link %v takes %v, want %v", link, got, want)
		}
	}
}

// TestPipelineTrace checks that a trace has a process for one rank of each place, with its link
// queues.
func TestPipelineTrace(t *testing.T) {
	r, err := SimulateWith(setup.Planned(staged(t, "1F1B", 2, 1, 4, "parallel.ranks=4", "parallel.shard=2")), passes(0.01, 0.02))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := r.Trace.Write(&b); err != nil {
		t.Fatal(err)
	}
	var file struct {
		TraceEvents []struct {
			Name, Ph string
			Pid      int
			Args     struct{ Name string }
		}
	}
	if err := json.Unmarshal(b.Bytes(), &file); err != nil {
		t.Fatal(err)
	}
	passes, names := map[int]int{}, map[string]int{}
	for _, e := range file.TraceEvents {
		if e.Name == attention {
			passes[e.Pid]++
		}
		names[e.Args.Name]++
	}
	if len(passes) != 2 || passes[0] != simulatedSteps*4 || passes[2] != simulatedSteps*4 || names["rank 0"] != 1 || names["rank 2"] != 1 || names["from previous"] != 2 {
		t.Errorf("passes forward by rank %v, names %v", passes, names)
	}
}
