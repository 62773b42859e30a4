package tests

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"zeroth/forecast"
	"zeroth/tests/nightly"
	"zeroth/zero"

	"zeroth/collective"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/shard"
	"zeroth/zero/zerotest"
)

// counting is a process whose ranks each count the bytes they send to other hosts.
type counting struct {
	process
	sent []atomic.Int64 // bytes, by world rank
}

func (p *counting) Connect(m shard.Mesh) (*setup.Connection, error) {
	c := &setup.Connection{Memory: p.mem}
	for _, r := range p.Self().At.Local {
		c.Groups = append(c.Groups, collective.WiredWorld(m, r, func(group, at int) collective.Wire {
			return counter{p.nets[p.at].Wire(group, at).(collective.Lender), &p.sent[r]}
		}))
	}
	return c, nil
}

type counter struct {
	collective.Lender
	sent *atomic.Int64
}

// NoteLending refuses to lend to other hosts, which in this test could read the memory.
func (c counter) NoteLending(to int, n collective.Note, b []byte) bool {
	return !c.elsewhere(to) && c.Lender.NoteLending(to, n, b)
}

func (c counter) elsewhere(r int) bool { return c.Host(r) != c.Host(c.Rank()) }

func (c counter) Send(to int, b []byte) {
	if c.elsewhere(to) {
		c.sent.Add(int64(len(b)))
	}
	c.Lender.Send(to, b)
}

// TestBetweenHostsIsPlanned checks that the planned bytes between hosts are those sent in a step,
// for various stages, meshes, types and hosts, and whichever algorithm each operation uses.
func TestBetweenHostsIsPlanned(t *testing.T) {
	nightly.Parallel(t)
	sent := map[bool]bool{} // whether the links made a difference
	for k, test := range []struct {
		sets  []string
		hosts []int // host of each process
	}{
		{[]string{"parallel.ranks=8", "zero.stage=3", "precision=bf16", "train.accumulate=2"}, []int{0, 1}},
		{[]string{"parallel.ranks=8", "zero.stage=2", "train.accumulate=7"}, []int{0, 0, 1, 1}},
		{[]string{"parallel.ranks=6", "zero.stage=1", "precision=bf16"}, []int{0, 0, 1}},
		{[]string{"parallel.ranks=6", "zero.stage=0"}, []int{0, 1, 2}},
		{[]string{"parallel.ranks=8", "parallel.replicate=2", "zero.stage=3", "train.accumulate=2"}, []int{0, 0, 0, 1}},
		{[]string{"parallel.ranks=8", "parallel.replicate=4", "zero.stage=2", "optimizer.type=muon"}, []int{0, 1}},
		{[]string{"parallel.ranks=8", "zero.stage=3", "optimizer.type=muon", "model.width=64"}, []int{0, 1}},
		{[]string{"parallel.ranks=6", "zero.stage=3"}, []int{0, 1, 0}},
		{[]string{"parallel.ranks=6", "parallel.master=true", "precision=bf16", "train.accumulate=2"}, []int{0, 0, 1}},
		{[]string{"parallel.ranks=8", "parallel.context=2", "parallel.tensor=2", "zero.stage=3", "model.context=8"}, []int{0, 1}},
		{[]string{"parallel.ranks=4", "parallel.context=4", "zero.stage=0", "model.context=8", "train.accumulate=2"}, []int{0, 1}},
		{[]string{"parallel.ranks=4", "zero.stage=3"}, []int{0, 0}}, // nothing is sent
	} {
		c := cfg(t, test.sets...)
		var before int64
		for i, near := range []float64{1e6, 1e9, 1e12} {
			far := 1e6
			if i == 0 {
				far = 1e12
			} else if !nightly.Every(2, i+k) {
				continue
			}
			all := processes(t, spec.Mesh(c), test.hosts) // a run closes their groups
			want := planBetween(t, c, all[0], near, far)
			got := countBetween(t, c, all, near, far)
			if got != want || (want > 0) != (test.hosts[len(test.hosts)-1] > 0 || test.hosts[1] > 0) {
				t.Errorf("%v on %v, %g near and %g far: a plan says %d bytes, wires carried %d", test.sets, test.hosts, near, far, want, got)
			}
			sent[i > 0 && want != before] = true
			before = want
		}
	}
	if !sent[true] {
		t.Error("all operations go the same way by all links")
	}
}

// planBetween returns the bytes that a plan predicts.
func planBetween(t *testing.T, c *spec.Job, l process, near, far float64) int64 {
	t.Helper()
	h := &forecast.Hardware{Name: "any", Flops: map[string]float64{"fp32": 1e9, "bf16": 1e9}, Memory: 1e9, Links: []forecast.Link{{Ranks: l.beside(), Bandwidth: near, Latency: 1e-6}, {Bandwidth: far, Latency: 1e-6}}}
	s, err := forecast.Simulate(setup.InWorld(c, l, setup.Hooks{}), h)
	if err != nil {
		t.Fatal(err)
	}
	return s.Between
}

// beside returns the number of ranks on the first host.
func (p process) beside() (n int) {
	for _, h := range p.hosts {
		if h == p.hosts[0] {
			n += p.per
		}
	}
	return n
}

// countBetween trains and counts the bytes that the first host's ranks send to other hosts in the
// third step.
func countBetween(t *testing.T, c *spec.Job, all []process, near, far float64) (bytes int64) {
	t.Helper()
	beside := all[0].beside()
	links := collective.Links{Near: near, Far: far * float64(beside), NearDelay: 1e-6, FarDelay: 1e-6, HostRanks: beside}
	sent, third := make([]atomic.Int64, c.Parallel.Ranks), make([]int64, c.Parallel.Ranks)
	var done sync.WaitGroup
	for _, l := range all {
		done.Go(func() {
			ranks, err := setup.Open(setup.InWorld(c, &counting{l, sent}, setup.Hooks{}))
			if err != nil {
				t.Error(err)
				return
			}
			defer zerotest.CloseAll(ranks)
			err = setup.Together(ranks, func(r *setup.Rank) error {
				for _, g := range r.Groups.All() {
					collective.UseLinks(*g, links)
				}
				if err := zerotest.Fresh(r); err != nil {
					return err
				}
				var before int64
				for step := range 3 {
					before = sent[r.Rank].Load()
					if _, err := r.Trainer.Step(zero.Work{Fill: zerotest.Tokens(c, r.Rank, step), LR: 1e-3}); err != nil {
						return err
					}
					for _, q := range r.Queues.All() {
						if err := q.Wait(); err != nil {
							return err
						}
					}
				}
				third[r.Rank] = sent[r.Rank].Load() - before
				return nil
			})
			if err != nil {
				t.Error(fmt.Errorf("process %d: %w", l.at, err))
			}
		})
	}
	done.Wait()
	for r, n := range third {
		if all[0].hosts[r/all[0].per] == all[0].hosts[0] {
			bytes += n
		}
	}
	return bytes
}
