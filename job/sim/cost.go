package sim

import (
	"cmp"
	"slices"

	"zeroth/job/build"
	"zeroth/job/config"
	"zeroth/nn"
	"zeroth/optim"
	"zeroth/shard"
	"zeroth/zero"
)

// Rates are what a rank can do in a second, to weigh work against traffic. The
// last three are a rank's share of what its machine has.
type Rates struct {
	Flops  float64 `json:"flops"`       // floating-point operations that products of matrices come to
	Cores  float64 `json:"cores"`       // those beside products, and of attention with a soft cap; 0: as products
	Link   float64 `json:"link"`        // bytes sent to other ranks of a shard group, and received at the same time
	Apart  float64 `json:"link_apart"`  // the same to replicas; 0: as Link
	Host   float64 `json:"host_link"`   // bytes between device and host memory, each way
	Memory float64 `json:"host_memory"` // bytes the host's kernels read and write
	Disk   float64 `json:"disk"`        // bytes to or from the disk
}

// Cost is what a step of one rank takes.
type Cost struct {
	Flops   float64 `json:"flops"`
	Again   float64 `json:"recompute_flops"` // those that recomputing activations takes, in Flops too
	Sent    int64   `json:"sent_bytes"`      // to other ranks
	Moved   int64   `json:"moved_bytes"`     // between device and host memory, both ways
	Disk    int64   `json:"disk_bytes"`      // to and from the disk
	Compute float64 `json:"compute_seconds"`
	Exposed float64 `json:"exposed_seconds"` // communication that no computing hides
	Update  float64 `json:"update_seconds"`  // of what is offloaded, and of whole matrices
}

// Seconds is how long the step takes.
func (c Cost) Seconds() float64 { return c.Compute + c.Exposed + c.Update }

// Weigh takes the work of a step and divides it by the rates. With Ψ the
// parameters of matrix products and, of L layers of width C, positions that
// attend to T/2 others on average, a token takes 2Ψ + 2LTC operations forward,
// twice that backward (once, if they are frozen), and recomputing the blocks' share of the first again.
// What is sent in a micro-batch is hidden behind its computing, as far as that
// goes, if units are gathered ahead.
func Weigh(c *config.Config, p Products, moves Traffic, r Rates) (cost Cost) {
	t := c.Train
	tokens := float64(t.MicroBatch) * float64(c.Model.Context)
	attention := 2 * float64(c.Model.Layers) * float64(c.Model.Context) * float64(c.Model.Width)
	micro := 3*tokens*(2*(p.blocks+p.ends)+attention) - 2*tokens*p.frozen
	if c.Zero.Recompute == "block" {
		again := tokens * (2*p.blocks + attention)
		micro += again
		cost.Again = again * float64(t.Accumulate)
	}
	cost.Flops = micro * float64(t.Accumulate)
	cost.Compute = cost.Flops / r.Flops
	if slow, beside := capped(c, tokens, attention); r.Cores > 0 && beside > 0 {
		times := float64(t.Accumulate)
		cost.Compute = (cost.Flops-slow*times)/r.Flops + (slow+beside)*times/r.Cores
	}
	each := moves.each.over(t.Accumulate)
	cost.Sent = moves.apart + moves.once + each
	sending := float64(moves.once)/r.Link + float64(moves.apart)/cmp.Or(r.Apart, r.Link)
	traffic := float64(each)/r.Link + moved(c, moves, r, &cost) // of all micro-batches
	cost.Update += p.updates / float64(c.Parallel.Ranks) / r.Flops
	if c.Zero.Prefetch == 0 {
		cost.Exposed = sending + traffic
		return cost
	}
	cost.Exposed = max(0, traffic-cost.Compute)
	hidden := max(0, cost.Compute-traffic) / float64(t.Accumulate) // the micro-batch that sends what is sent once
	cost.Exposed += max(0, sending-hidden)
	return cost
}

// capped is the operations of a micro-batch that soft caps keep off tensor cores: those of the
// products of attention whose scores have one, and those beside products, of so many for
// each score and logit.
func capped(c *config.Config, tokens, attention float64) (slow, beside float64) {
	m := c.Model
	if m.CapScores > 0 {
		forward, each := 1.0, float64(cappedScore+cappedScoreGrad)
		if c.Zero.Recompute == "block" {
			forward, each = 2, each+cappedScore
		}
		slow = (forward + 2) * tokens * attention
		beside = each * tokens * float64(m.Layers) * float64(m.Heads) * float64(m.Context) / 2
	}
	if m.CapLogits > 0 {
		beside += cappedLossGrad * tokens * float64(m.Vocab)
	}
	return slow, beside
}

// moved counts what passes between the device, the host and the disk, and what
// waits for it. Of each element of a shard with p bytes of a parameter and K
// vectors of state that are updated on the host, the gradient (4) goes there,
// at stages 2 and 3 after every micro-batch, before which the sum so far is
// brought back, and the parameter (p) comes back if it rests on the device. The
// host's kernel reads 4 + 4 + 4K and writes p + 4 + 4K, and the disk, if that is
// where they rest, reads and writes 4 + 4K. What is turned of whole matrices goes from
// the host to the device and back. A parameter that rests elsewhere is fetched for every
// gather. The result is the seconds that takes.
func moved(c *config.Config, moves Traffic, r Rates, cost *Cost) (fetching float64) {
	o, p := c.Zero.Offload, int64(c.Precision.Size())
	offloaded, fetched := moves.offloaded, moves.fetched.over(c.Train.Accumulate)
	cost.Moved = fetched
	if o.Parameters == "disk" {
		cost.Disk = fetched + offloaded
	}
	fetching = max(float64(fetched)/r.Host, float64(cost.Disk)/r.Disk)
	if o.Optimizer == "none" {
		cost.Moved += offloaded // new values
		return fetching
	}
	part := func(bytes int64) int64 { return int64(o.Ratio * float64(bytes)) }
	grads, whole := part(moves.shards), part(moves.whole)
	states, across := grads+part(moves.states), grads
	if c.Zero.Stage > 1 {
		across *= int64(2*c.Train.Accumulate - 1)
	}
	across += grads/4*p - part(offloaded) + 2*whole
	seconds := []float64{float64(across) / 2 / r.Host, float64(grads+2*states+grads/4*p+2*whole) / r.Memory}
	if o.Optimizer == "disk" {
		cost.Disk += 2 * states
		seconds = append(seconds, float64(2*states)/r.Disk)
	}
	cost.Moved += across
	cost.Update = slices.Max(seconds)
	return fetching
}

// Products are the parameters of the products of matrices in the blocks, and in
// the output layer. Looking up an embedding is none.
type Products struct {
	blocks, ends float64
	frozen       float64 // of both
	updates      float64 // operations of updates of whole matrices, of all ranks
}

// Matmuls counts the Products of a model, and those of its updates by some rules.
func Matmuls(m *nn.Model, rules []optim.Rule) (p Products) {
	for _, u := range m.Units() {
		for _, x := range u.Params {
			if r, ok := rules[x.Rule].(optim.Whole); ok && !x.Frozen {
				p.updates += r.Flops(x.Shape[0], x.Shape[1])
			}
		}
	}
	for _, mod := range m.Modules[1 : len(m.Modules)-1] {
		for _, x := range mod.Params() {
			if len(x.Shape) == 2 {
				p.blocks += float64(x.Numel())
				if x.Frozen {
					p.frozen += float64(x.Numel())
				}
			}
		}
	}
	p.ends = float64(m.Vocab) * float64(m.Width)
	for _, x := range m.Modules[len(m.Modules)-1].Params() {
		if x.Frozen && slices.Equal(x.Shape, []int{m.Vocab, m.Width}) {
			p.frozen += p.ends
		}
	}
	return p
}

// gathers are how often each unit is gathered in a step: once if it stays whole,
// else for every pass that reads it, less where it is still in its slot when
// passes turn around. Micro-batches after the first are alike.
func gathers(c *config.Config, units []zero.UnitSize, micros int) []int64 {
	p, times := zero.Stage(c.Zero.Stage).Policy(c.Zero.Prefetch, false), make([]int64, len(units))
	turns := func(u zero.UnitSize) bool { return !p.KeepParams && !u.Shared }
	for i, u := range units {
		if !turns(u) {
			times[i] = 1
		}
	}
	for _, turn := range zero.Turns(units, turns) {
		takeTurns(times, turn, units[turn[0]].Lookup, p.ParamSlots(), micros)
	}
	return times
}

// takeTurns adds how often units that take turns in slots are gathered.
func takeTurns(times []int64, turn []int, lookup bool, slots, micros int) {
	in := slices.Repeat([]int{-1}, slots) // whose turn it was last
	pass := func(k int, alike int64) {
		if at := zero.SlotOf(k, len(turn), slots, lookup); in[at] != k {
			in[at] = k
			times[turn[k]] += alike
		}
	}
	for _, alike := range []int64{1, int64(micros) - 1} {
		for k := range turn {
			pass(k, alike)
		}
		for k := len(turn) - 1; k >= 0; k-- {
			if k > 0 || !lookup {
				pass(k, alike)
			}
		}
	}
}

// Traffic is what a rank's step moves, in bytes, whatever the size of its
// micro-batches.
type Traffic struct {
	apart     int64   // sent to replicas,
	once      int64   // and inside the shard group once in a step,
	each      repeats // and there in micro-batches
	offloaded int64   // parameters that rest elsewhere,
	fetched   repeats // and their fetches

	shards, states, whole int64 // float32 of all shards, their state vectors, what is turned of whole matrices
}

// repeats is something of the first micro-batch, and of each that follows.
type repeats struct{ first, more int64 }

// over is its sum over so many micro-batches.
func (r repeats) over(micros int) int64 { return r.first + int64(micros-1)*r.more }

func (r *repeats) add(first, more int64) { r.first, r.more = r.first+first, r.more+more }

// TrafficOf counts what of the units goes around rings and, offloaded, to and fro.
func TrafficOf(c *config.Config, units []zero.UnitSize) (t Traffic) {
	mesh, p := config.Mesh(c), zero.Stage(c.Zero.Stage).Policy(c.Zero.Prefetch, false)
	e := int64(c.Precision.Size())
	first, two := gathers(c, units, 1), gathers(c, units, 2)
	rules := build.Rules(c.Optimizer)
	for i, u := range units {
		n, mesh := Part(c, u), u.Over(mesh)
		S, R := int64(mesh.Shard), int64(mesh.Replicate)
		gathers, more := first[i], two[i]-first[i]
		gather, reduce, shards := e*n*(S-1), 4*n*(S-1), 4*n
		if u.Frozen {
			reduce, shards = 0, 0
		}
		t.apart += 2 * (shards / R * (R - 1))
		if r, ok := rules[u.Rule].(optim.Whole); ok && !u.Frozen {
			update := int64(r.Input().Size()) * n
			t.once, t.apart, t.whole = t.once+2*update*(S-1), t.apart+2*(update/R*(R-1)), t.whole+update
		}
		if p.KeepParams || u.Shared {
			t.once += gathers * gather
		} else {
			t.each.add(gathers*gather, more*gather)
		}
		if p.KeepGrads {
			t.once += reduce
		} else {
			t.each.add(reduce, reduce)
		}
		t.shards += shards
		for _, v := range rules[u.Rule].Types() {
			t.states += int64(v.Bytes(int(shards / 4)))
		}
		if c.Zero.Offload.Parameters != "none" && !u.Shared {
			t.offloaded += e * n
			t.fetched.add(gathers*e*n, more*e*n)
		}
	}
	return t
}

// UnitSizes are a model's units, in order of first use, as some rules want them.
func UnitSizes(m *nn.Model, rules []optim.Rule) (sizes []zero.UnitSize) {
	last, begin := -1, zero.Begin(rules)
	for _, u := range m.Units() {
		n := 0
		for _, p := range u.Params {
			n = (n+begin-1)/begin*begin + p.Numel()
		}
		sizes = append(sizes, zero.UnitSize{
			Numel: n, Align: begin, Shared: u.First != u.Last, Lookup: u.First == 0 && m.Lookup, Beside: u.First == last,
			Frozen: u.Params[0].Frozen, Rule: u.Params[0].Rule, Matrix: mostWork(u, rules),
		})
		last = u.First
	}
	return sizes
}

// mostWork is the sides of the unit's matrix that takes most work space, of a unit whose
// rule needs whole matrices.
func mostWork(u nn.Unit, rules []optim.Rule) (sides [2]int) {
	r, whole := rules[u.Params[0].Rule].(optim.Whole)
	if !whole || u.Params[0].Frozen {
		return sides
	}
	p := slices.MaxFunc(u.Params, func(a, b shard.Param) int {
		return cmp.Compare(r.Work(a.Shape[0], a.Shape[1]), r.Work(b.Shape[0], b.Shape[1]))
	})
	return [2]int{slices.Min(p.Shape), slices.Max(p.Shape)}
}

// Part is the elements of a unit's shard.
func Part(c *config.Config, u zero.UnitSize) int64 {
	_, part := u.Pad(config.Mesh(c))
	return part
}
