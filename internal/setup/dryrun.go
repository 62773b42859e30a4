package setup

import (
	"zeroth/collective"
	"zeroth/device"
	"zeroth/job/spec"
	"zeroth/shard"
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
	few := Few(j)
	for at := range RankKinds(j.Job) {
		d, err := OpenDry(few, at, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, d.Footprint(d.Trainer.DryPeak()))
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

// Pipeline returns the number of ranks that divide the job's layers.
func Pipeline(c *spec.Job) int { return max(1, spec.Mesh(c).Pipeline) }

// RankKinds returns the number of kinds of ranks, by what they allocate and do. There is one for each
// place in the pipeline; with a master there are two, the master and the others.
func RankKinds(c *spec.Job) int {
	if c.Parallel.Master {
		return min(2, c.Parallel.Ranks)
	}
	return Pipeline(c)
}

// RankKind returns the kind of a rank, below RankKinds.
func RankKind(c *spec.Job, rank int) int {
	if c.Parallel.Master {
		return min(1, rank)
	}
	return spec.Mesh(c).At(rank, shard.Pipeline)
}

// Few returns the job with the micro-batches of a step that a dry run needs.
func Few(j *Job) *Job { return Micros(j, FewOf(j.Job)) }

// FewOf returns how many those are: with a tree of sums all, which determine its depth.
func FewOf(c *spec.Job) int {
	if c.Train.Sums == "tree" {
		return c.Train.Accumulate
	}
	return c.PipelineShape().Few()
}

// Micros returns the job with at most n micro-batches per step.
func Micros(j *Job, n int) *Job {
	x := *j
	x.Job = j.Job.Copy()
	if n >= x.Train.Accumulate {
		return &x // with its uneven shares
	}
	x.Train.Accumulate = n
	x.Train.Batch = x.Train.MicroBatch * x.Train.Accumulate * x.Parallel.DataRanks()
	return &x
}

// fitted returns the footprint with an arena of the size used.
func (f Footprint) fitted() Footprint {
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
func OnMachine(c *spec.Job) func(Footprint) int64 {
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

// WireStaging is the bytes of host memory through which a rank's collectives reach other
// processes, if the host cannot address the device.
const WireStaging = 32 << 20

// StagingShare returns the bytes of WireStaging that each of the job's groups uses.
func StagingShare(c *Job) int {
	groups := collective.DryWorld(spec.Mesh(c.Job), 0)
	_, bytes := staging(&groups)
	return bytes
}

// staging returns the part of the staging memory that each of a rank's groups uses, in the order of
// Ranks.All, and the bytes of a part. Groups of one queue share a part: those of units, those inside
// modules, and each link of a pipeline.
func staging(g *collective.Ranks) (of []int, bytes int) {
	inside, n := 0, 1
	for role := range g.All() {
		at := 0
		if link := role >= collective.Forward; link || insideModules(role) && inside == 0 {
			at, n = n, n+1
		}
		if insideModules(role) {
			inside = max(inside, at)
			at = inside
		}
		of = append(of, at)
	}
	return of, WireStaging / n &^ (1<<12 - 1)
}

// Saves reports whether the job makes checkpoints.
func Saves(c *spec.Job) bool {
	k := c.Checkpoint
	return k.Every > 0 || k.Interval > 0 || k.SaveOnExit || c.Train.Best()
}

// HostApart reports whether a rank's host memory is accounted separately from its device's,
// because the host cannot address that, or something is offloaded.
func HostApart(c *spec.Job) bool { return kind(c).HostApart() || c.Zero.Offload.Any() }
