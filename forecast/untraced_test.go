package forecast

import (
	"math"
	"testing"

	"zeroth/internal/setup"
	"zeroth/job/spec/spectest"
	"zeroth/offload"
)

// TestUntracedIsTraced checks that merging tasks without a trace does not change the duration and
// division of a step.
func TestUntracedIsTraced(t *testing.T) {
	h, err := OpenHardware("h100")
	if err != nil {
		t.Fatal(err)
	}
	for _, sets := range [][]string{
		{"zero.stage=1"}, {"zero.stage=3", "zero.prefetch=2", "parallel.replicate=2"}, {"zero.stage=2", "optimizer.type=muon", "train.accumulate=9"},
		{"zero.stage=2", "zero.offload.optimizer=host"}, {"zero.stage=3", "zero.offload.optimizer=disk", "zero.offload.parameters=host", "zero.offload.path=."},
		{"parallel.tensor=2", "zero.stage=1", "model.family=llama"},
		{"parallel.pipeline=2", "zero.stage=1", "train.accumulate=4"}, {"parallel.pipeline=4", "zero.stage=2", "pipeline.schedule=ZBH1", "train.accumulate=40"},
		{"parallel.pipeline=2", "parallel.tensor=2", "zero.stage=3", "pipeline.schedule=Interleaved1F1B", "train.accumulate=4", "zero.recompute=block", "model.tied=true", "model.family=llama"},
	} {
		j := setup.Planned(spectest.Fitted(t, append([]string{"parallel.ranks=16", "train.batch=null", "train.micro_batch=1", "model.layers=8", "model.width=256", "model.heads=4"}, sets...)...))
		traced, err1 := Simulate(j, h)
		untraced, err2 := SimulateUntraced(j, h)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		for what, x := range map[string][2]float64{
			"seconds": {traced.Seconds, untraced.Seconds}, "computing": {traced.Compute, untraced.Compute}, "exposed": {traced.Exposed, untraced.Exposed},
			"offload": {traced.Offload, untraced.Offload}, "bubble": {traced.Bubble * traced.Seconds, untraced.Bubble * untraced.Seconds},
		} {
			if math.Abs(x[0]-x[1]) > 1e-6*traced.Seconds {
				t.Errorf("%v: %s %v, traced %v", sets, what, x[1], x[0])
			}
		}
	}
}

// TestCoarseIsFine checks that larger pieces of a large unit's offloaded state take as long as those of a run, to
// half a percent.
func TestCoarseIsFine(t *testing.T) {
	h, err := OpenHardware("h100")
	if err != nil {
		t.Fatal(err)
	}
	for _, sets := range [][]string{{"zero.offload.optimizer=host"}, {"zero.offload.optimizer=disk", "zero.offload.parameters=disk", "zero.offload.path=."}} {
		m := h.moving(setup.Planned(spectest.Fitted(t, append([]string{"parallel.ranks=1", "train.batch=null", "train.micro_batch=1", "zero.stage=3",
			"model={family: llama, layers: 2, width: 8192, heads: 64, context: 4096}"}, sets...)...)))
		costs := m.costs()
		costs.Untraced = true
		coarse, err1 := SimulateWith(m.job, costs)
		m.job.Hooks.Tile = offload.TileLen
		fine, err2 := SimulateWith(m.job, costs)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if r := coarse.Seconds / fine.Seconds; r == 1 || math.Abs(r-1) > 5e-3 {
			t.Errorf("%v: %v s, in small pieces %v s", sets, coarse.Seconds, fine.Seconds)
		}
	}
}
