package mpi

// Config describes a process in a world of equal processes: process p has ranks [p × PerProcess,
// (p+1) × PerProcess), and is MPI's process p.
type Config struct {
	Process, PerProcess int
	Groups              [][]int // world ranks of each group; a group's number is its index
	Hosts               []int   // host number of each process; nil if there is one host
	// Hurry, once closed, limits all waits for peers to a moment. It may be nil.
	Hurry <-chan struct{}
}

// MostPerProcess is the maximum number of ranks per process: MPI guarantees 32,768 tags, and two
// processes use two tags for each pair of their ranks in each of the at most four groups that
// contain both.
const MostPerProcess = 63
