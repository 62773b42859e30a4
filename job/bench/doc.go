// Package bench measures how fast this machine computes, moves and stores what
// training needs, and simulates a job's step from such measurements.
//
// It is larger than other packages because it has a measurement for each thing that
// can be one, of processors, disks and GPUs, and the simulation that is held against them.
//
// What never enters: a run folder, and any decision about a job. Measurements are
// of the queues and groups that training uses.
//
// Begin with bench.go, the groups of measurements behind zeroth bench; measure.go
// has those that simulating one job needs.
package bench
