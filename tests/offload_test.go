package tests

import (
	"fmt"
	"testing"

	"zeroth/job"
)

// trainWith is train with a job's seams, and the ranks' memory after it.
func trainWith(t *testing.T, c *job.Config, s job.Seams) outcome {
	t.Helper()
	ranks, err := c.OpenWith(s)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(ranks)
	return trainOn(t, c, ranks)
}

// offloads are all ways to offload a job, at a stage.
func offloads(t *testing.T, stage int) (ways [][]string) {
	for _, optimizer := range []string{"none", "host", "disk"} {
		for _, parameters := range []string{"none", "host", "disk"} {
			if parameters != "none" && stage < 3 || optimizer == "none" && parameters == "none" {
				continue
			}
			way := []string{"zero.offload.optimizer=" + optimizer, "zero.offload.parameters=" + parameters}
			if optimizer == "disk" || parameters == "disk" {
				way = append(way, "zero.offload.path="+t.TempDir())
			}
			ways = append(ways, way)
			if optimizer != "none" {
				ways = append(ways, append(way[:len(way):len(way)], "zero.offload.ratio=0.5"))
			}
		}
	}
	return ways
}

// With any offload, at any stage, on any number of ranks, in any precision, for
// any part of the optimizer, state after some steps is that of the resident
// run, to the bit. Tiles are so small that units take several, the last one
// shorter, and slots so few that tiles wait for each other.
func TestOffloadAgreesToTheBit(t *testing.T) {
	worlds := []int{1, 2, 3}
	if testing.Short() {
		worlds = []int{3}
	}
	for _, precision := range []string{"fp32", "bf16", "fp16"} {
		for _, world := range worlds {
			for stage := range 4 {
				t.Run(fmt.Sprintf("%s/ranks=%d/stage=%d", precision, world, stage), func(t *testing.T) {
					t.Parallel()
					sets := []string{"precision=" + precision, fmt.Sprintf("parallel.ranks=%d", world), fmt.Sprintf("zero.stage=%d", stage)}
					want := train(t, config(t, sets...), nil)
					for i, way := range offloads(t, stage) {
						c := config(t, append(append(sets, way...), fmt.Sprintf("zero.offload.buffers=%d", 1+i%3))...)
						sameBits(t, fmt.Sprint(way), trainWith(t, c, job.Seams{Tile: 200}), want)
					}
				})
			}
		}
	}
}

// So it is with several micro-batches, whose sum rests on the host between
// them; with hybrid sharding, whose sum over replicas is taken on the device;
// with rules of one state and of none; and with recompute and deeper prefetch.
func TestOffloadOfOtherJobsAgreesToTheBit(t *testing.T) {
	for _, sets := range [][]string{
		{"parallel.ranks=2", "zero.stage=3", "train.accumulate=3"},
		{"parallel.ranks=3", "zero.stage=2", "train.accumulate=2", "precision=fp16"},
		{"parallel.ranks=2", "zero.stage=1", "train.accumulate=2"},
		{"parallel.ranks=4", "parallel.replicate=2", "zero.stage=3", "train.accumulate=2"},
		{"parallel.ranks=4", "parallel.replicate=2", "zero.stage=1", "precision=fp32"},
		{"parallel.ranks=2", "zero.stage=3", "optimizer.type=lion", "zero.recompute=block"},
		{"parallel.ranks=2", "zero.stage=3", "optimizer.type=sgd", "zero.prefetch=3", "precision=fp32"},
		{"parallel.ranks=2", "zero.stage=3", "optimizer.type=sgd", "optimizer.momentum=0", "zero.prefetch=0", "precision=fp32"},
		{"parallel.ranks=2", "zero.stage=3", "optimizer.type=sgd", "optimizer.momentum=0"},
	} {
		t.Run(fmt.Sprint(sets), func(t *testing.T) {
			t.Parallel()
			stage := 3
			for i := range 3 {
				if sets[1] == fmt.Sprintf("zero.stage=%d", i) || sets[2] == fmt.Sprintf("zero.stage=%d", i) {
					stage = i
				}
			}
			want := train(t, config(t, sets...), nil)
			for _, way := range offloads(t, stage) {
				c := config(t, append(append(sets, way...), "zero.offload.buffers=2")...)
				sameBits(t, fmt.Sprint(way), trainWith(t, c, job.Seams{Tile: 200}), want)
			}
		})
	}
}
