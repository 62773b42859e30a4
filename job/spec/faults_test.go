package spec

import (
	"strings"
	"testing"

	"zeroth/internal/input"
	"zeroth/job/jobtest"
)

// TestFaultsThatCannotBeSurvived checks that jobs are refused that could not go on without a replica.
func TestFaultsThatCannotBeSurvived(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for _, sets := range [][]string{
		{"parallel.replicate=1"},
		{"faults.min_replicas=4"},
		{"faults.leave_behind=2", "parallel.replicate=2"},
		{"parallel.transport=mpi"},
		{"parallel.master=true", "zero.stage=0", "parallel.replicate=1"},
		{"parallel.pipeline=2", "pipeline.schedule=Interleaved1F1B", "model.layers=4", "train.micro_batch=4"},
		{"train.delayed_update=true"},
		{"faults.survive=false", "faults.min_replicas=2"},
		{"faults.survive=false", "faults.join=true"},
		{"faults.survive=false", "faults.leave_behind=2"},
		{"faults.leave_behind=-1"},
	} {
		_, err := Load("job.yaml", append([]string{"parallel={ranks: 8, replicate: 4}", "faults.survive=true", "train.batch=32"}, sets...))
		said.Same(t, strings.Join(sets, " "), err)
		if !input.IsInput(err) {
			t.Errorf("%q: %v", sets, err)
		}
	}
	for _, sets := range [][]string{{}, {"faults.min_replicas=3"}, {"faults.join=true"}, {"optimizer.type=muon"}, {"parallel.pipeline=2"}, {"zero.offload.parameters=host"}, {"optimizer.type=muon", "zero.offload.optimizer=host", "device=cuda"}, {"faults.leave_behind=1.5"}, {"checkpoint.dir=s3://bucket/a", "checkpoint.every=1"}, {"zero.stage=0", "parallel.replicate=1"}} {
		if _, err := Load("job.yaml", append([]string{"parallel={ranks: 8, replicate: 4}", "faults.survive=true", "train.batch=32"}, sets...)); err != nil {
			t.Errorf("%q: %v", sets, err)
		}
	}
}

// TestFaultsAreAccepted checks that a search for settings keeps to those with which a run survives.
func TestFaultsAreAccepted(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	c, err := Load("job.yaml", []string{"parallel={ranks: 8, replicate: 4}", "faults.survive=true", "train.batch=32", "train.sums=tree"})
	if err != nil || !Accepts(c) {
		t.Fatal(err)
	}
	for _, change := range []func(*Job){
		func(c *Job) { c.Parallel.Shard, c.Parallel.Replicate = 8, 1 },
		func(c *Job) { c.Parallel.Tensor, c.Parallel.Shard = 2, 1 },
	} {
		x := c.Copy()
		if change(x); Accepts(x) {
			t.Errorf("%+v is accepted", x.Parallel)
		}
	}
}

func TestSumsThatCannotBeTrees(t *testing.T) {
	jobtest.InFolder(t, jobtest.Least)
	for _, sets := range [][]string{
		{"parallel.pipeline=2"},
		{"parallel.tensor=2"},
		{"parallel.context=2"},
		{"parallel.master=true", "zero.stage=0"},
		{"zero.offload.optimizer=host"},
		{"zero.offload.parameters=host"},
		{"train.sums=pairs"},
	} {
		_, err := Load("job.yaml", append([]string{"parallel.ranks=4", "train.sums=tree"}, sets...))
		said.Same(t, strings.Join(sets, " "), err)
		if !input.IsInput(err) {
			t.Errorf("%q: %v", sets, err)
		}
	}
	if _, err := Load("job.yaml", []string{"parallel={ranks: 8, replicate: 4}", "train.sums=tree", "faults.survive=true"}); err != nil {
		t.Error(err)
	}
}
