package tests

import (
	"fmt"
	"testing"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/job/build"
	"zeroth/job/config"
)

// What links were measured to carry, and so how collectives go, may be another after a
// resume: the bits are those of one process, whichever way each step goes.
func TestBitsDoNotDependOnLinks(t *testing.T) {
	flat, byHost := collective.Links{Near: 1e6, Far: 1e12}, collective.Links{Near: 1e12, Far: 1e6}
	hosts := []int{0, 0, 1}
	spread := collective.SpreadOf([]int{0, 0, 0, 0, 1, 1})
	if flat.ByHostFrom(spread, true)+flat.ByHostFrom(spread, false) > 0 || byHost.ByHostFrom(spread, true) != 1024 || byHost.ByHostFrom(spread, false) != 1024 {
		t.Fatal("the links leave no other choice")
	}
	for _, sets := range [][]string{
		{"zero.stage=3", "precision=bf16"}, {"zero.stage=0", "precision=fp32"}, {"zero.stage=2", "precision=fp32"},
	} {
		c := cfg(t, append(sets, "parallel.ranks=6", "train.steps=4")...)
		want := trainWith(t, c, build.Hooks{})
		for _, links := range [][]collective.Links{{flat, flat, flat, flat}, {byHost, byHost, byHost, byHost}, {flat, flat, byHost, byHost}, {byHost, flat, byHost, flat}} {
			got := trainLinked(t, c, hosts, links)
			sameBits(t, fmt.Sprint(sets, links), got, want)
		}
	}
}

// trainLinked trains in processes on hosts, whose links are others in each step.
func trainLinked(t *testing.T, c *config.Config, hosts []int, links []collective.Links) outcome {
	t.Helper()
	got, turn := outcome{state: map[string][]float32{}}, make(chan struct{}, 1)
	all := processes(t, config.Mesh(c), hosts)
	ends := make(chan error, len(all))
	for _, l := range all {
		x := *c
		build.Place(&x, l)
		ranks, err := build.Open(&x, build.Setup{Launch: l})
		if err != nil {
			t.Fatal(err)
		}
		defer closeAll(ranks)
		go func() {
			ends <- build.Together(ranks, func(r *build.Rank) error {
				if err := fresh(r); err != nil {
					return err
				}
				for step, l := range links {
					for _, g := range []collective.Group{r.Groups.World, r.Groups.Shard, r.Groups.Replica} {
						collective.UseLinks(g, l)
					}
					s, err := r.Trainer.Step(tokens(c, r.Rank, step), c.Optimizer.LR)
					if err != nil {
						return err
					}
					if r.Rank == 0 {
						got.losses, got.norms = append(got.losses, s.Loss), append(got.norms, s.GradNorm)
					}
				}
				if held := r.HostMemory().Usage().Live[device.Bounce]; int64(wired(r.Groups.Shard).Bounce()+wired(r.Groups.Replica).Bounce()) != held {
					t.Errorf("%v: rank %d has needed more than the %d bytes that were planned", links, r.Rank, held)
				}
				turn <- struct{}{}
				defer func() { <-turn }()
				return collect(r, got.state)
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
