package spec

import (
	"fmt"

	"zeroth/internal/input/s3"
	"zeroth/shard"
)

// resolveFaults refuses settings with which a run cannot go on without some of its replicas.
func (r *resolver) resolveFaults() {
	c := r.Job
	if !c.Faults.Survive {
		return
	}
	n := Mesh(c).Size(shard.Replicate)
	for _, x := range []struct {
		key   string
		is    bool
		wrong string
	}{
		{"parallel.replicate", n < 2, "there is only one replica, so the state of lost ranks is nowhere else"},
		{"faults.min_replicas", n >= 2 && c.Faults.MinReplicas >= n, fmt.Sprintf("none of %d replicas may be lost", n)},
		{"device", c.On() == "cuda", "communicators of GPUs do not survive the loss of a rank"},
		{"parallel.transport", c.Parallel.Transport == "mpi", "MPI ends all processes with the first"},
		{"parallel.expert", c.Parallel.Expert > 1, "experts are divided for the whole run"},
		{"train.router_aux", c.Train.RouterAux > 0, "what routers do is not part of the result with which ranks finish a step"},
		{"parallel.master", c.Parallel.Master, "only the master has the state"},
		{"parallel.pipeline", c.Parallel.Pipeline > 1, "schedules of pipelines are fixed for a run"},
		{"optimizer.type", c.Optimizer.Type == "muon", "Muon divides whole matrices among all replicas for the whole run"},
		{"zero.offload.optimizer", c.Zero.Offload.Any(), "offloaded state is not prepared for a step that is computed again"},
		{"train.delayed_update", c.Train.Delayed, "an update that overlaps with the next step cannot be separated from it"},
		{"checkpoint.dir", s3.Is(c.Checkpoint.Dir), "uploads end with the process that holds the bucket's lease"},
	} {
		if x.is {
			r.Refuse(x.wrong, "want another value, or faults.survive: false", x.key, "faults.survive")
		}
	}
}
