// Package bench measures how fast this machine computes, moves and stores what
// training needs, simulates a job's step from such measurements, and compares the ways
// to train a job on several ranks.
//
// What never enters: a way to compute, move or train of its own. Measurements are of the
// queues and groups that training uses, and what is compared are runs as of zeroth train.
//
// Begin with bench.go, the groups of zeroth bench; measure.go measures what the simulation of
// one job needs, parallel.go compares ways to train.
package bench
