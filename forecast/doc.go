// Package forecast says before a run what a job needs and how fast it is. It has no formulas for
// bytes or schedules: a dry run of the real schedule counts bytes, and a clock replays what the dry
// run issued.
//
// Each question has a file to begin with:
//
//   - How many bytes does a rank need, and when? plan.go; tracker.go turns the schedule's events
//     into moments, outside.go estimates memory that we do not allocate.
//   - How long does a step take? simulate.go; record.go records a dry run, clock.go replays it,
//     hardware.go has the speeds and moving.go the times of transfers.
//   - Which settings are the fastest that fit? fit.go; search.go changes settings, ratio.go says
//     how much to offload.
//   - What is the largest model, sequence or batch? largest.go.
//   - Is there enough memory to start? refuse.go.
//
// The files *_print.go, stages.go, timeline.go, timeline_html.go and counters.go show the answers.
package forecast
