package collective

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"zeroth/device"
)

// layouts returns host numbers of ranks: equal and unequal, contiguous and not.
func layouts(rng *rand.Rand) (all [][]int) {
	for size := 1; size <= 12; size++ {
		for range 12 {
			host, n := make([]int, size), 1+rng.IntN(4)
			for r := range host {
				host[r] = rng.IntN(n)
			}
			scattered := slices.Clone(host)
			slices.Sort(host)
			all = append(all, host, scattered)
		}
	}
	return append(all, []int{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}, make([]int, 9))
}

// TestRoutesMatch checks that each rank expects exactly the parts that others send to it.
func TestRoutesMatch(t *testing.T) {
	for _, host := range layouts(rand.New(rand.NewPCG(1, 1))) {
		h := newHosts(host)
		for name, of := range map[string]func(int32) *route{"gather": h.gather, "reduce": h.reduce} {
			routes := make([]*route, h.size)
			for r := range routes {
				routes[r] = of(int32(r))
			}
			for a := range routes {
				bounced := 0
				for b := range routes {
					out, in := routes[a].out[b], routes[b].in[a]
					if !slices.Equal(out.parts, in.parts) || len(in.parts) > 0 && out.kind != in.kind {
						t.Errorf("%s of %v: rank %d sends %v to %d, which expects %v", name, host, a, out, b, in)
					}
					if s := routes[a].in[b]; len(s.parts) > 0 && s.kind.bounced() {
						bounced++
					}
				}
				if bounced > h.streams() {
					t.Errorf("%s of %v: rank %d has memory for %d streams, and %d come", name, host, a, h.streams(), bounced)
				}
			}
		}
	}
}

// TestGatherCrossesOnce checks that each part reaches each rank of a gather once and crosses the
// border of each host once.
func TestGatherCrossesOnce(t *testing.T) {
	for _, host := range layouts(rand.New(rand.NewPCG(2, 1))) {
		h := newHosts(host)
		came, crossed := map[[2]int]int{}, map[[2]int]int{} // part and rank; part and host
		for r := range h.size {
			for p, s := range h.gather(int32(r)).in {
				for _, part := range s.parts {
					came[[2]int{int(part), r}]++
					if host[p] != host[r] {
						crossed[[2]int{int(part), host[r]}]++
					}
				}
			}
		}
		for part := range h.size {
			for r := range h.size {
				if n := came[[2]int{part, r}]; r != part && n != 1 || r == part && n != 0 {
					t.Errorf("%v: part %d comes %d times to rank %d", host, part, n, r)
				}
				if n := crossed[[2]int{part, host[r]}]; host[r] != host[part] && n != 1 || host[r] == host[part] && n != 0 {
					t.Errorf("%v: part %d comes %d times to host %d", host, part, n, host[r])
				}
			}
		}
	}
}

// TestReduceIsInRankOrder checks that the sum of each part contains every rank's term once, in rank
// order. Each part crosses a border wherever consecutive ranks are on different hosts, and once
// more if its owner is not on the last host.
func TestReduceIsInRankOrder(t *testing.T) {
	for _, host := range layouts(rand.New(rand.NewPCG(3, 1))) {
		h := newHosts(host)
		for part := range h.size {
			sum, crossed := "", 0
			var at int32
			for run := range h.runs {
				to := h.adder(int32(run), part)
				if run > 0 && host[at] != host[to] {
					crossed++
				}
				at = to
				i := slices.Index(h.reduce(at).adds, int32(part))
				if i < 0 {
					t.Fatalf("%v: rank %d does not add part %d", host, at, part)
				}
				members := append(slices.Clone(h.reduce(at).near), at)
				slices.Sort(members)
				sum += fmt.Sprint(members)
			}
			if after := h.reduce(at); int(after.after[slices.Index(after.adds, int32(part))]) != part {
				t.Errorf("%v: the sum of part %d does not go to its rank", host, part)
			}
			want := ""
			for _, run := range h.runs {
				want += fmt.Sprint(run)
			}
			if sum != want || crossed != len(h.runs)-1 {
				t.Errorf("%v: part %d is the sum of %s, over %d borders; want %s", host, part, sum, crossed, want)
			}
		}
	}
}

// TestBounceBytes checks the sizes of bounce memory: two chunks per peer whose terms are added and
// four for outgoing sums, of at most 1 MiB each. If there is a choice of routes, it is the larger
// size or, if that exceeds 16 MiB, that of the usual route.
func TestBounceBytes(t *testing.T) {
	hosts := func(of ...int) (all []int) {
		for h, n := range of {
			for range n {
				all = append(all, h)
			}
		}
		return all
	}
	const big = 64 << 20 // elements per part
	eights := hosts(slices.Repeat([]int{8}, 125)...)
	for _, c := range []struct {
		host    []int
		n, want int
		t       device.DType
	}{
		{hosts(1), big, 0, device.F32},
		{hosts(2), 25, 2 * 128, device.F32},
		{hosts(2), 25, 2 * 128, device.BF16}, // sums are float32
		{hosts(2), 25, 2 * 256, device.F64},
		{hosts(2), big, 2 << 20, device.F32},
		{hosts(8), big, 7 * 2 << 20, device.F32},
		{hosts(1, 1, 1), big, 2 * 2 << 20, device.F32},  // flat: by host has no advantage
		{hosts(4, 4), big, 7 * 2 << 20, device.F32},     // by host: three on the host and one before; flat needs more
		{hosts(8, 8), big, (8*2 + 4) << 20, device.F32}, // by host; flat is 30 MiB
		{hosts(4, 4), 100, 7 * 2 * 448, device.F32},     // flat: it is short
		{eights, 16, 999 * 2 * 64, device.F32},          // flat: crossing 124 borders is slow
		{eights, 1 << 20, (8*2 + 4) << 20, device.F32},
	} {
		if got := BounceBytes(c.host, c.n, c.t); got != c.want {
			t.Errorf("%d ranks, parts of %d %v: %d, want %d", len(c.host), c.n, c.t, got, c.want)
		}
	}
}

// TestRoutingKeepsToItsMemory checks that a group uses the cheaper route unless that needs more
// memory than planned.
func TestRoutingKeepsToItsMemory(t *testing.T) {
	host := slices.Concat(slices.Repeat([]int{0}, 8), slices.Repeat([]int{1}, 8))
	flat, byHost := Links{Near: 1e6, Far: 1e12}, Links{Near: 1e12, Far: 1e6}
	for _, c := range []struct {
		links Links
		part  int // elements
		op    Op
		host  bool
	}{
		{flat, 64, reduceScatter, false}, {byHost, 64, reduceScatter, true}, {flat, 64, allGather, false},
		{byHost, 8 << 20, reduceScatter, true}, {flat, 8 << 20, reduceScatter, true}, {flat, 8 << 20, allGather, false},
	} {
		r := newRouting(0, host, Cheapest)
		r.links, r.planned = c.links, BounceBytes(host, c.part, device.F32)
		by := r.choose(call{op: c.op, t: device.F32, n: 16 * c.part}, c.part)
		if (by == &r.hosts) != c.host {
			t.Errorf("%+v: by host %v", c, !c.host)
		}
		if need := by.slots() * slotBytes(by.chunk, c.part, device.F32); c.op == reduceScatter && need > r.planned {
			t.Errorf("%+v: %d bytes of %d", c, need, r.planned)
		}
	}
}

// TestByHostFrom checks that operations go by host from the returned size on, but not at half of
// it.
func TestByHostFrom(t *testing.T) {
	s := SpreadOf([]int{0, 0, 0, 0, 1, 1, 1, 1})
	for _, gather := range []bool{true, false} {
		from := Usual.ByHostFrom(s, gather)
		is := Usual.byHost(s, hypothetical(gather, device.F32, int(from)/4))
		was := Usual.byHost(s, hypothetical(gather, device.F32, int(from)/8))
		if from <= 1024 || !is || was {
			t.Errorf("gather %v: from %g bytes on: %v, and of half %v", gather, from, is, was)
		}
	}
}
