package zero

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/nn"
)

// Step trains on one global batch. Parameters are updated when it returns or soon after, in the
// order of their next use, while the next step begins; errors of that are returned by the next call. An update that
// repeats is left to Complete. After an error the trainer's groups are closed.
func (t *Trainer) Step(w Work) (Stats, error) {
	s, err := t.step(w)
	if err != nil {
		t.close()
		return s, fmt.Errorf("step %d: rank %d: %w", t.Steps+1, t.cfg.Groups.World.Rank(), t.cause(err))
	}
	t.pass(s)
	return s, nil
}

// pass counts a step.
func (t *Trainer) pass(s Stats) {
	t.Steps++
	t.Samples += t.cfg.Share.Global()
	t.passed = s
}

func (t *Trainer) step(w Work) (Stats, error) {
	t.given = w
	s := Stats{LossScale: t.Scale.Scale}
	positions := cmp.Or(w.Counted, t.cfg.Share.Batch*t.cfg.T)
	for i := range t.inputs {
		t.inputs[i].batch.Scale = float32(s.LossScale / float64(positions))
	}
	own := collective.Own(t.cfg.Groups.World, t.stats).I64()
	if w.Save {
		own[statStop] |= wantsSave
	}
	if w.Join {
		own[statStop] |= wantsJoin
	}
	own[statStop] |= wantsTrace * int64(w.Trace)
	own[statPace], own[statPace+1], own[statPace+2] = int64(w.Pace.Before), int64(w.Pace.Waited), int64(w.Pace.Took)
	if err := t.issue(w.Fill); err != nil {
		return s, err
	}
	t.Waited[0] = time.Now()
	err := t.gatherStats()
	t.Waited[1] = time.Now()
	if err != nil {
		return s, err
	}
	if err := t.finishStep(&s, positions); err != nil {
		return s, err
	}
	t.apply(w.LR, s)
	return s, nil
}

// apply updates the parameters, unless gradients have overflowed.
func (t *Trainer) apply(lr float64, s Stats) {
	if s.Skipped {
		t.Skipped++
		return
	}
	t.update(lr, t.gradScale(s))
}

// issue issues the passes over all micro-batches and the norms of the gradients.
func (t *Trainer) issue(fill Batches) error {
	p := t.pipeline
	p.Micro, p.done = t.cfg.Micro, 0
	t.runner.Begin()
	t.beginBalance()
	if err := t.play(p, fill, true); err != nil {
		return err
	}
	t.runner.End()
	t.endBalance()
	t.micro = -1
	t.addNorms()
	return nil
}

// drops returns the parameters of dropout for a micro-batch: the mask depends on the numbers of its
// samples, not on the number of ranks.
func (t *Trainer) drops(micro int) nn.Drops {
	c := &t.cfg
	sample := t.Samples + c.Share.First(0, micro, c.Mesh.DataRank(c.Groups.World.Rank()))
	return nn.Drops{Train: true, Seed: c.Seed, Row: uint64(sample) * uint64(c.T), Every: t.every()}
}

// every returns the distance in positions between the starts of two sequences if sequences may be
// trimmed, else 0.
func (t *Trainer) every() int {
	if t.cfg.Trim {
		return t.cfg.T
	}
	return 0
}

// trimmed is a divisor: of a trimmed sequence, each rank that divides matrices has a multiple of this
// number of positions.
const trimmed = 8

// trim leaves out positions of a micro-batch that are padding in all of its sequences.
func (t *Trainer) trim(in *input, micro int) {
	if t.given.Lengths == nil {
		return
	}
	c, b := &t.cfg, &in.batch
	positions, tokens := t.given.Lengths(micro)
	b.Longest = min(tokens, c.T)
	if !c.Trim {
		return
	}
	unit := trimmed * max(1, c.Mesh.Tensor)
	n := min(c.T, (positions+unit-1)/unit*unit)
	b.T, b.Loss = n, t.loss.Slice(0, c.B*n)
	for i, m := range t.metrics {
		b.Metrics[i] = m.Slice(0, c.B*n)
	}
	for i, w := range in.fields {
		ids := w.Host.I32()
		for s := 1; s < c.B; s++ {
			copy(ids[s*n:(s+1)*n], ids[s*c.T:])
		}
		b.SetField(i, c.Fields[i].Name, w.Device.Slice(0, c.B*n))
	}
}

// read fills an input once the micro-batch that used it last is done, while the ones in between are
// computed. With a nil fill, the input is unchanged.
func (t *Trainer) read(at, micro int, fill Batches) error {
	in := &t.inputs[at]
	if err := in.free.Await(); err != nil {
		return err
	}
	if fill != nil {
		for i := len(in.values); i < len(t.cfg.Fields); i++ {
			in.values = append(in.values, valuesOf(in.fields[i].Host))
		}
		if err := fill(micro, in.values); err != nil {
			return err
		}
		t.trim(in, micro)
		t.pick(in)
		if in.live = t.cfg.B; t.given.Live != nil {
			in.live = t.given.Live(micro)
		}
	}
	t.cfg.Compute.Label("") // no unit
	for _, w := range in.fields {
		w.Send(t.cfg.Compute)
	}
	return nil
}

// DryRun issues a step's work without using results: on a device that only counts, it determines
// what a step needs.
func (t *Trainer) DryRun() {
	_ = t.issue(nil)
	_ = t.gatherStats() // nothing is executed, so nothing fails
	t.update(0, 1)
	_ = t.Complete()
}

// DryEnds is like DryRun, but issues the passes of only the first and the last micro-batch.
func (t *Trainer) DryEnds() {
	t.pipeline.ends = true
	t.DryRun()
	t.pipeline.ends = false
}

// DryPeak returns the ArenaPeak after a DryRun, after DryEnds: all passes of a stage use the same
// memory. Reductions are those of a DryRun.
func (t *Trainer) DryPeak() (bytes, host int) {
	t.DryEnds()
	return t.ArenaPeak()
}

// addNorms sums the squares of this rank's gradient shards, each as soon as it is reduced, from the
// last unit to the first.
func (t *Trainer) addNorms() {
	units := t.runner.Units
	for i := len(units) - 1; i >= 0; i-- {
		if units[i].Frozen {
			continue
		}
		q, sums := t.updates(t.store.OnHost(i)), t.sums.Device
		if t.store.OnHost(i) {
			sums = t.hostSums
		}
		t.emit(fsdp.Norm, units[i], 0)
		q.Label(units[i].Label(fsdp.Norm))
		q.After(units[i].Reduced)
		q.SumSquares(sums.Slice((1+i)*device.ExactLen, (2+i)*device.ExactLen), units[i].Grad)
	}
}

// emit reports an operation on a unit's shard to the listener.
func (t *Trainer) emit(o fsdp.Op, u *fsdp.Unit, sent int64) {
	if t.cfg.Listener != nil {
		t.cfg.Listener.Event(fsdp.Event{Op: o, Units: u.Itself(), Step: -1, Sent: sent, Micro: -1})
	}
	if o == fsdp.Update {
		t.runner.Spent(u)
	}
}

// updates returns the queue for updates on the device or in host memory.
func (t *Trainer) updates(onHost bool) Update {
	if onHost {
		return t.cfg.HostUpdate
	}
	return t.cfg.Update
}

// mergeSums computes this rank's statistics from its sums, after they are copied to host memory.
// Sums are exact, so the norm does not depend on the sharding.
func (t *Trainer) mergeSums() error {
	own := collective.Own(t.cfg.Groups.World, t.stats).I64()
	if stop := t.given.Stop; stop != nil && stop() {
		own[statStop] |= wantsStop
	}
	if g := t.cfg.Groups.Tensor; g == nil || g.Rank() == 0 { // other ranks of the group have the same losses
		exact(own, statLoss).Merge(device.ExactAt(t.sums.Host, 0))
		for i := range t.metrics {
			exact(own, statMore+i*device.ExactLen).Merge(device.ExactAt(t.sums.Host, 1+len(t.runner.Units)+i))
		}
	}
	t.mergeBalance(own)
	for i := len(t.runner.Units) - 1; i >= 0; i-- {
		sum := device.ExactAt(t.sums.Host, 1+i)
		if t.store.OnHost(i) {
			sum = device.ExactAt(t.hostSums, 1+i)
		}
		if t.runner.Units[i].Replica.Rank() == 0 { // once among replicas
			exact(own, statNorm).Merge(sum)
		}
		if sum.NotFinite() > 0 && own[statWhere] == 0 {
			own[statWhere] = int64(1 + slices.Index(t.names, t.runner.Units[i].Name))
		}
	}
	if t.hostSums.N > 0 {
		clear(t.hostSums.I64())
	}
	return nil
}

// exact returns the sum at an index of a rank's statistics.
func exact(stats []int64, at int) *device.Exact { return (*device.Exact)(stats[at:]) }

// gatherStats copies this rank's sums to the host and resets them, gathers the statistics of all
// ranks, and waits for them.
func (t *Trainer) gatherStats() error {
	c := t.cfg
	c.Update.After(c.Compute.Mark())
	t.sums.Fetch(c.Update)
	if c.HostUpdate != nil {
		c.Update.After(c.HostUpdate.Mark())
	}
	c.Update.Do(t.merge)
	c.Update.Zero(t.sums.Device)
	c.Comm.Label("statistics: all-gather")
	c.Comm.After(c.Update.Mark())
	c.Comm.After(t.kept) // only for its error: the disk has had a whole step's time
	collective.AllGather(c.Groups.World, c.Comm, t.stats)
	return c.Comm.Wait()
}

// finishStep evaluates the gathered statistics and resets them. All ranks compute the same result.
func (t *Trainer) finishStep(s *Stats, positions int) error {
	all := t.stats.I64()
	defer clear(all)
	var loss, norm device.Exact
	s.Stop = t.anyStops()
	overflow := -1
	for r := range t.cfg.Groups.World.Size() {
		part := all[r*t.statLen() : (r+1)*t.statLen()]
		loss.Merge(exact(part, statLoss))
		norm.Merge(exact(part, statNorm))
		s.Save = s.Save || part[statStop]&wantsSave > 0
		s.Join = s.Join || part[statStop]&wantsJoin > 0
		s.Trace = max(s.Trace, int(part[statStop]/wantsTrace))
		t.Paces[r] = collective.Pace{Before: time.Duration(part[statPace]), Waited: time.Duration(part[statPace+1]), Took: time.Duration(part[statPace+2])}
		if part[statWhere] > 0 && overflow < 0 {
			overflow = r
		}
		if exact(part, statLoss).NotFinite() > 0 {
			return fmt.Errorf("the loss is not finite on rank %d: lower the learning rate or check the data", r)
		}
	}
	s.Loss, s.Metrics, s.Balanced = loss.Value()/float64(positions), t.means(positions), t.balancedOf(all)
	s.GradNorm = math.Sqrt(norm.Value()) / s.LossScale
	s.Skipped = overflow >= 0
	if overflow >= 0 && !t.Scale.Dynamic {
		unit := t.names[int(all[overflow*t.statLen()+statWhere])-1]
		return fmt.Errorf("the gradient of unit %s is not finite on rank %d (loss %g): lower the learning rate or set train.clip", unit, overflow, s.Loss)
	}
	return t.Scale.Update(s.Skipped)
}

// gradScale returns the factor that undoes the loss scale and clips.
func (t *Trainer) gradScale(s Stats) float64 {
	clip := 1.0
	if t.cfg.Clip > 0 {
		clip = min(1, t.cfg.Clip/(s.GradNorm+1e-6))
	}
	return clip / s.LossScale
}

// means returns the means of the metrics, of all ranks' statistics.
func (t *Trainer) means(positions int) (means []float64) {
	all := t.stats.I64()
	for i := range t.metrics {
		var sum device.Exact
		for r := range t.cfg.Groups.World.Size() {
			sum.Merge(exact(all, r*t.statLen()+statMore+i*device.ExactLen))
		}
		means = append(means, sum.Value()/float64(positions))
	}
	return means
}

// Eval returns the loss and the metrics of n micro-batches, the same on every rank. With a Stop, ranks
// agree after each batch (as many micro-batches as a step has) whether to skip the rest; then Stop is set.
func (t *Trainer) Eval(n int, w Work) (Stats, error) {
	s, err := t.eval(n, w)
	if err != nil {
		t.close()
		return s, fmt.Errorf("evaluation after step %d: rank %d: %w", t.Steps, t.cfg.Groups.World.Rank(), t.cause(err))
	}
	return s, nil
}

func (t *Trainer) eval(n int, w Work) (s Stats, err error) {
	t.given = w
	all, size := t.stats.I64(), n
	if w.Stop != nil {
		size = t.cfg.Share.Most()
	}
	defer clear(all)
	for first := 0; first < n && !s.Stop; first += size {
		if err := t.play(t.evaluation(first, min(size, n-first)), w.Fill, false); err != nil {
			return s, err
		}
		if err := t.gatherStats(); err != nil { // exact sums grow, so the bits do not depend on size
			return s, err
		}
		s.Stop = first+size < n && t.anyStops()
	}
	var sum device.Exact
	for r := range t.cfg.Groups.World.Size() {
		sum.Merge(exact(all, r*t.statLen()+statLoss))
	}
	positions := cmp.Or(w.Counted, t.cfg.Mesh.DataRanks()*n*t.cfg.B*t.cfg.T)
	s.Loss, s.Metrics = sum.Value()/float64(positions), t.means(positions)
	return s, nil
}

// anyStops reports whether a rank asked to stop when the statistics were gathered.
func (t *Trainer) anyStops() (stop bool) {
	for r := range t.cfg.Groups.World.Size() {
		stop = stop || t.stats.I64()[r*t.statLen()+statStop]&wantsStop > 0
	}
	return stop
}
