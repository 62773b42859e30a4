// Package fit searches for settings of a job that fit into a given memory, fastest first, and
// rejects a job that does not fit.
//
// Bytes are counted by plan and setup, and seconds by sim; this package compares the results.
//
// Begin with fit.go: Search is zeroth fit. search.go is the search over settings, each tried by a dry
// run and a simulation; ratio.go finds the part of an optimizer to offload; largest.go finds the
// largest model, context or batch; refuse.go is the check before a run.
package fit
