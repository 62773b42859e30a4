package tests

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"zeroth/collective"
	"zeroth/collective/socket"
	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/job/spec"
	"zeroth/shard"
	"zeroth/tests/nightly"
	"zeroth/zero/zerotest"
)

// process is the World of one of several processes that this test simulates and connects over
// sockets.
type process struct {
	setup.Alone
	at, per int
	hosts   []int // host of each process
	nets    []*socket.Net
	mem     *socket.Memory
}

func (p process) Self() setup.Self {
	at := collective.Placement{HostRanks: p.per * len(p.hosts), HostOffset: p.at * p.per, Staged: true}
	for i := range p.per {
		at.Local = append(at.Local, p.at*p.per+i)
	}
	for _, host := range p.hosts {
		at.Hosts = append(at.Hosts, slices.Repeat([]int{host}, p.per)...)
	}
	return setup.Self{At: at}
}

func (p process) Connect(m shard.Mesh) (*setup.Connection, error) {
	c := &setup.Connection{Memory: p.mem}
	for _, r := range p.Self().At.Local {
		c.Groups = append(c.Groups, collective.WiredWorld(m, r, p.nets[p.at].Wire))
	}
	return c, nil
}

// processes connects one process per element of hosts.
func processes(t *testing.T, m shard.Mesh, hosts []int) (all []process) {
	t.Helper()
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	n := len(hosts)
	var nets []*socket.Net
	for p := range hosts {
		mem, err := socket.NewMemory()
		if err != nil {
			t.Logf("nothing is shared: %v", err)
			mem = &socket.Memory{}
		}
		nets = append(nets, socket.New(socket.Config{Process: p, Processes: n, PerProcess: m.World() / n, Groups: collective.MeshGroups(m), Hosts: hosts, Share: mem}))
		for q := range p {
			a, err := net.Dial("unix", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			b, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			nets[p].Add(q, a)
			nets[q].Add(p, b)
		}
		all = append(all, process{at: p, per: m.World() / n, hosts: hosts, mem: mem})
	}
	for p := range all {
		all[p].nets = nets
	}
	t.Cleanup(func() {
		var done sync.WaitGroup
		for _, n := range nets {
			done.Go(n.Close)
		}
		done.Wait()
	})
	return all
}

// wired returns the Wired group inside the wrappers of g.
func wired(g collective.Group) *collective.Wired {
	for {
		if w, ok := g.(*collective.Wired); ok {
			return w
		}
		g = g.(interface{ Unwrap() collective.Group }).Unwrap()
	}
}

// TestBounceIsPlannedIsFormula checks that the memory for data in flight between processes equals
// the plan, the formula below and what ranks hold before and after steps. A unit's shard of n
// elements takes 2 chunks of 4n bytes per other rank. If hosts have several ranks, sums may be
// hierarchical: then it takes 2 chunks per other rank of the host and for one of the previous
// host, plus 4 for outgoing sums, if that is more.
func TestBounceIsPlannedIsFormula(t *testing.T) {
	nightly.Parallel(t)
	for _, test := range []struct {
		sets  []string
		hosts []int
		slots func(shard, replica int) int // bytes, given the padded bytes of the largest shard and replica part
	}{
		{[]string{"parallel.ranks=4", "zero.stage=2"}, []int{0, 0}, func(s, _ int) int { return 3 * 2 * s }},
		{[]string{"parallel.ranks=2", "zero.stage=0"}, []int{0, 0}, func(_, r int) int { return 1 * 2 * r }},
		{[]string{"parallel.ranks=4", "parallel.replicate=2", "zero.stage=3", "train.accumulate=2"}, []int{0, 1}, func(s, r int) int { return 2 * (s + r) }},
		{[]string{"parallel.ranks=8", "zero.stage=3", "model.vocab=20000", "zero.offload.optimizer=host"}, []int{0, 1}, func(s, _ int) int { return max(7*2, 4*2+4) * s }},
		{[]string{"parallel.ranks=4", "zero.stage=3", "model.vocab=20000"}, []int{0, 1}, func(s, _ int) int { return max(3*2, 2*2+4) * s }},
	} {
		c := cfg(t, test.sets...)
		m := spec.Mesh(c)
		all := processes(t, m, test.hosts)
		largest := 0
		for _, u := range formula(c, 0).Units {
			_, part := u.Pad(m)
			largest = max(largest, int(4*part))
		}
		want := int64(test.slots(largest, largest/m.Replicate))
		p, err := setup.DryRun(setup.InWorld(c, all[0], setup.Hooks{}))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Both()[device.Bounce]; got != want {
			t.Errorf("%v: %d bytes planned, want %d", test.sets, got, want)
		}
		var done sync.WaitGroup
		for _, l := range all {
			done.Go(func() {
				ranks, err := setup.Open(setup.InWorld(c, l, setup.Hooks{}))
				if err != nil {
					t.Error(err)
					return
				}
				defer zerotest.CloseAll(ranks)
				check := func(when string) {
					for _, r := range ranks {
						sameBytes(t, fmt.Sprintf("%v: rank %d %s", test.sets, r.Rank, when), r.Device.Usage().Peak, p.Device)
						if got := r.HostMemory().Usage().Live[device.Bounce]; got != want {
							t.Errorf("%v: rank %d holds %d bytes %s, want %d", test.sets, r.Rank, got, when, want)
						}
						if got := wired(r.Groups.Shard).Bounce() + wired(r.Groups.Replica).Bounce(); int64(got) != want {
							t.Errorf("%v: rank %d: groups have %d bytes %s, want %d", test.sets, r.Rank, got, when, want)
						}
						if got := wired(r.Groups.World).Bounce(); got != 0 {
							t.Errorf("%v: rank %d: the world's group has %d bytes %s", test.sets, r.Rank, got, when)
						}
					}
				}
				check("before step 1")
				steps(t, c, ranks, 2)
				check("after steps")
			})
		}
		done.Wait()
	}
}

// TestHostsAgreeToTheBit checks that processes on several hosts, with hierarchical sums where
// they are cheaper, train bit-identically to one process.
func TestHostsAgreeToTheBit(t *testing.T) {
	nightly.Parallel(t)
	for _, test := range []struct {
		sets  []string
		hosts []int
	}{
		{[]string{"parallel.ranks=8", "zero.stage=3", "precision=bf16"}, []int{0, 1}},
		{[]string{"parallel.ranks=8", "zero.stage=0", "precision=fp32"}, []int{0, 0, 1, 1}},
		{[]string{"parallel.ranks=8", "parallel.replicate=2", "zero.stage=2", "train.accumulate=2"}, []int{0, 0, 0, 1}},
		{[]string{"parallel.ranks=8", "parallel.context=2", "parallel.tensor=2", "zero.stage=3", "model.context=8"}, []int{0, 0, 1, 1}},
		{[]string{"parallel.ranks=4", "parallel.context=4", "zero.stage=1", "model.context=8", "precision=bf16"}, []int{0, 1}},
	} {
		c := cfg(t, append(test.sets, "model.vocab=20000", "train.steps=2")...)
		want := trainWith(t, c, setup.Hooks{})
		got, turn := zerotest.Outcome{State: map[string][]float32{}}, make(chan struct{}, 1)
		all := processes(t, spec.Mesh(c), test.hosts)
		ends := make(chan error, len(all))
		var open [][]*setup.Rank
		for _, l := range all {
			ranks, err := setup.Open(setup.InWorld(c, l, setup.Hooks{}))
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, ranks)
			go func() { ends <- zerotest.TrainInto(c, ranks, &got, turn) }()
		}
		for range all {
			if err := <-ends; err != nil {
				t.Error(err)
			}
		}
		for _, ranks := range open {
			zerotest.CloseAll(ranks)
		}
		zerotest.SameBits(t, fmt.Sprint(test.sets, test.hosts), got, want)
	}
}
