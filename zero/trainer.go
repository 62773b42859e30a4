package zero

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/nn"
	"zeroth/offload"
	"zeroth/optim"
	"zeroth/pipe"
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
	optim.MatrixOps
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

	Model    *nn.Model // the whole
	Pipeline Pipeline
	DType    device.DType
	Policy   fsdp.Policy
	Micro    int    // micro-batches a step
	B, T     int    // sequences and positions of a micro-batch
	Packed   bool   // sequences are several documents
	Seed     uint64 // of what the model drops in training
	Chunk    int    // positions whose logits are held at once; 0 is all
	Pad      int    // rows of logits are padded to a multiple of it, see nn.Batch
	Arenas   []int  // bytes, from ArenaPeaks of a dry run; nil: as much as is wanted, of a device that only counts

	Listener fsdp.Listener // hears what is done, from the goroutine that issues it; may be nil

	// Delayed has modules use parameters from before the last update, for which they then do
	// not wait: W(t+1) = W(t) - lr·g(W(t-1)). All Rules are Elementwise, nothing is on a disk,
	// and no parameters are offloaded.
	Delayed bool

	// Master has the first rank of each shard group own all of it: the others send it their
	// gradients and get the parameters.
	Master bool

	Rules []optim.Rule                  // of parameters, by shard.Param's Rule: Elementwise or Whole
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
	Save      bool    // some rank had WantSave set: all save after this step
}

// Trainer is one rank's training state and step.
type Trainer struct {
	cfg      Config
	pipeline *pipeline
	runner   *fsdp.Runner
	store    *offload.Store
	names    []string              // of the whole model's units
	failed   atomic.Pointer[error] // of a transfer; nil while there is none
	inputs   []input               // micro-batches take them in turn
	held     []func()              // give back what is allocated

	sums     device.Window // (1 + units) device.Exact: of this rank's losses, and of the squares of its gradients,
	hostSums device.Buffer // (1 + units) device.Exact: of those in host memory
	stats    device.Buffer // (World × statLen) int64, in host memory, one part a rank
	merge    func() error
	kept     device.Event    // the last update has reached the disk
	pieces   [][][]run       // of each tile of each unit's shard
	groups   []optim.Group   // of parameters, all different
	hypers   []optim.Hyper   // of each group, in this step
	state    []device.Buffer // work space of update
	matrices matrices        // of units whose rule is Whole
	micro    int             // the micro-batch whose passes are issued

	Scale    optim.LossScale
	Updates  int   // applied so far
	Skipped  int   // steps skipped for overflow so far
	WantStop bool  // this rank asks all to stop after the next step
	WantSave bool  // this rank asks all to save after the next step
	Steps    int   // begun so far
	Samples  int64 // of the training order, read before the step that follows: what the model drops of a sample follows from its number
	Counted  int   // positions with a loss in the step or evaluation that follows, over all ranks; 0: all there are

	// Waited is when, in the last step, the host began and ended to wait for the norm,
	// which the update needs. It is the one wait of a step.
	Waited [2]time.Time

	Pace  collective.Pace   // of this rank's last step, which the others hear of in the next
	Paces []collective.Pace // (World) of all ranks in the step before the last one; zero before the second
}

// input is memory for the token ids of one micro-batch at a time.
type input struct {
	batch         nn.Batch
	input, target device.Window // (B*T) int32: batch's Input and Target are in front
	start         device.Window // (B*T) int32: likewise its Start; empty unless sequences are packed or ranks divide positions
	free          device.Event  // the queue that reads them is done
}

// run is neighbouring elements of a shard that are updated alike.
type run struct {
	at    shard.Range
	group int // of Trainer.groups
}

// The elements of a rank's part of Trainer.stats.
const (
	statLoss  = 0                          // exact sum over this rank's positions
	statNorm  = statLoss + device.ExactLen // exact sum of squares of those of this rank's shards that it alone counts
	statWhere = statNorm + device.ExactLen // 1 + index in the model of the first unit with a gradient that is not finite, or 0
	statStop  = statWhere + 1              // what the rank wants: bits of wantsStop and wantsSave
	statPace  = statStop + 1               // nanoseconds of its last step: before its first operation, waited, all
	statLen   = statPace + 3
)

// The bits of a rank's wishes.
const (
	wantsStop = 1 << iota
	wantsSave
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
	if t.pipeline, err = newPipeline(&c); err != nil {
		return err
	}
	tied, err := c.tied()
	if err != nil {
		return err
	}
	for _, u := range c.Model.Units() {
		t.names = append(t.names, u.Name)
	}
	part := c.Part()
	units := fsdp.LayOut(part, c.Policy, Begin(c.Rules), func(u nn.Unit) fsdp.Groups { return c.groups(u, slices.Contains(tied, u.Name)) })
	if !trains(c.Model) {
		return errors.New("zero: every parameter is frozen: there is nothing to train")
	}
	t.store = offload.New(t.offload(), stored(units))
	for i, u := range units {
		u.GradOffloaded, u.ParamOffloaded = t.store.OnHost(i), t.store.ParamOffloaded(i)
	}
	t.runner, err = fsdp.New(fsdp.Config{
		Device: c.Device, Compute: c.Compute, Comm: c.Comm,
		Model: part, Units: units, DType: c.DType, Policy: c.Policy, Micro: c.Micro,
		Split: t.pipeline.Schedule == pipe.ZBH1, Chunks: t.pipeline.chunks, Streams: t.pipeline.streams.most, Arenas: c.Arenas,
		Host: fsdp.Host{Device: c.Host, ToHost: c.Offload.ToHost, ToDevice: c.Offload.ToDevice, Params: t.store}, Listener: c.Listener,
	})
	if err != nil {
		return err
	}
	var rest []offload.Shard
	for i, u := range units {
		rest = append(rest, offload.Shard{Param: u.Param, Grad: u.Grad})
		groups := t.groupsOf(u.Layout)
		tiles := make([][]run, t.store.Tiles(i))
		for j := range tiles {
			tiles[j] = runs(u.Layout, u.Shard.Rank(), t.store.Tile(i, j), groups)
		}
		t.pieces = append(t.pieces, tiles)
	}
	t.state, t.hypers = make([]device.Buffer, len(t.Kinds())), make([]optim.Hyper, len(t.groups))
	t.merge = t.mergeSums
	t.layOutMatrices()
	if err := t.store.Allocate(rest); err != nil {
		return err
	}
	return t.allocate()
}

// trains says whether a model has a parameter that is not frozen.
func trains(m *nn.Model) bool {
	return slices.ContainsFunc(m.Units(), func(u nn.Unit) bool { return !u.Params[0].Frozen })
}

// Begin is the multiple of elements that parameters begin at under some rules: states that
// are coded by blocks have blocks of one parameter each, and no rank has part of one.
func Begin(rules []optim.Rule) int {
	for _, r := range rules {
		if slices.ContainsFunc(r.Types(), device.DType.Coded) {
			return device.BlockLen
		}
	}
	return 1
}

// Vecs are the types of the state vectors of each rule.
func Vecs(rules []optim.Rule) (of [][]device.DType) {
	for _, r := range rules {
		of = append(of, r.Types())
	}
	return of
}

// groups returns the ranks that a unit belongs to. Ranks that divide matrices have the units of
// all other parameters together.
func (c *Config) groups(u nn.Unit, tied bool) (g fsdp.Groups) {
	if g, ok := c.UnitGroups[u.Name]; ok {
		return g
	}
	g = fsdp.Groups{Shard: c.Groups.Shard, Replica: c.Groups.Replica, Tied: tied}
	if c.Master {
		g.Shard = collective.Master{Group: g.Shard}
	}
	switch joint := c.Groups.Joint; {
	case tied:
		g.Replica = c.Groups.Ends
	case joint == nil || u.Params[0].Cut.Full != nil:
	case g.Shard.Size() > 1:
		g.Shard = joint
	default:
		g.Replica = joint
	}
	return g
}

// offload is where what rests, with what the trainer knows itself.
func (t *Trainer) offload() offload.Config {
	o := t.cfg.Offload
	o.Device, o.Host, o.DType, o.Vecs = t.cfg.Device, t.cfg.Host, t.cfg.DType, Vecs(t.cfg.Rules)
	o.SeparateMaster = t.cfg.Delayed
	return o
}

// stored is the units as a store knows them.
func stored(units []*fsdp.Unit) (of []offload.Unit) {
	for _, u := range units {
		of = append(of, offload.Unit{Name: u.Name, Len: u.Own().Len(), Whole: u.Whole(), Frozen: u.Frozen, Rule: u.Rule})
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
	all, sums := c.B*c.T, (1+len(t.runner.Units))*device.ExactLen
	sequences, positions := c.pieces()
	rows := sequences * positions
	loss := alloc(c.Device, device.F32, rows, device.Stats)
	for range t.pipeline.inputs.most {
		in := input{input: open(device.I32, all, device.Inputs), target: open(device.I32, all, device.Inputs)}
		in.batch = nn.Batch{B: sequences, T: positions, Tensor: t.exchange(c.Groups.Tensor, fsdp.Exchange), Context: t.exchange(c.Groups.Context, fsdp.ExchangeKeys),
			Compute: c.DType, Chunk: c.Chunk, Pad: c.Pad, Loss: loss, Input: in.input.Device.Slice(0, rows), Target: in.target.Device.Slice(0, rows)}
		if c.Packed || c.Groups.Context != nil {
			in.start = open(device.I32, all, device.Inputs)
			in.batch.Start = in.start.Device.Slice(0, rows)
		}
		t.inputs = append(t.inputs, in)
	}
	t.sums = open(device.I64, sums, device.Stats)
	if c.HostUpdate != nil {
		t.hostSums = alloc(c.Host, device.I64, sums, device.Stats)
	}
	t.stats = alloc(c.Host, device.I64, c.Groups.World.Size()*statLen, device.Stats)
	for _, n := range t.matrices.lens {
		t.matrices.slots = append(t.matrices.slots, alloc(c.Device, t.matrices.input, n, device.Updates))
		if n := t.matrices.part; n > 0 {
			t.matrices.parts = append(t.matrices.parts, alloc(c.Host, t.matrices.input, n, device.Updates))
		}
	}
	t.matrices.arena = device.NewArena(alloc(c.Device, device.F32, t.matrices.work/4, device.Updates))
	t.Paces = make([]collective.Pace, c.Groups.World.Size())
	return errors.Join(errs...)
}

// groupsOf is the group of each parameter of a unit.
func (t *Trainer) groupsOf(l *shard.Layout) (of []int) {
	for _, p := range l.Params {
		g := t.cfg.Group(p)
		if r, ok := t.cfg.Rules[p.Rule].(optim.Whole); ok && !p.Frozen {
			g.Scale = r.Scale(p.Tensor()[0], p.Tensor()[1])
		}
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

// ArenaPeak returns the sum of ArenaPeaks.
func (t *Trainer) ArenaPeak() (bytes int) {
	for _, n := range t.ArenaPeaks() {
		bytes += n
	}
	return bytes
}

// ArenaPeaks returns the most bytes of each of the activations' arenas that were used so far.
func (t *Trainer) ArenaPeaks() []int { return t.runner.Peaks() }

// DiskBytes is the size of this rank's file of what is offloaded.
func (t *Trainer) DiskBytes() int64 { return t.store.DiskBytes() }

// Reclaimed describes the files of dead runs that were in the way.
func (t *Trainer) Reclaimed() []string { return t.store.Reclaimed() }

// Units are the runner's, for reports.
func (t *Trainer) Units() []*fsdp.Unit { return t.runner.Units }

// close ends this rank's groups, so that no other rank waits for it. The error
// that led here is the one to report.
func (t *Trainer) close() { _ = t.cfg.Groups.Close() }
