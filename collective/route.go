package collective

import (
	"math"
	"slices"

	"zeroth/device"
)

// A route describes which rank sends which parts of a buffer to which other rank in an operation.
// It depends only on the hosts of the ranks, so all ranks of a group compute matching routes.
//
// Flat: in a gather, rank r sends part r to all others; in a reduction, all send part r to rank r,
// which adds. A broadcast always goes from rank 0 to all, a reduce from all to rank 0, and a part
// of an exchange from its owner to its reader.
//
// By host: in a gather, rank r sends part r to the ranks of its host and to one rank of each other
// host, which relays it there. In a reduction, sums travel from host to host in rank order, which
// preserves the bits: on each host, one rank adds the host's terms to the partial sum it receives
// and passes it on; the last host sends the sum to rank r. If a host's ranks are not consecutive,
// each run of consecutive ranks counts as a host. So of a buffer of S bytes, about S cross the
// border of each host, instead of S for each of its ranks. Partial sums of 16-bit types are
// float32.
//
// Flat equals by host with a single host.
type route struct {
	in, out     []stream // (Size) by peer
	adds        []int32  // parts of a reduction that this rank adds, ascending
	first       bool     // it starts the sums: it receives no partial sums
	last        bool     // it completes the sums
	near        []int32  // peers that send terms of each part in adds
	before      []int32  // (len adds) peers that send the partial sums
	after       []int32  // (len adds) peers that receive the results; this rank itself if none does
	relays      bool     // this rank relays parts of a gather
	bounceIndex []int32  // (Size) index of each peer among those whose messages need bounce memory
}

// stream is the sequence of messages from one rank to another: chunk 0 of its parts, then chunk 1,
// and so on.
type stream struct {
	parts []int32
	kind  message
	item  []int32 // (len parts) for partial and final sums, the index of the part in the sender's adds
}

// message is the kind of a stream's messages.
type message uint8

const (
	copied    message = iota // part of a gather
	term                     // a rank's own values
	partial                  // partial sum
	final                    // complete sum
	exchanged                // part of an exchange
)

// bounced reports whether the receiver needs bounce memory for the message.
func (m message) bounced() bool { return m == term || m == partial }

// at returns the chunk and the part of message i.
func (s *stream) at(i int) (chunk, part int) {
	return i / len(s.parts), int(s.parts[i%len(s.parts)])
}

// hosts groups the ranks of a group by host, and into runs of consecutive ranks of a host.
type hosts struct {
	size   int
	all    [][]int32 // ranks of each host, ascending
	hostOf []int32   // (Size) host of each rank
	runs   [][]int32 // runs of consecutive ranks of a host, in rank order
	runOf  []int32   // (Size) run of each rank
}

// newHosts returns the hosts of ranks, given each rank's host number.
func newHosts(number []int) *hosts {
	h := &hosts{size: len(number)}
	seen := map[int]int32{}
	for r, n := range number {
		at, ok := seen[n]
		if !ok {
			at = int32(len(h.all))
			seen[n], h.all = at, append(h.all, nil)
		}
		h.all[at] = append(h.all[at], int32(r))
		h.hostOf = append(h.hostOf, at)
		if r == 0 || h.hostOf[r-1] != at {
			h.runs = append(h.runs, nil)
		}
		last := len(h.runs) - 1
		h.runs[last] = append(h.runs[last], int32(r))
		h.runOf = append(h.runOf, int32(last))
	}
	return h
}

// oneHost returns the hosts of ranks that are all on one host.
func oneHost(size int) *hosts { return newHosts(make([]int, size)) }

// server returns which of the ranks by handles part r: r itself if it is one of them; otherwise
// they take turns.
func server(by []int32, r int) int32 {
	if r >= int(by[0]) {
		if _, ok := slices.BinarySearch(by, int32(r)); ok {
			return int32(r)
		}
	}
	return by[r%len(by)]
}

// adder returns the rank of a run that adds part r.
func (h *hosts) adder(run int32, r int) int32 { return server(h.runs[run], r) }

// gather returns the route of a rank in gathers.
func (h *hosts) gather(me int32) *route {
	t := &route{in: make([]stream, h.size), out: make([]stream, h.size)}
	mine := h.all[h.hostOf[me]]
	relayed := h.relayed(me)
	t.relays = len(relayed) > 1
	for p := range int32(h.size) {
		switch there := h.all[h.hostOf[p]]; {
		case p == me:
		case h.hostOf[p] == h.hostOf[me]:
			t.out[p] = stream{parts: relayed}
			t.in[p] = stream{parts: h.relayed(p)}
		default:
			if server(there, int(me)) == p {
				t.out[p] = stream{parts: []int32{me}}
			}
			if server(mine, int(p)) == me {
				t.in[p] = stream{parts: []int32{p}}
			}
		}
	}
	return t
}

// relayed returns the parts that rank by sends to the other ranks of its host, including its own.
func (h *hosts) relayed(by int32) (parts []int32) {
	if len(h.all) == 1 {
		return []int32{by}
	}
	mine := h.all[h.hostOf[by]]
	for r := range h.size {
		if h.hostOf[r] != h.hostOf[by] && mine[r%len(mine)] == by || int32(r) == by {
			parts = append(parts, int32(r))
		}
	}
	return parts
}

// reduce returns the route of a rank in reductions.
func (h *hosts) reduce(me int32) *route {
	run, end := h.runOf[me], int32(len(h.runs)-1)
	t := &route{in: make([]stream, h.size), out: make([]stream, h.size), adds: h.added(me), first: run == 0, last: run == end}
	for _, p := range h.runs[run] {
		if p != me {
			t.near = append(t.near, p)
			t.in[p] = stream{parts: t.adds, kind: term}
			t.out[p] = stream{parts: h.added(p), kind: term}
		}
	}
	for i, r := range t.adds {
		if !t.first {
			from := h.adder(run-1, int(r))
			t.before = append(t.before, from)
			t.in[from].parts, t.in[from].kind = append(t.in[from].parts, r), partial
		}
		to, kind := r, final
		if !t.last {
			to, kind = h.adder(run+1, int(r)), partial
		}
		t.after = append(t.after, to)
		if to != me {
			s := &t.out[to]
			s.parts, s.kind, s.item = append(s.parts, r), kind, append(s.item, int32(i))
		}
	}
	if !t.last {
		t.in[h.adder(end, int(me))] = stream{parts: []int32{me}, kind: final}
	}
	t.bounceIndex = bounceIndices(t.in)
	return t
}

// bounceIndices numbers the peers whose messages need bounce memory.
func bounceIndices(in []stream) []int32 {
	index, next := make([]int32, len(in)), int32(0)
	for p, s := range in {
		if index[p] = next; len(s.parts) > 0 && s.kind.bounced() {
			next++
		}
	}
	return index
}

// broadcast returns the route of a rank in broadcasts.
func (h *hosts) broadcast(me int32) *route {
	t := &route{in: make([]stream, h.size), out: make([]stream, h.size)}
	s := stream{parts: []int32{0}}
	if me != 0 {
		t.in[0] = s
		return t
	}
	for p := range t.out[1:] {
		t.out[1+p] = s
	}
	return t
}

// exchange returns the route of a rank in exchanges: part p is for rank p, and comes from it.
func (h *hosts) exchange(me int32) *route {
	t := &route{in: make([]stream, h.size), out: make([]stream, h.size)}
	for p := range int32(h.size) {
		if p != me {
			s := stream{parts: []int32{p}, kind: exchanged}
			t.in[p], t.out[p] = s, s
		}
	}
	return t
}

// collect returns the route of a rank in reduces to rank 0.
func (h *hosts) collect(me int32) *route {
	t := &route{in: make([]stream, h.size), out: make([]stream, h.size), first: true, last: true}
	s := stream{parts: []int32{0}, kind: term}
	if me != 0 {
		t.out[0] = s
		return t
	}
	t.adds, t.after = s.parts, []int32{0}
	for p := 1; p < h.size; p++ {
		t.near, t.in[p] = append(t.near, int32(p)), s
	}
	t.bounceIndex = bounceIndices(t.in)
	return t
}

// added returns the parts that rank by adds.
func (h *hosts) added(by int32) (parts []int32) {
	if len(h.runs) == 1 {
		return []int32{by}
	}
	for r := range h.size {
		if h.adder(h.runOf[by], r) == by {
			parts = append(parts, int32(r))
		}
	}
	return parts
}

// streams returns how many streams need bounce memory in a reduction on the busiest rank: one from
// each other rank of its run and one from each sender of partial sums, a single one if all runs
// have equal length.
func (h *hosts) streams() (most int) {
	for i, run := range h.runs {
		n := len(run) - 1
		if i > 0 {
			if before := len(h.runs[i-1]); before == len(run) && int(run[0])%len(run) == 0 {
				n++
			} else {
				n += before
			}
		}
		most = max(most, n)
	}
	return most
}

// sums returns the number of slots for outgoing sums.
func (h *hosts) sums() int {
	if len(h.runs) == 1 {
		return 0
	}
	return sumSlots
}

// accumulator returns the type in which values of type t are summed.
func accumulator(t device.DType) device.DType {
	if t == device.F64 {
		return t
	}
	return device.F32
}

// Spread summarizes how a group's ranks are distributed over hosts.
type Spread struct {
	Ranks int
	Hosts int
	Most  int // maximum number of ranks on a host
	Runs  int // runs of consecutive ranks of a host; equals Hosts if they are equal and contiguous
}

// SpreadOf returns the spread of ranks with these host numbers.
func SpreadOf(host []int) Spread { return newHosts(host).spread() }

// HasChoice reports whether operations may go either flat or by host.
func (s Spread) HasChoice() bool { return s.Hosts > 1 && s.Most > 1 }

func (h *hosts) spread() Spread {
	s := Spread{Ranks: h.size, Hosts: len(h.all), Runs: len(h.runs)}
	for _, ranks := range h.all {
		s.Most = max(s.Most, len(ranks))
	}
	return s
}

// Links describes the capacity within a host and between hosts.
type Links struct {
	Near, Far           float64 // bytes per second: of a rank within its host; of a host to others, in each direction
	NearDelay, FarDelay float64 // latency in seconds
	HostRanks           int     // ranks of a host, of all groups, that share Far; 0: only those of the group
}

// Usual describes the links assumed without measurements: memory, and a slower network. Routes
// chosen by it favour few bytes between hosts.
var Usual = Links{Near: 4e9, Far: 1.25e9, NearDelay: 10e-6, FarDelay: 50e-6}

// far returns the group's share of a host's bandwidth to other hosts, which all ranks of the host
// use at the same time.
func (l Links) far(s Spread) float64 {
	if l.HostRanks <= s.Most {
		return l.Far
	}
	return l.Far * float64(s.Most) / float64(l.HostRanks)
}

// flatSeconds returns the time of a flat operation on a buffer of that many bytes: each host sends
// its ranks' parts to every rank elsewhere, while each rank sends within its host.
func (l Links) flatSeconds(s Spread, bytes float64) float64 {
	n, k := float64(s.Ranks), float64(s.Most)
	near := (k - 1) / n * bytes / l.Near
	if s.Hosts == 1 {
		return near + l.NearDelay
	}
	return max(near, k*(n-k)/n*bytes/l.far(s)) + l.FarDelay
}

// gatherSeconds returns the time of a gather by host: each host sends its parts to every other once
// and receives the rest, and each rank relays its share of the whole.
func (l Links) gatherSeconds(s Spread, bytes float64) float64 {
	n, k, h := float64(s.Ranks), float64(s.Most), float64(s.Hosts)
	far := max(k/n*(h-1), 1-k/n) * bytes / l.far(s)
	return max((k-1)/k*bytes/l.Near, far) + l.FarDelay + l.NearDelay
}

// reduceSeconds returns the time of a reduction by host of elements of elem bytes, summed in acc
// bytes: the whole crosses each border once as partial sums, in chunks that pass through all hosts
// in sequence.
func (l Links) reduceSeconds(s Spread, bytes, elem, acc float64) float64 {
	k, borders := float64(s.Most), float64(s.Runs-1)
	each := float64(s.Runs) / float64(s.Hosts) // runs per host
	sums, far := bytes*acc/elem, l.far(s)
	chunk := min(sums/float64(s.Ranks), mostChunk)
	return max((k-1)/k*bytes/l.Near, each*sums/far) + borders*(l.FarDelay+chunk/far) + 2*l.NearDelay
}

// seconds returns the time of a call flat and by host; the latter is infinite if there is no
// choice.
func (l Links) seconds(s Spread, c call) (flat, byHost float64) {
	elem := float64(c.t.Size())
	flat, byHost = l.flatSeconds(s, float64(c.n)*elem), math.Inf(1)
	switch {
	case !s.HasChoice() || c.op == broadcast || c.op == reduce:
	case c.op == allGather:
		byHost = l.gatherSeconds(s, float64(c.n)*elem)
	default:
		byHost = l.reduceSeconds(s, float64(c.n)*elem, elem, float64(accumulator(c.t).Size()))
	}
	return flat, byHost
}

// ByHostFrom returns the smallest power of two, in bytes of float32, from which a gather goes by
// host (if gather is false, a reduction); 0 if none up to a tebibyte does.
func (l Links) ByHostFrom(s Spread, gather bool) float64 {
	for bytes := 1024.0; bytes <= 1<<40; bytes *= 2 {
		if l.byHost(s, hypothetical(gather, device.F32, int(bytes)/4)) {
			return bytes
		}
	}
	return 0
}

// byHost reports whether a call is cheaper by host.
func (l Links) byHost(s Spread, c call) bool {
	flat, byHost := l.seconds(s, c)
	return byHost < flat
}

// hypothetical returns a call of n elements in total for predictions: a gather or, if gather is
// false, a reduction.
func hypothetical(gather bool, t device.DType, n int) call {
	if gather {
		return call{op: allGather, t: t, n: n}
	}
	return call{op: reduceScatter, t: t, n: n}
}

// Routing selects how the ranks of a group send.
type Routing uint8

// The routings: the cheaper according to Links, or always one of them.
const (
	Cheapest Routing = iota
	Flat
	ByHost
)

// routing holds everything a group's operations need to know about routes, flat and by host.
type routing struct {
	links   Links
	how     Routing
	spread  Spread
	planned int // bytes of bounce memory; 0: unknown
	flat    routes
	hosts   routes
}

// routes holds a rank's routes and the sizes that all ranks compute alike.
type routes struct {
	gather, reduce, broadcast, exchange, collect *route // collect: for reduces to rank 0

	chunk         int // bytes
	streams, sums int
}

// slots returns the capacity of bounce memory in chunks.
func (r *routes) slots() int { return r.streams*window + r.sums }

func newRouting(rank int, number []int, how Routing) *routing {
	h := newHosts(number)
	r := &routing{links: Usual, how: how, spread: h.spread(), flat: newRoutes(rank, oneHost(h.size))}
	r.hosts = r.flat
	if len(h.all) > 1 && how != Flat {
		r.hosts = newRoutes(rank, h)
	}
	return r
}

func newRoutes(rank int, h *hosts) routes {
	return routes{gather: h.gather(int32(rank)), reduce: h.reduce(int32(rank)), broadcast: h.broadcast(int32(rank)), exchange: h.exchange(int32(rank)), collect: h.collect(int32(rank)), chunk: chunkBytes(h), streams: h.streams(), sums: h.sums()}
}

// choose returns the routes for a call with parts of part elements: the cheaper, unless it needs
// more bounce memory than was planned.
func (r *routing) choose(c call, part int) *routes {
	if c.op == reduce || c.op == exchange {
		return &r.flat
	}
	by := r.cheaper(r.links, c)
	if r.planned > 0 && c.op == reduceScatter && by.slots()*slotBytes(by.chunk, part, c.t) > r.planned {
		return r.cheaper(Usual, c)
	}
	return by
}

// cheaper returns the cheaper routes according to l, unless the routing is fixed.
func (r *routing) cheaper(l Links, c call) *routes {
	if r.how == ByHost || r.how == Cheapest && l.byHost(r.spread, c) {
		return &r.hosts
	}
	return &r.flat
}

const (
	// window is the number of chunks in flight to each peer.
	window = 2
	// sumSlots is the number of slots for sums being sent to other hosts.
	sumSlots = 2 * window
	// mostChunk and leastChunk are in bytes: chunks shrink if there are so many peers that bounce
	// memory would exceed mostBounce.
	mostChunk, leastChunk = 1 << 20, 1 << 16
	mostBounce            = 128 << 20
)

// chunkBytes returns the size of a chunk in bytes.
func chunkBytes(h *hosts) int {
	return min(mostChunk, max(leastChunk, mostBounce/max(1, h.slots())&^63))
}

// slots returns the capacity of bounce memory in chunks.
func (h *hosts) slots() int { return h.streams()*window + h.sums() }

// slotBytes returns the size of a slot in bytes, for chunks of a part of n elements.
func slotBytes(chunk, n int, t device.DType) int {
	return min(chunk, (n*accumulator(t).Size()+63)&^63)
}

// BounceBytes returns the bounce memory that each rank of a group needs for a reduction of parts of
// n elements: a slot for each chunk in flight, of at most 1 MiB. host[r] is the number of rank r's
// host.
//
// A group with a choice of routes, which it makes later by measured links, gets enough for both. If
// that exceeds 16 MiB, it gets enough for the usual route and never chooses one that needs more.
// Ranks of one process need no bounce memory, as they do not use Wired.
func BounceBytes(host []int, n int, t device.DType) int {
	h := newHosts(host)
	flat, hosts := oneHost(h.size), h
	if !h.spread().HasChoice() {
		return flat.bounce(n, t)
	}
	least, most := flat.bounce(n, t), hosts.bounce(n, t)
	if Usual.byHost(h.spread(), call{op: reduceScatter, t: t, n: n * h.size}) {
		least, most = most, least
	}
	if most > mostChoice {
		return least
	}
	return max(least, most)
}

// mostChoice is the maximum bounce memory, in bytes, for allowing a choice of routes.
const mostChoice = 16 << 20

func (h *hosts) bounce(n int, t device.DType) int { return h.slots() * slotBytes(chunkBytes(h), n, t) }
