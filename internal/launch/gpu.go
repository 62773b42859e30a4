package launch

// GPU returns the GPU of a rank, given its position among the machine's ranks, which share the
// GPUs evenly and in order. Ranks never use more GPUs than there are ranks.
func GPU(at, ranks, gpus int) int { return at * min(gpus, ranks) / ranks }
