package setup

import (
	"fmt"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cuda"
	"zeroth/device/dry"
	"zeroth/job/spec"
	"zeroth/zero"
)

// Dry is a rank on devices that only count, and without other ranks. It has every allocation of a
// run, except those that depend on the operations of a step, which Footprint adds.
type Dry struct {
	*Rank
	job *Job
}

// OpenDry builds the first rank at a place. wrap, which may be nil, may modify the trainer's
// configuration.
func OpenDry(j *Job, at int, wrap func(*zero.Config)) (*Dry, error) {
	if err := j.Job.Lacks(); err != nil {
		return nil, err
	}
	x, mesh, rank := *j, spec.Mesh(j.Job), at
	if !j.Parallel.Master {
		rank *= mesh.World() / Pipeline(j.Job)
	}
	x.backend, x.Shadow = Counting(kind(j.Job)), false
	x.Hooks = Hooks{Tile: j.Hooks.Tile, Workers: j.Hooks.Workers}
	if wrap != nil {
		x.Hooks.WrapTrainer = func(_ int, z *zero.Config) { wrap(z) }
	}
	r, err := newRank(&x, rank, collective.DryWorld(mesh, rank), nil)
	if err == nil {
		err = r.equip(&x, &needs{}, "")
	}
	if err == nil && Saves(j.Job) {
		_, _, err = r.OpenSaves(j.Job)
	}
	return &Dry{r, &x}, err
}

// Footprint returns the rank's memory after a dry run of a step that used arena bytes of arenas on
// the device, and host bytes of those on the host. It adds the memory that the reductions of the
// step need, so call it once.
func (d *Dry) Footprint(arena, host int) Footprint { return d.needs(arena, host).Footprint }

// needs is like Footprint, with all numbers that a real rank gets.
func (d *Dry) needs(arena, host int) *needs {
	n := &needs{arenas: d.Trainer.ArenaPeaks(), bounce: d.Bounce(), adds: d.exactSums()}
	if err := d.lend(d.job, n); err != nil {
		panic(fmt.Sprintf("setup: a device that only counts: %v", err))
	}
	n.Footprint = Footprint{Device: d.Device.Usage().Live, Disk: d.Trainer.DiskBytes(), Arena: arena}
	if d.Host != nil {
		n.Host = d.Host.Usage().Live
		n.Host[device.Activations] = int64(host)
	}
	n.Footprint = n.fitted()
	return n
}

// needs is the memory of a rank that a dry run of a step has determined.
type needs struct {
	Footprint
	arenas []int                   // bytes of each of the trainer's arenas
	bounce map[collective.Role]int // bytes of host memory for reductions in progress
	adds   [2]int                  // bytes of device memory for exact sums over NCCL: of units, and inside modules
}

// dryNeeds returns the needs of the ranks at a place.
func dryNeeds(j *Job, at int) (*needs, error) {
	d, err := OpenDry(Few(j), at, nil)
	if err != nil {
		return nil, err
	}
	d.Trainer.DryRun()
	return d.needs(d.Trainer.ArenaPeak()), nil
}

// Bounce returns the bytes of bounce memory of the rank's groups by role: collective.BounceBytes
// for the reductions of the step so far, in the group of the mesh that needs most. Ranks of one
// process need none.
func (d *Dry) Bounce() (bytes map[collective.Role]int) {
	hosts, m := d.job.At.Hosts, spec.Mesh(d.job.Job)
	bytes = map[collective.Role]int{}
	if hosts == nil {
		return bytes
	}
	for role, g := range d.Groups.All() {
		sums, seen := (*g).(collective.Dry).Sums, map[string]bool{}
		if len(sums) == 0 {
			continue
		}
		for _, g := range collective.RoleGroups(m, role) {
			at := make([]int, len(g))
			for i, r := range g {
				if !d.job.Parallel.Master { // all ranks send to the master, wherever they are
					at[i] = hosts[r]
				}
			}
			key := spread(at)
			for s := range sums {
				if !seen[key] {
					bytes[role] = max(bytes[role], collective.BounceBytes(at, s.N, s.Type))
				}
			}
			seen[key] = true
		}
	}
	return bytes
}

// exactSums returns needs.adds.
func (d *Dry) exactSums() (bytes [2]int) {
	if !AddsExactly(d.job) {
		return bytes
	}
	for role, g := range d.Groups.All() {
		for s := range (*g).(collective.Dry).Sums {
			of := &bytes[0]
			if insideModules(role) {
				of = &bytes[1]
			}
			*of = max(*of, cuda.ExactBounce((*g).Size(), s.N*s.Type.Size()))
		}
	}
	return bytes
}

// spread describes how a group is spread over hosts. Groups with the same pattern on other hosts
// have the same description.
func spread(hosts []int) string {
	first, text := map[int]int{}, make([]byte, 0, 2*len(hosts))
	for _, h := range hosts {
		at, ok := first[h]
		if !ok {
			at = len(first)
			first[h] = at
		}
		text = fmt.Append(text, at, " ")
	}
	return string(text)
}

// lend allocates the memory for the rank's reductions and lends it to its groups.
func (r *Rank) lend(j *Job, n *needs) error {
	for _, bytes := range n.adds {
		if !AddsExactly(j) {
			break
		}
		b, err := r.Device.Alloc(device.F32, bytes/4, device.Bounce)
		if err != nil {
			return err
		}
		r.adds = append(r.adds, b)
	}
	for role := range r.Groups.All() {
		if !reduces(role) {
			continue
		}
		b, err := r.HostMemory().Alloc(device.F64, n.bounce[role]/8, device.Bounce)
		if err != nil {
			return err
		}
		r.bounce = append(r.bounce, b)
	}
	r.useLent()
	return nil
}

// reduces reports whether groups with a role reduce.
func reduces(role collective.Role) bool {
	return role >= collective.Shard && role < collective.Forward
}

// useLent makes the rank's groups, which may be others than before, use the memory for their reductions.
func (r *Rank) useLent() {
	for i, b := range r.adds {
		for _, j := range r.joined {
			if insideModules(j.role) == (i == 1) {
				j.end.AddExactly(b)
			}
		}
	}
	i := 0
	for role, g := range r.Groups.All() {
		if reduces(role) && i < len(r.bounce) {
			collective.UseBounce(*g, r.bounce[i])
			i++
		}
	}
}

// Counting returns a backend of devices that only count, with the properties of another.
func Counting(b Backend) Backend { return counting{b} }

type counting struct{ Backend }

// Open implements Backend.
func (b counting) Open(_, workers int, s device.Sizes, _ int64) (Device, error) {
	return newCounted(!b.HostApart(), func(queues int) int64 { return b.Workspace(workers, queues, s) }), nil
}

// OpenHost implements Backend.
func (b counting) OpenHost(_, workers int) (Device, error) {
	return newCounted(true, func(queues int) int64 { return CPU{}.Workspace(workers, queues, device.Sizes{}) }), nil
}

// counted is a Device that only counts. Its queues do nothing.
type counted struct {
	*dry.Device
	queues int
	work   func(queues int) int64 // bytes of work space
}

func newCounted(host bool, work func(queues int) int64) *counted {
	d := &counted{Device: &dry.Device{Host: host}, work: work}
	d.reserve(work(0))
	return d
}

// reserve counts work space.
func (d *counted) reserve(bytes int64) {
	_, _ = d.Alloc(device.F32, int(bytes/4), device.Workspace) // only counts
}

// NewQueue implements Device.
func (d *counted) NewQueue(QueueRole) Queue {
	d.queues++
	d.reserve(d.work(d.queues) - d.work(d.queues-1))
	return dry.Queue{}
}

// Close implements Device.
func (d *counted) Close() {}
