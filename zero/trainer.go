package zero

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/nn"
	"zeroth/offload"
	"zeroth/optim"
	"zeroth/shard"
)

// Compute is the queue modules run on; Sum adds the elements of x (float32) to a
// device.Exact.
type Compute interface {
	fsdp.Compute
	Sum(acc, x device.Buffer)
}

// Update is the queue norms and parameter updates run on. SumSquares adds the
// squares of x (float32) to a device.Exact.
type Update interface {
	device.Queue
	optim.Ops
	Zero(b device.Buffer)
	Cast(dst, src device.Buffer)
	SumSquares(acc, x device.Buffer)
}

// Config is what a Trainer is built from. Queues, groups and device are the
// caller's to close, after Free.
type Config struct {
	Device  device.Device
	Host    device.Device // the host's own memory: Device itself where the host may address that
	Compute Compute
	Comm    fsdp.Comm
	Update  Update

	// Offload says what rests outside of the device and has the host's queues; New
	// fills in what it knows itself. HostUpdate runs the
	// updates of what is in host memory; nil where nothing is.
	Offload    offload.Config
	HostUpdate Update

	Groups     collective.Ranks       // of this rank in Mesh: World, and the ranks that units belong to
	UnitGroups map[string]fsdp.Groups // of units that belong to others; those of the rest are nil
	Mesh       shard.Mesh

	Model     *nn.Model
	DType     device.DType
	Policy    fsdp.Policy
	Micro     int    // micro-batches a step
	B, T      int    // sequences and positions of a micro-batch
	Packed    bool   // sequences are several documents
	Seed      uint64 // of what the model drops in training
	Chunk     int    // positions whose logits are held at once; 0 is all
	ArenaSize int    // bytes, from ArenaPeak of a dry run

	Listener fsdp.Listener // hears what is done, from the goroutine that issues it; may be nil

	Rule  optim.Rule
	Group func(shard.Param) optim.Group // how a parameter is updated; must be the same on all ranks
	Clip  float64                       // of the global gradient norm; 0 is off
	Scale optim.LossScale               // Dynamic: steps with gradients that overflow are skipped
}

// Batches fills a micro-batch's token ids, B*T each, and with Config.Packed where
// documents start (see device.Starts); start is nil otherwise.
type Batches func(micro int, input, target, start []int32) error

// Stats is what a step did; equal on all ranks.
type Stats struct {
	Loss      float64 // mean over the positions with a loss of all ranks, nats
	GradNorm  float64 // before clipping
	LossScale float64 // the step was taken with
	Skipped   bool    // the gradient overflowed and nothing was updated
	Stop      bool    // some rank had WantStop set: all stop after this step
}

// Trainer is one rank's training state and step.
type Trainer struct {
	cfg    Config
	runner *fsdp.Runner
	store  *offload.Store
	inputs []input  // micro-batches take them in turn
	held   []func() // give back what is allocated

	sums     device.Window // (1 + units) device.Exact: of this rank's losses, and of the squares of its gradients,
	hostSums device.Buffer // (1 + units) device.Exact: of those in host memory
	stats    device.Buffer // (World × statLen) int64, in host memory, one part a rank
	merge    func() error
	kept     device.Event    // the last update has reached the disk
	pieces   [][][]run       // of each tile of each unit's shard
	groups   []optim.Group   // of parameters, all different
	hypers   []optim.Hyper   // of each group, in this step
	labels   []label         // of each unit's work
	state    []device.Buffer // work space of update

	Scale    optim.LossScale
	Updates  int   // applied so far
	Skipped  int   // steps skipped for overflow so far
	WantStop bool  // this rank asks all to stop after the next step
	Steps    int   // begun so far
	Samples  int64 // of the training order, read before the step that follows: what the model drops of a sample follows from its number
	Counted  int   // positions with a loss in the step or evaluation that follows, over all ranks; 0: all there are

	// Waited is when, in the last step, the host began and ended to wait for the norm,
	// which the update needs. It is the one wait of a step.
	Waited [2]time.Time

	Pace  collective.Pace   // of this rank's last step, which the others hear of in the next
	Paces []collective.Pace // (World) of all ranks in the step before the last one; zero before the second
}

// inputs is how many micro-batches' token ids there is memory for: one is read
// while another is filled.
const inputs = 2

// input is memory for the token ids of one micro-batch at a time.
type input struct {
	batch         nn.Batch
	input, target device.Window // (B*T) int32: batch's Input and Target
	start         device.Window // (B*T) int32: batch's Start; empty unless sequences are packed
	free          device.Event  // the queue that reads them is done
}

// run is neighbouring elements of a shard that are updated alike.
type run struct {
	at    shard.Range
	group int // of Trainer.groups
}

// label names a unit's work on the update queue, for errors and traces.
type label struct{ norm, update string }

// The elements of a rank's part of Trainer.stats.
const (
	statLoss  = 0                          // exact sum over this rank's positions
	statNorm  = statLoss + device.ExactLen // exact sum of squares of those of this rank's shards that it alone counts
	statWhere = statNorm + device.ExactLen // 1 + index of the first unit with a gradient that is not finite, or 0
	statStop  = statWhere + 1              // 1 if the rank wants to stop
	statPace  = statStop + 1               // nanoseconds of its last step: before its first operation, waited, all
	statLen   = statPace + 3
)

// New allocates everything training needs, or nothing.
func New(cfg Config) (*Trainer, error) {
	if cfg.Chunk == 0 {
		cfg.Chunk = cfg.B * cfg.T
	}
	t := &Trainer{cfg: cfg, Scale: cfg.Scale}
	if err := t.build(); err != nil {
		t.Free()
		return nil, err
	}
	return t, nil
}

// build lays the units out, places their shards, and allocates.
func (t *Trainer) build() (err error) {
	c := t.cfg
	units := fsdp.LayOut(c.Model, c.Policy, Begin(c.Rule), c.groups)
	if !slices.ContainsFunc(units, func(u *fsdp.Unit) bool { return !u.Frozen }) {
		return errors.New("zero: every parameter is frozen: there is nothing to train")
	}
	t.store = offload.New(t.offload(), stored(units))
	for i, u := range units {
		u.GradOffloaded, u.ParamOffloaded = t.store.OnHost(i), t.store.ParamOffloaded(i)
	}
	t.runner, err = fsdp.New(fsdp.Config{
		Device: c.Device, Compute: c.Compute, Comm: c.Comm,
		Model: c.Model, Units: units, DType: c.DType, Policy: c.Policy, Micro: c.Micro, ArenaSize: c.ArenaSize,
		Host: fsdp.Host{Device: c.Host, ToHost: c.Offload.ToHost, ToDevice: c.Offload.ToDevice, Params: t.store}, Listener: c.Listener,
	})
	if err != nil {
		return err
	}
	var rest []offload.Shard
	for i, u := range units {
		rest = append(rest, offload.Shard{Param: u.Param, Grad: u.Grad})
		t.labels = append(t.labels, label{fsdp.Label(u.Name, fsdp.Norm), fsdp.Label(u.Name, fsdp.Update)})
		groups := t.groupsOf(u.Layout)
		var tiles [][]run
		for j := range t.store.Tiles(i) {
			tiles = append(tiles, runs(u.Layout, u.Shard.Rank(), t.store.Tile(i, j), groups))
		}
		t.pieces = append(t.pieces, tiles)
	}
	t.state, t.hypers = make([]device.Buffer, len(c.Rule.States())), make([]optim.Hyper, len(t.groups))
	t.merge = t.mergeSums
	if err := t.store.Allocate(rest); err != nil {
		return err
	}
	return t.allocate()
}

// Begin is the multiple of elements that parameters begin at under a rule: states that
// are coded by blocks have blocks of one parameter each, and no rank has part of one.
func Begin(r optim.Rule) int {
	if slices.ContainsFunc(r.Types(), device.DType.Coded) {
		return device.BlockLen
	}
	return 1
}

// groups are the ranks that a unit belongs to.
func (c *Config) groups(unit string) fsdp.Groups {
	if g, ok := c.UnitGroups[unit]; ok {
		return g
	}
	return fsdp.Groups{Shard: c.Groups.Shard, Replica: c.Groups.Replica}
}

// offload is where what rests, with what the trainer knows itself.
func (t *Trainer) offload() offload.Config {
	o := t.cfg.Offload
	o.Device, o.Host, o.DType, o.Vecs = t.cfg.Device, t.cfg.Host, t.cfg.DType, t.cfg.Rule.Types()
	return o
}

// stored is the units as a store knows them.
func stored(units []*fsdp.Unit) (of []offload.Unit) {
	for _, u := range units {
		of = append(of, offload.Unit{Name: u.Name, Len: u.Layout.ShardLen(), Whole: u.Whole(), Frozen: u.Frozen})
	}
	return of
}

// allocate takes memory for batches and statistics.
func (t *Trainer) allocate() error {
	c := t.cfg
	var errs []error
	alloc := func(d device.Device, dt device.DType, n int, use device.Use) device.Buffer {
		b, err := d.Alloc(dt, n, use)
		errs = append(errs, err)
		if err == nil {
			t.held = append(t.held, func() { d.Free(b) })
		}
		return b
	}
	open := func(dt device.DType, n int, use device.Use) device.Window {
		w, err := device.OpenWindow(c.Device, c.Host, dt, n, use)
		errs = append(errs, err)
		if err == nil {
			t.held = append(t.held, func() { device.FreeWindow(c.Device, c.Host, w) })
		}
		return w
	}
	rows, sums := c.B*c.T, (1+len(t.runner.Units))*device.ExactLen
	loss := alloc(c.Device, device.F32, rows, device.Stats)
	for range min(inputs, c.Micro) {
		in := input{input: open(device.I32, rows, device.Inputs), target: open(device.I32, rows, device.Inputs)}
		in.batch = nn.Batch{B: c.B, T: c.T, Compute: c.DType, Chunk: c.Chunk, Loss: loss, Input: in.input.Device, Target: in.target.Device}
		if c.Packed {
			in.start = open(device.I32, rows, device.Inputs)
			in.batch.Start = in.start.Device
		}
		t.inputs = append(t.inputs, in)
	}
	t.sums = open(device.I64, sums, device.Stats)
	if c.HostUpdate != nil {
		t.hostSums = alloc(c.Host, device.I64, sums, device.Stats)
	}
	t.stats = alloc(c.Host, device.I64, c.Groups.World.Size()*statLen, device.Stats)
	t.Paces = make([]collective.Pace, c.Groups.World.Size())
	return errors.Join(errs...)
}

// groupsOf is the group of each parameter of a unit.
func (t *Trainer) groupsOf(l *shard.Layout) (of []int) {
	for _, p := range l.Params {
		g := t.cfg.Group(p)
		i := slices.Index(t.groups, g)
		if i < 0 {
			i = len(t.groups)
			t.groups = append(t.groups, g)
		}
		of = append(of, i)
	}
	return of
}

// runs joins the pieces of a tile of a rank's shard that are of one group, of which
// groups has that of each parameter; elements are counted from the tile's first.
func runs(l *shard.Layout, rank int, tile shard.Range, groups []int) (out []run) {
	for p := range l.Pieces(rank) {
		group, in := groups[p.Param], p.InShard.Intersect(tile)
		if in.Len() == 0 {
			continue
		}
		at := shard.Range{Lo: in.Lo - tile.Lo, Hi: in.Hi - tile.Lo}
		if n := len(out); n > 0 && out[n-1].group == group {
			out[n-1].at.Hi = at.Hi
			continue
		}
		out = append(out, run{at, group})
	}
	return out
}

// Free gives back what New allocated. The queues must be idle.
func (t *Trainer) Free() {
	for _, free := range t.held {
		free()
	}
	t.held = nil
	if t.store != nil {
		t.store.Free()
	}
	if t.runner != nil {
		t.runner.Free()
	}
}

// ArenaPeak is the most activation memory used so far, in bytes.
func (t *Trainer) ArenaPeak() int { return t.runner.ArenaPeak() }

// DiskBytes is the size of this rank's file of what is offloaded.
func (t *Trainer) DiskBytes() int64 { return t.store.DiskBytes() }

// Reclaimed describes the files of dead runs that were in the way.
func (t *Trainer) Reclaimed() []string { return t.store.Reclaimed() }

// Units are the runner's, for reports.
func (t *Trainer) Units() []*fsdp.Unit { return t.runner.Units }

// Step trains on one global batch. Parameters are updated when it returns or
// soon after, in the order of their next use, while the next step begins; an
// error of that is reported by the next call. After an error the trainer's
// groups are closed.
func (t *Trainer) Step(fill Batches, lr float64) (Stats, error) {
	t.Steps++
	s, err := t.step(fill, lr)
	t.Samples += int64(t.cfg.Mesh.DataRanks() * t.cfg.Micro * t.cfg.B)
	if err != nil {
		t.close()
		return s, fmt.Errorf("step %d: rank %d: %w", t.Steps, t.cfg.Groups.World.Rank(), err)
	}
	return s, nil
}

func (t *Trainer) step(fill Batches, lr float64) (Stats, error) {
	s := Stats{LossScale: t.Scale.Scale}
	positions := cmp.Or(t.Counted, t.cfg.Mesh.DataRanks()*t.cfg.Micro*t.cfg.B*t.cfg.T)
	for i := range t.inputs {
		t.inputs[i].batch.Scale = float32(s.LossScale / float64(positions))
	}
	own := collective.Own(t.cfg.Groups.World, t.stats).I64()
	if t.WantStop {
		own[statStop] = 1
	}
	own[statPace], own[statPace+1], own[statPace+2] = int64(t.Pace.Before), int64(t.Pace.Waited), int64(t.Pace.Took)
	if err := t.issue(fill); err != nil {
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
	if s.Skipped {
		t.Skipped++
		return s, nil
	}
	t.update(lr, t.gradScale(s))
	return s, nil
}

// issue issues the passes over all micro-batches and the norms of what they
// leave.
func (t *Trainer) issue(fill Batches) error {
	for m := range t.cfg.Micro {
		in, err := t.read(m, fill)
		if err != nil {
			return err
		}
		in.batch.Drops = t.drops(m)
		t.runner.Forward(&in.batch, true)
		t.runner.Backward(&in.batch, m)
		t.addLoss(in)
	}
	t.addNorms()
	return nil
}

// drops is what this rank's elements that a micro-batch drops follow from: the
// numbers of its samples, which do not depend on how many ranks there are.
func (t *Trainer) drops(micro int) nn.Drops {
	c := &t.cfg
	sample := t.Samples + int64((micro*c.Mesh.DataRanks()+c.Mesh.DataRank(c.Groups.World.Rank()))*c.B)
	return nn.Drops{Train: true, Seed: c.Seed, Row: uint64(sample) * uint64(c.T)}
}

// read fills the input whose turn it is, once the micro-batch that had it is
// done; those between are computed meanwhile. A nil fill leaves it as it is.
func (t *Trainer) read(micro int, fill Batches) (*input, error) {
	in := &t.inputs[micro%len(t.inputs)]
	if err := in.free.Await(); err != nil {
		return in, err
	}
	if fill != nil {
		var start []int32
		if t.cfg.Packed {
			start = in.start.Host.I32()
		}
		if err := fill(micro, in.input.Host.I32(), in.target.Host.I32(), start); err != nil {
			return in, err
		}
	}
	t.cfg.Compute.Label("") // of no unit
	in.input.Send(t.cfg.Compute)
	in.target.Send(t.cfg.Compute)
	if t.cfg.Packed {
		in.start.Send(t.cfg.Compute)
	}
	return in, nil
}

// DryRun issues a step's work and looks at none of its results: on a device
// that only counts, what a step needs.
func (t *Trainer) DryRun() {
	_ = t.issue(nil)
	_ = t.gatherStats() // nothing is done, so nothing fails
	t.update(0, 1)
}

// addLoss adds a micro-batch's losses to this rank's, which is the last use of
// its input.
func (t *Trainer) addLoss(in *input) {
	t.cfg.Compute.Sum(t.sums.Device.Slice(0, device.ExactLen), in.batch.Loss)
	in.free = t.cfg.Compute.Mark()
}

// addNorms sums the squares of this rank's gradient shards, each as soon as it
// is reduced, which is from the last unit to the first.
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
		t.tell(fsdp.Norm, units[i], q)
		q.Label(t.labels[i].norm)
		q.After(units[i].Reduced)
		q.SumSquares(sums.Slice((1+i)*device.ExactLen, (2+i)*device.ExactLen), units[i].Grad)
	}
}

// tell tells an operation on a unit's shard to who listens.
func (t *Trainer) tell(o fsdp.Op, u *fsdp.Unit, q device.Queue) {
	if t.cfg.Listener != nil {
		t.cfg.Listener.Event(fsdp.Event{Op: o, Units: u.Itself(), Step: -1, Queue: q})
	}
}

// updates is the queue that works on shards on the device or in host memory.
func (t *Trainer) updates(onHost bool) Update {
	if onHost {
		return t.cfg.HostUpdate
	}
	return t.cfg.Update
}

// mergeSums makes this rank's statistics of its sums, which are in host memory
// now. They are exact, so the norm does not depend on how the parameters are
// sharded.
func (t *Trainer) mergeSums() error {
	own := collective.Own(t.cfg.Groups.World, t.stats).I64()
	exact(own, statLoss).Merge(device.ExactAt(t.sums.Host, 0))
	for i := len(t.runner.Units) - 1; i >= 0; i-- {
		sum := device.ExactAt(t.sums.Host, 1+i)
		if t.store.OnHost(i) {
			sum = device.ExactAt(t.hostSums, 1+i)
		}
		if t.runner.Units[i].Replica.Rank() == 0 { // once of those that hold the same
			exact(own, statNorm).Merge(sum)
		}
		if sum.NotFinite() > 0 && own[statWhere] == 0 {
			own[statWhere] = int64(1 + i)
		}
	}
	if t.hostSums.N > 0 {
		clear(t.hostSums.I64())
	}
	return nil
}

// exact is the sum among a rank's statistics that begins at an element.
func exact(stats []int64, at int) *device.Exact { return (*device.Exact)(stats[at:]) }

// gatherStats brings this rank's sums to the host and clears them, gives every rank
// the statistics of all, and waits for them.
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
	c.Comm.After(t.kept) // for its error: the disk has had a whole step's time
	collective.AllGather(c.Groups.World, c.Comm, t.stats)
	return c.Comm.Wait()
}

// finishStep reads the exchanged statistics and clears them for the next step. All
// ranks see the same and decide alike.
func (t *Trainer) finishStep(s *Stats, positions int) error {
	all := t.stats.I64()
	defer clear(all)
	var loss, norm device.Exact
	overflow := -1
	for r := range t.cfg.Groups.World.Size() {
		part := all[r*statLen : (r+1)*statLen]
		loss.Merge(exact(part, statLoss))
		norm.Merge(exact(part, statNorm))
		s.Stop = s.Stop || part[statStop] > 0
		t.Paces[r] = collective.Pace{Before: time.Duration(part[statPace]), Waited: time.Duration(part[statPace+1]), Took: time.Duration(part[statPace+2])}
		if part[statWhere] > 0 && overflow < 0 {
			overflow = r
		}
		if exact(part, statLoss).NotFinite() > 0 {
			return fmt.Errorf("the loss is not finite on rank %d: lower the learning rate or check the data", r)
		}
	}
	s.Loss = loss.Value() / float64(positions)
	s.GradNorm = math.Sqrt(norm.Value()) / s.LossScale
	s.Skipped = overflow >= 0
	if overflow >= 0 && !t.Scale.Dynamic {
		unit := t.runner.Units[int(all[overflow*statLen+statWhere])-1]
		return fmt.Errorf("the gradient of unit %s is not finite on rank %d (loss %g): lower the learning rate or set train.clip", unit.Name, overflow, s.Loss)
	}
	return t.Scale.Update(s.Skipped)
}

// gradScale undoes the loss scale and clips, in one factor.
func (t *Trainer) gradScale(s Stats) float64 {
	clip := 1.0
	if t.cfg.Clip > 0 {
		clip = min(1, t.cfg.Clip/(s.GradNorm+1e-6))
	}
	return clip / s.LossScale
}

// update issues the update of every unit, in the order the next step uses them.
func (t *Trainer) update(lr, gradScale float64) {
	t.Updates++
	for i, g := range t.groups {
		t.hypers[i] = optim.Hyper{LR: lr * g.LR, Decay: g.Decay, GradScale: gradScale}
	}
	for i, u := range t.runner.Units {
		if u.Frozen {
			continue
		}
		var done device.Event
		t.tell(fsdp.Update, u, t.updates(t.store.OnHost(i)))
		for j := range t.store.Tiles(i) {
			st := t.store.Acquire(i, j)
			q := t.updates(st.OnHost)
			q.Label(t.labels[i].update)
			q.After(st.Ready[0])
			q.After(st.Ready[1])
			for _, r := range t.pieces[i][j] {
				t.cfg.Rule.Step(q, t.Updates, t.hypers[r.group], t.piece(st, r))
			}
			done = t.store.Release(i, j, q.Mark(), true)
		}
		u.MarkUpdated(done)
	}
	if w := t.cfg.Offload.Write; w != nil {
		t.kept = w.Mark()
	}
}

// piece is a run of a tile with the state its update needs, good until the next.
func (t *Trainer) piece(st offload.State, r run) optim.Piece {
	lo, hi := r.at.Lo, r.at.Hi
	p := optim.Piece{Master: st.Master.Slice(lo, hi), Grad: st.Grad.Slice(lo, hi), State: t.state}
	if st.Param.N > 0 {
		p.Param = st.Param.Slice(lo, hi)
	}
	for i, v := range st.Vec {
		p.State[i] = v.Slice(lo, hi)
	}
	return p
}

// Eval is the mean loss over n micro-batches on every rank, in nats.
func (t *Trainer) Eval(n int, fill Batches) (float64, error) {
	mean, err := t.eval(n, fill)
	if err != nil {
		t.close()
		return 0, fmt.Errorf("evaluation after step %d: rank %d: %w", t.Steps, t.cfg.Groups.World.Rank(), err)
	}
	return mean, nil
}

func (t *Trainer) eval(n int, fill Batches) (float64, error) {
	for m := range n {
		in, err := t.read(m, fill)
		if err != nil {
			return 0, err
		}
		in.batch.Drops = nn.Drops{}
		t.runner.Forward(&in.batch, false)
		t.addLoss(in)
	}
	if err := t.gatherStats(); err != nil {
		return 0, err
	}
	var sum device.Exact
	all := t.stats.I64()
	for r := range t.cfg.Groups.World.Size() {
		sum.Merge(exact(all, r*statLen+statLoss))
	}
	clear(all)
	return sum.Value() / float64(cmp.Or(t.Counted, t.cfg.Mesh.DataRanks()*n*t.cfg.B*t.cfg.T)), nil
}

// close ends this rank's groups, so that no other rank waits for it. The error
// that led here is the one to report.
func (t *Trainer) close() { _ = t.cfg.Groups.Close() }
