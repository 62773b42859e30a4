package job

import (
	"slices"

	"zeroth/nn"
	"zeroth/zero"
)

// Rates are what a rank can do in a second, to weigh work against traffic. The
// last three are a rank's share of what its machine has.
type Rates struct {
	Flops  float64 `json:"flops"`       // floating-point operations that products of matrices come to
	Link   float64 `json:"link"`        // bytes sent to other ranks, and received at the same time
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
	Update  float64 `json:"update_seconds"`  // of what is offloaded
}

// Seconds is how long the step takes.
func (c Cost) Seconds() float64 { return c.Compute + c.Exposed + c.Update }

// cost counts the work of a step and divides it by the rates. With Ψ the
// parameters of matrix products and, of L layers of width C, positions that
// attend to T/2 others on average, a token takes 2Ψ + 2LTC operations forward,
// twice that backward, and recomputing the blocks' share of the first again.
// What is sent in a micro-batch is hidden behind its computing, as far as that
// goes, if units are gathered ahead.
func (c *Config) cost(m *nn.Model, units []zero.UnitSize, r Rates) (cost Cost) {
	t := c.Train
	tokens := float64(t.MicroBatch) * float64(c.Model.Context)
	blocks, ends := matmuls(m)
	attention := 2 * float64(c.Model.Layers) * float64(c.Model.Context) * float64(m.Width)
	micro := 3 * tokens * (2*(blocks+ends) + attention)
	if c.Zero.Recompute == "block" {
		again := tokens * (2*blocks + attention)
		micro += again
		cost.Again = again * float64(t.Accumulate)
	}
	cost.Flops = micro * float64(t.Accumulate)
	cost.Compute = cost.Flops / r.Flops
	once, each, kept := c.sent(units)
	cost.Sent = once + int64(t.Accumulate)*each - kept
	fetched := c.moved(units, r, &cost)
	traffic := float64(each)/r.Link + fetched
	if c.Zero.Prefetch == 0 {
		cost.Exposed = float64(cost.Sent)/r.Link + float64(t.Accumulate)*fetched
		return cost
	}
	hidden := micro / r.Flops // each micro-batch hides so much
	cost.Exposed = float64(t.Accumulate) * max(0, traffic-hidden)
	cost.Exposed += max(0, float64(once)/r.Link-max(0, hidden-traffic))
	return cost
}

// moved counts what passes between the device, the host and the disk, and the
// updates that wait for it: of an element of the shard, with p bytes of a
// parameter and K vectors of state, the gradient (4) goes to the host and the
// parameter (p) comes back, the host's kernel reads 4 + 4 + 4K and writes
// p + 4 + 4K, and the disk, if that is where they rest, reads and writes 4 + 4K.
// Fetched is the seconds of a micro-batch's parameter shards.
func (c *Config) moved(units []zero.UnitSize, r Rates, cost *Cost) (fetched float64) {
	o, p, K := c.Zero.Offload, int64(c.Precision.Size()), int64(len(c.Optimizer.rule().States()))
	var shards int64
	for _, u := range units {
		shards += c.part(u)
	}
	if o.Optimizer != "none" {
		n := int64(o.Ratio * float64(shards))
		across := n * (4 + p)
		if a := int64(c.Train.Accumulate); c.Zero.Stage > 1 {
			across += n * 4 * 2 * (a - 1) // sums so far are brought back, and sent
		}
		seconds := []float64{float64(across) / 2 / r.Host, float64(n*(8+p+4+8*K)) / r.Memory}
		if o.Optimizer == "disk" {
			cost.Disk += n * 2 * (4 + 4*K)
			seconds = append(seconds, float64(n*2*(4+4*K))/r.Disk)
		}
		cost.Moved += across
		cost.Update = slices.Max(seconds)
	}
	if o.Parameters != "none" {
		once := shards * p * 2 // forward and backward
		cost.Moved += once * int64(c.Train.Accumulate)
		fetched = float64(once) / r.Host
		if o.Parameters == "disk" {
			cost.Disk += once * int64(c.Train.Accumulate)
			fetched = float64(once) / min(r.Host, r.Disk)
		}
	}
	return fetched
}

// matmuls are the parameters of the products of matrices in the blocks, and in
// the output layer. Looking up an embedding is none.
func matmuls(m *nn.Model) (blocks, ends float64) {
	for _, mod := range m.Modules[1 : len(m.Modules)-1] {
		for _, p := range mod.Params() {
			if len(p.Shape) == 2 {
				blocks += float64(p.Numel())
			}
		}
	}
	return blocks, float64(m.Vocab) * float64(m.Width)
}

// sent is the bytes a rank sends around rings: once in a step, in each
// micro-batch, and how much less that is because units are in their slots still
// when a pass turns back.
func (c *Config) sent(units []zero.UnitSize) (once, each, kept int64) {
	mesh, p := c.Mesh(), zero.Stage(c.Zero.Stage).Policy(c.Zero.Prefetch, false)
	S, R, e := int64(mesh.Shard), int64(mesh.Replicate), int64(c.Precision.Size())
	var turn []int64 // what gathering each unit that takes turns in a slot sends
	for _, u := range units {
		part := c.part(u)
		gather, reduce := e*part*(S-1), 4*part*(S-1)
		once += 2 * (4 * part / R * (R - 1)) // between replicas
		if p.KeepParams || u.Shared {
			once += gather
		} else {
			each += 2 * gather
			turn = append(turn, gather)
		}
		if p.KeepGrads {
			once += reduce
		} else {
			each += reduce
		}
	}
	n := min(p.Prefetch+1, len(turn))
	for i := range n {
		kept += int64(c.Train.Accumulate)*turn[len(turn)-1-i] + int64(c.Train.Accumulate-1)*turn[i]
	}
	return once, each, kept
}
