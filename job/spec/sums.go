package spec

// resolveSums refuses settings with which gradients cannot be summed in a tree.
func (r *resolver) resolveSums() {
	c := r.Job
	if c.Train.Sums != "tree" {
		return
	}
	for _, x := range []struct {
		key   string
		is    bool
		wrong string
	}{
		{"device", c.On() == "cuda", "the tree is computed on CPUs only"},
		{"parallel.pipeline", c.Parallel.Pipeline > 1, "the stages of a pipeline add to the gradients of shared parameters"},
		{"parallel.tensor", c.Parallel.Tensor > 1, "ranks of a tensor group have partial gradients of a micro-batch"},
		{"parallel.context", c.Parallel.Context > 1, "ranks of a context group have partial gradients of a micro-batch"},
		{"parallel.expert", c.Parallel.Expert > 1, "experts have ranks of their own to sum over"},
		{"parallel.master", c.Parallel.Master, "the master sums all gradients alone"},
		{"zero.offload.optimizer", c.Zero.Offload.State(), "sums in host memory have one buffer"},
	} {
		if x.is {
			r.Refuse(x.wrong, "want another value, or train.sums: order", x.key, "train.sums")
		}
	}
}
