package setup

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/device/cuda"
	"zeroth/job/config"
	"zeroth/job/launch"
	"zeroth/job/machine"
	"zeroth/optim"
	"zeroth/shard"
)

// joins is a device whose ranks have collectives of a library of their own.
type joins interface {
	// CommunicatorID is what the ends of a communicator find each other by: a secret.
	CommunicatorID() ([]byte, error)
	// Join is the device's end of one, once all have come, or when stop says why not.
	Join(id []byte, ranks, rank int, stop func() error) (end, error)
}

// end is a rank's end of a communicator.
type end interface {
	collective.Engine
	// AddExactly has ranks add up in their order, by way of memory of their devices.
	AddExactly(bounce device.Buffer)
	// Register makes the device's memory known that the communicator reads and writes,
	// all ranks at once, or returns when stop says why not.
	Register(stop func() error) error
	// Registered is what is known, in words; empty if nothing is.
	Registered() string
}

// addsExactly says whether the job's ranks add up in their order what NCCL moves.
func addsExactly(c *Job) bool {
	return c.At.NCCL && c.Parallel.Collective == "exact"
}

// ExactBounce returns the bytes of memory of a rank's device through which it adds up so: what
// units have, on one queue, and the activations of ranks that divide matrices, on another.
func ExactBounce(c *Job, units []Sharded) (ofUnits, ofActivations int) {
	if !addsExactly(c) {
		return 0, 0
	}
	m, rules := config.Mesh(c.Config), Rules(c.Optimizer)
	for _, u := range units {
		if u.Frozen {
			continue
		}
		part := 4 * u.Part
		ofUnits = max(ofUnits, cuda.ExactBounce(u.Shard, part), cuda.ExactBounce(u.Replica, part/u.Replica))
		if r, ok := rules[u.Rule].(optim.Whole); ok && m.Tensor > 1 && !u.Whole {
			ofUnits = max(ofUnits, cuda.ExactBounce(m.Tensor, r.Input().Size()*u.Part*u.Shard))
		}
	}
	if m.Tensor > 1 {
		ofActivations = cuda.ExactBounce(m.Tensor, c.Precision.Size()*activations(c.Config))
	}
	if m.Context > 1 {
		ofActivations = max(ofActivations, cuda.ExactBounce(m.Context, device.F32.Size()*keys(c.Config)))
	}
	return ofUnits, ofActivations
}

// activations returns how many elements of the residual stream a rank has.
func activations(c *config.Config) int {
	return c.Train.MicroBatch * c.Model.Context / config.Mesh(c).Size(shard.Context, shard.Tensor) * c.Model.Width
}

// keys returns how many elements of keys and values a rank has of a layer.
func keys(c *config.Config) int {
	m := config.Mesh(c)
	heads := c.Model.KV
	if c.Model.Family == "gpt2" {
		heads = c.Model.Heads
	}
	return c.Train.MicroBatch * c.Model.Context / m.Size(shard.Context) * 2 * heads / m.Size(shard.Tensor) * c.Model.Head()
}

// canNCCL is nil where the job's ranks of one process can add up by NCCL, which wants
// a GPU for each.
func (b CUDA) canNCCL() error {
	on, err := b.ordinals()
	if err != nil {
		return err
	}
	if n := b.at.HostRanks; len(on) < n {
		return fmt.Errorf("%d ranks share %d of this machine's GPUs, and NCCL wants one for each: %s", n, len(on), wantExact)
	}
	_, err = machine.NCCL()
	return err
}

const wantExact = "want fewer parallel.ranks, or parallel.collective: exact"

// AddsUp says who adds up gradients where that is not the ranks in their order, for a
// job of one process; else it is empty.
func AddsUp(c *Job) string {
	if !c.At.NCCL || !c.alone() {
		return "" // several processes have agreed on it, and said so
	}
	lib, _ := machine.NCCL() // Ready has found it
	return lib.AddsUp(false)
}

// Communicators is how many ranks each communicator of a rank of a placed job has at most: none
// where NCCL moves nothing. The group
// of all ranks exchanges what is in host memory, which NCCL does not move.
func Communicators(c *Job) (ranks []int) {
	if !c.At.NCCL {
		return nil
	}
	m := config.Mesh(c.Config)
	share, same := m.Holders()
	ranks = []int{m.Size(share...), m.Size(same...)}
	if m.Tensor > 1 {
		ranks = append(ranks, m.Tensor, m.Tensor, m.Size(collective.JointAxes(m)...))
	}
	if m.Context > 1 {
		ranks = append(ranks, m.Context)
	}
	if m.Pipeline > 1 {
		ranks = append(ranks, 2*m.Size(same...), 2, 2, 2, 2)
	}
	return ranks
}

// connect gives the groups of ranks that add up by NCCL their communicators.
func connect(c *Job, ranks []*Rank) error { return allAtOnce(c, ranks, (*Rank).connect) }

// register makes the ranks' memory known to their communicators.
func register(c *Job, ranks []*Rank) error { return allAtOnce(c, ranks, (*Rank).register) }

// allAtOnce does for all ranks of a job with communicators what each waits for the others
// in.
func allAtOnce(c *Job, ranks []*Rank, do func(*Rank) error) error {
	if !c.At.NCCL {
		return nil
	}
	errs := make([]error, len(ranks))
	var all sync.WaitGroup
	for i, r := range ranks {
		all.Go(func() {
			if errs[i] = do(r); errs[i] != nil {
				_ = r.Groups.Close() // so that nobody waits for this rank
			}
		})
	}
	all.Wait()
	for i, err := range errs {
		if err != nil && !errors.Is(err, collective.ErrClosed) {
			return fmt.Errorf("rank %d: %w", ranks[i].Rank, err)
		}
	}
	return errors.Join(errs...)
}

// connect joins communicators in an order that is a part of one order of all: who joins waits
// for the others.
func (r *Rank) connect() error {
	d, ok := r.Device.(joins)
	if !ok {
		panic(fmt.Sprintf("setup: NCCL on a %T", r.Device))
	}
	for role, g := range r.Groups.Ordered() {
		if role == collective.World {
			continue
		}
		at, err := r.join(d, *g)
		if err != nil {
			return fmt.Errorf("communicator of its %v group: %w", role, err)
		}
		at.role = role
		r.joined = append(r.joined, at)
		*g = at.group
	}
	return nil
}

// joined is a group and its end of a communicator.
type joined struct {
	role  collective.Role
	group *collective.Engined
	end   end
}

func (r *Rank) register() error {
	for _, j := range r.joined {
		start := time.Now()
		if err := j.end.Register(r.untilLate(j.group)); err != nil {
			return err
		}
		if known := j.end.Registered(); known != "" {
			r.Opening = append(r.Opening, device.Span{Label: fmt.Sprintf("%v group: %s", j.role, known), Task: "register memory", Start: start, End: time.Now()})
		}
	}
	return nil
}

// untilLate is how long a rank waits for the others of a group at its beginning: until not
// all have come in time, or the group has ended.
func (r *Rank) untilLate(g collective.Group) func() error {
	begin := time.Now()
	return func() error {
		if time.Since(begin) > r.timeout {
			return fmt.Errorf("not all of its %d ranks have come within %v", g.Size(), r.timeout)
		}
		return collective.Ended(g)
	}
}

// join is a group with a communicator of NCCL's. Its id comes from the group's rank 0,
// through the group, whose processes know each other.
func (r *Rank) join(d joins, g collective.Group) (j joined, err error) {
	id, err := collective.Introduce(g, r.Queues[1], r.timeout, d.CommunicatorID)
	if err != nil {
		return j, err
	}
	if j.end, err = d.Join(id, g.Size(), g.Rank(), r.untilLate(g)); err != nil {
		return j, err
	}
	j.group = collective.NewEngined(g, j.end)
	return j, nil
}

// share is the GPU of the rank at a place among those of this machine.
func (b CUDA) share(at int, on []int) int { return on[launch.GPU(at, b.at.HostRanks, len(on))] }
