// Package bench measures how fast this machine computes, moves and stores what
// training needs, and simulates a job's step from such measurements.
//
// It is larger than other packages because it measures processors, memory, connections,
// disks and GPUs, and the kernels of a job to simulate its step. Benchmarks of kernels
// are with the kernels; those of whole steps are in this package's tests.
//
// What never enters: a run folder, and any decision about a job. Measurements are
// of the queues and groups that training uses.
//
// Begin with bench.go, the groups of measurements behind zeroth bench; measure.go
// has those that simulating one job needs.
package bench
