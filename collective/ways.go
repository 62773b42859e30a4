package collective

import "zeroth/device"

// Ways predicts the routing, time and bytes of a Wired group spread over hosts, without opening it.
// Plans use it.
type Ways struct {
	routing    *routing
	flat, host crossing
}

// crossing counts the parts that the ranks of one host send to other hosts in an operation, by
// kind.
type crossing struct{ copies, terms, partials, finals int }

// NewWays predicts a group whose rank r runs on host[r], with hosts connected by l. It counts the
// bytes that host on sends. planned is the bounce memory of each rank in bytes; 0 means unknown.
func NewWays(host []int, on int, l Links, planned int, how Routing) *Ways {
	w := &Ways{routing: newRouting(0, host, how)}
	w.routing.links, w.routing.planned = l, planned
	h := newHosts(host)
	for r, at := range host {
		if at != on || len(h.all) == 1 {
			continue
		}
		flat := newRoutes(r, oneHost(h.size))
		w.flat.add(host, on, &flat)
		if how != Flat {
			byHost := newRoutes(r, h)
			w.host.add(host, on, &byHost)
		}
	}
	return w
}

// add counts the messages of a rank of host on to other hosts.
func (x *crossing) add(host []int, on int, r *routes) {
	for p, there := range host {
		if there == on {
			continue
		}
		x.copies += len(r.gather.out[p].parts)
		switch s := r.reduce.out[p]; s.kind {
		case term:
			x.terms += len(s.parts)
		case partial:
			x.partials += len(s.parts)
		case final:
			x.finals += len(s.parts)
		}
	}
}

// bytes returns the bytes that the host sends in a call with parts of part elements.
func (x *crossing) bytes(c call, part int) int64 {
	elem, acc := c.t.Size(), accumulator(c.t).Size()
	if c.op == allGather {
		return int64(part) * int64(elem*x.copies)
	}
	return int64(part) * int64(elem*(x.terms+x.finals)+acc*x.partials)
}

// Cost predicts a gather (if gather is false, a reduction) of n elements in total: its seconds, and the
// bytes that the host sends to others.
func (w *Ways) Cost(gather bool, t device.DType, n int) (seconds float64, between int64) {
	r := w.routing
	c, part := hypothetical(gather, t, n), n/r.spread.Ranks
	flat, hosts := r.links.seconds(r.spread, c)
	if r.spread.HasChoice() && r.choose(c, part) == &r.hosts {
		return hosts, w.host.bytes(c, part)
	}
	return flat, w.flat.bytes(c, part)
}
