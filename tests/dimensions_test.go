package tests

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"zeroth/forecast"
	"zeroth/zero"

	"zeroth/collective"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/shard"
	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// byDimension is a process with one rank that counts the bytes it sends by dimension of the mesh.
type byDimension struct {
	process
	sent *dimensions
}

// dimensions are bytes by collective.Role.
type dimensions [collective.Backward + 1]atomic.Int64

func (p *byDimension) Connect(m shard.Mesh) (*setup.Connection, error) {
	roles := rolesOf(m)
	ranks := collective.WiredWorld(m, p.at, func(group, at int) collective.Wire {
		return counter{p.nets[p.at].Wire(group, at).(collective.Lender), &p.sent[roles[group]]}
	})
	return &setup.Connection{Memory: p.mem, Groups: []collective.Ranks{ranks}}, nil
}

// rolesOf returns the roles of the groups of a mesh.
func rolesOf(m shard.Mesh) (roles []collective.Role) {
	for role := collective.World; role < collective.Forward; role++ {
		for range collective.RoleGroups(m, role) {
			roles = append(roles, role)
		}
	}
	for range collective.RoleGroups(m, collective.Forward) {
		roles = append(roles, collective.Forward, collective.Backward)
	}
	return roles
}

// TestBytesByDimensionArePlanned checks that the planned bytes that a rank sends in each
// dimension of the mesh equal those sent in a step, for each stage of the pipeline. Meshes are
// random, with each rank on its own host and flat collectives.
func TestBytesByDimensionArePlanned(t *testing.T) {
	nightly.Parallel(t)
	draws := nightly.Of(6, 30)
	for i := range draws {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(6, uint64(i)))
			of := func(n ...int) int { return n[rng.IntN(len(n))] }
			one := func(values ...string) string { return values[rng.IntN(len(values))] }
			p, r, s, n := of(1, 2), of(1, 2), of(1, 2), of(1, 2, 4)
			sets := append([]string{}, divisible...)
			sets = append(sets, fmt.Sprintf("parallel={pipeline: %d, replicate: %d, shard: %d, tensor: %d}", p, r, s, n), fmt.Sprint("zero.stage=", of(1, 2, 3)), one("precision=fp32", "precision=bf16"),
				one("model.family=gpt2", "model.family=llama"), one("optimizer.type=adamw", "optimizer.type=muon"), one("zero.recompute=none", "zero.recompute=linear"),
				one("zero.offload.optimizer=none", "zero.offload.optimizer=host"), one("train.accumulate=1", "train.accumulate=5"), "train.micro_batch=1", "device=cpu")
			c := cfg(t, sets...)
			hosts := make([]int, c.Parallel.Ranks)
			for h := range hosts {
				hosts[h] = h
			}
			wires := countDimensions(t, c, hosts)
			planned, err := forecast.NewPlan(c, forecast.Machine{})
			if err != nil {
				t.Fatal(err)
			}
			places := planned.Kinds
			if places == nil {
				places = []*forecast.Plan{planned}
			}
			for at, x := range places {
				w := &wires[spec.Mesh(c).Group(0, shard.Pipeline)[at]]
				get := func(roles ...collective.Role) (n int64) {
					for _, r := range roles {
						n += w[r].Load()
					}
					return n
				}
				got := forecast.Sent{Shard: get(collective.Shard), Replicate: get(collective.Replica, collective.Ends), Pipeline: get(collective.Forward, collective.Backward), Tensor: get(collective.Tensor, collective.Updates)}
				if s > 1 {
					got.Shard += get(collective.Joint)
				} else {
					got.Replicate += get(collective.Joint)
				}
				if got != x.By {
					t.Errorf("%v, place %d: wires carry %+v, the plan says %+v", sets, at, got, x.By)
				}
			}
		})
	}
}

// countDimensions trains and counts the bytes that each rank sends in the third step.
func countDimensions(t *testing.T, c *spec.Job, hosts []int) []dimensions {
	t.Helper()
	all, sent, before := processes(t, spec.Mesh(c), hosts), make([]dimensions, len(hosts)), make([]dimensions, len(hosts))
	var done sync.WaitGroup
	for i, p := range all {
		done.Go(func() {
			ranks, err := setup.Open(setup.InWorld(c, &byDimension{p, &sent[i]}, setup.Hooks{}))
			if err != nil {
				t.Error(err)
				return
			}
			defer zerotest.CloseAll(ranks)
			err = setup.Together(ranks, func(r *setup.Rank) error {
				if err := zerotest.Fresh(r); err != nil {
					return err
				}
				for step := range 3 {
					for role := range before[i] {
						before[i][role].Store(sent[i][role].Load())
					}
					if _, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: 1e-3}); err != nil {
						return err
					}
					for _, q := range r.Queues.All() {
						if err := q.Wait(); err != nil {
							return err
						}
					}
				}
				for role := range before[i] {
					sent[i][role].Add(-before[i][role].Load())
				}
				return nil
			})
			if err != nil {
				t.Error(fmt.Errorf("process %d: %w", i, err))
			}
		})
	}
	done.Wait()
	return sent
}
