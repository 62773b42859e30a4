// Package plan says what a job needs before it runs: the bytes of a rank by category
// and by moment of a step.
//
// What never enters: formulas for bytes. It counts the real schedule on a device that only counts.
//
// Begin with plan.go: New makes a Plan. tracker.go turns the schedule's events into
// moments; print.go, timeline.go and timeline_html.go show them.
package plan
