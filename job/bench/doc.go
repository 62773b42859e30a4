// Package bench measures how fast this machine computes, moves and stores the data of training,
// simulates a job's step from such measurements, and compares the ways to train a job on several
// ranks.
//
// It measures the queues and groups that training uses, and compares runs of zeroth train.
//
// bench.go contains the groups of zeroth bench; measure.go measures the kernels and collectives
// that the simulation of one job needs; parallel.go compares ways to train.
package bench
