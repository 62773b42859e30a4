package setup

import (
	"zeroth/collective"
	"zeroth/config"
	"zeroth/device"
	"zeroth/device/dry"
	"zeroth/pipe"
	"zeroth/shard"
	"zeroth/zero"
)

// Footprint is the memory that a rank of a job allocates permanently.
type Footprint struct {
	Device device.Bytes // by category
	Host   device.Bytes // of offloaded data, by category
	Disk   int64        // bytes of its file
	Arena  int          // bytes of activations, also contained in Device
}

// Plus returns f + times*g.
func (f Footprint) Plus(g Footprint, times int) Footprint {
	for use := range device.Uses {
		f.Device[use] += int64(times) * g.Device[use]
		f.Host[use] += int64(times) * g.Host[use]
	}
	f.Disk += int64(times) * g.Disk
	f.Arena += times * g.Arena
	return f
}

// DryRun returns the largest Footprint of the job's ranks, measured by dry runs of a step on
// devices that only count.
func DryRun(j *Job) (most Footprint, err error) {
	all, err := DryRuns(j)
	for i, f := range all {
		if i == 0 || f.Memory() > most.Memory() {
			most = f
		}
	}
	return most, err
}

// DryRuns returns the footprints of the job's ranks by place.
func DryRuns(j *Job) (all []Footprint, err error) {
	few := Micros(j, FewMicro(j.Config))
	for at := range RankKinds(j.Config) {
		f, err := DryPlace(few, at)
		if err != nil {
			return nil, err
		}
		all = append(all, f.Fitted())
	}
	return all, nil
}

// Mean returns the mean of footprints by place. In a job with a master it is the mean over the
// ranks of the master's machine.
func Mean(j *Job, all []Footprint) (mean Footprint) {
	for _, f := range all {
		mean = mean.Plus(f, 1)
	}
	n := int64(len(all))
	if j.Parallel.Master {
		n = int64(j.At.HostRanks)
		mean = all[0].Plus(all[len(all)-1], j.At.HostRanks-1)
	}
	for use := range device.Uses {
		mean.Device[use] /= n
		mean.Host[use] /= n
	}
	mean.Disk /= n
	mean.Arena /= int(n)
	return mean
}

// dryRun returns the footprint of a rank at a place, and the bytes of its arenas.
func dryRun(j *Job, at int) (f Footprint, arenas []int, err error) {
	f, arenas, err = DryStep(Micros(j, FewMicro(j.Config)), at)
	return f.Fitted(), arenas, err
}

// Pipeline returns the number of ranks that divide the job's layers.
func Pipeline(c *config.Config) int { return max(1, config.Mesh(c).Pipeline) }

// RankKinds returns the number of kinds of ranks, by what they allocate and do. There is one for each
// place in the pipeline; with a master there are two, the master and the others.
func RankKinds(c *config.Config) int {
	if c.Parallel.Master {
		return min(2, c.Parallel.Ranks)
	}
	return Pipeline(c)
}

// RankKind returns the kind of a rank, below RankKinds.
func RankKind(c *config.Config, rank int) int {
	if c.Parallel.Master {
		return min(1, rank)
	}
	return config.Mesh(c).At(rank, shard.Pipeline)
}

// FewMicro returns the maximum number of micro-batches in a dry run of a step. Without a pipeline
// three are enough: the first, the last, and one for all between, which are equal. A pipeline is
// full after several per rank, except with GPipe, which has all micro-batches in flight.
func FewMicro(c *config.Config) int {
	switch p := Pipeline(c); {
	case p > 1 && c.PipelineShape().Schedule == pipe.GPipe:
		return c.Train.Accumulate
	case p > 1:
		return 4 * p
	}
	return 3
}

// Micros returns the job with at most n micro-batches per step.
func Micros(j *Job, n int) *Job {
	x := *j
	x.Config = j.Config.Copy()
	x.Train.Accumulate = min(n, x.Train.Accumulate)
	return &x
}

// Fitted returns the footprint with an arena of the size used.
func (f Footprint) Fitted() Footprint {
	f.Device[device.Activations] = int64((f.Arena + 3) / 4 * 4)
	return f
}

// DeviceTotal returns the bytes of device memory.
func (f Footprint) DeviceTotal() int64 { return f.Device.Total() }

// Memory returns the bytes of device and host memory together, for ranks that are threads of one
// machine.
func (f Footprint) Memory() int64 { return f.Device.Total() + f.Host.Total() }

// HostTotal returns the bytes of separate host memory.
func (f Footprint) HostTotal() int64 { return f.Host.Total() }

// OnMachine returns a function for the part of a footprint that is in the machine's memory, not on
// a GPU.
func OnMachine(c *config.Config) func(Footprint) int64 {
	if c.On() == "cuda" {
		return Footprint.HostTotal
	}
	return Footprint.Memory
}

// Both returns device and host memory together, by category.
func (f Footprint) Both() (b device.Bytes) {
	for use := range b {
		b[use] = f.Device[use] + f.Host[use]
	}
	return b
}

// SyncStaging is the bytes of staging memory for a synchronous save.
const SyncStaging = 32 << 20

// Staged returns the elements of staging memory that a rank's saves use.
func Staged(c *config.Config, t *zero.Trainer) int {
	switch {
	case !Saves(c):
		return 0
	case c.Checkpoint.Async:
		return t.StateLen()
	}
	return min(t.StateLen(), SyncStaging/4)
}

// WireStaging is the bytes of host memory through which a rank's collectives reach other
// processes, if the host cannot address the device.
const WireStaging = 32 << 20

// WireStagingOf returns the bytes of wire staging that each of the job's ranks allocates.
func WireStagingOf(c *Job) int {
	if c.At.Staged && kind(c.Config).HostApart() {
		return WireStaging
	}
	return 0
}

// StagingShare returns the bytes of wire staging for the groups of one queue: those of units,
// those inside modules, and each link of a pipeline.
func StagingShare(c *Job, bytes int) int {
	queues := 1
	if m := config.Mesh(c.Config); m.Size(shard.Context, shard.Tensor) > 1 {
		queues++
	}
	if Pipeline(c.Config) > 1 {
		queues += len(LinkQueues)
	}
	return bytes / queues &^ (1<<12 - 1)
}

// Saves reports whether the job makes checkpoints.
func Saves(c *config.Config) bool { return c.Checkpoint.Every > 0 || c.Checkpoint.SaveOnExit }

// Workspace returns the bytes that a rank's device allocates for its kernels on the given workers.
func Workspace(c *config.Config, workers int) int64 {
	n, b := len(Queues), kind(c)
	if Saves(c) {
		n++ // the saver's queue
	}
	if Pipeline(c) > 1 {
		n += len(LinkQueues)
	}
	if c.Zero.Offload.Any() && b.DeviceCopies() {
		n += len(HostQueues) - 1
	}
	return b.Workspace(workers, n, sizes(c))
}

// hostWorkspace returns the bytes that a rank's host allocates for kernels of updates.
func hostWorkspace(c *config.Config, workers int) int64 {
	on := len(HostQueues)
	if kind(c).DeviceCopies() {
		on = 1
	}
	if c.Zero.Offload.Disk() {
		on += len(DiskQueues)
	}
	return CPU{}.Workspace(workers, on, device.Sizes{})
}

// DryStep runs a step on a DryRank. It returns the footprint, whose Arena is the sum used, and the
// bytes used of each arena.
func DryStep(j *Job, at int) (f Footprint, arenas []int, err error) {
	t, dev, host, err := DryRank(j, at, func(*zero.Config) {})
	if err != nil {
		return f, nil, err
	}
	t.DryRun()
	return Footprint{Device: dev.Usage().Live, Host: host.Usage().Live, Disk: t.DiskBytes(), Arena: t.ArenaPeak()}, t.ArenaPeaks(), nil
}

// DryPlace returns the footprint of the first rank at a place.
func DryPlace(j *Job, at int) (f Footprint, err error) {
	t, dev, host, err := DryRank(j, at, func(*zero.Config) {})
	if err != nil {
		return f, err
	}
	return Footprint{Device: dev.Usage().Live, Host: host.Usage().Live, Disk: t.DiskBytes(), Arena: t.DryPeak()}, nil
}

// DryRank builds the first rank at a place on a device and a host that only count, with every
// allocation of a run. wrap may modify the trainer's configuration.
func DryRank(j *Job, at int, wrap func(*zero.Config)) (t *zero.Trainer, dev, host *dry.Device, err error) {
	c, workers := j.Config, j.workers()
	if err := c.Lacks(); err != nil {
		return nil, nil, nil, err
	}
	mesh := config.Mesh(c)
	dev, host = &dry.Device{Host: !kind(c).HostApart()}, &dry.Device{Host: true}
	rank := at
	if !c.Parallel.Master {
		rank *= mesh.World() / Pipeline(c)
	}
	z := Trainer(c, rank)
	z.Device, z.Host, z.Compute, z.Comm, z.Update = dev, host, dry.Queue{}, dry.Queue{}, dry.Queue{}
	z.Groups = collective.DryWorld(mesh, rank)
	for i := range z.Pipeline.Queues {
		z.Pipeline.Queues[i] = dry.Queue{}
	}
	z.Offload = c.Zero.Offload.Config()
	z.Offload.Tile = j.Hooks.Tile
	offloads := c.Zero.Offload.Any()
	if !HostApart(c) {
		z.Host = dev
	}
	if offloads {
		q := dry.Queue{}
		z.HostUpdate = q
		z.Offload.ToHost, z.Offload.ToDevice, z.Offload.Read, z.Offload.Write = q, q, q, q
	}
	hostMemory := z.Host
	wrap(&z)
	if t, err = zero.New(z); err != nil {
		return nil, nil, nil, err
	}
	if _, err := hostMemory.Alloc(device.F32, Staged(c, t), device.Snapshot); err != nil {
		return nil, nil, nil, err
	}
	if _, err := host.Alloc(device.F32, WireStagingOf(j)/4, device.Wires); err != nil {
		return nil, nil, nil, err
	}
	for _, n := range Bounce(j, ShardedUnits(t.Units())) {
		if _, err := hostMemory.Alloc(device.F64, n/8, device.Bounce); err != nil {
			return nil, nil, nil, err
		}
	}
	ofUnits, ofActivations := ExactBounce(j, ShardedUnits(t.Units()))
	for _, n := range []int{ofUnits, ofActivations} {
		if _, err := dev.Alloc(device.F32, n/4, device.Bounce); err != nil {
			return nil, nil, nil, err
		}
	}
	if _, err = dev.Alloc(device.F32, int(Workspace(c, workers)/4), device.Workspace); err == nil && offloads {
		_, err = host.Alloc(device.F32, int(hostWorkspace(c, workers)/4), device.Workspace)
	}
	return t, dev, host, err
}

// HostApart reports whether a rank's host memory is accounted separately from its device's,
// because the host cannot address that, or something is offloaded.
func HostApart(c *config.Config) bool { return kind(c).HostApart() || c.Zero.Offload.Any() }
