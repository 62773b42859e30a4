package setup

import (
	"zeroth/collective"
	"zeroth/shard"

	"zeroth/job/spec"
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

// Regroup makes ranks that have stopped because of the loss of others those of the world after a
// change. The numbers of ranks count those that are left.
func Regroup(j *Job, ranks []*Rank, c *Change) {
	j.Connection, j.At = c.Connection, j.World.Self().At
	m, share := MeshOf(j.Job, c.Replicas), spec.Share(j.Job)
	share.Replicas = c.Replicas
	for i, r := range ranks {
		_ = r.Groups.Close() // they have failed
		for _, q := range r.Queues.All() {
			Clear(q)
		}
		r.Rank = j.At.Local[i]
		r.Groups = j.wrap(r.Rank, c.Groups[i], r.Recorder)
		r.lendAgain()
		r.Trainer.Regroup(r.Groups, m, share)
	}
	if c.OnLate != nil {
		c.OnLate(recorders(ranks))
	}
}

// lendAgain gives the memory for reductions to new groups, which have the roles of those before.
func (r *Rank) lendAgain() {
	i := 0
	for role, g := range r.Groups.All() {
		if role >= collective.Shard && role < collective.Forward && i < len(r.bounce) {
			collective.UseBounce(*g, r.bounce[i])
			i++
		}
	}
}
