package tests

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"zeroth/collective"
	"zeroth/internal/setup"
	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// TestOperationsHaveOneOrder checks that the operations that ranks issue are part of one total
// order, on random meshes. So ranks never wait for each other in a circle, even though every
// operation may wait until all ranks of its group have issued it, as on GPUs. Otherwise a rank
// waits only for marks of its own queues, which precede what it issues later.
func TestOperationsHaveOneOrder(t *testing.T) {
	nightly.Parallel(t)
	draws := nightly.Of(3, 40)
	for i := range draws {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(5, uint64(i)))
			of := func(n ...int) int { return n[rng.IntN(len(n))] }
			one := func(values ...string) string { return values[rng.IntN(len(values))] }
			p, tensor := of(1, 2, 4), of(1, 2, 4)
			sets := append([]string{fmt.Sprintf("parallel={pipeline: %d, replicate: %d, shard: %d, tensor: %d}", p, of(1, 2), of(1, 2), tensor), fmt.Sprint("zero.stage=", of(1, 2, 3)),
				one("model.family=gpt2", "model.family=llama"), one("model.tied=true", "model.tied=false"), one("optimizer.type=adamw", "optimizer.type=muon", "train.delayed_update=true"),
				one("zero.recompute=none", "zero.recompute=mlp"), one("zero.prefetch=0", "zero.prefetch=2"), one("train.accumulate=4", "train.accumulate=8"),
				one("zero.offload.optimizer=none", "zero.offload.optimizer=host"), one("train.clip=0", "train.clip=1"), "train.steps=2", "train.micro_batch=1", "device=cpu"}, divisible...)
			sets = append(sets, "model.layers=8")
			if p > 1 {
				sets = append(sets, "pipeline.schedule="+one("GPipe", "1F1B", "Interleaved1F1B", "ZBH1"))
			}
			if slices.Contains(sets, "model.family=gpt2") {
				sets = slices.DeleteFunc(sets, func(s string) bool { return strings.HasPrefix(s, "model.tied") })
			}
			c := cfg(t, sets...)
			ranks, err := setup.Open(setup.Local(c))
			if err != nil {
				t.Fatal(err)
			}
			defer zerotest.CloseAll(ranks)
			zerotest.TrainOn(t, c, ranks)
			var logs []collective.Record
			for _, r := range ranks {
				logs = append(logs, r.Recorder.Read())
				if logs[r.Rank].Forgotten > 0 || len(logs[r.Rank].Operations) == 0 {
					t.Fatalf("rank %d: %d operations are recorded, %d forgotten", r.Rank, len(logs[r.Rank].Operations), logs[r.Rank].Forgotten)
				}
			}
			if why := disorder(logs); why != "" {
				t.Errorf("%v: %s", sets, why)
			}
		})
	}
}

// disorder explains why the ranks' operations are not part of one order, or returns "" if they
// are. It advances each rank to its next operation and completes those that all ranks of a group
// have reached.
func disorder(logs []collective.Record) string {
	next, came := make([]int, len(logs)), map[string][]int{}
	for busy := true; busy; {
		busy = false
		for r, log := range logs {
			for next[r] < len(log.Operations) {
				o := log.Operations[next[r]]
				g := log.Groups[o.Group]
				what := fmt.Sprintf("%s %v: operation %d, %s, %s", g.Name, g.Ranks, o.Seq, o.Call(), o.Label)
				if !slices.Contains(came[what], r) {
					came[what] = append(came[what], r)
					busy = true
				}
				if len(came[what]) < len(g.Ranks) {
					break
				}
				next[r]++
				busy = true
			}
		}
	}
	for r, log := range logs {
		if next[r] < len(log.Operations) {
			o := log.Operations[next[r]]
			return fmt.Sprintf("rank %d waits for ever in operation %d of %s %v, %s", r, o.Seq, log.Groups[o.Group].Name, log.Groups[o.Group].Ranks, o.Label)
		}
	}
	return ""
}

// TestDisorderIsFound checks that ranks with different orders of operations are found.
func TestDisorderIsFound(t *testing.T) {
	groups := []collective.RecordedGroup{{Name: "tensor", Ranks: []int{0, 1}}, {Name: "shard", Ranks: []int{0, 1}}}
	a, b := collective.Operation{Group: 0}, collective.Operation{Group: 1}
	log := func(all ...collective.Operation) collective.Record {
		return collective.Record{Groups: groups, Operations: all}
	}
	if why := disorder([]collective.Record{log(a, b), log(a, b)}); why != "" {
		t.Error(why)
	}
	for _, other := range []collective.Record{log(b, a), log(a), log(a, a)} {
		if disorder([]collective.Record{log(a, b), other}) == "" {
			t.Errorf("%v is in order with %v", other.Operations, []collective.Operation{a, b})
		}
	}
}
