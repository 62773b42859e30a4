package setup

import (
	"fmt"
	"time"

	"zeroth/job/spec"
	"zeroth/shard"
)

// clearer is a queue that can forget a failure.
type clearer interface{ Clear() }

// Clear waits for a queue's work and forgets its failure.
func Clear(q Queue) { q.(clearer).Clear() }

// MeshOf returns the mesh of a job with some of its replicas.
func MeshOf(c *spec.Job, replicas int) shard.Mesh {
	m := spec.Mesh(c)
	m.Replicate = replicas
	return m
}

// Part ends the groups of ranks that have stopped, and the communicators of GPUs. It returns an error if NCCL hangs in one of
// them; then the process has to end.
func Part(ranks []*Rank) error {
	for _, r := range ranks {
		if err := r.part(); err != nil {
			return err
		}
	}
	return nil
}

// DiskFailed returns the error of a rank's queues to the disk, once they are idle. The groups must have ended.
func (r *Rank) DiskFailed() error {
	for _, q := range []Queue{r.Queues[Read], r.Queues[Write]} {
		if q == nil {
			continue
		}
		if err := q.Wait(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Rank) part() error {
	_ = r.Groups.Close() // closing twice is fine
	for _, j := range r.joined {
		for !j.group.Wait(100 * time.Millisecond) {
			if err := r.hangs(); err != nil {
				return err
			}
		}
	}
	r.joined = nil
	return nil
}

// hangs returns an error, and abandons the rank, if NCCL does not abort one of its communicators.
func (r *Rank) hangs() error {
	for _, j := range r.joined {
		if j.group.Hangs(r.dead) {
			r.Lost.Store(true)
			return fmt.Errorf("rank %d: NCCL has not aborted the communicator of its %v group within %v (parallel.dead_after)", r.Rank, j.role, r.dead)
		}
	}
	return nil
}

// Regroup makes ranks that have parted those of the world after a change. The numbers of ranks count those that are left.
// An error may be caused by another loss.
func Regroup(j *Job, ranks []*Rank, c *Change) error {
	j.Connection, j.At = c.Connection, j.World.Self().At
	m, share := MeshOf(j.Job, c.Replicas), spec.Share(j.Job)
	share.Replicas = c.Replicas
	for i, r := range ranks {
		for _, q := range r.Queues.All() {
			Clear(q)
		}
		r.Rank, r.Groups = j.At.Local[i], c.Groups[i]
	}
	if err := allAtOnce(j, ranks, (*Rank).connect); err != nil {
		return err
	}
	for _, r := range ranks {
		r.Groups = j.wrap(r.Rank, r.Groups, r.Recorder)
		r.useWires()
		r.useLent()
		r.Trainer.Regroup(r.Groups, m, share)
	}
	if c.OnLate != nil {
		c.OnLate(recorders(ranks))
	}
	return allAtOnce(j, ranks, (*Rank).register)
}
