package setup

import (
	"cmp"
	"context"
	"runtime"

	"zeroth/checkpoint"
	"zeroth/checkpoint/store"
	"zeroth/checkpoint/vfs"
	"zeroth/collective"
	"zeroth/collective/rendezvous"
	"zeroth/device/cpu"
	"zeroth/internal/machine"
	"zeroth/job/hf"
	"zeroth/job/spec"
	"zeroth/shard"
)

// ThisMachine describes this machine, for a job in the given number of processes with the given ranks
// each; 0 leaves the choice to the job.
func ThisMachine(processes, ranks int) spec.Environment {
	gpus, _ := machine.UsableGPUs() // none on an error
	return spec.Environment{Processes: processes, Ranks: ranks, GPUs: len(gpus)}
}

// Job is a job with its placement at run time: where its ranks are and what connects them.
type Job struct {
	*spec.Job
	At    collective.Placement // of the ranks
	World World                // nil: the job is only planned
	Hooks Hooks                // of tests
	Hold  *checkpoint.Hold     // lock on the folder of checkpoints; nil: each save takes its own

	Algorithms *Algorithms // of products; nil: cuBLAS chooses

	Shadow bool // compare every GPU operation with the CPU's kernels

	Connection *Connection // of open ranks
	Carried    hf.Carried  // saved with the model in checkpoints and exports

	backend Backend // of its ranks; nil: the one that the job asks for
}

// ModelJSON returns config.json of the job's model with float32 parameters, based on that of
// model.from. It returns nil for a network given by the caller.
func (j *Job) ModelJSON() []byte {
	switch {
	case j.Own.Model != nil:
		return nil
	case j.Carried.Config == nil:
		return j.Model.ConfigJSON()
	}
	return hf.ExportedConfig(j.Carried.Config, checkpoint.F32)
}

// InWorld returns the job in a world.
func InWorld(c *spec.Job, w World, h Hooks) *Job {
	at := w.Self().At
	if at.Local == nil {
		at = collective.InOneProcess(c.Parallel.Ranks)
	}
	j := &Job{Job: c, At: at, World: w, Hooks: h, Carried: c.Folder}
	if j.alone() && c.On() == "cuda" {
		j.At.NCCL = at.NCCL || c.Parallel.Collective == "nccl" || !c.Parallel.Master && newCUDA(j).apart() != ""
	}
	if j.At.NCCL { // NCCL needs no bounce memory
		j.At.Hosts = nil
	}
	return j
}

// Planned returns the job for a plan with unknown placement.
func Planned(c *spec.Job) *Job {
	return &Job{Job: c, At: collective.InOneProcess(c.Parallel.Ranks), Carried: c.Folder}
}

// Local returns the job with all ranks in this process.
func Local(c *spec.Job) *Job { return InWorld(c, Alone{}, Hooks{}) }

// alone reports whether all ranks are in this process.
func (j *Job) alone() bool { return len(j.At.Local) == j.Parallel.Ranks }

// Unplaced reports whether the placement of the ranks is unknown.
func (j *Job) Unplaced() bool { return j.alone() && !j.At.NCCL && j.At.Hosts == nil }

// workers returns the number of processors for each rank's kernels.
func (j *Job) workers() int { return cmp.Or(j.Hooks.Workers, shareOf(j.At.HostRanks)) }

// Files returns the file system for offloading and checkpoints.
func (j *Job) Files() vfs.ScratchFS {
	if j.Hooks.Files == nil {
		return store.Files{}
	}
	return j.Hooks.Files
}

// World is the set of processes of a run. Process 0 has rank 0, writes the run folder and reports
// progress. Other packages need not know whether all ranks are in this process.
type World interface {
	// Self returns this process's view of the world.
	Self() Self
	// Connect connects the ranks of this process with all others.
	Connect(m shard.Mesh) (*Connection, error)
	// Agree returns an error on all processes if they state different facts.
	Agree(context.Context, []rendezvous.Fact) error
	// Share returns the string that process 0 passes.
	Share(ctx context.Context, mine string) (string, error)
	// Fail reports to the others why this process ends, if it is the cause.
	Fail(error)
	// Explain adds known details about lost peers to an error.
	Explain(error) error
}

// Survivor is a World that goes on when replicas are lost.
type Survivor interface {
	World
	// Survive agrees with the processes that are left. All ranks of this process have stopped, and
	// wait.
	Survive(ctx context.Context, s Standing) (*Change, error)
	// Wanted reports whether processes that come back wait for a change to be taken in, which this process
	// would lead. The first call admits them: training has begun.
	Wanted() bool
	// Late reports whether this process comes back, and has to Survive to join the others. Until then, it hears what they have
	// said to each other when they began.
	Late() bool
}

// Left is the error of a process that does not go on. It matches collective.ErrClosed.
type Left struct {
	Why    string
	Others bool // may go on without it
}

func (l Left) Error() string { return l.Why }

// Is implements the interface of errors.Is.
func (Left) Is(target error) bool { return target == collective.ErrClosed }

// BetweenSteps is the Duty of ranks that have done all that follows a step.
const BetweenSteps = 3

// Standing is how far a process has come.
type Standing struct {
	Steps   int    // done
	Duty    int    // of those that follow a step: how many are done
	Verdict string // on the last step, see zero.Trainer
	Filled  bool   // it has joined, and got the state of the others
	// Recorded returns the epoch of the last change that the run folder records.
	Recorded func() (int, error)
}

// Change is the agreement of the processes that are left. Those with fewer Steps have computed the
// last one, but have not heard all others.
type Change struct {
	Standing
	Epoch    int
	Replicas int
	Guests   bool  // some have no state: the others give it to them, and survive once more
	Lost     []int // ranks that are in no replica any more, by their first numbers
	Joined   []int // ranks that are again, likewise
	Pids     []int // of their processes, as far as they run on a host of this one's name
	*Connection
}

// Self is a process's view of its world. The zero value is a world of one.
type Self struct {
	Process int
	Session string               // unique to each start of a world
	At      collective.Placement // of the ranks; the zero value: all are here
	Hosts   []string             // host name of each rank; nil: all are here
	Ended   <-chan struct{}      // closed when a process was lost or has failed
	Dump    func()               // asks all processes to dump the last operations of their ranks; each of them, including this one, receives from Dumps
	Dumps   <-chan struct{}
}

// Alone reports whether this process is the whole world.
func (s Self) Alone() bool { return s.Session == "" }

// Connection connects the ranks of this process with the others.
type Connection struct {
	Groups []collective.Ranks // in the order of the ranks, which close them
	// Saves opens another group of all ranks, for checkpoints during training. The ranks close it.
	Saves func() []collective.Group
	// Memory allocates send buffers of groups where processes of the same host can read them; nil:
	// anywhere.
	Memory cpu.Memory
	// OnLate connects the ranks' recorders. When an operation is late, they ask all ranks whom they
	// wait for, and they answer such questions; nil: unsupported.
	OnLate func([]*collective.Recorder)
}

// Alone is the World of a job whose ranks are goroutines of this process. They share memory.
type Alone struct{}

// Self implements World.
func (Alone) Self() Self { return Self{} }

// Agree implements World. There is no other process.
func (Alone) Agree(context.Context, []rendezvous.Fact) error { return nil }

// Share implements World.
func (Alone) Share(_ context.Context, mine string) (string, error) { return mine, nil }

// Fail implements World. There is no other process.
func (Alone) Fail(error) {}

// Explain implements World.
func (Alone) Explain(err error) error { return err }

// Connect implements World.
func (Alone) Connect(m shard.Mesh) (*Connection, error) {
	return &Connection{Groups: collective.LocalWorld(m), OnLate: collective.OnLateLocal, Saves: func() (groups []collective.Group) {
		for _, g := range collective.NewLocal(m.World()) {
			groups = append(groups, g)
		}
		return groups
	}}, nil
}

// Workers returns the number of processors for each rank's kernels if all ranks share the machine.
func Workers(c *spec.Job) int { return shareOf(c.Parallel.Ranks) }

// shareOf returns one rank's share of the processors.
func shareOf(ranks int) int { return max(1, usable/ranks) }

// usable is the number of processors available to this process, before it leaves some to other
// processes of its host.
var usable = runtime.GOMAXPROCS(0)
