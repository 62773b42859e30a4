package spec

import (
	"testing"

	"zeroth/job/jobtest"
)

// TestPartsOfTheRun checks that intervals may be fractions of the run, which become steps as in transformers
// once its length is known, and that the job writes them as they were given.
func TestPartsOfTheRun(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for _, length := range []string{"train.steps=99", "train.epochs=1.5"} {
		c, err := Load("job.yaml", []string{length, "schedule.warmup=0.03", "train.eval_every=0.25", "checkpoint.every=0.333333"})
		if err != nil {
			t.Fatal(err)
		}
		again, err := c.Settled(int64(66*c.Train.Batch), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if s := [4]int{again.Train.Steps, again.Schedule.Warmup, again.Train.EvalEvery, again.Checkpoint.Every}; s != [4]int{99, 3, 25, 33} {
			t.Errorf("%s: %v", length, s)
		}
		if again.Text("schedule.warmup") != "0.03" || again.Text("checkpoint.every") != "0.333333" {
			t.Errorf("%s", again.YAML())
		}
	}
	for _, set := range []string{"schedule.warmup=1.5", "train.eval_every=-0.1"} {
		if _, err := Load("job.yaml", []string{set}); err == nil {
			t.Errorf("%s is accepted", set)
		}
	}
}
