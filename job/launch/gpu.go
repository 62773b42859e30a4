package launch

// GPU is which of so many GPUs a rank of a machine has, by its place among the
// machine's ranks: they share them evenly and in order. The machine's ranks use no
// more GPUs than they are.
func GPU(at, ranks, gpus int) int { return at * min(gpus, ranks) / ranks }
