package mpi

// Config is a process in a world of equal processes: process p has ranks
// [p × PerProcess, (p+1) × PerProcess), and is MPI's process p.
type Config struct {
	Process, PerProcess int
	Groups              [][]int // world ranks of each group; a group's number is its index
	Hosts               []int   // by process: the number of its host; nil: all have one
	// Hurry, once it is closed, has nobody wait for peers longer than a moment. May be nil.
	Hurry <-chan struct{}
}

// MostPerProcess is how many ranks a process may have: MPI promises 32,768 tags,
// and two processes use two for each two of their ranks and each of at most four
// groups that these are in.
const MostPerProcess = 63
