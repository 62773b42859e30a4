// Package plan computes what a job needs before it runs: the bytes of a rank by category and by
// moment of a step.
//
// It has no formulas for bytes, but runs the real schedule on a device that only counts.
//
// Begin with plan.go: New makes a Plan. tracker.go turns the schedule's events into moments;
// print.go, timeline.go and timeline_html.go display them.
package plan
