package forecast

import (
	"testing"

	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/job/spec/spectest"
)

// TestCommunicatorsArePlanned checks that a plan counts communicators as a run makes them: for
// groups with peers, if the processes use NCCL. If the number of processes is unknown, the minimum
// is that of a single process, which has none.
func TestCommunicatorsArePlanned(t *testing.T) {
	in := func(processes int) Machine {
		return Machine{GPU: true, Spread: setup.Spread{Processes: processes, Hosts: 1, GPU: true}}
	}
	secret := func(c *spec.Job) { c.Parallel.TLS.Cert = "a" }
	for _, test := range []struct {
		name        string
		sets        []string
		m           Machine
		set         func(*spec.Job)
		least, most int64
	}{
		{"alone", []string{"parallel.ranks=1"}, Machine{GPU: true}, nil, 0, 0},
		{"one group", []string{"parallel.ranks=4"}, Machine{GPU: true}, nil, 0, 1},
		{"shards and replicas", []string{"parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2"}, Machine{GPU: true}, nil, 0, 2},
		{"of one process", []string{"parallel.ranks=4"}, in(1), nil, 0, 0},
		{"of one that wants NCCL", []string{"parallel.ranks=4"}, in(1), func(c *spec.Job) { c.Parallel.Collective = "nccl" }, 1, 1},
		{"that wants NCCL, anywhere", []string{"parallel.ranks=4"}, Machine{GPU: true}, func(c *spec.Job) { c.Parallel.Collective = "nccl" }, 1, 1},
		{"of four processes", []string{"parallel.ranks=4", "parallel.shard=2", "parallel.replicate=2"}, in(4), nil, 2, 2},
		{"exact", []string{"parallel.ranks=4"}, in(4), func(c *spec.Job) { c.Parallel.Collective = "exact" }, 1, 1},
		{"in secret", []string{"parallel.ranks=4"}, in(4), secret, 0, 0},
		{"in secret, anywhere", []string{"parallel.ranks=4"}, Machine{GPU: true}, secret, 0, 0},
	} {
		c := spectest.Fitted(t, append(test.sets, "train.batch=null")...)
		if test.set != nil {
			test.set(c)
		}
		var low, high int64
		for _, e := range Outside(c, test.m) {
			if e.Name == "communicator buffers" {
				low, high = e.Low, e.High
			}
		}
		if low != test.least*500e6 || high != test.most*1600e6 {
			t.Errorf("%s: communicators of %d to %d bytes, want %d to %d of them", test.name, low, high, test.least, test.most)
		}
	}
}
