// Package sim says how long a step takes on given hardware: it records the schedule
// of a job and runs it on a clock, at given speeds. It also traces real steps.
//
// With a pipeline it records a rank at each place, and runs all of them on the clock.
//
// What never enters: memory in bytes by category (plan), and measuring (bench).
//
// Begin with simulate.go: Simulate is one answer from end to end. record.go records
// on a device that computes nothing, hardware.go has the speeds, clock.go is the
// clock; cost.go counts operations and bytes, and estimates without a clock; trace.go draws what a run did.
package sim
