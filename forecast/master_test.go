package forecast

import (
	"testing"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/job/spec/spectest"
)

// TestMasterSeconds checks broadcast and reduce with a master against values computed by hand. The
// whole buffer goes once per rank over the master's links, to its own host and to the others
// concurrently.
func TestMasterSeconds(t *testing.T) {
	h := &Hardware{Links: []Link{{4, 100, 1}, {0, 10, 5}}, HostLink: 50, Launch: 1e-9, GPU: true}
	c := ranked(8)
	c.Parallel.Master = true
	for _, test := range []struct {
		hosts   []int
		staged  bool
		op      string
		want    float64
		between int64
	}{
		{[]int{0, 0, 0, 0, 0, 0, 0, 0}, false, collective.BroadcastName, 7*4000./10 + 5, 0}, // more ranks than the near link joins
		{[]int{0, 0, 0, 0, 1, 1, 1, 1}, false, collective.BroadcastName, 4*4000./10 + 5, 4 * 4000},
		{[]int{0, 0, 0, 0, 1, 1, 1, 1}, false, collective.ReduceName, 4*4000./10 + 5, 0},
		{[]int{0, 1, 2, 3, 4, 5, 6, 7}, false, collective.ReduceName, 7*4000./10 + 5, 0},
		{[]int{0, 1, 2, 3, 4, 5, 6, 7}, true, collective.BroadcastName, 7*4000./10 + 5 + 2*4000./50, 7 * 4000},
	} {
		m := h.moving(&setup.Job{Job: c, At: collective.Placement{HostRanks: 8, Hosts: test.hosts, Staged: test.staged}})
		k := Kernel{Op: test.op, In: device.F32, N: 1000, Group: Group{8, 1}}
		if got := m.collective(k); !close9(got, test.want) {
			t.Errorf("%v of %v: %v seconds, want %v", test.op, test.hosts, got, test.want)
		}
		if got := m.between(k); got != test.between {
			t.Errorf("%v of %v: %d bytes between hosts, want %d", test.op, test.hosts, got, test.between)
		}
	}
}

// TestMasterStepIsItsWire checks that with free computation a step with a master takes (N-1)(4+p)
// bytes per parameter on its link, and a step at stage 0 2·4(N-1)/N.
func TestMasterStepIsItsWire(t *testing.T) {
	h := &Hardware{Name: "any", Flops: map[string]float64{"bf16": 1e18}, Memory: 1e18, Links: []Link{{0, 1e9, 0}}}
	for _, ranks := range []int{2, 4, 8} {
		var seconds [2]float64
		elements := 0
		for i, set := range []string{"parallel.master=true", "zero.stage=0"} {
			c := spectest.Fitted(t, set, "precision=bf16", "parallel.shard=null", "parallel.replicate=null")
			c.Parallel.Ranks, c.Parallel.Shard, c.Train.Batch = ranks, ranks, ranks*c.Train.MicroBatch*c.Train.Accumulate
			j := setup.Spread{Processes: ranks, Hosts: ranks}.Of(c)
			r, err := Simulate(j, h)
			if err != nil {
				t.Fatal(err)
			}
			seconds[i] = r.Seconds
			if set != "zero.stage=0" {
				dry, err := setup.OpenDry(j, 0, nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, u := range dry.Trainer.Units() {
					elements += u.Layout.Len()
				}
			}
		}
		n := float64(ranks)
		for i, want := range []float64{(n - 1) * (4 + 2), 2 * 4 * (n - 1) / n} {
			want *= float64(elements) / 1e9
			if got := seconds[i]; got < want || got > 1.01*want {
				t.Errorf("%d ranks: a step %v takes %v s, want %v", ranks, []string{"with a master", "of stage 0"}[i], got, want)
			}
		}
	}
}
