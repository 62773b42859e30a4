package job

import (
	"zeroth/fsdp"
	"zeroth/nn"
	"zeroth/zero"
)

// Rates are what a rank can do in a second, to weigh work against traffic.
type Rates struct {
	Flops float64 `json:"flops"` // floating-point operations that products of matrices come to
	Link  float64 `json:"link"`  // bytes sent, and received at the same time
}

// Cost is what a step of one rank takes.
type Cost struct {
	Flops   float64 `json:"flops"`
	Again   float64 `json:"recompute_flops"` // those that recomputing activations takes, in Flops too
	Sent    int64   `json:"sent_bytes"`
	Compute float64 `json:"compute_seconds"`
	Exposed float64 `json:"exposed_seconds"` // communication that no computing hides
}

// Seconds is how long the step takes.
func (c Cost) Seconds() float64 { return c.Compute + c.Exposed }

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
		cost.Again = tokens * (2*blocks + attention)
	}
	micro += cost.Again
	cost.Again *= float64(t.Accumulate)
	cost.Flops = micro * float64(t.Accumulate)
	cost.Compute = cost.Flops / r.Flops
	once, each, kept := c.sent(units)
	cost.Sent = once + int64(t.Accumulate)*each - kept
	if c.Zero.Prefetch == 0 {
		cost.Exposed = float64(cost.Sent) / r.Link
		return cost
	}
	hidden := micro / r.Flops // each micro-batch hides so much
	traffic := float64(each) / r.Link
	cost.Exposed = float64(t.Accumulate) * max(0, traffic-hidden)
	cost.Exposed += max(0, float64(once)/r.Link-max(0, hidden-traffic))
	return cost
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
	step := S * R * fsdp.Align
	var turn []int64 // what gathering each unit that takes turns in a slot sends
	for _, u := range units {
		part := (int64(u.Numel) + step - 1) / step * step / S
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
