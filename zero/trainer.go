package zero

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"zeroth/collective"
	"zeroth/data"
	"zeroth/device"
	"zeroth/fsdp"
	"zeroth/nn"
	"zeroth/offload"
	"zeroth/optim"
	"zeroth/pipe"
	"zeroth/shard"
)

// Compute is the queue on which modules run. Sum adds the elements of x (float32) to a
// device.Exact.
type Compute interface {
	fsdp.Compute
	Sum(acc, x device.Buffer)
}

// Update is the queue for norms and parameter updates. SumSquares adds the squares of x (float32)
// to a device.Exact.
type Update interface {
	device.Queue
	optim.Ops
	optim.MatrixOps
	Zero(b device.Buffer)
	Cast(dst, src device.Buffer)
	SumSquares(acc, x device.Buffer)
}

// Config describes a Trainer. The caller closes queues, groups and device, after Free.
type Config struct {
	Device  device.Device
	Host    device.Device // host memory: Device itself if the host can address it
	Compute Compute
	Comm    fsdp.Comm
	Update  Update

	// Offload selects what is stored outside the device and contains the host's queues; New
	// completes it. HostUpdate runs the updates of state in host memory; nil if there is none.
	Offload    offload.Config
	HostUpdate Update

	Groups collective.Ranks // of this rank in Mesh: World, and the ranks that units belong to
	Mesh   shard.Mesh

	Model    *nn.Model // the whole model
	Pipeline Pipeline
	DType    device.DType
	Policy   fsdp.Policy
	Share    data.Share   // of the samples of a step; MicroBatch is B
	Micro    int          // micro-batches of this rank per step
	Most     int          // micro-batches that a rank may have at most; 0: Micro
	More     bool         // replicas may be lost, and this rank then has other numbers of them, see Regroup
	B, T     int          // sequences and positions of a micro-batch
	Fields   []data.Field // of a sample: of tokens, or those of a program
	Trim     bool         // a micro-batch is computed up to its longest sequence, see Work.Lengths; not in a pipeline, with divided positions, or with dropout of attention weights
	Seed     uint64       // of dropout
	Chunk    int          // positions whose logits are held at once; 0 means all
	MLPChunk int          // positions whose hidden layer of the MLP is held at once; 0 means all
	Pad      int          // rows of logits are padded to a multiple of Pad, see nn.Batch
	Arenas   []int        // bytes, from ArenaPeaks of a dry run; nil: unlimited, on a device that only counts

	Listener fsdp.Listener // receives events on the goroutine that issues the operations; may be nil

	// Delayed makes modules use parameters from before the last update, to avoid waiting for it:
	// W(t+1) = W(t) - lr·g(W(t-1)). All Rules must be Elementwise, nothing may be on disk, and no
	// parameters offloaded.
	Delayed bool

	// Master makes the first rank of each shard group own all of its state: the others send it
	// their gradients and receive the parameters.
	Master bool

	Rules   []optim.Rule                  // update rules, by shard.Param's Rule: Elementwise or Whole
	Group   func(shard.Param) optim.Group // hyperparameters of a parameter; must be the same on all ranks
	Clip    float64                       // maximum global gradient norm; 0 means off
	Balance Balance                       // of routers
	Scale   optim.LossScale               // Dynamic: steps with gradients that overflow are skipped
}

// Batches fills the fields of a micro-batch, B times Len of each of Config.Fields.
type Batches func(micro int, into []data.Values) error

// Work is the input of a step or an evaluation.
type Work struct {
	Fill Batches // called for each of the rank's micro-batches, in order

	// Lengths returns the positions of a micro-batch's longest sequence, and the tokens of its
	// longest document; nil: all sequences are full.
	Lengths func(micro int) (positions, tokens int)
	// Counted is the number of positions with a loss over all ranks and micro-batches; 0: all.
	Counted int
	// Stop reports whether this rank asks all to stop: after the step, or after as many micro-batches
	// of an evaluation as a step has. It is called on the queue of updates when these are computed;
	// nil: never.
	Stop func() bool

	// Only a step has these.
	LR    float64
	Save  bool            // this rank asks all to save after the step
	Join  bool            // this rank asks all to take in others after the step
	Trace int             // this rank asks all to trace this many steps after the step
	Pace  collective.Pace // of this rank's last step, for Paces of all ranks

	// Live returns how many samples of a micro-batch of an evaluation count, from the first one on;
	// nil: all. The others have any values, and no loss.
	Live func(micro int) int
}

// Stats describes a step; it is equal on all ranks.
type Stats struct {
	Loss      float64   // mean over the positions with a loss on all ranks, nats
	GradNorm  float64   // before clipping
	LossScale float64   // used in the step
	Skipped   bool      // the gradient overflowed and nothing was updated
	Stop      bool      // some rank asked all to stop: what they evaluate is incomplete
	Save      bool      // some rank asked all to save after this step
	Join      bool      // some rank asked all to take in others after this step
	Trace     int       // some rank asked all to trace as many steps, from the next one on
	Metrics   []float64 // of Model.Metrics: means over the positions with a loss on all ranks
	Balanced  Balanced  // of a step with a balancing loss
}

// Trainer is one rank's training state and step. It belongs to one goroutine.
type Trainer struct {
	cfg      Config
	runner   *fsdp.Runner
	pipeline *pipeline
	failed   atomic.Pointer[error] // first error of a transfer, set by any goroutine; or nil
	held     []func()              // release allocated memory

	transfers sync.WaitGroup // those that failFast waits for

	inputs []input // micro-batches use them in rotation
	micro  int     // the micro-batch whose passes are being issued; -1: none
	given  Work    // to the step or evaluation under way

	tally
	balance balance
	updating

	Scale   optim.LossScale
	Updates int   // applied so far
	Skipped int   // steps skipped because of overflow so far
	Steps   int   // done so far
	Samples int64 // samples of the training order read before the next step; dropout depends on their numbers

	// Waited is when the host began and ended to wait for the norm in the last step, which the
	// update needs. It is the only wait of a step.
	Waited [2]time.Time
	passed Stats             // of the last step
	Paces  []collective.Pace // (World) of all ranks in the step before the last one; zero before the second
}

// tally is the memory of a trainer's statistics. The queue of updates writes them; the host reads them
// once it has waited for their all-gather, and then resets them.
type tally struct {
	loss     device.Buffer   // (B*T) float32, of any micro-batch
	metrics  []device.Buffer // (B*T) float32 each, of any micro-batch
	sums     device.Window   // (1 + units + metrics) device.Exact of this rank: losses, squares of gradients, metrics
	hostSums device.Buffer   // (1 + units + metrics) device.Exact: those in host memory
	stats    device.Buffer   // (World × statLen) int64, in host memory, one part per rank
	room     device.Buffer   // of stats for all ranks of the first world
	merge    func() error    // computes this rank's part of stats from the sums
	names    []string        // of the whole model's units
}

// updating is a trainer's state of its shards, and what updates of it need.
type updating struct {
	store    *offload.Store
	pieces   [][][]run       // of each tile of each unit's shard
	groups   []optim.Group   // distinct hyperparameters of parameters
	hypers   []optim.Hyper   // of each group, in this step
	state    []device.Buffer // working space of update
	matrices matrices        // units whose rule is Whole
	progress []uint8         // of each unit in the last update: 0, moving or updated
	kept     device.Event    // the last update has reached the disk
	filled   bool            // FillAll has set the frozen parameters
}

// input is memory for the fields of one micro-batch at a time.
type input struct {
	batch  nn.Batch
	fields []device.Window // (B*Len) of Config.Fields, and starts of documents if ranks divide positions and the data has none: batch.Fields are at the front
	values []data.Values   // the host's side of Config.Fields; nil before the first
	free   device.Event    // the queue that reads them is done
	live   int             // samples that count in an evaluation
}

// run is a range of adjacent elements of a shard that are updated with the same hyperparameters.
type run struct {
	at    shard.Range
	group int // index in Trainer.groups
}

// Layout of a rank's part of Trainer.stats.
const (
	statLoss  = 0                          // exact sum over this rank's positions
	statNorm  = statLoss + device.ExactLen // exact sum of squares of those of this rank's shards that only it counts
	statWhere = statNorm + device.ExactLen // 1 + index in the model of the first unit with a gradient that is not finite, or 0
	statStop  = statWhere + 1              // the rank's requests: bits wantsStop, wantsSave and wantsJoin, and wantsTrace above them
	statPace  = statStop + 1               // nanoseconds of its last step: before its first operation, waiting, total
	statMore  = statPace + 3               // exact sums of its metrics, then those of mergeBalance
)

// statLen returns the length of a rank's part of Trainer.stats.
func (t *Trainer) statLen() int {
	return statMore + len(t.cfg.Model.Metrics)*device.ExactLen + t.cfg.Balance.stats()
}

// Bits of a rank's requests.
const (
	wantsStop = 1 << iota
	wantsSave
	wantsJoin
	wantsTrace // times the steps
)

// New allocates everything that training needs, or nothing.
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

// build lays out the units, places their shards, and allocates memory.
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
		u.GradOffloaded, u.ParamOffloaded, u.MasterOnly = t.store.OnHost(i), t.store.ParamOffloaded(i), t.store.MasterOnly(i)
	}
	t.runner, err = fsdp.New(fsdp.Config{
		Device: c.Device, Compute: c.Compute, Comm: c.Comm,
		Model: part, Units: units, DType: c.DType, Policy: c.Policy, Micro: c.Micro, More: c.More, Tree: c.tree(),
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
	t.progress = make([]uint8, len(units))
	t.state, t.hypers = make([]device.Buffer, len(t.Kinds())), make([]optim.Hyper, len(t.groups))
	t.merge = t.mergeSums
	t.layOutMatrices()
	if err := t.store.Allocate(rest); err != nil {
		return err
	}
	for i, u := range units {
		u.Master = t.store.Master(i)
	}
	return t.allocate()
}

// tree returns the tree of the gradients' sums, if there is one: its leaves are the step's micro-batches.
func (c *Config) tree() *fsdp.Tree {
	s := c.Share
	if !s.Blocks {
		return nil
	}
	return &fsdp.Tree{Leaves: shard.Tree(s.Batch / s.MicroBatch), Rounds: s.Rounds()}
}

// trains reports whether a model has a parameter that is not frozen.
func trains(m *nn.Model) bool {
	return slices.ContainsFunc(m.Units(), func(u nn.Unit) bool { return !u.Params[0].Frozen })
}

// Begin returns the alignment of parameters in elements: blocks of coded states must not contain
// several parameters or be divided between ranks.
func Begin(rules []optim.Rule) int {
	for _, r := range rules {
		if slices.ContainsFunc(r.Types(), device.DType.Coded) {
			return device.BlockLen
		}
	}
	return 1
}

// Vecs returns the types of the state vectors of each rule.
func Vecs(rules []optim.Rule) (of [][]device.DType) {
	for _, r := range rules {
		of = append(of, r.Types())
	}
	return of
}

// groups returns the ranks that a unit belongs to. With tensor parallelism, ranks share the units
// of parameters that are not divided.
func (c *Config) groups(u nn.Unit, tied bool) (g fsdp.Groups) {
	g, joint := fsdp.Groups{Shard: c.Groups.Shard, Replica: c.Groups.Replica, Tied: tied}, c.Groups.Joint
	if c.Groups.Experts != nil && u.Params[0].Expert {
		g.Shard, g.Replica, joint = c.Groups.ExpertShard, c.Groups.ExpertReplica, c.Groups.ExpertJoint
	}
	if c.Master {
		g.Shard = collective.Master{Group: g.Shard}
	}
	switch {
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

// offload completes the offload configuration.
func (t *Trainer) offload() offload.Config {
	o := t.cfg.Offload
	o.Device, o.Host, o.DType, o.Vecs = t.cfg.Device, t.cfg.Host, t.cfg.DType, Vecs(t.cfg.Rules)
	o.SeparateMaster = t.cfg.Delayed
	return o
}

// stored returns the units in the form that a store needs.
func stored(units []*fsdp.Unit) (of []offload.Unit) {
	for _, u := range units {
		of = append(of, offload.Unit{Name: u.Name, Len: u.Own().Len(), Whole: u.Whole(), Frozen: u.Frozen, Coded: u.Code != device.Floats, Single: u.Single, Rule: u.Rule})
	}
	return of
}

// allocate allocates memory for batches and statistics.
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
	sums := (1 + len(t.runner.Units) + len(c.Model.Metrics)) * device.ExactLen
	sequences, positions := c.pieces()
	rows := sequences * positions
	loss := alloc(c.Device, device.F32, rows, device.Stats)
	t.loss = loss
	for range c.Model.Metrics {
		t.metrics = append(t.metrics, alloc(c.Device, device.F32, rows, device.Stats))
	}
	for range t.pipeline.inputs.most {
		in := input{batch: nn.Batch{B: sequences, T: positions, Tensor: t.exchange(c.Groups.Tensor, fsdp.Exchange), Context: t.exchange(c.Groups.Context, fsdp.ExchangeKeys), Experts: t.exchange(c.Groups.Experts, fsdp.ExchangeRows),
			Compute: c.DType, Chunk: c.Chunk, MLPChunk: c.MLPChunk, Again: t.runner.Again, Pad: c.Pad, Loss: loss, Metrics: slices.Clone(t.metrics)}}
		for i, f := range c.fields() {
			in.fields = append(in.fields, open(types[f.Type], c.B*f.Len, device.Inputs))
			in.batch.SetField(i, f.Name, in.fields[i].Device.Slice(0, min(c.B*f.Len, c.B*f.Len*rows/(c.B*c.T))))
		}
		t.inputs = append(t.inputs, in)
	}
	t.openBalance(func(n int) device.Buffer { return alloc(c.Device, device.F32, n, device.Stats) }, func(n int) device.Window { return open(device.F32, n, device.Stats) })
	t.sums = open(device.I64, sums, device.Stats)
	if c.HostUpdate != nil {
		t.hostSums = alloc(c.Host, device.I64, sums, device.Stats)
	}
	t.room = alloc(c.Host, device.I64, c.Groups.World.Size()*t.statLen(), device.Stats)
	t.stats = t.room
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

// groupsOf returns the index of each parameter's hyperparameters.
func (t *Trainer) groupsOf(l *shard.Layout) (of []int) {
	for _, p := range l.Params {
		g := t.cfg.Group(p)
		if r, ok := t.cfg.Rules[p.Rule].(optim.Whole); ok && !p.Frozen {
			of := p.Matrices()[0].Tensor()
			g.Scale = r.Scale(of[0], of[1])
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

// runs joins the pieces of a tile of a rank's shard that have the same group; groups contains that
// of each parameter. Elements are counted from the tile's first.
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

// Free releases what New allocated. The queues must be idle.
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

// ArenaPeak returns the sums of ArenaPeaks, on the device and on the host.
func (t *Trainer) ArenaPeak() (bytes, host int) { return t.runner.PeakNow() }

// KeptOfToken returns the most bytes per token of a micro-batch that a layer has kept on this rank, or its
// host, from a forward pass to the backward pass.
func (t *Trainer) KeptOfToken() float64 { return float64(t.runner.Kept()) / float64(t.cfg.B*t.cfg.T) }

// ArenaPeaks returns the maximum bytes used so far in each of the activations' arenas.
func (t *Trainer) ArenaPeaks() []int { return t.runner.Peaks() }

// Padding returns the bytes of units on the device that belong to no parameter, on the rank with the last shards.
func (t *Trainer) Padding() (bytes int64) {
	for i, u := range t.Units() {
		bytes += u.Padding(t.store.OnDevice(i))
	}
	return bytes
}

// DiskBytes returns the size of this rank's offload file.
func (t *Trainer) DiskBytes() int64 { return t.store.DiskBytes() }

// Reclaimed describes the files of dead runs that were removed.
func (t *Trainer) Reclaimed() []string { return t.store.Reclaimed() }

// Units returns the runner's units, for reports.
func (t *Trainer) Units() []*fsdp.Unit { return t.runner.Units }

// close ends this rank's groups, so that no other rank waits for it. The caller reports the error
// that led here.
func (t *Trainer) close() { _ = t.cfg.Groups.Close() }
