package spec

import (
	"fmt"
	"slices"

	"zeroth/shard"
)

// misfit is a setting that a job cannot have together with another.
type misfit struct {
	is          bool
	wrong, want string
	keys        []string
}

// refuseBeside refuses settings that a key cannot be combined with. Without the key, the job could have them.
func (r *resolver) refuseBeside(key, without string, all []misfit) {
	for _, x := range all {
		if x.is {
			r.Refuse(x.wrong, "want "+x.want+", or "+without, slices.Concat(x.keys, []string{key})...)
		}
	}
}

// resolveFaults refuses settings with which a run cannot go on without some of its replicas.
func (r *resolver) resolveFaults() {
	c := r.Job
	if !c.Faults.Survive {
		return
	}
	n := Mesh(c).Size(shard.Replicate)
	r.refuseBeside("faults.survive", "faults.survive: false", []misfit{
		{n < 2, "there is only one replica, so the state of lost ranks is nowhere else", "at least 2 replicas", []string{"parallel.replicate"}},
		{n >= 2 && c.Faults.MinReplicas >= n, fmt.Sprintf("none of %d replicas may be lost", n), fmt.Sprintf("at most %d", n-1), []string{"faults.min_replicas"}},
		{n == 2 && c.Faults.LeaveBehind > 0, "one of 2 replicas is no majority without the slow one", "leave_behind: 0", []string{"faults.leave_behind"}},
		{c.Parallel.Transport == "mpi", "MPI ends all processes with the first", "transport: auto", []string{"parallel.transport"}},
		{c.Parallel.Master, "only the master has the state", "master: false", []string{"parallel.master"}},
		{c.PipelineShape().Virtual > 1, "with fewer replicas, a rank's micro-batches may be no multiple of the ranks of the pipeline", "another schedule", []string{"pipeline.schedule", "pipeline.virtual"}},
		{c.Train.Delayed, "an update that overlaps with the next step cannot be separated from it", "delayed_update: false", []string{"train.delayed_update"}},
	})
}

// resolveSums refuses settings with which gradients cannot be summed in a tree.
func (r *resolver) resolveSums() {
	c := r.Job
	if c.Train.Sums != "tree" {
		return
	}
	const partial = "its ranks have only a part of a micro-batch's gradients"
	r.refuseBeside("train.sums", "train.sums: order", []misfit{
		{c.On() == "cuda", "the tree is computed on CPUs only", "device: cpu", []string{"device"}},
		{c.Parallel.Pipeline > 1, "the stages of a pipeline add to the gradients of shared parameters", "pipeline: 1", []string{"parallel.pipeline"}},
		{c.Parallel.Tensor > 1, partial, "tensor: 1", []string{"parallel.tensor"}},
		{c.Parallel.Context > 1, partial, "context: 1", []string{"parallel.context"}},
		{c.Parallel.Expert > 1, "experts have ranks of their own to sum over", "expert: 1", []string{"parallel.expert"}},
		{c.Parallel.Master, "the master sums all gradients alone", "master: false", []string{"parallel.master"}},
		{c.Zero.Offload.State(), "sums in host memory have one buffer", "none", offloads[:2]},
	})
}

// offloads are the keys that offload something.
var offloads = []string{"zero.offload.optimizer", "zero.offload.parameters", "zero.offload.activations"}
