package job

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"

	"zeroth/collective"
	"zeroth/data"
	"zeroth/fsdp"
	"zeroth/internal/setup"
	"zeroth/job/hf"
	"zeroth/job/spec/spectest"
	"zeroth/tests/nightly"
	"zeroth/zero"
)

// TestUnitsOfAllRanks checks that units that every rank has whole, among sharded ones, train to the
// same bits: their gradients are summed over the same ranks in the same order (of one micro-batch),
// the norm counts them once, and ranks share the reading and saving of their state.
func TestUnitsOfAllRanks(t *testing.T) {
	nightly.Long(t)
	for stage := 1; stage < 4; stage++ {
		var stats [2]zero.Stats
		var state [2]map[string]float32
		for i := range stats {
			c := spectest.Fitted(t, "device=cpu", fmt.Sprintf("zero.stage=%d", stage), "parallel.ranks=3", "precision=fp32", "train.micro_batch=1", "train.batch=3", "optimizer.weight_decay=0.5",
				"model.layers=2", "model.width=16", "model.context=8")
			apart := func(_ int, z *zero.Config) {
				if i == 1 {
					whole := fsdp.Groups{Shard: collective.NewLocal(1)[0], Replica: z.Groups.World}
					z.UnitGroups = map[string]fsdp.Groups{"root": whole, "h.1": whole}
				}
			}
			ranks, err := setup.Open(setup.InWorld(c, setup.Alone{}, setup.Hooks{WrapTrainer: apart}))
			if err != nil {
				t.Fatal(err)
			}
			state[i] = map[string]float32{}
			var mu sync.Mutex
			err = setup.Together(ranks, func(r *setup.Rank) error {
				if err := r.Trainer.Fill(zero.Master, (&hf.Weights{Seed: 5}).Fill); err != nil {
					return err
				}
				for range 3 {
					s, err := r.Trainer.Step(zero.Work{Fill: func(micro int, into []data.Values) error {
						input, target, _ := data.TokensOf(into)
						for j := range input {
							input[j], target[j] = int32((j*7+micro+3*r.Rank)%251), int32((j*5+micro+r.Rank)%251)
						}
						return nil
					}, LR: 1e-2})
					if err != nil {
						return err
					}
					if r.Rank == 0 {
						stats[i] = s
					}
				}
				return r.Trainer.EachAll(false, zero.Staging(), func(p zero.Part, src []float32) error {
					mu.Lock()
					defer mu.Unlock()
					for j, x := range src {
						at := fmt.Sprintf("%s %s %d", p.Kind, p.Param.Name, p.At.Lo+j)
						if _, twice := state[i][at]; twice {
							return fmt.Errorf("%s is saved twice", at)
						}
						state[i][at] = x
					}
					return nil
				}, nil)
			})
			setup.CloseAll(ranks)
			if err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(stats[0], stats[1]) || stats[0].GradNorm == 0 {
			t.Errorf("stage %d: %+v with units of all ranks, %+v without", stage, stats[1], stats[0])
		}
		if !maps.Equal(state[0], state[1]) {
			keys := slices.Sorted(maps.Keys(state[0]))
			at := slices.IndexFunc(keys, func(k string) bool { return state[0][k] != state[1][k] })
			t.Errorf("stage %d: %d elements of state, %d without; the first that differs is %v", stage, len(state[1]), len(state[0]), keys[max(0, at)])
		}
	}
}
