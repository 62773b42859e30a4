// Package fit searches for settings of a job that fit into a given memory, fastest first, and
// rejects a job that does not fit.
//
// Bytes are counted by plan and setup, and seconds by sim; this package compares the results.
//
// Begin with fit.go: Search is zeroth plan --fit. largest.go finds the largest model, context or
// batch; refuse.go is the check before a run; measure.go makes the search cheap by running a few
// layers and extrapolating to all, after layers.go has compared them.
package fit
