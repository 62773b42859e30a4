package zero

import (
	"math"
	"slices"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/nn"
	"zeroth/shard"
)

// Balance is the balancing loss of routers, added to the loss: Coefficient times its mean over the micro-batches
// of all data ranks. The loss of a micro-batch is Experts times the sum over experts of f*p, where f is the part
// of its rows, in all layers together, for which an expert has one of the TopK largest logits, and p the mean
// softmax of the expert's logit. Rows of padding do not count. The zero Balance is none.
type Balance struct {
	Coefficient           float64
	Experts, TopK, Layers int
}

// Balanced describes how routers distribute the rows of a step.
type Balanced struct {
	Loss           float64   // mean over micro-batches, without the coefficient: TopK if all experts have equal shares
	Share, Entropy []float64 // of each layer: the share of the expert with most rows, and the entropy of all shares in nats; 0 without experts
}

// balance is a trainer's memory for the balancing loss. A row has two numbers for each expert, float32: how often
// it is chosen, or then the slope of the loss, and the sum of its softmax.
type balance struct {
	layers device.Mat      // (Layers) rows of the pass under way
	own    device.Buffer   // a row: their sum
	rows   []device.Buffer // rows of micro-batches in flight: of each stream, and of each flight of the first stage
	step   device.Window   // (Layers) rows of the step, its loss, and room for reductions
	all    device.Buffer   // (ranks that divide a micro-batch) rows
}

// on reports whether there is a balancing loss.
func (b *Balance) on() bool { return b.Coefficient > 0 }

// row returns the length of a row.
func (b *Balance) row() int { return 2 * b.Experts }

// dividers returns the groups of ranks that divide the rows of a micro-batch.
func (t *Trainer) dividers() []nn.Group {
	all := []nn.Group{t.inputs[0].batch.Tensor, t.inputs[0].batch.Context}
	return slices.DeleteFunc(all, func(g nn.Group) bool { return g == nil })
}

// stageGroups returns the groups whose sums, one after the other, are those of all ranks of a pipeline stage.
func (t *Trainer) stageGroups() []collective.Group {
	all := []collective.Group{t.cfg.Groups.Shard, t.cfg.Groups.Replica, t.cfg.Groups.Tensor}
	return slices.DeleteFunc(all, func(g collective.Group) bool { return g == nil || g.Size() == 1 })
}

// openBalance allocates what the balancing loss needs.
func (t *Trainer) openBalance(alloc func(n int) device.Buffer, open func(n int) device.Window) {
	b, m := &t.cfg.Balance, &t.balance
	if !b.on() {
		return
	}
	room, parts := 0, 0
	for _, g := range t.stageGroups() {
		room = max(room, g.Size())
	}
	for _, g := range t.dividers() {
		parts = max(parts, g.Size())
	}
	m.layers, m.own = device.Matrix(alloc(b.Layers*b.row()), b.Layers, b.row()), alloc(b.row())
	m.step, m.all = open(b.Layers*b.row()+1+room), alloc(parts*b.row())
	for range t.pipeline.streams.most + t.pipeline.flights[0].most {
		m.rows = append(m.rows, alloc(b.row()))
	}
}

// beginBalance begins the sums of a step.
func (t *Trainer) beginBalance() {
	if t.cfg.Balance.on() {
		t.cfg.Compute.Label("")
		t.cfg.Compute.Zero(t.balance.step.Device)
	}
}

// routed returns the row of a micro-batch that its forward pass adds to and sends on; empty without a balancing loss.
func (t *Trainer) routed(x *flight) (row device.Buffer) {
	switch {
	case !t.cfg.Balance.on():
	case x.x >= 0:
		row = t.balance.rows[x.x]
	default:
		row = t.balance.rows[t.pipeline.streams.most+x.flight]
	}
	return row
}

// slopes returns the row that the backward pass of a micro-batch reads and sends back; empty without a balancing loss.
func (t *Trainer) slopes(x *flight) (row device.Buffer) {
	if t.cfg.Balance.on() {
		row = t.balance.rows[x.d]
	}
	return row
}

// beforeBalance prepares a batch for the pass forward.
func (t *Trainer) beforeBalance(b *nn.Batch) {
	if of := &t.cfg.Balance; of.on() {
		t.cfg.Compute.Zero(t.balance.layers.Buf)
		b.Balance.Layers = t.balance.layers
	}
}

// afterBalance adds the sums of the layers of a pass to those of the step and of the micro-batch. The last stage
// sums these over the ranks that divide the micro-batch, and computes its loss.
func (t *Trainer) afterBalance(x *flight) {
	b, m, c, row := &t.cfg.Balance, &t.balance, t.cfg.Compute, t.routed(x)
	if !b.on() {
		return
	}
	n := m.layers.Buf.N
	step, loss := m.step.Device.Slice(0, n), m.step.Device.Slice(n, n+1)
	c.AddTo(step, step, m.layers.Buf)
	if x.x < 0 {
		c.SumRows(row, m.layers)
	} else {
		c.SumRows(m.own, m.layers)
		c.AddTo(row, row, m.own)
	}
	if x.stage < t.pipeline.Stages()-1 {
		return
	}
	for _, g := range t.dividers() {
		all := m.all.Slice(0, g.Size()*b.row())
		g.Gather(all, row)
		c.SumRows(row, device.Matrix(all, g.Size(), b.row()))
	}
	c.BalanceTotal(row, loss, b.TopK)
}

// backBalance prepares a batch for the pass back.
func (t *Trainer) backBalance(b *nn.Batch, x *flight) {
	if of := &t.cfg.Balance; of.on() {
		b.Balance.Scale = float32(of.Coefficient * t.Scale.Scale / float64(t.cfg.Share.Batch/t.cfg.B))
		b.Balance.Slopes = t.slopes(x).Slice(0, of.Experts)
		if x.stage == t.pipeline.Stages()-1 {
			t.cfg.Compute.Cast(t.slopes(x), t.routed(x))
		}
	}
}

// endBalance sums a step's rows and its loss over the ranks of a stage.
func (t *Trainer) endBalance() {
	q := t.cfg.Comm
	if !t.cfg.Balance.on() {
		return
	}
	q.Label("routers: all-reduce")
	q.After(t.cfg.Compute.Mark())
	n := t.balance.layers.Buf.N + 1
	for _, g := range t.stageGroups() {
		collective.AllReduce(g, q, t.balance.step.Device.Slice(0, (n+g.Size()-1)/g.Size()*g.Size()))
	}
	t.cfg.Update.After(q.Mark())
	t.balance.step.Fetch(t.cfg.Update)
}

// mergeBalance sets this rank's statistics: the loss, and the share and the entropy of each layer, as float64. Other
// stages than the last have no loss.
func (t *Trainer) mergeBalance(own []int64) {
	b := &t.cfg.Balance
	if !b.on() {
		return
	}
	own = own[t.statLen()-b.stats():]
	set := func(i int, x float64) { own[i] = int64(math.Float64bits(x)) }
	step, times := t.balance.step.Host.F32(), t.cfg.Mesh.Size(shard.Context, shard.Tensor) // a micro-batch is counted
	set(0, float64(step[t.balance.layers.Buf.N])/float64(t.cfg.Share.Batch/t.cfg.B*times))
	for l := range b.Layers {
		share, entropy := spread(step[l*b.row() : l*b.row()+b.Experts])
		set(1+2*l, share)
		set(2+2*l, entropy)
	}
}

// stats returns the length of a rank's statistics.
func (b *Balance) stats() int {
	if !b.on() {
		return 0
	}
	return 1 + 2*b.Layers
}

// spread returns the largest part of a sum and the entropy of the parts.
func spread(counts []float32) (largest, entropy float64) {
	sum := 0.0
	for _, c := range counts {
		sum += float64(c)
	}
	for _, c := range counts {
		if c > 0 {
			p := float64(c) / sum
			largest, entropy = max(largest, p), entropy-p*math.Log(p)
		}
	}
	return largest, entropy
}

// balancedOf combines the statistics of all ranks: each stage of a pipeline has those of its layers.
func (t *Trainer) balancedOf(all []int64) (of Balanced) {
	b, n := &t.cfg.Balance, t.statLen()
	if !b.on() {
		return of
	}
	of.Share, of.Entropy = make([]float64, b.Layers), make([]float64, b.Layers)
	for end := n; end <= len(all); end += n {
		part := all[end-b.stats() : end]
		value := func(i int) float64 { return math.Float64frombits(uint64(part[i])) }
		of.Loss = max(of.Loss, value(0))
		for l := range b.Layers {
			of.Share[l], of.Entropy[l] = max(of.Share[l], value(1+2*l)), max(of.Entropy[l], value(2+2*l))
		}
	}
	return of
}
