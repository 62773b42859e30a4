package collective

import (
	"math"
	"slices"

	"zeroth/device"
)

// A route says which rank sends which parts of a buffer to which, in a gather or a
// reduction of a group. It is arithmetic on ranks: all ranks of a group reckon
// with the same routes.
//
// Flat, part r of a gather goes from rank r to all, part r of a reduction from all
// to rank r, which adds. A broadcast goes from rank 0 to all and a reduce from all to
// rank 0, always.
//
// By host, part r of a gather goes from rank r to its own host's ranks and to one
// rank of each other host, which passes it on there. In a reduction the sum goes
// from host to host in rank order, so that it has the same bits: on each host one
// rank adds the host's ranks to the partial sum that comes, and passes it on; the
// last sends the sum to rank r. Where ranks of a host are not neighbours each run of
// neighbours counts as a host. So of a buffer of S bytes about S cross each host's
// border, not S for each of its ranks. Partial sums of 16-bit types are float32.
//
// Flat is by host with a single host.
type route struct {
	in, out []stream // (Size) by peer
	adds    []int32  // parts of a reduction that the rank adds, ascending
	first   bool     // it adds to no partial sum
	last    bool     // what it adds is the sum
	near    []int32  // peers that send terms for each of adds
	before  []int32  // (len adds) peers that send partial sums of these
	after   []int32  // (len adds) peers that get what is added; the rank itself: none does
	relays  bool     // the rank passes on parts of a gather
	place   []int32  // (Size) number of a peer among those whose messages need bounce memory
}

// stream is what one rank sends to another: chunk 0 of its parts, chunk 1 of its
// parts, and so on.
type stream struct {
	parts []int32
	of    message
	item  []int32 // (len parts) of partial and final sums: where the part is in the sender's adds
}

// message is what a stream has chunks of.
type message uint8

const (
	copied  message = iota // parts of a gather
	term                   // a rank's own numbers
	partial                // sums so far
	final                  // sums
)

// bounced is whether the receiver needs bounce memory for it.
func (m message) bounced() bool { return m == term || m == partial }

// chunk and part of message i.
func (s *stream) at(i int) (chunk, part int) {
	return i / len(s.parts), int(s.parts[i%len(s.parts)])
}

// hosts are the ranks of a group by host, and in runs of neighbours.
type hosts struct {
	size int
	all  [][]int32 // ranks of each host, ascending
	of   []int32   // (Size) the host of each
	runs [][]int32 // neighbours of one host, in rank order
	run  []int32   // (Size) the run of each
}

// newHosts takes the number of each rank's host.
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
		h.of = append(h.of, at)
		if r == 0 || h.of[r-1] != at {
			h.runs = append(h.runs, nil)
		}
		last := len(h.runs) - 1
		h.runs[last] = append(h.runs[last], int32(r))
		h.run = append(h.run, int32(last))
	}
	return h
}

// oneHost is a group's ranks as if they were of one.
func oneHost(size int) *hosts { return newHosts(make([]int, size)) }

// served is which of some ranks does the work for part r: r itself if it is one
// of them, else they take turns.
func served(by []int32, r int) int32 {
	if r >= int(by[0]) {
		if _, ok := slices.BinarySearch(by, int32(r)); ok {
			return int32(r)
		}
	}
	return by[r%len(by)]
}

// adder is the rank that adds part r in a run.
func (h *hosts) adder(run int32, r int) int32 { return served(h.runs[run], r) }

// gather is the route of a rank's gathers.
func (h *hosts) gather(me int32) *route {
	t := &route{in: make([]stream, h.size), out: make([]stream, h.size)}
	mine := h.all[h.of[me]]
	relayed := h.relayed(me)
	t.relays = len(relayed) > 1
	for p := range int32(h.size) {
		switch there := h.all[h.of[p]]; {
		case p == me:
		case h.of[p] == h.of[me]:
			t.out[p] = stream{parts: relayed}
			t.in[p] = stream{parts: h.relayed(p)}
		default:
			if served(there, int(me)) == p {
				t.out[p] = stream{parts: []int32{me}}
			}
			if served(mine, int(p)) == me {
				t.in[p] = stream{parts: []int32{p}}
			}
		}
	}
	return t
}

// relayed are the parts that a rank passes to the others of its host, its own
// among them.
func (h *hosts) relayed(by int32) (parts []int32) {
	if len(h.all) == 1 {
		return []int32{by}
	}
	mine := h.all[h.of[by]]
	for r := range h.size {
		if h.of[r] != h.of[by] && mine[r%len(mine)] == by || int32(r) == by {
			parts = append(parts, int32(r))
		}
	}
	return parts
}

// reduce is the route of a rank's reductions.
func (h *hosts) reduce(me int32) *route {
	run, end := h.run[me], int32(len(h.runs)-1)
	t := &route{in: make([]stream, h.size), out: make([]stream, h.size), adds: h.added(me), first: run == 0, last: run == end}
	for _, p := range h.runs[run] {
		if p != me {
			t.near = append(t.near, p)
			t.in[p] = stream{parts: t.adds, of: term}
			t.out[p] = stream{parts: h.added(p), of: term}
		}
	}
	for i, r := range t.adds {
		if !t.first {
			from := h.adder(run-1, int(r))
			t.before = append(t.before, from)
			t.in[from].parts, t.in[from].of = append(t.in[from].parts, r), partial
		}
		to, of := r, final
		if !t.last {
			to, of = h.adder(run+1, int(r)), partial
		}
		t.after = append(t.after, to)
		if to != me {
			s := &t.out[to]
			s.parts, s.of, s.item = append(s.parts, r), of, append(s.item, int32(i))
		}
	}
	if !t.last {
		t.in[h.adder(end, int(me))] = stream{parts: []int32{me}, of: final}
	}
	t.place = places(t.in)
	return t
}

// places numbers the peers whose messages need bounce memory.
func places(in []stream) []int32 {
	place, next := make([]int32, len(in)), int32(0)
	for p, s := range in {
		if place[p] = next; len(s.parts) > 0 && s.of.bounced() {
			next++
		}
	}
	return place
}

// broadcast is the route of a rank's broadcasts.
func (h *hosts) broadcast(me int32) *route {
	t := &route{in: make([]stream, h.size), out: make([]stream, h.size)}
	of := stream{parts: []int32{0}}
	if me != 0 {
		t.in[0] = of
		return t
	}
	for p := range t.out[1:] {
		t.out[1+p] = of
	}
	return t
}

// collect is the route of a rank's reduces to rank 0.
func (h *hosts) collect(me int32) *route {
	t := &route{in: make([]stream, h.size), out: make([]stream, h.size), first: true, last: true}
	of := stream{parts: []int32{0}, of: term}
	if me != 0 {
		t.out[0] = of
		return t
	}
	t.adds, t.after = of.parts, []int32{0}
	for p := 1; p < h.size; p++ {
		t.near, t.in[p] = append(t.near, int32(p)), of
	}
	t.place = places(t.in)
	return t
}

// added are the parts that a rank adds.
func (h *hosts) added(by int32) (parts []int32) {
	if len(h.runs) == 1 {
		return []int32{by}
	}
	for r := range h.size {
		if h.adder(h.run[by], r) == by {
			parts = append(parts, int32(r))
		}
	}
	return parts
}

// streams is how many streams of a reduction need bounce memory at most, on any
// rank: one from each other rank of its run, and from those that send it partial
// sums, of which there is one where runs are equal.
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

// sums is the slots for sums on their way out.
func (h *hosts) sums() int {
	if len(h.runs) == 1 {
		return 0
	}
	return outgoing
}

// accumulator is the type in which numbers of a type are added up.
func accumulator(t device.DType) device.DType {
	if t == device.F64 {
		return t
	}
	return device.F32
}

// Spread is how the ranks of a group are spread over hosts, for reckoning.
type Spread struct {
	Ranks int
	Hosts int
	Most  int // ranks of the host that has most
	Runs  int // of neighbours of one host; with equal and neighbouring ranks as many as Hosts
}

// SpreadOf is that of ranks on hosts of these numbers.
func SpreadOf(host []int) Spread { return newHosts(host).spread() }

// Choose is whether there are two ways to send: flat, and by host.
func (s Spread) Choose() bool { return s.Hosts > 1 && s.Most > 1 }

func (h *hosts) spread() Spread {
	s := Spread{Ranks: h.size, Hosts: len(h.all), Runs: len(h.runs)}
	for _, ranks := range h.all {
		s.Most = max(s.Most, len(ranks))
	}
	return s
}

// Links is what ranks of one host, and hosts, can send each other.
type Links struct {
	Near, Far           float64 // bytes a second: of a rank in its host; of a host to others, each way
	NearDelay, FarDelay float64 // seconds until the first of them are there
	Beside              int     // ranks of a host, of all groups, which share Far; 0: those of the group
}

// Usual are links of which nobody has measured anything: memory, and a network
// that is slower. What is chosen by them costs bytes across hosts more than others.
var Usual = Links{Near: 4e9, Far: 1.25e9, NearDelay: 10e-6, FarDelay: 50e-6}

// far is the group's part of what a host sends to others: those of its other ranks
// send at the same time.
func (l Links) far(s Spread) float64 {
	if l.Beside <= s.Most {
		return l.Far
	}
	return l.Far * float64(s.Most) / float64(l.Beside)
}

// flatSeconds is the time of a flat operation on a buffer of so many bytes: each host
// sends its ranks' parts, or parts of them, to every rank elsewhere, and each rank
// what it sends inside its host; both at once.
func (l Links) flatSeconds(s Spread, bytes float64) float64 {
	n, k := float64(s.Ranks), float64(s.Most)
	near := (k - 1) / n * bytes / l.Near
	if s.Hosts == 1 {
		return near + l.NearDelay
	}
	return max(near, k*(n-k)/n*bytes/l.far(s)) + l.FarDelay
}

// gatherSeconds is that of a gather by host: each host sends its own parts to every
// other once, and gets the rest; each rank passes on its share of the whole.
func (l Links) gatherSeconds(s Spread, bytes float64) float64 {
	n, k, h := float64(s.Ranks), float64(s.Most), float64(s.Hosts)
	far := max(k/n*(h-1), 1-k/n) * bytes / l.far(s)
	return max((k-1)/k*bytes/l.Near, far) + l.FarDelay + l.NearDelay
}

// reduceSeconds is that of a reduction by host, of elements of elem bytes that are
// added as acc bytes: the whole crosses each border once as partial sums, in chunks,
// which pass all hosts one after the other.
func (l Links) reduceSeconds(s Spread, bytes, elem, acc float64) float64 {
	k, borders := float64(s.Most), float64(s.Runs-1)
	each := float64(s.Runs) / float64(s.Hosts) // runs of a host
	sums, far := bytes*acc/elem, l.far(s)
	chunk := min(sums/float64(s.Ranks), mostChunk)
	return max((k-1)/k*bytes/l.Near, each*sums/far) + borders*(l.FarDelay+chunk/far) + 2*l.NearDelay
}

// seconds is the time of a call flat, and by host, which is no way where it is flat.
func (l Links) seconds(s Spread, c call) (flat, byHost float64) {
	elem := float64(c.t.Size())
	flat, byHost = l.flatSeconds(s, float64(c.n)*elem), math.Inf(1)
	switch {
	case !s.Choose() || c.op == broadcast || c.op == reduce:
	case c.op == allGather:
		byHost = l.gatherSeconds(s, float64(c.n)*elem)
	default:
		byHost = l.reduceSeconds(s, float64(c.n)*elem, elem, float64(accumulator(c.t).Size()))
	}
	return flat, byHost
}

// ByHostFrom is the least power of two of bytes, of float32, from which on an operation goes
// by host, of a gather or else a reduction; 0 where none of at most a tebibyte does.
func (l Links) ByHostFrom(s Spread, gather bool) float64 {
	for bytes := 1024.0; bytes <= 1<<40; bytes *= 2 {
		if l.byHost(s, toReckon(gather, device.F32, int(bytes)/4)) {
			return bytes
		}
	}
	return 0
}

// byHost is whether a call costs less by host.
func (l Links) byHost(s Spread, c call) bool {
	flat, byHost := l.seconds(s, c)
	return byHost < flat
}

// toReckon is a gather, or else a reduction, of n elements in all, that nobody issues.
func toReckon(gather bool, t device.DType, n int) call {
	if gather {
		return call{op: allGather, t: t, n: n}
	}
	return call{op: reduceScatter, t: t, n: n}
}

// Routing is how the ranks of a group send.
type Routing uint8

// The routings: what costs less by Links, or always the one.
const (
	Cheapest Routing = iota
	Flat
	ByHost
)

// routing is all that a group's operations need of routes: flat and by host.
type routing struct {
	links   Links
	how     Routing
	spread  Spread
	planned int // bytes of bounce memory; 0: not known
	flat    routes
	hosts   routes
}

// routes are a rank's, and what all ranks make of them alike.
type routes struct {
	gather, reduce, broadcast, collect *route // collect: of a reduce to rank 0

	chunk         int // bytes
	streams, sums int
}

// slots is the chunks that bounce memory has room for.
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
	return routes{gather: h.gather(int32(rank)), reduce: h.reduce(int32(rank)), broadcast: h.broadcast(int32(rank)), collect: h.collect(int32(rank)), chunk: chunkBytes(h), streams: h.streams(), sums: h.sums()}
}

// of is the routes of a call, of parts of so many elements: what costs less, unless that
// needs more bounce memory than was planned.
func (r *routing) of(c call, part int) *routes {
	if c.op == reduce {
		return &r.flat
	}
	by := r.by(r.links, c)
	if r.planned > 0 && c.op == reduceScatter && by.slots()*slotBytes(by.chunk, part, c.t) > r.planned {
		return r.by(Usual, c)
	}
	return by
}

// by is what costs less by links, or the one way that the group has.
func (r *routing) by(l Links, c call) *routes {
	if r.how == ByHost || r.how == Cheapest && l.byHost(r.spread, c) {
		return &r.hosts
	}
	return &r.flat
}

const (
	// window is the chunks in flight to each peer.
	window = 2
	// outgoing is the slots for sums on their way to other hosts.
	outgoing = 2 * window
	// mostChunk and leastChunk are bytes: a chunk is shorter where there are so
	// many peers that bounce memory would be more than mostBounce.
	mostChunk, leastChunk = 1 << 20, 1 << 16
	mostBounce            = 128 << 20
)

// chunkBytes is the bytes of a chunk.
func chunkBytes(h *hosts) int {
	return min(mostChunk, max(leastChunk, mostBounce/max(1, h.slots())&^63))
}

// slots is the chunks that bounce memory has room for.
func (h *hosts) slots() int { return h.streams()*window + h.sums() }

// slotBytes is the bytes of a slot for the chunks of a part of n elements of a type.
func slotBytes(chunk, n int, t device.DType) int {
	return min(chunk, (n*accumulator(t).Size()+63)&^63)
}

// BounceBytes is the bounce memory of each rank of a group for a reduction of parts
// of n elements of a type: a slot of a chunk, of a mebibyte at most, for each chunk
// in flight. Where there are two ways, and what links carry is known only later, it is
// that of the way that needs more, or, where that is much, of the usual one, and who
// needs more then does not go the other. host is the number of each rank's host; all of
// one process need none, and have no Wired.
func BounceBytes(host []int, n int, t device.DType) int {
	h := newHosts(host)
	flat, hosts := oneHost(h.size), h
	if !h.spread().Choose() {
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

// mostChoice is the bytes of bounce memory that a choice may cost.
const mostChoice = 16 << 20

func (h *hosts) bounce(n int, t device.DType) int { return h.slots() * slotBytes(chunkBytes(h), n, t) }
