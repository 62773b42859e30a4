package forecast

import (
	"fmt"
	"slices"
	"strings"

	"zeroth/collective"
	"zeroth/config"
	"zeroth/device"
	"zeroth/device/cuda/kernel"
	"zeroth/internal/setup"
	"zeroth/internal/show"
	"zeroth/job/spec"
)

// moving computes the time of a job's work on some hardware. Collectives use the same mechanism as
// in a run. On GPUs this is NCCL with rings, unless the job chooses otherwise. Else it is our own
// transport between processes, flat or hierarchical as the group would choose, or the memory of
// one process.
type moving struct {
	*Hardware
	job       *setup.Job
	hostRanks int // ranks on the first rank's host
	share     int // bytes of host memory through which a group's data passes, if staged
	links     collective.Links
	bounce    map[Group]int // planned bytes of bounce memory per rank of a group; 0: unknown
	ways      map[Group]*ways
}

// ways holds the ways of the first rank's group, and of all groups with ranks on its host.
type ways struct {
	first *collective.Ways
	all   []*collective.Ways
}

// moving returns the moving of a job on the hardware. A job without a placement is spread over the
// hosts it needs, with as many ranks on each as the first of several links joins.
func (h *Hardware) moving(c *setup.Job) *moving {
	if c.Unplaced() {
		c = h.Spread(c.Job).Of(c.Job)
	}
	m := &moving{
		Hardware: h, job: c, hostRanks: min(c.At.HostRanks, c.Parallel.Ranks), share: setup.StagingShare(c),
		bounce: map[Group]int{}, ways: map[Group]*ways{},
	}
	if c.At.Hosts != nil {
		m.hostRanks = 0
		for _, at := range c.At.Hosts {
			if at == c.At.Hosts[0] {
				m.hostRanks++
			}
		}
	}
	if c.Parallel.Ranks > 1 {
		near, far := h.link(m.hostRanks), h.link(c.Parallel.Ranks)
		m.links = collective.Links{
			Near: near.Bandwidth, NearDelay: near.Latency,
			Far: far.Bandwidth * float64(m.hostRanks), FarDelay: far.Latency, HostRanks: m.hostRanks,
		}
	}
	return m
}

// host returns the number of a rank's host.
func (m *moving) host(rank int) int {
	if m.job.At.Hosts != nil {
		return m.job.At.Hosts[rank]
	}
	return rank / m.job.At.HostRanks
}

// Spread returns the spread of a job without a placement.
func (h *Hardware) Spread(c *spec.Job) setup.Spread {
	hosts := 1
	if len(h.Links) > 1 {
		hosts = (c.Parallel.Ranks + h.Links[0].Ranks - 1) / h.Links[0].Ranks
	}
	return setup.Spread{Processes: hosts, Hosts: hosts, GPU: h.GPU || c.On() == "cuda"}
}

// link returns the link by which a rank reaches the given number of ranks.
func (h *Hardware) link(ranks int) Link {
	at := slices.IndexFunc(h.Links, func(l Link) bool { return l.Ranks == 0 || l.Ranks >= ranks })
	return h.Links[at]
}

// seconds returns the duration of a kernel. On the device it is the maximum of arithmetic and
// traffic; on the host there is only traffic. A collective copies the rank's own part, if not in
// place, during communication.
func (m *moving) seconds(on setup.QueueRole, k Kernel, w Work) float64 {
	switch {
	case k.isLink():
		return m.transfer(k)
	case k.Group.Size > 1 && m.staged():
		return m.collective(k) // includes copying the rank's own part
	case k.Group.Size > 0 && k.Form == Separate:
		return max(m.collective(k), 2*w.Bytes/float64(k.Group.Size)/m.Memory)
	case k.Group.Size > 0:
		return m.collective(k)
	case on == setup.ToHost || on == setup.ToDevice:
		return w.Bytes / 2 / m.HostLink
	case on == setup.HostUpdate:
		return w.Bytes / m.HostMemory
	case on == setup.Read || on == setup.Write:
		return w.Bytes / m.Disk
	case k.Op == "do":
		return 0
	}
	computing := 0.0
	if rate := m.rate(k); rate > 0 {
		computing = w.Flops / rate
	}
	if cores := m.Flops["fp32"]; cores > 0 {
		computing += w.Other / cores
	}
	return max(m.Launch, w.Bytes/m.Memory, computing)
}

// groupShare is the predicted rate of a GPU's products of groups of rows, on tensor cores, as a share
// of the rate of cuBLAS's products.
const groupShare = 0.65

// wideShare and hopperShare are the predicted rates of attention with heads wider than 128 on tensor
// cores, and by Hopper's products of four warps, as shares of that with narrower heads.
const (
	wideShare   = 0.9
	hopperShare = 1.8
)

// source says where the rates come from, and which attention has none that was measured.
func (m *moving) source() string {
	if a := m.job.Parallel.Attention; m.Source != "" && config.AttentionLevel(a) > 0 {
		return m.Source + "; attention by " + a + " predicted"
	}
	return m.Source
}

// rate returns the operations per second of a kernel's products. Attention on tensor cores has a
// rate of its own. GPU kernels do not use tensor cores for fp32 and for heads not a multiple of 8; for
// heads wider than 128 and for capped scores, and Hopper's instructions, only if parallel.attention says so.
func (m *moving) rate(k Kernel) float64 {
	switch {
	case m.GPU && strings.HasSuffix(k.Op, "of groups") && k.In != device.F32:
		return groupShare * m.Flops[k.In.String()]
	case !strings.HasPrefix(k.Op, "attention") || m.Attention == 0:
		return m.Flops[k.In.String()]
	}
	wide, capped, choice := k.K > 128, k.Form&Capped > 0, kernel.Choice(config.AttentionLevel(m.job.Parallel.Attention))
	slow := k.In == device.F32 || k.K%8 != 0 || (wide || capped) && choice == kernel.Auto
	cores := m.Flops["fp32"]
	switch {
	case cores > 0 && slow:
		return cores
	case wide:
		return wideShare * m.Attention
	case choice == kernel.WGMMA && !capped && (k.K <= 64 || k.K > 96):
		return hopperShare * m.Attention
	}
	return m.Attention
}

// collective returns the seconds of a collective on a buffer.
func (m *moving) collective(k Kernel) float64 {
	switch {
	case k.Group.Size == 1:
		return 0
	case k.isStar():
		seconds, _ := m.star(k)
		return seconds
	case m.job.At.NCCL && !(setup.AddsExactly(m.job) && k.Op == collective.ReduceScatterName):
		return m.ring(k.Group, float64(k.N)*float64(k.In.Size()))
	}
	seconds, _ := m.wired(k, m.waysOf(k.Group).first)
	return seconds
}

// star returns the seconds of an operation between rank 0 and all others, which sends the whole
// buffer over rank 0's links once per rank, and the bytes that its host sends to others.
func (m *moving) star(k Kernel) (seconds float64, between int64) {
	bytes, near := float64(k.N*k.In.Size()), m.hostRanks-1
	far := k.Group.Size - 1 - near
	if l := m.link(m.hostRanks); near > 0 {
		seconds = float64(near)*bytes/l.Bandwidth + l.Latency
	}
	if l := m.link(k.Group.Size); far > 0 {
		seconds = max(seconds, float64(far)*bytes/l.Bandwidth+l.Latency)
		if k.Op == collective.BroadcastName {
			between = int64(far) * int64(bytes)
		}
	}
	if m.staged() {
		seconds += m.copies(k, int(bytes))
	}
	return seconds, between
}

// wired returns the seconds of a collective by a group's ways, and the bytes that the host sends
// to others for it.
func (m *moving) wired(k Kernel, w *collective.Ways) (seconds float64, between int64) {
	gather := k.Op == collective.AllGatherName
	if k.Host || !m.staged() {
		return w.Cost(gather, k.In, k.N)
	}
	ranks := k.Group.Size
	part, most := k.N/ranks, collective.StagedPiece(m.share, ranks, k.In)
	piece := func(n, times int) {
		s, bytes := w.Cost(gather, k.In, n*ranks)
		s += m.copies(k, n*k.In.Size())
		seconds, between = seconds+float64(times)*s, between+int64(times)*bytes
	}
	piece(min(part, most), max(1, part/most))
	if rest := part % most; part > most && rest > 0 {
		piece(rest, 1)
	}
	return seconds, between
}

// staged reports whether exchanges pass through pinned host memory in pieces, because ranks are on
// GPUs and do not use NCCL.
func (m *moving) staged() bool {
	return m.job.At.Staged && (m.GPU || m.job.On() == "cuda")
}

// copies returns the seconds to copy a piece of bytes per rank to the host and the result back,
// one copy after the other, as in collective.Staged. A gather copies the rank's own part to the
// host, and back only if it is not in place. A reduction copies all parts to the host and the
// rank's own part back.
func (m *moving) copies(k Kernel, bytes int) float64 {
	n := k.Group.Size
	switch {
	case k.isStar():
		n = 2 // from each sender, and to each receiver
	case k.Op == collective.ReduceScatterName || k.Form == Separate:
		n++
	}
	return float64(n) * max(m.Launch, float64(bytes)/m.HostLink)
}

// transfer returns the seconds of a transfer over a link of a pipeline.
func (m *moving) transfer(k Kernel) float64 {
	from, to, bytes := k.Link[0], k.Link[1], k.N*k.In.Size()
	sameHost := m.host(from) == m.host(to)
	at := slices.IndexFunc(m.Links, func(l Link) bool {
		return l.Ranks == 0 || sameHost && l.Ranks >= m.hostRanks || from/l.Ranks == to/l.Ranks && (sameHost || l.Ranks > m.hostRanks)
	})
	l := m.Links[at]
	seconds := float64(bytes)/l.Bandwidth + l.Latency
	if m.staged() {
		seconds += m.copies(k, bytes)
	}
	return seconds
}

// between returns the bytes that the first rank's host sends to other hosts for a collective that
// all ranks call in their groups; 0 with NCCL.
func (m *moving) between(k Kernel) (bytes int64) {
	if k.Group.Size <= 1 || m.job.At.NCCL {
		return 0
	}
	if k.isLink() {
		for i := range m.job.Parallel.Ranks / setup.Pipeline(m.job.Job) {
			if m.host(k.Link[0]+i) == m.host(0) && m.host(k.Link[1]+i) != m.host(0) {
				bytes += int64(k.N * k.In.Size())
			}
		}
		return bytes
	}
	if k.isStar() {
		_, bytes = m.star(k)
		return bytes
	}
	for _, w := range m.waysOf(k.Group).all {
		_, sent := m.wired(k, w)
		bytes += sent
	}
	return bytes
}

// waysOf returns the ways of groups with the given size and stride.
func (m *moving) waysOf(g Group) *ways {
	if m.ways[g] != nil {
		return m.ways[g]
	}
	how := collective.Cheapest
	if m.job.At.NCCL {
		how = collective.Flat
	}
	w, seen, alike := &ways{}, map[int]bool{}, map[string]*collective.Ways{}
	for r := range m.job.Parallel.Ranks {
		at := m.host(r)
		begin := r/(g.Size*g.Stride)*(g.Size*g.Stride) + r%g.Stride
		if at != m.host(0) || seen[begin] || begin+(g.Size-1)*g.Stride >= m.job.Parallel.Ranks {
			continue
		}
		seen[begin] = true
		host := make([]int, g.Size)
		for i := range host {
			host[i] = m.host(begin + i*g.Stride)
		}
		key := fmt.Sprint(host)
		if alike[key] == nil {
			alike[key] = collective.NewWays(host, at, m.links, m.bounce[g], how)
		}
		w.all = append(w.all, alike[key])
	}
	w.first = w.all[0]
	m.ways[g] = w
	return w
}

// ring returns the seconds in which the parts of a buffer go around a ring of ranks; each part but
// one passes every rank. If several ranks of a group are on one nearer link, as many rings use the
// next link in parallel. Latencies are those of a ring of such neighbourhoods after a ring within
// each.
func (m *moving) ring(g Group, bytes float64) float64 {
	rate, hops, near := 0.0, 0.0, 1 // near: ranks of the group joined so far
	for i, l := range m.Links {
		reach := g.Size
		if l.Ranks > 0 {
			if i == 0 {
				l.Ranks = min(l.Ranks, m.hostRanks)
			}
			reach = min(g.Size, max(1, l.Ranks/g.Stride))
		}
		if reach == near {
			continue
		}
		if r := l.Bandwidth * float64(near); rate == 0 || r < rate {
			rate = r
		}
		hops += l.Latency * float64((reach+near-1)/near-1)
		near = reach
	}
	return bytes*float64(g.Size-1)/float64(g.Size)/rate + hops
}

// transport describes the transport of the job's collectives.
func (m *moving) transport() string {
	through := ""
	if m.staged() {
		through = ", through pinned memory of the host"
	}
	switch {
	case m.job.Parallel.Ranks == 1:
		return ""
	case m.job.At.NCCL && setup.AddsExactly(m.job):
		return "NCCL, around rings; sums in rank order, from rank to rank"
	case m.job.At.NCCL:
		return "NCCL, around rings"
	case m.job.At.Hosts == nil:
		return "in one process"
	case m.job.Parallel.Master:
		return "from and to rank 0" + through
	}
	s := collective.SpreadOf(m.job.At.Hosts)
	if s.Hosts == 1 {
		return "between processes of one host, from rank to rank" + through
	}
	gathers, sums := m.links.ByHostFrom(s, true), m.links.ByHostFrom(s, false)
	return fmt.Sprintf("between %d hosts, gathers %s, sums %s%s", s.Hosts, show.Way(gathers), show.Way(sums), through)
}
