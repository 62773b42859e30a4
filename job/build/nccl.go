package build

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"zeroth/collective"
	"zeroth/job/config"
	"zeroth/job/launch"
	"zeroth/job/machine"
)

// joins is a device whose ranks have collectives of a library of their own.
type joins interface {
	// CommunicatorID is what the ends of a communicator find each other by: a secret.
	CommunicatorID() ([]byte, error)
	// Join is the device's end of one, once all have come, or when stop says why not.
	Join(id []byte, ranks, rank int, stop func() error) (collective.Engine, error)
}

// canNCCL is nil where the job's ranks of one process can add up by NCCL, which wants
// a GPU for each.
func (b CUDA) canNCCL() error {
	on, err := b.ordinals()
	if err != nil {
		return err
	}
	if len(on) < b.ranks {
		return fmt.Errorf("%d ranks share %d of this machine's GPUs, and NCCL wants one for each: %s", b.ranks, len(on), wantExact)
	}
	_, err = machine.NCCL()
	return err
}

const wantExact = "want fewer parallel.ranks, or parallel.collective: exact"

// AddsUp says who adds up gradients where that is not the ranks in their order, for a
// job of one process; else it is empty.
func AddsUp(c *config.Config) string {
	if h := c.Parallel.Here; !h.NCCL || h.Ranks > 0 {
		return "" // several processes have agreed on it, and said so
	}
	lib, _ := machine.NCCL() // Ready has found it
	return lib.AddsUp()
}

// connect gives the groups of ranks that add up by NCCL their communicators: all ranks
// at once, for each waits for the others.
func connect(c *config.Config, ranks []*Rank) error {
	if !c.Parallel.Here.NCCL {
		return nil
	}
	errs := make([]error, len(ranks))
	var all sync.WaitGroup
	for i, r := range ranks {
		all.Go(func() {
			if errs[i] = r.connect(); errs[i] != nil {
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

func (r *Rank) connect() error {
	d, ok := r.Device.(joins)
	if !ok {
		panic(fmt.Sprintf("build: NCCL on a %T", r.Device))
	}
	for _, of := range []struct {
		name string
		g    *collective.Group
	}{{"shard", &r.Groups.Shard}, {"replica", &r.Groups.Replica}} {
		e, err := r.join(d, *of.g)
		if err != nil {
			return fmt.Errorf("communicator of its %s group: %w", of.name, err)
		}
		r.engined = append(r.engined, e)
		*of.g = e
	}
	return nil
}

// join is a group with a communicator of NCCL's. Its id comes from the group's rank 0,
// through the group, whose processes know each other.
func (r *Rank) join(d joins, g collective.Group) (*collective.Engined, error) {
	id, err := collective.Introduce(g, r.Queues[1], r.timeout, d.CommunicatorID)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	end, err := d.Join(id, g.Size(), g.Rank(), func() error {
		if time.Since(begin) > r.timeout {
			return fmt.Errorf("not all of its %d ranks have come within %v", g.Size(), r.timeout)
		}
		return collective.Ended(g)
	})
	if err != nil {
		return nil, err
	}
	return collective.NewEngined(g, end), nil
}

// share is the GPU of the rank at a place among those of this machine.
func (b CUDA) share(at int, on []int) int { return on[launch.GPU(at, b.ranks, len(on))] }
