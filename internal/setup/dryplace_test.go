package setup_test

import (
	"testing"

	"zeroth/internal/setup"
	"zeroth/job/spec/spectest"
	"zeroth/tests/nightly"
)

// TestDryPeakIsADryRun checks that the needs of a step follow from the first and the last micro-batch
// and the number that the schedule has in flight.
func TestDryPeakIsADryRun(t *testing.T) {
	nightly.Long(t)
	same := func(sets ...string) {
		j := setup.Planned(spectest.Fitted(t, append([]string{"train.batch=null", "train.micro_batch=1", "model.layers=8"}, sets...)...))
		all, err := setup.DryRuns(j)
		if err != nil {
			t.Fatal(err)
		}
		for at, got := range all {
			d, err := setup.OpenDry(setup.Few(j), at, nil)
			if err != nil {
				t.Fatal(err)
			}
			d.Trainer.DryRun()
			if want := d.Footprint(d.Trainer.ArenaPeak()); got != want {
				t.Errorf("%v, place %d: %+v, a step %+v", sets, at, got, want)
			}
		}
	}
	for _, recompute := range []string{"none", "block"} {
		for _, stage := range []string{"0", "1", "2", "3"} {
			way := []string{"zero.recompute=" + recompute, "zero.stage=" + stage}
			same(append(way, "parallel.ranks=4", "train.accumulate=5")...)
			for _, p := range [][]string{
				{"pipeline.schedule=GPipe", "train.accumulate=9"}, {"pipeline.schedule=1F1B", "train.accumulate=3"}, {"pipeline.schedule=1F1B", "train.accumulate=30"},
				{"pipeline.schedule=Interleaved1F1B", "pipeline.virtual=2", "train.accumulate=8"}, {"pipeline.schedule=ZBH1", "train.accumulate=7", "model.family=llama"},
			} {
				same(append(append(way, "parallel.ranks=8", "parallel.pipeline=4"), p...)...)
				same(append(append(way, "parallel.ranks=8", "parallel.pipeline=2", "parallel.tensor=2", "model.tied=true", "model.family=llama"), p...)...)
			}
		}
	}
}
