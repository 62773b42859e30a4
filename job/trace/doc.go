// Package trace records what the queues of ranks do, in a run or in a simulation: which task from
// when to when.
//
// Begin with trace.go: a Trace has the work of a run's ranks, and writes it for a viewer; Exposure
// divides the time of its steps. sample.go records some steps of one rank during a run. gather.go
// merges the work of ranks of several processes.
package trace
