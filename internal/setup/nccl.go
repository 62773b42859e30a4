package setup

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"zeroth/collective"
	"zeroth/device"
	"zeroth/internal/launch"
	"zeroth/internal/machine"
	"zeroth/job/spec"
)

// joins is implemented by devices with a collective library of their own.
type joins interface {
	// CommunicatorID returns the secret by which the ends of a communicator find each other.
	CommunicatorID() ([]byte, error)
	// Join returns the device's end once all ranks have joined, or the error of stop.
	Join(id []byte, ranks, rank int, stop func() error) (end, error)
}

// end is a rank's end of a communicator.
type end interface {
	collective.Engine
	// AddExactly makes reductions add in rank order, through memory of the devices.
	AddExactly(bounce device.Buffer)
	// Register registers the memory that the communicator reads and writes; alike: all ranks have
	// as much. All ranks must call it concurrently. It returns early with the error of stop.
	Register(alike bool, stop func() error) error
	// Registered describes the registered memory, empty if none.
	Registered() string
}

// alone is the end of a group of one rank, which needs no communicator: it copies.
type alone struct{}

func (alone) AllGather(q device.Queue, whole, own device.Buffer) error {
	if whole.Ptr != own.Ptr {
		q.Copy(whole, own)
	}
	return nil
}

func (a alone) ReduceScatter(q device.Queue, own, whole device.Buffer) error {
	return a.AllGather(q, own, whole)
}
func (alone) Broadcast(device.Queue, device.Buffer) error { return nil }
func (alone) Reduce(device.Queue, device.Buffer) error    { return nil }
func (alone) Pending() bool                               { return false }
func (alone) Err() error                                  { return nil }
func (alone) Abort()                                      {}
func (alone) Close(time.Duration)                         {}
func (alone) AddExactly(device.Buffer)                    {}
func (alone) Register(bool, func() error) error           { return nil }
func (alone) Registered() string                          { return "" }

// AddsExactly reports whether the job's ranks use NCCL but add in rank order. Ranks of one process
// do unless the job insists on NCCL's order.
func AddsExactly(c *Job) bool {
	return c.At.NCCL && (c.Parallel.Collective == "exact" || c.alone() && c.Parallel.Collective != "nccl")
}

// canNCCL returns an error if the job's ranks of one process cannot reduce with NCCL, which needs
// a GPU for each.
func (b CUDA) canNCCL() error {
	on, err := b.ordinals()
	if err != nil {
		return err
	}
	if n := b.at.HostRanks; len(on) < n {
		return fmt.Errorf("%d ranks share %d of this machine's GPUs, but NCCL needs one per rank: %s", n, len(on), wantExact)
	}
	_, err = machine.NCCL()
	return b.needed(err)
}

// needed adds to the reason why there is no NCCL, if err is one, that the GPUs need it.
func (b CUDA) needed(err error) error {
	apart := b.apart()
	if err == nil || apart == "" {
		return err
	}
	return fmt.Errorf("%s, so ranks of one process need NCCL, but %w; or start a process for each GPU with zeroth launch", apart, err)
}

// apart describes two GPUs of the job whose ranks are all of this process and cannot exchange data
// without NCCL, because one cannot address the memory of the other; it is empty if there are none.
func (b CUDA) apart() string {
	on, _ := b.ordinals() // without GPUs nothing runs
	usable, _ := machine.UsableGPUs()
	for _, g := range usable {
		for _, other := range g.Apart {
			if slices.Contains(on, g.Ordinal) && slices.Contains(on, other) {
				return fmt.Sprintf("%v cannot address the memory of GPU %d", g, other)
			}
		}
	}
	return ""
}

const wantExact = "want fewer parallel.ranks, or parallel.collective: exact"

// AddsUp describes the reduction of gradients in a job of one process, if ranks do not add in
// their order; otherwise it is empty.
func AddsUp(c *Job) string {
	if !c.At.NCCL || !c.alone() {
		return "" // several processes have agreed on it and reported it
	}
	lib, _ := machine.NCCL() // Ready has found it
	return lib.AddsUp(AddsExactly(c))
}

// Communicators returns the maximum number of communicators of a rank in a placed job, none
// without NCCL. The group of all ranks has none, because it exchanges host memory, which NCCL does
// not support, and groups of one rank have none.
func Communicators(c *Job) (n int64) {
	if !c.At.NCCL {
		return 0
	}
	groups := collective.DryWorld(spec.Mesh(c.Job), 0) // the first rank has all kinds of groups
	for role, g := range groups.All() {
		if role != collective.World && (*g).Size() > 1 {
			n++
		}
	}
	return n
}

// allAtOnce runs do for every rank concurrently, if the job has communicators. Each call blocks
// until all ranks take part; a process that comes back has no communicators before it joins.
func allAtOnce(c *Job, ranks []*Rank, do func(*Rank) error) error {
	if w, ok := c.World.(Survivor); !c.At.NCCL || ok && w.Late() {
		return nil
	}
	errs := make([]error, len(ranks))
	var all sync.WaitGroup
	for i, r := range ranks {
		all.Go(func() {
			if errs[i] = do(r); errs[i] != nil {
				_ = r.Groups.Close() // so that no rank waits for this one
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

// connect joins the NCCL communicators of the rank's groups in an order consistent over all ranks,
// because joining waits for the others.
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

// register registers the rank's memory with its communicators.
func (r *Rank) register() error {
	for _, j := range r.joined {
		start := time.Now()
		alike := j.role < collective.Forward && j.role != collective.Ends // stages of a pipeline differ
		if err := j.end.Register(alike, r.untilLate(j.group)); err != nil {
			return cmp.Or(collective.EndedSoon(j.group), err)
		}
		if known := j.end.Registered(); known != "" {
			r.Opening = append(r.Opening, device.Span{Label: fmt.Sprintf("%v group: %s", j.role, known), Task: "register memory", Start: start, End: time.Now()})
		}
	}
	return nil
}

// untilLate returns a function for Join and Register that fails after the timeout, or once the
// group has ended.
func (r *Rank) untilLate(g collective.Group) func() error {
	begin := time.Now()
	return func() error {
		if time.Since(begin) > r.timeout {
			return fmt.Errorf("not all of its %d ranks joined within %v", g.Size(), r.timeout)
		}
		return collective.Ended(g)
	}
}

// join returns a group with an NCCL communicator. Its id is sent by the group's rank 0 through the
// group, whose processes have authenticated each other.
func (r *Rank) join(d joins, g collective.Group) (j joined, err error) {
	if g.Size() == 1 {
		return joined{group: collective.NewEngined(g, alone{}), end: alone{}}, nil
	}
	r.Queues[Comm].Label("") // alike on those that come back
	id, err := collective.Introduce(g, r.Queues[Comm], r.timeout, d.CommunicatorID)
	if err != nil {
		return j, err
	}
	if j.end, err = d.Join(id, g.Size(), g.Rank(), r.untilLate(g)); err != nil {
		return j, cmp.Or(collective.EndedSoon(g), err)
	}
	j.group = collective.NewEngined(g, j.end)
	return j, nil
}

// share returns the GPU of the rank at a place among those of this machine.
func (b CUDA) share(at int, on []int) int { return on[launch.GPU(at, b.at.HostRanks, len(on))] }
