// Package bench measures how fast this machine computes, moves and stores what
// training needs, and simulates a job's step from such measurements.
//
// What never enters: a run folder, and any decision about a job. Measurements are
// of the queues and groups that training uses.
//
// Begin with bench.go, the groups of measurements behind zeroth bench; measure.go
// has those that simulating one job needs.
package bench
