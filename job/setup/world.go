package setup

import (
	"cmp"
	"context"
	"runtime"

	"zeroth/checkpoint"
	"zeroth/checkpoint/vfs"
	"zeroth/collective"
	"zeroth/collective/rendezvous"
	"zeroth/device/cpu"
	"zeroth/job/config"
	"zeroth/job/hf"
	"zeroth/job/machine"
	"zeroth/shard"
)

// Here is this machine, for a job in so many processes of so many ranks each; 0: as the
// job has it.
func Here(processes, ranks int) config.Here {
	gpus, _ := machine.UsableGPUs() // none, if there is an error
	return config.Here{Processes: processes, Ranks: ranks, GPUs: len(gpus)}
}

// Job is a job with what a run finds out: where its ranks are, and what connects them.
type Job struct {
	*config.Config
	At    collective.Placement // of the ranks
	World World                // nil: the job is planned, not run
	Hooks Hooks                // of tests
	Hold  *checkpoint.Hold     // of the folder of checkpoints; nil: each save takes its own

	Algorithms *Algorithms // that products have; nil: cuBLAS chooses

	Shadow bool // compare every operation of a GPU with the CPU's kernels

	Connection *Connection // of ranks that are open
	Carried    hf.Carried  // what goes with the model into checkpoints and exports
}

// ModelJSON is config.json of the job's model with parameters in float32: that
// of the folder it came from, if it came from one; nil of a network of the caller.
func (j *Job) ModelJSON() []byte {
	switch {
	case config.Given(j.Config):
		return nil
	case j.Carried.Config == nil:
		return j.Model.ConfigJSON()
	}
	return hf.ExportedConfig(j.Carried.Config, checkpoint.F32)
}

// Place is the job in a world.
func Place(c *config.Config, w World, h Hooks) *Job {
	at := w.Self().At
	if at.Local == nil {
		at = collective.InOneProcess(c.Parallel.Ranks)
	}
	if len(at.Local) == c.Parallel.Ranks {
		at.NCCL = at.NCCL || c.On() == "cuda" && c.Parallel.Collective == "nccl"
	}
	if at.NCCL { // what it moves does not bounce
		at.Hosts = nil
	}
	return &Job{Config: c, At: at, World: w, Hooks: h, Carried: c.Folder}
}

// Planned is the job for a plan, of which nobody has said how its ranks are spread.
func Planned(c *config.Config) *Job {
	return &Job{Config: c, At: collective.InOneProcess(c.Parallel.Ranks), Carried: c.Folder}
}

// Local is the job with all ranks in this process.
func Local(c *config.Config) *Job { return Place(c, Alone{}, Hooks{}) }

// alone says whether all ranks are in this process.
func (j *Job) alone() bool { return len(j.At.Local) == j.Parallel.Ranks }

// Unplaced says whether nothing was found out of where ranks are.
func (j *Job) Unplaced() bool { return j.alone() && !j.At.NCCL && j.At.Hosts == nil }

// workers is how many processors a rank's kernels are split over.
func (j *Job) workers() int { return cmp.Or(j.Hooks.Workers, shareOf(j.At.HostRanks)) }

// Files is the file system of what the job offloads to disk and of its checkpoints.
func (j *Job) Files() vfs.ScratchFS {
	if j.Hooks.Files == nil {
		return vfs.OS{}
	}
	return j.Hooks.Files
}

// World is the processes of a run. Process 0 has rank 0, writes the run folder and tells
// what happens. No code above asks whether all ranks live in this process.
type World interface {
	// Self returns what this process knows of the world.
	Self() Self
	// Connect connects the ranks of this process with all others.
	Connect(m shard.Mesh) (*Connection, error)
	// Agree is an error, on all, if the processes state different facts.
	Agree(context.Context, []rendezvous.Fact) error
	// Share is what process 0 passes to it.
	Share(ctx context.Context, mine string) (string, error)
	// Fail tells the others why this process ends, if the reason is its own.
	Fail(error)
	// Explain adds what is known of who was lost.
	Explain(error) error
}

// Self is what a process knows of its world. The zero value is of a world of one.
type Self struct {
	Process int
	Session string               // a name that no other start of a world has
	At      collective.Placement // of the ranks; the zero value: all are here
	Hosts   []string             // of the ranks, by name; nil: all are here
	Ended   <-chan struct{}      // closed when a process was lost or has failed
	Dump    func()               // asks all processes to dump what their ranks did last: each, this one too, receives that from Dumps
	Dumps   <-chan struct{}
}

// Alone says whether the world is this process.
func (s Self) Alone() bool { return s.Session == "" }

// Connection is what the ranks of this process reach the others by.
type Connection struct {
	Groups []collective.Ranks // in the order of the ranks, which close them
	// Saves opens one more group of all ranks, in which checkpoints are made during
	// training; likewise.
	Saves func() []collective.Group
	// Memory is where ranks allocate what their groups send, so that processes of one
	// host can read it; nil: anywhere.
	Memory cpu.Memory
	// OnLate makes the recorders of the ranks ask all ranks whom they wait for when an
	// operation is late, and answer when others ask; nil: nobody asks.
	OnLate func([]*collective.Recorder)
}

// Alone is the World of a job whose ranks are goroutines of this process. They reach
// each other's memory.
type Alone struct{}

// Self implements World.
func (Alone) Self() Self { return Self{} }

// Agree implements World: there is nobody who could differ.
func (Alone) Agree(context.Context, []rendezvous.Fact) error { return nil }

// Share implements World.
func (Alone) Share(_ context.Context, mine string) (string, error) { return mine, nil }

// Fail implements World: there is nobody to tell.
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

// Workers is how many of the machine's processors a rank's kernels are split
// over where all ranks of the job share them.
func Workers(c *config.Config) int { return shareOf(c.Parallel.Ranks) }

// shareOf is one rank's share of the processors among so many.
func shareOf(ranks int) int { return max(1, usable/ranks) }

// usable is how many processors the process may use, before it has left some to others of
// its host.
var usable = runtime.GOMAXPROCS(0)
