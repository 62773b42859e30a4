package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"zeroth/internal/input"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/tests/nightly"
)

// lacking returns a small job and a loader that rejects some sets.
func lacking(t *testing.T, sets []string, refused ...string) (*spec.Job, Load) {
	load := func(more []string) (*spec.Job, error) {
		if i := slices.IndexFunc(refused, func(set string) bool { return slices.Contains(more, set) }); i >= 0 {
			return nil, input.BadInput(fmt.Errorf("%s is refused", refused[i]))
		}
		return setup.ThisMachine(1, 0).Draft("", slices.Concat([]string{"model.heads=4", "model.width=64", "model.vocab=300"}, sets, more))
	}
	c, err := load(nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, load
}

// TestChoose checks that ways along one dimension use the number of ranks that most of them
// support. A way that does not support it is listed with the reason.
func TestChoose(t *testing.T) {
	nightly.Long(t)
	schedules := []string{"gpipe", "1f1b", "interleaved1f1b", "zbh1"}
	for _, test := range []struct {
		refused []string
		along   int // ranks of a pipeline
		none    string
	}{
		{nil, 4, ""},
		{[]string{"parallel.pipeline=4"}, 2, ""},
		{[]string{"pipeline.schedule=ZBH1"}, 4, "zbh1"},
		{[]string{"parallel.pipeline=4", "parallel.pipeline=2"}, 4, "gpipe 1f1b interleaved1f1b zbh1"},
	} {
		c, load := lacking(t, []string{"model.layers=8"}, test.refused...)
		all, err := choose(c, load, schedules, 7)
		if err != nil || len(all) != len(schedules) {
			t.Fatalf("%+v: %v, %v", test, all, err)
		}
		for i, w := range all {
			refused := slices.Contains(strings.Fields(test.none), w.name)
			if w.name != schedules[i] || (w.refuse != nil) != refused || !slices.Contains(w.set, fmt.Sprint("parallel.pipeline=", test.along)) {
				t.Errorf("%+v: %s: %v, %v", test, w.name, w.set, w.refuse)
			}
			if !refused && (w.job.Parallel.Pipeline != test.along || w.job.Parallel.Ranks != 4 || w.job.Train.Steps != 7) {
				t.Errorf("%+v: %s: %+v", test, w.name, w.job.Parallel)
			}
		}
	}
}

// TestWaysHaveTheJobsStep checks that every way has the job's sequences per step, in micro-batches
// of at most the job's, whatever its other settings.
func TestWaysHaveTheJobsStep(t *testing.T) {
	own := []string{"parallel.replicate=2", "parallel.shard=2", "zero.stage=2", "train.batch=48", "train.micro_batch=6", "train.accumulate=2", "train.epochs=2", "train.steps=null"}
	c, load := lacking(t, own)
	all, err := choose(c, load, Ways(), 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range all {
		if w.name == "expert" { // the model has none
			continue
		}
		if w.refuse != nil {
			t.Errorf("%s: %v", w.name, w.refuse)
			continue
		}
		x := w.job.Train
		if x.Batch != 48 || x.MicroBatch > 6 || x.MicroBatch*x.Accumulate*w.job.Parallel.DataRanks() != 48 || x.Steps != 3 || x.Epochs != 0 {
			t.Errorf("%s: %+v", w.name, x)
		}
	}
	broken := errors.New("the disk is broken")
	if _, err := choose(c, func([]string) (*spec.Job, error) { return nil, broken }, []string{"1f1b"}, 3); !errors.Is(err, broken) {
		t.Errorf("what is not the user's to mend is %v", err)
	}
}
