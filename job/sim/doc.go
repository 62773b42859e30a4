// Package sim predicts the duration of a step on given hardware: it records the schedule of a job
// and replays it on a virtual clock. It also traces real steps.
//
// For a pipeline it records one rank per place, and replays them together.
//
// Memory by category is in package plan, and measurements are in package bench.
//
// Begin with simulate.go: Simulate is a prediction from end to end. record.go records on a device
// that computes nothing, hardware.go has the speeds, and clock.go is the clock. cost.go counts
// operations and bytes. trace.go records and writes the trace of a run.
package sim
