package zero

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/nn"
	"zeroth/pipe"
	"zeroth/shard"
)

// Pipeline describes how a model is divided into stages along Config.Mesh's pipeline dimension. The
// zero Pipeline has one stage.
type Pipeline struct {
	Schedule pipe.Schedule
	Virtual  int                                    // stages per rank
	Begins   []int                                  // the first module of each stage; the first is 0
	Queues   [collective.PipelineLinks]device.Queue // of the links
	FailFast bool                                   // a failed transfer ends the rank's groups immediately, not at the end of the step
}

// Shape returns the pipeline, which may have a single stage.
func (c *Config) Shape() pipe.Shape {
	return pipe.Shape{Schedule: cmp.Or(c.Pipeline.Schedule, pipe.OneF1B), Ranks: max(1, c.Mesh.Pipeline), Virtual: max(1, c.Pipeline.Virtual), Micro: c.Micro}
}

// stages returns the modules [lo, hi) of this rank's stages.
func (c *Config) stages() (ranges [][2]int) {
	at, begins := c.Mesh.At(c.Groups.World.Rank(), shard.Pipeline), append([]int{0}, c.Pipeline.Begins...)[min(1, len(c.Pipeline.Begins)):]
	for s := at; s < len(begins); s += max(1, c.Mesh.Pipeline) {
		hi := len(c.Model.Modules)
		if s+1 < len(begins) {
			hi = begins[s+1]
		}
		ranges = append(ranges, [2]int{begins[s], hi})
	}
	return ranges
}

// Part returns the modules of this rank.
func (c *Config) Part() *nn.Model { return c.Model.Part(c.stages()...) }

// tied returns the units shared by the first and the last stage of a model. Other units must belong
// to one stage.
func (c *Config) tied() (units []string, err error) {
	stage := func(module int) int { // the last stage that begins there: earlier ones are empty
		s, _ := slices.BinarySearch(c.Pipeline.Begins, module+1)
		return s - 1
	}
	if len(c.Pipeline.Begins) == 0 {
		return nil, nil
	}
	uses := map[string][]int{}
	for i := range c.Model.Modules {
		for _, use := range c.Model.Uses[i] {
			if at := uses[use.Unit]; at == nil || at[len(at)-1] != stage(i) {
				uses[use.Unit] = append(at, stage(i))
			}
		}
	}
	for unit, at := range uses {
		switch {
		case len(at) == 1:
		case len(at) == 2 && at[0] == 0 && at[1] == len(c.Pipeline.Begins)-1:
			units = append(units, unit)
		default:
			return nil, fmt.Errorf("unit %s is used at stages %v; stages share units only at both ends of a pipeline", unit, at)
		}
	}
	return units, nil
}

// pipeline is a rank's work in a pipeline, with the micro-batches in flight.
type pipeline struct {
	pipe.Shape
	at             int           // this rank's index along the pipeline
	done           int           // micro-batches of the evaluation before these; 0 in a step
	ends           bool          // only the first and the last micro-batch are issued
	train, forward []pipe.Action // programs; nil with one stage
	chunks         []fsdp.Chunk  // this rank's stages
	flying         []*flight
	landed         []*flight        // for reuse
	read           []reading        // micro-batches whose token ids are in memory
	inputs         indexPool        // of Trainer.inputs
	streams        indexPool        // of fsdp.Runner's
	closed         []int            // streams released by the last action
	flights        []indexPool      // of fsdp.Runner's, per chunk
	began          device.Event     // the current computation has begun
	unread         []device.Event   // by stream: its previous content is no longer accessed
	released       [][]device.Event // by chunk and flight: its previous content is no longer accessed
}

// flight is a micro-batch at one of the rank's stages.
type flight struct {
	stage, micro  int
	flight        int           // index of its flight
	x, d          int           // indices of the streams of the stage's input and of the gradient; -1: none
	in, grad, out device.Buffer // the input, the gradient, and the stage's output
	came, back    device.Event  // in and grad have been received
	sent          device.Event  // out has been sent
	computed      bool          // all of its computation has been issued
}

// reading is a micro-batch with the index of its token ids.
type reading struct{ micro, input int }

// indexPool allocates indices. It returns the one that has been free longest, or a new one if at most
// spare others are free and fewer than most exist.
type indexPool struct {
	free             []int
	all, spare, most int // most 0: unlimited
}

func (p *indexPool) take() (at int) {
	if len(p.free) <= p.spare && (p.most == 0 || p.all < p.most) {
		p.all++
		return p.all - 1
	}
	at = p.free[0]
	p.free = p.free[:copy(p.free, p.free[1:])]
	return at
}

func (p *indexPool) give(at int) { p.free = append(p.free, at) }

func (p *indexPool) reset() { p.free, p.all = p.free[:0], 0 }

// newPipeline determines the maximum number of micro-batches in flight, of any number of them in a step: fewer need no
// more.
func newPipeline(c *Config) (*pipeline, error) {
	p := &pipeline{inputs: indexPool{spare: 1}} // one is read while another is filled
	p.begins(c)
	most := p.Shape
	most.Micro = max(c.Micro, c.Most)
	if err := errors.Join(p.Check(), most.Check()); err != nil {
		return nil, err
	}
	if p.Ranks > 1 {
		p.streams.spare = 1 // one is received while another is sent
	}
	lo := 0
	for _, m := range c.stages() {
		p.chunks = append(p.chunks, fsdp.Chunk{Lo: lo, Hi: lo + m[1] - m[0]})
		lo += m[1] - m[0]
	}
	p.flights, p.released = make([]indexPool, len(p.chunks)), make([][]device.Event, len(p.chunks))
	few := *p
	few.flights = make([]indexPool, len(p.chunks))
	few.Micro = most.Few()
	few.program()
	few.count(true)
	p.take(&few)
	if p.Ranks > 1 {
		few.Schedule, few.Micro = pipe.OneF1B, pipe.MaxPasses // an evaluation may have any number
		few.Micro = few.Few()
		few.forward = few.Evaluation()[p.at]
		few.count(false)
		p.take(&few)
	}
	for i := range p.chunks {
		p.released[i] = make([]device.Event, p.chunks[i].Flights)
	}
	p.unread = make([]device.Event, p.streams.most)
	return p, nil
}

// begins prepares for the steps of a configuration.
func (p *pipeline) begins(c *Config) {
	p.Shape, p.at = c.Shape(), c.Mesh.At(c.Groups.World.Rank(), shard.Pipeline)
	p.program()
	p.reset()
}

// program sets the program of a step.
func (p *pipeline) program() {
	if p.Ranks > 1 && p.Check() == nil {
		p.train = p.Programs()[p.at]
	}
}

// count simulates the rank's actions, to count the places they need.
func (p *pipeline) count(train bool) {
	p.reset()
	for i := 0; ; i++ {
		a, some := p.action(i, train)
		if !some {
			return
		}
		p.end(p.begin(a), a.Kind, train)
	}
}

// take sets the number of places to at least another's count.
func (p *pipeline) take(other *pipeline) {
	p.inputs.most, p.streams.most = max(p.inputs.most, other.inputs.all), max(p.streams.most, other.streams.all)
	for i := range p.chunks {
		p.flights[i].most = max(p.flights[i].most, other.flights[i].all)
		p.chunks[i].Flights = p.flights[i].most
	}
}

// action returns the rank's i-th action in a step, or in forward passes only if train is false. It
// returns false after the last one.
func (p *pipeline) action(i int, train bool) (a pipe.Action, some bool) {
	program := p.forward
	switch {
	case p.Ranks > 1 && train:
		program = p.train
	case p.Ranks == 1 && train:
		return pipe.Action{Kind: []pipe.Kind{pipe.Forward, pipe.Backward}[i%2], Micro: i / 2}, i < 2*p.Micro
	case p.Ranks == 1:
		return pipe.Action{Micro: i}, i < p.Micro
	}
	if i >= len(program) {
		return a, false
	}
	return program[i], true
}

// evaluation returns the pipeline for n micro-batches from number first on that only pass forward.
func (t *Trainer) evaluation(first, n int) *pipeline {
	p := t.pipeline
	if p.Micro, p.done = n, first; p.Ranks > 1 {
		p.forward = p.Evaluation()[p.at]
	}
	return p
}

// reset discards micro-batches in flight, since the previous step may not have completed.
func (p *pipeline) reset() {
	p.landed, p.flying, p.read = append(p.landed, p.flying...), p.flying[:0], p.read[:0]
	p.inputs.reset()
	p.streams.reset()
	for i := range p.flights {
		p.flights[i].reset()
	}
}

// find returns a micro-batch at one of the rank's stages, or nil.
func (p *pipeline) find(stage, micro int) *flight {
	for _, x := range p.flying {
		if x.stage == stage && x.micro == micro {
			return x
		}
	}
	return nil
}

// begin assigns the places that an action needs to a micro-batch.
func (p *pipeline) begin(a pipe.Action) *flight {
	x := p.find(a.Stage, a.Micro)
	if x == nil {
		if n := len(p.landed); n > 0 {
			x, p.landed = p.landed[n-1], p.landed[:n-1]
		} else {
			x = new(flight)
		}
		*x = flight{stage: a.Stage, micro: a.Micro, x: -1, d: -1}
		p.flying = append(p.flying, x)
	}
	switch chunk := a.Stage / p.Ranks; a.Kind {
	case pipe.RecvForward:
		x.x = p.streams.take()
	case pipe.Forward:
		if x.flight = p.flights[chunk].take(); chunk == 0 {
			p.read = append(p.read, reading{a.Micro, p.inputs.take()})
		}
	case pipe.RecvBackward, pipe.Backward, pipe.InputGrad:
		if x.d < 0 {
			x.d = p.streams.take()
		}
	}
	return x
}

// input returns the index of a micro-batch's token ids.
func (p *pipeline) input(micro int) int {
	return p.read[slices.IndexFunc(p.read, func(r reading) bool { return r.micro == micro })].input
}

// end releases the places that are unused after an action, and stores the streams among them in
// closed.
func (p *pipeline) end(x *flight, kind pipe.Kind, train bool) {
	chunk, last := x.stage/p.Ranks, x.stage == p.Stages()-1
	p.closed = p.closed[:0]
	give := func(stream *int) {
		if *stream >= 0 {
			p.streams.give(*stream)
			p.closed, *stream = append(p.closed, *stream), -1
		}
	}
	switch {
	case kind == pipe.SendBackward, kind == pipe.Backward && x.stage == 0, kind == pipe.InputGrad && x.stage == 0:
		give(&x.d)
	}
	switch through := kind == pipe.Backward || kind == pipe.WeightGrad; {
	case through || !train && kind == pipe.Forward:
		if give(&x.x); chunk == 0 && train || chunk == p.Virtual-1 && !train {
			p.inputs.give(p.input(x.micro))
			p.read = slices.DeleteFunc(p.read, func(r reading) bool { return r.micro == x.micro })
		}
		x.computed = through || last
	case !train && kind == pipe.SendForward:
		x.computed = true
	}
	if x.computed && x.d < 0 && kind != pipe.RecvForward {
		p.flights[chunk].give(x.flight)
		p.flying = slices.DeleteFunc(p.flying, func(y *flight) bool { return y == x })
		p.landed = append(p.landed, x)
	}
}

// play issues the rank's actions in a step, or in forward passes only if train is false.
func (t *Trainer) play(p *pipeline, fill Batches, train bool) error {
	p.reset()
	for i := 0; ; i++ {
		a, some := p.action(i, train)
		if !some {
			return nil
		}
		if p.ends && a.Micro > 0 && a.Micro < p.Micro-1 {
			continue
		}
		if err := t.act(p, a, fill, train); err != nil {
			return err
		}
	}
}

// act issues an action of a pipeline.
func (t *Trainer) act(p *pipeline, a pipe.Action, fill Batches, train bool) error {
	c, r := t.cfg.Compute, t.runner
	x, rows := p.begin(a), t.inputs[0].batch.Held()
	chunk := a.Stage / p.Ranks
	t.micro = a.Micro
	var sums device.Buffer
	if train {
		sums = t.routed(x)
	}
	if a.Kind < pipe.SendForward && p.Ranks > 1 {
		p.began = c.Mark()
	}
	switch a.Kind {
	case pipe.RecvForward:
		x.in = r.OpenStream(x.x, rows)
		x.came = t.transfer(collective.FromPrevious, a.Stage, a.Micro, p.unread[x.x], x.in, sums)
	case pipe.Forward:
		if chunk == 0 {
			if err := t.read(p.input(a.Micro), p.done+a.Micro, fill); err != nil {
				return err
			}
		}
		in := &t.inputs[p.input(a.Micro)]
		in.batch.Drops, in.batch.Balance = nn.Drops{}, nn.Balance{}
		c.After(p.released[chunk][x.flight])
		c.After(x.came)
		if train {
			in.batch.Drops = t.drops(a.Micro)
			t.beforeBalance(&in.batch)
		}
		x.out = r.Forward(r.Flight(chunk, x.flight), &in.batch, a.Micro, x.in, train)
		if train {
			t.afterBalance(x)
		} else {
			t.addLoss(x, in, in.live)
			t.spend(p, x, in)
		}
	case pipe.SendForward:
		x.sent = t.transfer(collective.ToNext, a.Stage+1, a.Micro, c.Mark(), x.out, sums)
		p.released[chunk][x.flight] = x.sent
	case pipe.RecvBackward:
		x.grad = r.OpenStream(x.d, rows)
		x.back = t.transfer(collective.FromNext, a.Stage, a.Micro, p.unread[x.d], x.grad, t.slopes(x))
	case pipe.WeightGrad:
		r.WeightGrad(r.Flight(chunk, x.flight), a.Micro)
		t.spend(p, x, &t.inputs[p.input(a.Micro)])
	case pipe.Backward, pipe.InputGrad:
		if x.grad.N == 0 {
			x.grad = r.OpenStream(x.d, t.inputs[p.input(a.Micro)].batch.Held())
			c.After(p.unread[x.d])
		}
		in := &t.inputs[p.input(a.Micro)]
		c.After(x.back)
		c.After(x.sent) // overwrites data of the forward pass
		t.backBalance(&in.batch, x)
		if f := r.Flight(chunk, x.flight); a.Kind == pipe.Backward {
			r.Backward(f, &in.batch, a.Micro, x.grad)
			t.addLoss(x, in, t.cfg.B)
			t.spend(p, x, in)
		} else {
			r.InputGrad(f, &in.batch, a.Micro, x.grad)
			t.addLoss(x, in, t.cfg.B)
			p.unread[x.d] = c.Mark()
		}
	case pipe.SendBackward:
		p.unread[x.d] = t.transfer(collective.ToPrevious, a.Stage-1, a.Micro, c.Mark(), x.grad, t.slopes(x))
	}
	p.end(x, a.Kind, train)
	for _, s := range p.closed {
		r.CloseStream(s)
	}
	return nil
}

// addLoss adds the losses of a micro-batch's first samples once its last stage has computed them.
func (t *Trainer) addLoss(x *flight, in *input, samples int) {
	if x.stage != t.pipeline.Stages()-1 || samples == 0 {
		return
	}
	n := in.batch.Loss.N / t.cfg.B * samples
	t.cfg.Compute.Sum(t.sums.Device.Slice(0, device.ExactLen), in.batch.Loss.Slice(0, n))
	for i, m := range in.batch.Metrics {
		at := (1 + len(t.runner.Units) + i) * device.ExactLen
		t.cfg.Compute.Sum(t.sums.Device.Slice(at, at+device.ExactLen), m.Slice(0, n))
	}
}

// spend records that the operations issued so far are the last to use a pass's input, so that
// another micro-batch may reuse its places.
func (t *Trainer) spend(p *pipeline, x *flight, in *input) {
	done := t.cfg.Compute.Mark()
	in.free = done
	if x.x >= 0 {
		p.unread[x.x] = done
	}
	if x.d >= 0 {
		p.unread[x.d] = done
	}
}

// transfer issues a link's transfer for a micro-batch to a stage after ready, with the sums or slopes
// of its routers if there are any, and returns the event of its completion.
func (t *Trainer) transfer(l collective.Link, to, micro int, ready device.Event, b, sums device.Buffer) device.Event {
	q, what := t.cfg.Pipeline.Queues[l], "activations"
	if l >= collective.ToPrevious {
		what = "gradients"
	}
	q.Label(fmt.Sprintf("micro-batch %d: %s for stage %d", micro, what, to))
	q.After(ready)
	q.After(t.pipeline.began) // waiting for another rank too early would look like being blocked by it
	t.cfg.Groups.Links[l].Broadcast(q, b)
	if sums.N > 0 {
		t.cfg.Groups.Links[l].Broadcast(q, sums)
	}
	done := q.Mark()
	if t.cfg.Pipeline.FailFast {
		t.transfers.Go(func() { t.failFast(done) })
	}
	return done
}

// failFast ends this rank's groups if a transfer fails, so that other ranks notice it even if this rank
// is waiting.
func (t *Trainer) failFast(transfer device.Event) {
	if err := transfer.Await(); err != nil {
		t.failed.CompareAndSwap(nil, &err)
		t.close()
	}
}

// cause returns the error of a step: a transfer's own failure takes precedence over its
// consequences.
func (t *Trainer) cause(err error) error {
	if first := t.failed.Load(); first != nil && !errors.Is(*first, collective.ErrClosed) {
		return *first
	}
	return err
}
