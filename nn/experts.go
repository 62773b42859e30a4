package nn

import (
	"slices"
	"strconv"
	"strings"

	"zeroth/device"
	"zeroth/shard"
)

// Experts is the shape of a mixture of experts, which replaces the MLP of a block (Shazeer et al., arXiv
// 1701.06538). A row is processed by Router.TopK of them, however the rows divide: none is dropped. The
// zero Experts is none.
type Experts struct {
	Count  int
	FFN    int // width of an expert's hidden layer
	Router device.Router
	Single bool   // the router is float32 in any precision
	Shared int    // width of the hidden layer of a shared expert, which processes every row; 0: there is none
	Gated  bool   // its output is multiplied by the logistic function of a linear function of its input
	Dense  []bool // the layers that have an MLP of width Llama.FFN instead; nil: none
	Names  ExpertNames
	Own    Cut // the part of the experts that the modules have
}

// ExpertNames are the names of a mixture's parameters in a layer, without ".weight".
type ExpertNames struct {
	Router string
	Bias   string // the whole name of the router's correction, if it has one
	// Gate, Up and Down have %d for an expert's number. Without Up, Gate is the gates and ups of all
	// experts, (Count, 2 FFN, Width), and Down is (Count, Width, FFN).
	Gate, Up, Down string
	Shared         MLPNames
	SharedRouter   string // (1, Width), of a Gated shared expert
}

// MLPNames are the names of an MLP's layers. Without Up, Gate has the rows of both.
type MLPNames struct{ Gate, Up, Down string }

// Balance is the memory that a training pass needs for the balancing loss of routers, see Ops.Balance.
type Balance struct {
	Scale  float32       // of the loss in Backward
	Layers device.Mat    // (layers, 2 Count) float32: Forward sets the row of its layer to the sums of Ops.Balance
	Slopes device.Buffer // (Count) float32: of Ops.BalanceTotal, for Backward
}

// In reports whether a layer has experts.
func (x Experts) In(layer int) bool {
	return x.Count > 0 && (x.Dense == nil || !x.Dense[layer%len(x.Dense)])
}

// own returns the range of this rank's experts.
func (x Experts) own() shard.Range {
	n := x.Own.narrow(x.Count, "experts")
	return shard.Range{Lo: x.Own.Index * n, Hi: (x.Own.Index + 1) * n}
}

// matrices locates a matrix of each expert, in consecutive parameters of a block.
type matrices struct{ param, rows, cols, count int }

// of views the matrices in w, which contains the block's parameters or their gradients.
func (m matrices) of(w []device.Buffer) device.MatGroup {
	each := m.rows * m.cols
	all := device.Neighbours(w[m.param:], m.count*each)
	return device.MatGroup{Mat: device.Mat{Buf: all, Rows: m.rows, Cols: m.cols, Ld: m.cols}, Stride: each}
}

// mixture locates the parameters of a block's experts.
type mixture struct {
	router       rows
	bias         rows             // (Count): the router's correction, which is never trained
	sharedRouter rows             // (1, C); none unless the shared expert is gated
	gateUp, down matrices         // (2F, C) and (C, F) of each of this rank's experts
	adapters     [3]expertAdapter // of gate, up and down
}

// addExperts appends the parameters of a block's experts: gate and up of one expert after those of another,
// then the downs.
func (b *llamaBlock) addExperts(prefix string) {
	x, c, cut := b.l.Experts, b.l.Width, b.l.Cut
	router := func(name string, n int) rows {
		p := weight(prefix+name+".weight", initStd, n, c)
		p.Router = true
		return b.add(p)
	}
	b.mix.router = router(x.Names.Router, x.Count)
	b.params[b.mix.router.param].Single = x.Single
	if x.Router.Bias {
		p := bias(prefix+x.Names.Bias, x.Count)
		p.Frozen, p.Single, p.Router = true, true, true
		b.mix.bias = b.add(p)
	}
	if x.Gated {
		b.mix.sharedRouter = router(x.Names.SharedRouter, 1)
	}
	own, f := x.own(), x.FFN
	whole := f * max(1, cut.Count)
	add := func(p shard.Param, dim int, pieces ...int) {
		if len(p.Shape) == 3 {
			p = x.Own.part(p, 0, own.Len())
		}
		p = cut.part(p, dim, pieces...)
		p.Expert = true
		b.params.add(p)
	}
	b.mix.gateUp = matrices{len(b.params), 2 * f, c, own.Len()}
	if x.Names.Up == "" {
		add(weight(prefix+x.Names.Gate+".weight", initStd, x.Count, 2*whole, c), 1, f, f)
		b.mix.down = matrices{len(b.params), c, f, own.Len()}
		add(weight(prefix+x.Names.Down+".weight", initStd, x.Count, c, whole), 2, f)
		return
	}
	b.params = slices.Grow(b.params, 3*own.Len()+1) // and a gain
	gate, up, down := numbered(prefix, x.Names.Gate), numbered(prefix, x.Names.Up), numbered(prefix, x.Names.Down)
	for e := own.Lo; e < own.Hi; e++ {
		add(weight(gate(e), initStd, whole, c), 0, f)
		add(weight(up(e), initStd, whole, c), 0, f)
	}
	b.mix.down = matrices{len(b.params), c, f, own.Len()}
	for e := own.Lo; e < own.Hi; e++ {
		add(weight(down(e), initStd, c, whole), 1, f)
	}
}

// numbered returns the names of the weights of experts, from a pattern with a number in it.
func numbered(prefix, pattern string) func(e int) string {
	before, after, _ := strings.Cut(prefix+pattern+".weight", "%d")
	return func(e int) string { return before + strconv.Itoa(e) + after }
}

// savedMix holds what a block with experts saves, in addition to hidden and act of its shared expert. P is the number of
// pairs of a row and one of its experts.
type savedMix struct {
	logits           device.Buffer // (R, Count) float32
	experts, weights device.Buffer // (P) int32 and float32, of the rows of all sources
	sorted           pairOrder     // of a single source
	hidden, act      device.Buffer // (P, 2F), (P, F) in sorted order, of a single source
	shared           device.Buffer // (R) float32: the logits of a gated shared expert
	sharedWeights    device.Buffer // (R) float32
	one, sharedOrder device.Buffer // (R) int32: the only expert and the order of such rows
}

// pairOrder is the order of the pairs of one source, see Ops.Sort.
type pairOrder struct {
	order, at, offsets device.Buffer
	ahead              int // positions of the step's data from this rank's first to the source's; below 0: before it
}

// mixPass is one pass through a block's experts. Ranks along the group have the rows of several sources: each
// processes those of all sources, one source after the other, by the part of the experts that it has.
type mixPass struct {
	pass
	b       *llamaBlock
	s       savedMix // a copy: a pointer would put the pass's Saved on the heap
	group   Group    // nil: this rank has all rows and whole experts
	sources int
	own     int // this rank's source
	rows    int // of a source
}

func (b *llamaBlock) mixPass(p pass, s *Saved) mixPass {
	m := mixPass{pass: p, b: b, s: s.mix, group: p.bt.Tensor, sources: 1, rows: p.bt.Rows()}
	if g := p.bt.Experts; g != nil {
		m.group, m.sources = g, b.l.Experts.Own.Count
		m.own = b.l.Experts.Own.Index
	}
	return m
}

// pairs returns the number of pairs of a source's rows.
func (m mixPass) pairs() int { return m.rows * m.b.l.Experts.Router.TopK }

// of returns a source's part of a buffer of all sources.
func (m mixPass) of(b device.Buffer, source int) device.Buffer {
	n := b.N / m.sources
	return b.Slice(source*n, (source+1)*n)
}

// part returns a source's rows of those of all sources.
func (m mixPass) part(all device.Mat, source int) device.Mat {
	return all.RowRange(source*m.rows, (source+1)*m.rows)
}

// held returns this rank's part of a buffer of all sources: that of its rows of the residual stream.
func (m mixPass) held(b device.Buffer) device.Buffer {
	if m.group == nil {
		return b
	}
	n := b.N / m.group.Size()
	return b.Slice(m.group.Rank()*n, (m.group.Rank()+1)*n)
}

// gathered returns the rows of x of all sources.
func (m mixPass) gathered(x device.Mat) device.Mat {
	if m.group == nil {
		return x
	}
	all := m.take(m.sources*m.rows, x.Cols)
	m.group.Gather(all.Buf, x.Buf)
	return all
}

// reduced sets y to this rank's rows of the sum over the group of all, if there is a group.
func (m mixPass) reduced(y, all device.Buffer) {
	if m.group != nil {
		m.group.Reduce(y, all)
	}
}

// summed returns memory for rows of all sources that reduced then sums: y itself without a group.
func (m mixPass) summed(y device.Mat) device.Mat {
	if m.group == nil {
		return y
	}
	return m.take(m.sources*m.rows, y.Cols)
}

func (m mixPass) take(rows, cols int) device.Mat {
	return device.Matrix(m.mem.Take(m.bt.Compute, rows*cols), rows, cols)
}

// takeExperts allocates what the experts save, as take does.
func (b *llamaBlock) takeExperts(p pass, s *Saved, to purpose) {
	m, x, own := b.mixPass(p, s), b.l.Experts, p.bt.Held()
	mix, n, all := &s.mix, m.pairs(), RecomputeBlock
	small := func(b *device.Buffer, t device.DType, n int) { p.take(b, t, n, to, all, true) }
	small(&mix.logits, device.F32, own*x.Count)
	small(&mix.experts, device.I32, m.sources*n)
	small(&mix.weights, device.F32, m.sources*n)
	if m.sources == 1 {
		small(&mix.sorted.order, device.I32, n)
		small(&mix.sorted.at, device.I32, n)
		small(&mix.sorted.offsets, device.I32, b.mix.gateUp.count+1)
		p.take(&mix.hidden, p.bt.Compute, 2*n*x.FFN, to, RecomputeMLP, true)
		read := !b.params[b.mix.down.param].Frozen || b.mix.adapters[2].exist()
		p.take(&mix.act, p.bt.Compute, n*x.FFN, to, RecomputeElementwise, read)
	}
	if x.Gated {
		small(&mix.shared, device.F32, m.rows)
		small(&mix.sharedWeights, device.F32, m.rows)
		small(&mix.one, device.I32, m.rows)
		small(&mix.sharedOrder, device.I32, m.rows)
	}
}

// restoreExperts computes what takeExperts did not save at a level. With several sources, Backward computes the
// rows of each again at every level.
func (b *llamaBlock) restoreExperts(p pass, s *Saved, lost Recompute) {
	m := b.mixPass(p, s)
	if lost == RecomputeBlock && b.mlp.after.exist() { // the norm's input is the sum of the experts' outputs
		b.forwardExperts(p, m.take(p.bt.Held(), b.l.Width).Buf, s)
		return
	}
	norm := b.normBefore(p, b.mlp, s.mlp, device.Matrix(s.x2, p.bt.Held(), b.l.Width))
	if lost == RecomputeBlock {
		m.route(norm)
	}
	var all device.Mat
	if lost >= RecomputeMLP {
		all = m.gathered(norm)
	}
	if b.l.Experts.Shared > 0 {
		if lost >= RecomputeMLP {
			m.hideShared(m.part(all, m.own), s)
		}
		m.activateShared(s)
	}
	if m.sources == 1 {
		r := m.rowsOf(0, m.space(lost >= RecomputeMLP))
		if lost >= RecomputeMLP {
			m.hide(r, all, 0)
		}
		m.activate(r)
	}
}

// route computes the experts and weights of this rank's rows, and gathers those of all sources.
func (m mixPass) route(norm device.Mat) {
	x, s := m.b.l.Experts, m.s
	logits := device.Matrix(s.logits, norm.Rows, x.Count)
	m.q.MatMul(logits, norm, m.b.mix.router.of(m.w).T(), device.Buffer{}, false)
	var bias device.Buffer
	if x.Router.Bias {
		bias = m.b.mix.bias.of(m.w).Buf
	}
	m.q.Route(m.held(s.experts), m.held(s.weights), logits, bias, x.Router)
	if m.group != nil {
		m.group.Gather(s.experts, m.held(s.experts))
		m.group.Gather(s.weights, m.held(s.weights))
	}
}

// balance sums what the balancing loss needs of this rank's rows.
func (m mixPass) balance() {
	layers := m.bt.Balance.Layers
	if layers.Rows == 0 {
		return
	}
	defer m.mem.Release(m.mem.Mark())
	rows, n := m.bt.Held(), layers.Cols
	stats := device.Matrix(m.mem.Take(device.F32, rows*n), rows, n)
	m.q.Balance(stats, device.Matrix(m.s.logits, rows, n/2), m.targets(), m.b.l.Experts.Router.TopK)
	m.q.SumRows(layers.RowRange(m.b.layer, m.b.layer+1).Buf, stats)
}

// targets returns the targets of this rank's rows.
func (m mixPass) targets() device.Buffer {
	lo, hi := m.bt.Own()
	return m.bt.Target.Slice(lo, hi)
}

// sort orders the pairs of a source.
func (m mixPass) sort(o pairOrder, source int) {
	m.q.Sort(o.order, o.at, o.offsets, m.of(m.s.experts, source), m.b.l.Experts.own().Lo)
}

// mixRows is working space for the rows of one source, in sorted order.
type mixRows struct {
	pairOrder
	x, hidden, gate, up, act device.Mat
	weights                  device.Buffer
}

// rowsOf returns a source's rows. With several sources, they share working space.
func (m mixPass) rowsOf(source int, space mixRows) mixRows {
	space.weights = m.of(m.s.weights, source)
	if m.sources > 1 { // whose ranks read consecutive samples
		space.ahead = (source - m.own) * m.rows
		if g := m.bt.Context; g != nil {
			space.ahead *= g.Size()
		}
	}
	return space
}

// space returns working space for the rows of a source, with their input if a pass reads it, and, with a
// single source, what is saved of them.
func (m mixPass) space(input bool) (r mixRows) {
	n, f := m.pairs(), m.b.l.Experts.FFN
	if input {
		r.x = m.take(n, m.b.l.Width)
	}
	if m.sources == 1 {
		r.pairOrder, r.hidden, r.act = m.s.sorted, device.Matrix(m.s.hidden, n, 2*f), device.Matrix(m.s.act, n, f)
	} else {
		r.pairOrder = pairOrder{order: m.mem.Take(device.I32, n), at: m.mem.Take(device.I32, n), offsets: m.mem.Take(device.I32, m.b.mix.gateUp.count+1)}
		r.hidden, r.act = m.take(n, 2*f), m.take(n, f)
	}
	r.gate, r.up = r.hidden.Columns(0, f), r.hidden.Columns(f, 2*f)
	return r
}

// hide computes the experts' hidden layer for the rows of one source; all has the rows of all sources.
func (m mixPass) hide(r mixRows, all device.Mat, source int) {
	m.sort(r.pairOrder, source)
	m.q.GatherRows(r.x, m.part(all, source), r.order)
	m.q.MatMulGroups(r.hidden, r.x, m.b.mix.gateUp.of(m.w).T(), r.offsets, false)
	for i, y := range [2]device.Mat{r.gate, r.up} {
		m.adapt(m.b.mix.adapters[i], y, r.x, r.pairOrder)
	}
}

// activate computes the activation of the hidden layer times the weights.
func (m mixPass) activate(r mixRows) {
	m.q.GateRows(r.act, r.gate, r.up, m.b.l.Gate.activation(), r.weights, r.order)
}

func (b *llamaBlock) forwardExperts(p pass, y device.Buffer, s *Saved) {
	defer p.mem.Release(p.mem.Mark())
	m, own, c := b.mixPass(p, s), p.bt.Held(), b.l.Width
	x2, ym := device.Matrix(s.x2, own, c), device.Matrix(y, own, c)
	norm, term := b.normBefore(p, b.mlp, s.mlp, x2), b.term(b.mlp, s.mlp, ym)
	m.route(norm)
	m.balance()
	all, sum := m.gathered(norm), m.summed(term)
	if b.l.Experts.Shared > 0 {
		m.forwardShared(m.part(sum, m.own), m.part(all, m.own), s)
	}
	space := m.space(true)
	out := m.take(m.pairs(), c)
	for source := range m.sources {
		r, to, base := m.rowsOf(source, space), m.part(sum, source), device.Mat{}
		m.hide(r, all, source)
		m.activate(r)
		m.q.MatMulGroups(out, r.act, b.mix.down.of(p.w).T(), r.offsets, false)
		m.adapt(b.mix.adapters[2], out, r.act, r.pairOrder)
		if source == m.own && b.l.Experts.Shared > 0 {
			base = to
		}
		m.q.SumGroups(to, base, out, r.at)
	}
	m.reduced(term.Buf, sum.Buf)
	b.addTerm(p, b.mlp, s.mlp, ym, x2)
}

// forwardShared sets y to the output of the shared expert for rows in.
func (m mixPass) forwardShared(y, in device.Mat, s *Saved) {
	m.hideShared(in, s)
	m.activateShared(s)
	m.b.down.forward(m.pass, y, device.Matrix(s.act, m.rows, m.b.ffn()))
}

// hideShared computes the hidden layer of the shared expert for rows in, and the weights of a gated one.
func (m mixPass) hideShared(in device.Mat, s *Saved) {
	m.b.forwardGates(m.pass, in, s)
	if !m.b.l.Experts.Gated {
		return
	}
	logits := device.Matrix(s.mix.shared, m.rows, 1)
	m.q.MatMul(logits, in, m.b.mix.sharedRouter.of(m.w).T(), device.Buffer{}, false)
	m.q.Route(s.mix.one, s.mix.sharedWeights, logits, device.Buffer{}, sharedGate)
	mark := m.mem.Mark()
	m.q.Sort(s.mix.sharedOrder, m.mem.Take(device.I32, m.rows), m.mem.Take(device.I32, 2), s.mix.one, 0)
	m.mem.Release(mark)
}

// activateShared computes the activation of the shared expert's hidden layer.
func (m mixPass) activateShared(s *Saved) {
	_, gate, up := m.b.gated(m.pass, s)
	act, f := device.Matrix(s.act, m.rows, m.b.ffn()), m.b.l.Gate.activation()
	if m.b.l.Experts.Gated {
		m.q.GateRows(act, gate, up, f, s.mix.sharedWeights, s.mix.sharedOrder)
		return
	}
	m.q.Gate(act, gate, up, f)
}

// sharedGate weighs a shared expert, as the only one of its rows.
var sharedGate = device.Router{Score: device.Sigmoid, TopK: 1, Scale: 1}

// mixGrads are gradients of a pass through a block's experts.
type mixGrads struct {
	rows    device.Mat    // of the sum's rows, of all sources
	input   device.Mat    // of the input's rows, of all sources
	weights device.Buffer // (P) float32, of all sources
}

func (b *llamaBlock) backwardExperts(p pass, d device.Buffer, s *Saved) {
	defer p.mem.Release(p.mem.Mark())
	m, own, c := b.mixPass(p, s), p.bt.Held(), b.l.Width
	dm, x2 := device.Matrix(d, own, c), device.Matrix(s.x2, own, c)
	norm, dn := b.input(b.mlp, s.mlp, x2), m.take(own, c)
	all := m.gathered(norm)
	g := mixGrads{m.gathered(b.outputGrad(p, b.mlp, s.mlp, dm)), m.summed(dn), p.mem.Take(device.F32, s.mix.weights.N)}
	if b.l.Experts.Shared > 0 {
		m.backwardShared(m.part(g.input, m.own), m.part(g.rows, m.own), m.part(all, m.own), s)
	}
	m.backwardSources(g, all)
	m.reduced(dn.Buf, g.input.Buf)
	if m.group != nil {
		m.group.Reduce(m.held(g.weights), g.weights)
	}
	m.backwardRouter(dn, norm, m.held(g.weights))
	if !b.mlp.before.exist() {
		p.q.AddTo(dm.Buf, dm.Buf, dn.Buf)
	}
	b.normGrad(p, b.mlp, s.mlp, dm, dn, x2)
}

// backwardSources computes the gradients of the experts, of their weights and of the input, one source after
// the other.
func (m mixPass) backwardSources(g mixGrads, all device.Mat) {
	defer m.mem.Release(m.mem.Mark())
	space, n := m.space(true), m.pairs()
	dy, dact := m.take(n, m.b.l.Width), m.take(n, m.b.l.Experts.FFN)
	for source := range m.sources {
		r, to, base := m.rowsOf(source, space), m.part(g.input, source), device.Mat{}
		dw := m.of(g.weights, source)
		if m.sources > 1 {
			m.q.Zero(dw) // of the pairs of other ranks' experts
			m.hide(r, all, source)
			m.activate(r)
		} else {
			m.q.GatherRows(r.x, all, r.order)
		}
		m.q.GatherRows(dy, m.part(g.rows, source), r.order)
		m.backwardRows(r, dy, dact, dw, source > 0)
		if source == m.own && m.b.l.Experts.Shared > 0 {
			base = to
		}
		m.q.SumGroups(to, base, dy, r.at)
	}
}

// backwardRows computes the gradients of the experts, or adds to them, and of the weights dw of one source's rows.
// It replaces dy by the gradient of the input and overwrites the hidden layer.
func (m mixPass) backwardRows(r mixRows, dy, dact device.Mat, dw device.Buffer, add bool) {
	up, down := m.b.mix.gateUp, m.b.mix.down
	if m.dw[down.param].N > 0 {
		m.q.WeightGradGroups(down.of(m.dw), dy, r.act, r.offsets, add)
	}
	m.q.MatMulGroups(dact, dy, down.of(m.w), r.offsets, false)
	m.adaptGrad(m.b.mix.adapters[2], dact, dy, r.act, r.pairOrder, add)
	m.q.GateRowsGrad(r.gate, r.up, dw, dact, r.gate, r.up, m.b.l.Gate.activation(), r.weights, r.order)
	if m.dw[up.param].N > 0 {
		m.q.WeightGradGroups(up.of(m.dw), r.hidden, r.x, r.offsets, add)
	}
	m.q.MatMulGroups(dy, r.hidden, up.of(m.w), r.offsets, false)
	for i, d := range [2]device.Mat{r.gate, r.up} {
		m.adaptGrad(m.b.mix.adapters[i], dy, d, r.x, r.pairOrder, add)
	}
}

// backwardRouter adds the router's gradient of the input to dn, and computes that of the router, given the
// gradient dw of the weights of this rank's rows.
func (m mixPass) backwardRouter(dn, norm device.Mat, dw device.Buffer) {
	x, s := m.b.l.Experts, m.s
	defer m.mem.Release(m.mem.Mark())
	d := m.take(norm.Rows, x.Count)
	logits := device.Matrix(s.logits, norm.Rows, x.Count)
	m.q.RouteGrad(d, logits, m.held(s.experts), m.held(s.weights), dw, x.Router)
	if of := m.bt.Balance; of.Layers.Rows > 0 {
		m.q.BalanceGrad(d, logits, m.targets(), of.Slopes, of.Scale)
	}
	m.logitsGrad(dn, norm, d, m.b.mix.router)
}

// logitsGrad adds the gradient of x to dx and computes that of a router, given the gradient d of its logits.
func (m mixPass) logitsGrad(dx, x, d device.Mat, router rows) {
	if router.trained(m.pass) {
		m.q.WeightGrad(router.of(m.dw), device.Buffer{}, d, x)
	}
	m.q.MatMul(dx, d, router.of(m.w), device.Buffer{}, true)
}

// backwardShared computes the gradients of the shared expert, and sets dx to that of its input.
func (m mixPass) backwardShared(dx, dy, in device.Mat, s *Saved) {
	b := m.b
	defer m.mem.Release(m.mem.Mark())
	act := device.Matrix(s.act, m.rows, b.ffn())
	both, gate, up := b.gated(m.pass, s)
	b.down.paramGrads(m.pass, dy, act)
	b.down.inputGrad(m.pass, act, dy, false)
	dw := m.mem.Take(device.F32, m.rows)
	if b.l.Experts.Gated {
		m.q.GateRowsGrad(gate, up, dw, act, gate, up, b.l.Gate.activation(), s.mix.sharedWeights, s.mix.sharedOrder)
	} else {
		m.q.GateGrad(gate, up, act, gate, up, b.l.Gate.activation())
	}
	layers, dys := b.gates(both, gate, up)
	for i, l := range layers {
		l.paramGrads(m.pass, dys[i], in)
		l.inputGrad(m.pass, dx, dys[i], i > 0)
	}
	if !b.l.Experts.Gated {
		return
	}
	d := m.take(m.rows, 1)
	m.q.RouteGrad(d, device.Matrix(s.mix.shared, m.rows, 1), s.mix.one, s.mix.sharedWeights, dw, sharedGate)
	m.logitsGrad(dx, in, d, b.mix.sharedRouter)
}
