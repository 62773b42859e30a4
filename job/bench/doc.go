// Package bench measures how fast this machine computes, moves and stores what training needs,
// simulates a job's step from such measurements, and compares the ways to train a job on several
// ranks.
//
// It measures the queues and groups that training uses, and compares runs of zeroth train.
//
// bench.go has the groups of zeroth bench; measure.go measures what the simulation of one job
// needs; parallel.go compares ways to train.
package bench
