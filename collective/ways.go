package collective

import "zeroth/device"

// Ways is how the ranks of a group on hosts send, without any of them: the choice, the
// routes and the bytes are those of Wired. It is what plans reckon with.
type Ways struct {
	routing    *routing
	flat, host crossing
}

// crossing is how many parts the ranks of a host send to others of it in an operation, by
// what they are.
type crossing struct{ copies, terms, partials, finals int }

// NewWays is that of a group whose rank r is on host[r], by some links. Its bytes are
// those of one of these hosts. Planned is the bytes of bounce memory of each rank; 0: it
// is not known.
func NewWays(host []int, of int, l Links, planned int, how Routing) *Ways {
	w := &Ways{routing: newRouting(0, host, how)}
	w.routing.links, w.routing.planned = l, planned
	h := newHosts(host)
	for r, at := range host {
		if at != of || len(h.all) == 1 {
			continue
		}
		flat := newRoutes(r, oneHost(h.size))
		w.flat.add(host, of, &flat)
		if how != Flat {
			byHost := newRoutes(r, h)
			w.host.add(host, of, &byHost)
		}
	}
	return w
}

// add adds what a rank of a host sends to others.
func (x *crossing) add(host []int, of int, r *routes) {
	for p, there := range host {
		if there == of {
			continue
		}
		x.copies += len(r.gather.out[p].parts)
		switch s := r.reduce.out[p]; s.of {
		case term:
			x.terms += len(s.parts)
		case partial:
			x.partials += len(s.parts)
		case final:
			x.finals += len(s.parts)
		}
	}
}

// bytes is those of a call on parts of so many elements.
func (x *crossing) bytes(c call, part int) int64 {
	elem, acc := c.t.Size(), accumulator(c.t).Size()
	if c.op == allGather {
		return int64(part) * int64(elem*x.copies)
	}
	return int64(part) * int64(elem*(x.terms+x.finals)+acc*x.partials)
}

// Of is how a gather, or else a reduction, of n elements of a type in all goes: by host
// or flat, its seconds by the links, and the bytes that the host sends to others.
func (w *Ways) Of(gather bool, t device.DType, n int) (byHost bool, seconds float64, between int64) {
	r := w.routing
	c, part := toReckon(gather, t, n), n/r.spread.Ranks
	flat, hosts := r.links.seconds(r.spread, c)
	if r.spread.Choose() && r.of(c, part) == &r.hosts {
		return true, hosts, w.host.bytes(c, part)
	}
	return false, flat, w.flat.bytes(c, part)
}
