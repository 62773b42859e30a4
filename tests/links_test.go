package tests

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"zeroth/tests/nightly"
	"zeroth/zero"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/job"
	"zeroth/job/spec"
	"zeroth/zero/zerotest"
)

// Links for which all operations are flat, or hierarchical.
var (
	flat   = collective.Links{Near: 1e6, Far: 1e12}
	byHost = collective.Links{Near: 1e12, Far: 1e6}
)

// TestBitsDoNotDependOnLinks checks that training is bit-identical to one process even if the
// measured links, and so the algorithms of collectives, change in each step.
func TestBitsDoNotDependOnLinks(t *testing.T) {
	nightly.Parallel(t)
	hosts := []int{0, 0, 1}
	spread := collective.SpreadOf([]int{0, 0, 0, 0, 1, 1})
	if flat.ByHostFrom(spread, true)+flat.ByHostFrom(spread, false) > 0 || byHost.ByHostFrom(spread, true) != 1024 || byHost.ByHostFrom(spread, false) != 1024 {
		t.Fatal("the links leave no other choice")
	}
	for _, sets := range [][]string{
		{"zero.stage=3", "precision=bf16"}, {"zero.stage=0", "precision=fp32"}, {"zero.stage=2", "precision=fp32"},
	} {
		c := cfg(t, append(sets, "parallel.ranks=6", "train.steps=4")...)
		want := trainWith(t, c, setup.Hooks{})
		for _, links := range [][]collective.Links{{flat, flat, flat, flat}, {byHost, byHost, byHost, byHost}, {flat, flat, byHost, byHost}, {byHost, flat, byHost, flat}} {
			got := trainLinked(t, c, hosts, links)
			zerotest.SameBits(t, fmt.Sprint(sets, links), got, want)
		}
	}
}

// TestResumeDoesNotDependOnLinks checks the same for a resume: a run of one process, and one of
// three whose links change at the checkpoint, end with the same losses and state.
func TestResumeDoesNotDependOnLinks(t *testing.T) {
	nightly.Parallel(t)
	for i, links := range [][2]collective.Links{{flat, byHost}, {byHost, flat}} {
		for j, stage := range []string{"zero.stage=0", "zero.stage=3"} {
			if !nightly.Every(2, i+j) {
				continue
			}
			sets := []string{"parallel.ranks=6", stage, "precision=bf16"}
			first, second := t.TempDir(), t.TempDir()
			whole := run(t, saving(t, first, sets...), "")
			runLinked(t, saving(t, second, sets...), "", links[0])
			third := t.TempDir()
			again := runLinked(t, saving(t, third, sets...), filepath.Join(second, "step-00000003"), links[1])
			if got, want := losses(t, again, 0), losses(t, whole, 3); !slices.Equal(got, want) {
				t.Errorf("%s, %v: resumed run %q, want %q", stage, links, got, want)
			}
			if digest(t, third, "6") != digest(t, first, "6") {
				t.Errorf("%s, %v: the state at the end differs", stage, links)
			}
		}
	}
}

// runLinked is like run, with simulated processes connected over sockets.
func runLinked(t *testing.T, c *spec.Job, which string, links collective.Links) string {
	t.Helper()
	all, m, out := processes(t, spec.Mesh(c), []int{0, 0, 1}), spec.Mesh(c), t.TempDir()
	wire := func(r int, g collective.Ranks) collective.Ranks {
		p := all[r/all[0].per]
		w := collective.WiredWorld(m, r, p.nets[p.at].Wire)
		for _, g := range []collective.Group{g.World, g.Shard, g.Replica} {
			_ = g.Close() // nobody uses it
		}
		for _, g := range []collective.Group{w.World, w.Shard, w.Replica} {
			collective.UseLinks(g, links)
		}
		return w
	}
	if err := job.Run(t.Context(), c, job.Options{Out: out, Resume: which, Hooks: setup.Hooks{WrapGroups: wire}}); err != nil {
		t.Fatal(err)
	}
	return out
}

// trainLinked trains in processes on hosts whose links change in each step.
func trainLinked(t *testing.T, c *spec.Job, hosts []int, links []collective.Links) zerotest.Outcome {
	t.Helper()
	got, turn := zerotest.Outcome{State: map[string][]float32{}}, make(chan struct{}, 1)
	all := processes(t, spec.Mesh(c), hosts)
	ends := make(chan error, len(all))
	for _, l := range all {
		ranks, err := setup.Open(setup.InWorld(c, l, setup.Hooks{}))
		if err != nil {
			t.Fatal(err)
		}
		defer zerotest.CloseAll(ranks)
		go func() {
			ends <- setup.Together(ranks, func(r *setup.Rank) error {
				if err := zerotest.Fresh(r); err != nil {
					return err
				}
				for step, l := range links {
					for _, g := range []collective.Group{r.Groups.World, r.Groups.Shard, r.Groups.Replica} {
						collective.UseLinks(g, l)
					}
					s, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: c.Optimizer.LR})
					if err != nil {
						return err
					}
					if r.Rank == 0 {
						got.Losses, got.Norms = append(got.Losses, s.Loss), append(got.Norms, s.GradNorm)
					}
				}
				if held := r.HostMemory().Usage().Live[device.Bounce]; int64(wired(r.Groups.Shard).Bounce()+wired(r.Groups.Replica).Bounce()) != held {
					t.Errorf("%v: rank %d has needed more than the %d bytes that were planned", links, r.Rank, held)
				}
				turn <- struct{}{}
				defer func() { <-turn }()
				return zerotest.Collect(r, got.State)
			})
		}()
	}
	for range all {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	return got
}
