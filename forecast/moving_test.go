package forecast

import (
	"math"
	"strings"
	"testing"

	"zeroth/device"
	"zeroth/internal/setup"
	"zeroth/job/spec"
)

// ranked returns a job with the given number of ranks and no other settings.
func ranked(ranks int) *spec.Job {
	c := &spec.Job{}
	c.Parallel.Ranks, c.Parallel.Shard, c.Parallel.Replicate = ranks, ranks, 1
	return c
}

func close9(got, want float64) bool { return math.Abs(got-want) <= 1e-9*max(1, want) }

// TestRing checks rings against values computed by hand: 8 neighbours at 100 per second, 10
// beyond.
func TestRing(t *testing.T) {
	h := &Hardware{GPU: true, Links: []Link{{8, 100, 1}, {0, 10, 5}}}
	for _, test := range []struct {
		size, stride int
		want         float64
	}{
		{2, 1, 1000./2/100 + 1},
		{8, 1, 1000*7/8./100 + 7},
		{16, 1, 1000*15/16./80 + 7 + 5},   // 8 rings enter and leave each machine
		{64, 1, 1000*63/64./80 + 7 + 7*5}, // likewise
		{2, 8, 1000./2/10 + 5},            // one rank of each machine
		{4, 4, 1000*3/4./20 + 1 + 5},      // two ranks of each machine
		{1024, 1, 1000*1023/1024./80 + 7 + 127*5},
	} {
		m := h.moving(setup.Planned(ranked(test.size * test.stride)))
		if got := m.ring(Group{test.size, test.stride}, 1000); !close9(got, test.want) {
			t.Errorf("%d ranks, each %d from the next: %v, want %v", test.size, test.stride, got, test.want)
		}
	}
	fours := setup.Spread{Processes: 4, Hosts: 4, GPU: true}.Of(ranked(16)) // 4 ranks on each of 4 hosts, where a link could join 8
	if got, want := h.moving(fours).ring(Group{16, 1}, 1000), 1000*15/16./40+3+3*5; !close9(got, want) {
		t.Errorf("4 ranks a host: %v, want %v", got, want)
	}
}

// TestWires checks collectives between processes against values computed by hand. Hosts have 8
// ranks, each with 100 per second to its neighbours and 10 to other hosts.
func TestWires(t *testing.T) {
	h := &Hardware{Links: []Link{{8, 100, 1}, {0, 10, 5}}}
	const S = 1 << 20 // bytes
	for _, test := range []struct {
		op           string
		t            device.DType
		size, stride int
		want         float64
		between      int64 // bytes that the first host sends
	}{
		{"all-gather", device.F32, 1, 1, 0, 0},
		{"reduce-scatter", device.F32, 8, 1, S*7/8./100 + 1, 0},                       // one host: flat
		{"reduce-scatter", device.F32, 16, 8, 16*S*15/16./16/10 + 5, 8 * S * 15 / 16}, // one rank per host: flat, eight groups
		{"all-gather", device.F32, 16, 1, S*7/8./100 + 5 + 1, S / 2},                  // the traffic within hosts is larger than between them
		{"reduce-scatter", device.F32, 16, 1, S/80. + 5 + S/16./80 + 2, S},            // the whole crosses one border; flat would send 4 times as much
		{"reduce-scatter", device.BF16, 16, 1, 2*S/80. + 5 + 2*S/16./80 + 2, 2 * S},
		{"reduce-scatter", device.F32, 16384, 1, S/80. + 2047*(5+S/16384./80) + 2, S},
		{"all-gather", device.F32, 16384, 1, S*(1-1/2048.)/80 + 5 + 1, S * 2047 / 2048},
		{"reduce-scatter", device.F32, 8192, 8, S*8191/8192./10 + 5, 8 * S * 8191 / 8192}, // replicas
	} {
		m := h.moving(setup.Planned(ranked(test.size * test.stride)))
		k := Kernel{Op: test.op, In: test.t, N: S / test.t.Size(), Group: Group{test.size, test.stride}}
		got := m.seconds(setup.Comm, k, Work{Bytes: S})
		if math.Abs(got-test.want) > 1e-9*test.want || m.between(k) != test.between {
			t.Errorf("%s of %v by %d ranks, each %d from the next: %v and %d bytes between hosts, want %v and %d", test.op, test.t, test.size, test.stride, got, m.between(k), test.want, test.between)
		}
	}
}

// TestCollectiveTransport checks that collectives use NCCL for GPUs in several processes, unless
// the job asks for exact sums.
func TestCollectiveTransport(t *testing.T) {
	links := []Link{{8, 100, 1}, {0, 10, 5}}
	const S = 1 << 20
	flat, ring := 16*S*15/16./16/10+5, S*15/16./80+7+5
	for _, test := range []struct {
		name           string
		gpu            bool
		ranks          int
		set            func(c *spec.Job)
		on             setup.Spread // zero: the hardware's
		gather, reduce float64      // seconds
		says           string
	}{
		{"GPUs of two hosts", true, 16, nil, setup.Spread{}, ring, ring, "NCCL, around rings"},
		{"exact sums", true, 16, func(c *spec.Job) { c.Parallel.Collective = "exact" }, setup.Spread{}, ring, 8*8/16.*S/80. + 5, "NCCL, around rings; sums in rank order, from rank to rank"},
		{"encrypted", true, 16, func(c *spec.Job) { c.Parallel.TLS.Cert = "a" }, setup.Spread{}, S*7/8./100 + 6, S/80. + 5 + S/16./80 + 2, "between 2 hosts, gathers by host, sums by host, through pinned memory of the host"},
		{"encrypted, and NCCL asked for", true, 16, func(c *spec.Job) { c.Parallel.TLS.Cert, c.Parallel.Collective = "a", "nccl" }, setup.Spread{}, ring, ring, "NCCL, around rings"},
		{"GPUs of one process", true, 8, nil, setup.Spread{}, S*7/8./100 + 1, S*7/8./100 + 1, "in one process"},
		{"the same by NCCL", true, 8, func(c *spec.Job) { c.Parallel.Collective = "nccl" }, setup.Spread{}, S*7/8./100 + 7, S*7/8./100 + 7, "NCCL, around rings"},
		{"processors", false, 16, nil, setup.Spread{}, S*7/8./100 + 6, S/80. + 5 + S/16./80 + 2, "between 2 hosts, gathers by host, sums by host"},
		{"processors of a host each", false, 16, nil, setup.Spread{Processes: 16, Hosts: 16}, flat, flat, "between 16 hosts, gathers from rank to rank, sums from rank to rank"},
		{"processes of a host", false, 8, nil, setup.Spread{Processes: 8, Hosts: 1}, S*7/8./100 + 1, S*7/8./100 + 1, "between processes of one host, from rank to rank"},
		{"alone", true, 1, nil, setup.Spread{}, 0, 0, ""},
	} {
		c := ranked(test.ranks)
		if test.set != nil {
			test.set(c)
		}
		j := setup.Planned(c)
		if test.on != (setup.Spread{}) {
			j = test.on.Of(c)
		}
		m := (&Hardware{GPU: test.gpu, Links: links, HostLink: math.Inf(1)}).moving(j)
		for op, want := range map[string]float64{"all-gather": test.gather, "reduce-scatter": test.reduce} {
			if got := m.collective(Kernel{Op: op, In: device.F32, N: S / 4, Group: Group{test.ranks, 1}}); !close9(got, want) {
				t.Errorf("%s: %s takes %v, want %v", test.name, op, got, want)
			}
		}
		if m.transport() != test.says {
			t.Errorf("%s: %q, want %q", test.name, m.transport(), test.says)
		}
	}
}

// TestStagedThroughTheHost checks transfers through pinned host memory, without NCCL, against
// values computed by hand: 16 ranks on two hosts with encryption, 1 MiB in one piece, and 80 MiB,
// five per rank, in three.
func TestStagedThroughTheHost(t *testing.T) {
	h := &Hardware{GPU: true, Links: []Link{{8, 100, 1}, {0, 10, 5}}, HostLink: 50, Memory: 1e9, Launch: 0.25}
	c := ranked(16)
	c.Parallel.TLS.Cert = "a"
	m := h.moving(setup.Planned(c))
	const S, elem = 1 << 20, 4
	gather := func(S float64) float64 { return S*7/8./100 + 6 }
	reduce := func(S float64) float64 { return S/80. + 5 + min(S/16, 1<<20)/80 + 2 } // in chunks of 1 MiB
	for _, test := range []struct {
		name    string
		k       Kernel
		want    float64
		between int64
	}{
		// One part is copied to the host and those of the others back: 16 copies.
		{"gather", Kernel{Op: "all-gather", N: S / elem}, gather(S) + S/50., S / 2},
		{"gather, apart", Kernel{Op: "all-gather", N: S / elem, Form: Separate}, gather(S) + 17*S/16/50., S / 2},
		{"reduction", Kernel{Op: "reduce-scatter", N: S / elem}, reduce(S) + 17*S/16/50., S},
		{"of all ranks, in host memory", Kernel{Op: "all-gather", N: S / elem, Host: true}, gather(S), S / 2},
		// 32 MiB of staging memory are 2 MiB per rank.
		{"three pieces", Kernel{Op: "all-gather", N: 80 * S / elem}, 2*gather(32*S) + gather(16*S) + 80*S/50., 40 * S},
		{"three pieces reduced", Kernel{Op: "reduce-scatter", N: 80 * S / elem}, 2*reduce(32*S) + reduce(16*S) + 80*17/16.*S/50., 80 * S},
		{"two that are full", Kernel{Op: "all-gather", N: 64 * S / elem}, 2*gather(32*S) + 64*S/50., 32 * S},
		{"a copy takes as long as a kernel at least", Kernel{Op: "reduce-scatter", N: 16}, reduce(64) + 17*0.25, 64},
	} {
		test.k.In, test.k.Group = device.F32, Group{16, 1}
		got := m.seconds(setup.Comm, test.k, Work{Bytes: float64(test.k.N * elem)})
		if math.Abs(got-test.want) > 1e-9*test.want || m.between(test.k) != test.between {
			t.Errorf("%s: %v and %d bytes between hosts, want %v and %d", test.name, got, m.between(test.k), test.want, test.between)
		}
	}
	if got, want := m.transport(), "between 2 hosts, gathers by host, sums by host, through pinned memory of the host"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	h.Flops, h.HostLink = map[string]float64{"fp32": 1}, 0
	if err := h.Serves(setup.Planned(c), false, false); err == nil || !strings.Contains(err.Error(), "host_link, because GPUs exchange") {
		t.Errorf("no host_link: %v", err)
	}
	c.Parallel.TLS.Cert = ""
	if err := h.Serves(setup.Planned(c), false, false); err != nil {
		t.Errorf("by NCCL: %v", err)
	}
}
